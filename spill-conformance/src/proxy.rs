//! A TCP proxy on loopback for tests of stores behind a network: it adds latency, cuts connections, resets
//! them and swallows what is sent.
//!
//! It knows nothing of HTTP. An *exchange* begins with the first bytes a client sends after the server last
//! answered: with one request at a time on a connection, as HTTP/1.1 clients do it, that is a request.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::{JoinHandle, JoinSet},
};

use crate::random::Random;

/// Bytes that are passed on at once.
const PIECE: usize = 16 << 10;
/// Connections that are open at once; more wait to be accepted.
const CONNECTIONS: usize = 1024;

/// What the way to the server is like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Weather {
    /// Each piece of bytes is this late, in both directions.
    pub delay: Duration,
    /// So many of a thousand exchanges are cut: the connection is reset before the request, in the middle of
    /// it, after it (when it has its effect and the answer is lost), or in the middle of the answer. Which
    /// one is decided by the seed.
    pub cut_per_mille: u16,
    /// Whatever arrives is swallowed, and nothing is answered: a black hole.
    pub black_hole: bool,
    /// New connections are closed at once, with a reset.
    pub refuse: bool,
}

impl Weather {
    /// Everything passes at once.
    pub fn fair() -> Self {
        Self::default()
    }

    /// The same, each piece of bytes late by `delay`.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// The same with so many of a thousand exchanges cut.
    #[must_use]
    pub fn cut_per_mille(mut self, cut: u16) -> Self {
        self.cut_per_mille = cut;
        self
    }

    /// The same as a black hole, or not.
    #[must_use]
    pub fn black_hole(mut self, black_hole: bool) -> Self {
        self.black_hole = black_hole;
        self
    }

    /// The same, refusing new connections, or not.
    #[must_use]
    pub fn refuse(mut self, refuse: bool) -> Self {
        self.refuse = refuse;
        self
    }
}

/// What a proxy has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Connections of clients that were accepted.
    pub connections: u64,
    /// Exchanges that began.
    pub exchanges: u64,
    /// Exchanges that were cut.
    pub cut: u64,
}

/// A proxy under way. Dropping it closes all its connections.
///
/// ```
/// use spill_conformance::{Proxy, Weather};
/// use tokio::{io::{AsyncReadExt, AsyncWriteExt}, net::{TcpListener, TcpStream}};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let server = TcpListener::bind("127.0.0.1:0").await?;
/// let proxy = Proxy::start(server.local_addr()?, 7).await?;
/// let mut client = TcpStream::connect(proxy.address()).await?;
/// let (mut accepted, _) = server.accept().await?;
///
/// client.write_all(b"ping").await?;
/// let mut got = [0; 4];
/// accepted.read_exact(&mut got).await?;
/// assert_eq!(&got, b"ping");
///
/// proxy.set(Weather::fair().cut_per_mille(1000));
/// accepted.write_all(b"pong").await?; // the exchange before began in fair weather
/// client.read_exact(&mut got).await?;
/// client.write_all(b"ping").await?; // this one is cut
/// while proxy.traffic().exchanges < 2 {
///     tokio::task::yield_now().await;
/// }
/// drop(accepted);
/// assert!(!matches!(client.read(&mut got).await, Ok(1..)));
/// assert_eq!(proxy.traffic().cut, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    weather: Mutex<Weather>,
    chance: Mutex<Random>,
    /// Counts the times all connections were to be cut.
    storms: watch::Sender<u64>,
    connections: AtomicU64,
    exchanges: AtomicU64,
    cut: AtomicU64,
}

impl Proxy {
    /// Listens on a free port of 127.0.0.1 and passes connections on to `target`, in fair weather. `seed`
    /// decides which exchanges are cut, and where.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn start(target: SocketAddr, seed: u64) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target,
            weather: Mutex::default(),
            chance: Mutex::new(Random::new(seed)),
            storms: watch::channel(0).0,
            connections: 0.into(),
            exchanges: 0.into(),
            cut: 0.into(),
        });
        let accepting = tokio::spawn(accept(listener, shared.clone()));
        Ok(Self { address, shared, accepting })
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the weather for what happens from now on, on open connections too.
    pub fn set(&self, weather: Weather) {
        *self.shared.weather.lock() = weather;
    }

    /// Resets all open connections.
    pub fn cut_all(&self) {
        self.shared.storms.send_modify(|storms| *storms += 1);
    }

    /// What went through so far.
    pub fn traffic(&self) -> Traffic {
        Traffic {
            connections: self.shared.connections.load(Relaxed),
            exchanges: self.shared.exchanges.load(Relaxed),
            cut: self.shared.cut.load(Relaxed),
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Owns the connections: they end with this task.
    let mut open = JoinSet::new();
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        while open.try_join_next().is_some() {}
        let Ok((client, _)) = listener.accept().await else { continue };
        shared.connections.fetch_add(1, Relaxed);
        let shared = shared.clone();
        open.spawn(async move {
            // A connection that fails is closed on both sides, which is all there is to be done.
            drop(connect(&shared, client).await);
            drop(place);
        });
    }
}

/// How a connection's exchange is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    BeforeRequest,
    InRequest,
    AfterRequest,
    InAnswer,
}

async fn connect(shared: &Shared, client: TcpStream) -> io::Result<()> {
    if shared.weather.lock().refuse {
        // Reset, not closed in good order.
        return client.set_zero_linger();
    }
    let server = TcpStream::connect(shared.target).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let mut storms = shared.storms.subscribe();
    let mut client = client;
    let orderly = tokio::select! {
        ended = pass(shared, &mut client, server) => ended.unwrap_or(false),
        _ = storms.changed() => false,
    };
    if orderly { client.shutdown().await } else { client.set_zero_linger() }
}

/// Passes bytes on in both directions until one side ends, which is `true`, or the exchange is cut.
async fn pass(shared: &Shared, client: &mut TcpStream, mut server: TcpStream) -> io::Result<bool> {
    let (mut up, mut down) = (vec![0; PIECE], vec![0; PIECE]);
    let mut answering = true;
    let mut cut = None;
    loop {
        let (length, upwards) = tokio::select! {
            read = client.read(&mut up) => (read?, true),
            read = server.read(&mut down) => (read?, false),
        };
        if length == 0 {
            return Ok(true);
        }
        if upwards && answering {
            shared.exchanges.fetch_add(1, Relaxed);
            cut = shared.cut();
        }
        answering = !upwards;
        let weather = *shared.weather.lock();
        if !weather.delay.is_zero() {
            tokio::time::sleep(weather.delay).await;
        }
        if weather.black_hole {
            continue;
        }
        let half = length.div_ceil(2);
        match (cut, upwards) {
            (Some(Cut::BeforeRequest), true) | (Some(Cut::AfterRequest), false) => return Ok(false),
            (Some(Cut::InRequest), true) => return server.write_all(&up[..half]).await.map(|()| false),
            (Some(Cut::InAnswer), false) => return client.write_all(&down[..half]).await.map(|()| false),
            (_, true) => server.write_all(&up[..length]).await?,
            (_, false) => client.write_all(&down[..length]).await?,
        }
    }
}

impl Shared {
    /// Whether, and how, an exchange that begins now is cut.
    fn cut(&self) -> Option<Cut> {
        let share = usize::from(self.weather.lock().cut_per_mille);
        let mut chance = self.chance.lock();
        if chance.below(1000) >= share {
            return None;
        }
        self.cut.fetch_add(1, Relaxed);
        Some(match chance.below(4) {
            0 => Cut::BeforeRequest,
            1 => Cut::InRequest,
            2 => Cut::AfterRequest,
            _ => Cut::InAnswer,
        })
    }
}
