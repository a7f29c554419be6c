//! The buffer: the handle a service holds. Inserting, reading and removing are here; moving entries on purpose
//! is in `moves`, limits, numbers and closing in `watch`.

mod moves;
mod watch;

use std::{borrow::Borrow, hash::Hash, sync::Arc};

use tokio::time::Instant;

pub use self::{
    moves::{Eviction, PinGuard},
    watch::Events,
};
use crate::{
    Error, InsertError,
    builder::Builder,
    counters::Counters,
    engine::{Newcomer, Purpose, Shared},
    entry::Phase,
    table::{Fetch, Flight, Found, Key},
    usage::Location,
};

/// A keyed buffer bigger than memory.
///
/// Values are held in memory under a byte budget. When it is used up, the coldest are moved to the first tier
/// with room, and come back when asked for. A key whose insert returned `Ok` is there until it is removed or
/// replaced, whatever fails in between.
///
/// The handle is cheap to clone; all clones are one buffer. It can be used from any thread and any tokio
/// runtime, and carries its own work on the one it was built on; only what is at hand is read where it is asked for.
///
/// ```
/// use spill_core::{ByteLength, BytesCodec, MemoryStore, SpillBuffer, TierSpec};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let buffer = SpillBuffer::<u64, Vec<u8>>::builder()
///     .memory_limit(1 << 20)
///     .codec(BytesCodec)
///     .weigher(ByteLength)
///     .tier(TierSpec::new(MemoryStore::new()))
///     .build()?;
/// for key in 0..100 {
///     buffer.insert(key, vec![7; 64 << 10]).await?; // 6.25 MiB in all
/// }
/// for key in 0..100 {
///     let value = buffer.get(&key).await?.expect("no key is lost");
///     assert_eq!(*value, vec![7; 64 << 10]);
/// }
/// buffer.close().await?;
/// # Ok(())
/// # }
/// ```
pub struct SpillBuffer<K: Key, V: Send + Sync + 'static> {
    owner: Arc<Owner<K, V>>,
}

/// Ends the buffer's tasks with its last handle.
struct Owner<K: Key, V: Send + Sync + 'static> {
    shared: Arc<Shared<K, V>>,
}

impl<K: Key, V: Send + Sync + 'static> Drop for Owner<K, V> {
    fn drop(&mut self) {
        self.shared.tasks.abort();
    }
}

impl<K: Key, V: Send + Sync + 'static> Clone for SpillBuffer<K, V> {
    fn clone(&self) -> Self {
        Self { owner: self.owner.clone() }
    }
}

impl<K: Key, V: Send + Sync + 'static> std::fmt::Debug for SpillBuffer<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.shared().fmt(f)
    }
}

impl<K: Key, V: Send + Sync + 'static> SpillBuffer<K, V> {
    /// Starts putting a buffer together.
    pub fn builder() -> Builder<K, V> {
        Builder::new()
    }

    pub(crate) fn from_shared(shared: Arc<Shared<K, V>>) -> Self {
        shared.start();
        Self { owner: Arc::new(Owner { shared }) }
    }

    fn shared(&self) -> &Arc<Shared<K, V>> {
        &self.owner.shared
    }

    // ---- insert

    /// Puts a value under a key, in place of the one that was there.
    ///
    /// Returns once the value is in memory, or, if it weighs more than memory holds, once it is stored in a
    /// tier. Takes no time when there is room; otherwise waits for its turn, until others were spilled.
    ///
    /// # Errors
    /// The value comes back in the error, and what was under the key before is still there:
    /// [`Error::Full`] when there is no room and [`OnFull`](crate::OnFull) says not to wait, or no longer;
    /// [`Error::Encode`] for a value that has to go to a tier and can't be encoded; [`Error::Weigh`] when the
    /// weigher fails; [`Error::TooHeavy`] without tiers; [`Error::Closed`].
    ///
    /// # Cancel safety
    /// When the future is dropped the value was inserted whole or not at all.
    ///
    /// # Examples
    /// See [`SpillBuffer`].
    pub async fn insert(&self, key: K, value: impl Into<Arc<V>>) -> Result<(), InsertError<V>> {
        let (shared, value) = (self.shared(), value.into());
        let weight = match shared.check_open("insert").and_then(|()| shared.weigh(&key, &value)) {
            Ok(weight) => weight,
            Err(error) => return Err(InsertError { value, error }),
        };
        let newcomer = Newcomer { key, id: shared.table.new_id(), weight, value };
        match shared.insert_now(newcomer) {
            Ok(()) => Ok(()),
            Err(newcomer) => {
                let (value, begun) = (newcomer.value.clone(), Instant::now());
                let slow = Box::pin(shared.insert_waiting(newcomer));
                slow.await.map_err(|error| InsertError { value, error: error.after(begun.elapsed()) })
            }
        }
    }

    /// Inserts one after the other, and gives back those that were refused.
    ///
    /// At most two batches of encoded values are alive at once, however many are inserted.
    ///
    /// # Cancel safety
    /// When the future is dropped, those inserted so far are there.
    pub async fn insert_many<I, T>(&self, entries: I) -> Vec<(K, InsertError<V>)>
    where
        I: IntoIterator<Item = (K, T)>,
        T: Into<Arc<V>>,
    {
        let mut refused = Vec::new();
        for (key, value) in entries {
            if let Err(error) = self.insert(key.clone(), value).await {
                refused.push((key, error));
            }
        }
        refused
    }

    // ---- read

    /// The value under a key; `Ok(None)` means that there is none, and nothing else.
    ///
    /// A value in memory is returned at once: one shard's read lock, no allocation, the very `Arc` that was
    /// inserted. A spilled one is read, verified and decoded, others are spilled if it needs their room, and
    /// it stays in memory unless it is heavier than memory holds. Whoever asks for it meanwhile shares the
    /// read.
    ///
    /// # Errors
    /// [`Error::Store`] when the tier can't be read: the entry is still there, and the call can be repeated.
    /// [`Error::Corrupt`] and [`Error::Decode`] when what is read is not what was written. [`Error::Closed`].
    /// Never because another entry could not be evicted.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the wait, not the read: others who wait for it still get the value.
    pub async fn get<Q>(&self, key: &Q) -> Result<Option<Arc<V>>, Error>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized + Sync,
    {
        let shared = self.shared();
        shared.check_open("get")?;
        match shared.table.read(key) {
            Found::Here { value, clean } => {
                shared.counters.hit(clean);
                Ok(Some(value))
            }
            Found::Absent => shared.absent("get"),
            Found::Away => Box::pin(self.get_spilled(key)).await,
        }
    }

    async fn get_spilled<Q>(&self, key: &Q) -> Result<Option<Arc<V>>, Error>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let shared = self.shared();
        loop {
            let flight = match shared.table.fetch(key) {
                Fetch::Absent => return shared.absent("get"),
                Fetch::Here(value, _) => {
                    shared.counters.hit(false);
                    return Ok(Some(value));
                }
                Fetch::Alive(value, _) => {
                    shared.counters.hit_alive();
                    return Ok(Some(value));
                }
                Fetch::Join(flight, _) => flight,
                Fetch::Start(request, flight) => {
                    shared.start_restore(vec![request], Purpose::Keep);
                    flight
                }
            };
            if let Some(value) = flight.landing().await? {
                shared.counters.hit_restored();
                return Ok(Some(value));
            }
        }
    }

    /// The values under many keys, in the order of the keys. One that fails fails only itself. Spilled ones
    /// that lie close together are read together.
    ///
    /// # Errors
    /// Each answer as for [`get`](Self::get).
    ///
    /// # Cancel safety
    /// As for [`get`](Self::get).
    pub async fn get_many<Q>(&self, keys: &[Q]) -> Vec<Result<Option<Arc<V>>, Error>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + Sync,
    {
        // As much at a time as leaves room for others.
        let most = (self.shared().memory.levels().limit / 4).max(1);
        let mut answers = Vec::with_capacity(keys.len());
        while answers.len() < keys.len() {
            let rest = &keys[answers.len()..];
            let flights = self.start_reading(rest, most);
            for (key, flight) in rest.iter().zip(flights) {
                answers.push(match flight {
                    Some(flight) => self.landed(key, &flight).await,
                    None => self.get(key).await,
                });
            }
        }
        answers
    }

    async fn landed<Q>(&self, key: &Q, flight: &Flight<V>) -> Result<Option<Arc<V>>, Error>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + Sync,
    {
        let value = flight.landing().await?;
        if value.is_none() {
            return self.get(key).await;
        }
        self.shared().counters.hit_restored();
        Ok(value)
    }

    /// Starts reading those of the first keys that are spilled, up to `most` bytes of weight: for each key
    /// that was looked at, its flight if one was started.
    fn start_reading<Q>(&self, keys: &[Q], most: u64) -> Vec<Option<Arc<Flight<V>>>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq,
    {
        let (mut weight, mut requests, mut flights) = (0, Vec::new(), Vec::new());
        for key in keys {
            let next = self.shared().table.find(key).map_or(0, |(_, weight, ..)| weight);
            if weight > 0 && weight + next > most {
                break;
            }
            flights.push(match self.shared().table.fetch(key) {
                Fetch::Start(request, flight) => {
                    weight += request.weight;
                    requests.push(request);
                    Some(flight)
                }
                _ => None,
            });
        }
        if !requests.is_empty() {
            self.shared().start_restore(requests, Purpose::Keep);
        }
        flights
    }

    /// The value under a key if it is in memory. Reads nothing from a tier, and moves nothing.
    pub fn peek<Q>(&self, key: &Q) -> Option<Arc<V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.shared().table.peek(key)
    }

    /// Starts reading spilled values into memory without waiting for them, up to half of what memory holds;
    /// says how many were started.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn prefetch<Q>(&self, keys: &[Q]) -> Result<usize, Error>
    where
        K: Borrow<Q>,
        Q: Hash + Eq,
    {
        self.shared().check_open("prefetch")?;
        let flights = self.start_reading(keys, (self.shared().memory.levels().limit / 2).max(1));
        Ok(flights.iter().flatten().count())
    }

    // ---- remove

    /// Removes a key and returns its value, reading it if it must. Makes no room for it in memory.
    ///
    /// # Errors
    /// As for [`get`](Self::get); the entry is then still there.
    ///
    /// # Cancel safety
    /// When the future is dropped the entry is still there, or was removed and its value is lost with the
    /// future.
    pub async fn take<Q>(&self, key: &Q) -> Result<Option<Arc<V>>, Error>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized + Sync,
    {
        let shared = self.shared();
        shared.check_open("take")?;
        loop {
            let (value, id, count): (_, _, fn(&Counters)) = match shared.table.fetch(key) {
                Fetch::Absent => return shared.absent("take"),
                Fetch::Here(value, id) => (Some(value), id, |counters| counters.hit(false)),
                Fetch::Alive(value, id) => (Some(value), id, Counters::hit_alive),
                Fetch::Join(flight, id) => (flight.landing().await?, id, Counters::hit_restored),
                Fetch::Start(request, flight) => {
                    let id = request.id;
                    shared.start_restore(vec![request], Purpose::Take);
                    (flight.landing().await?, id, Counters::hit_restored)
                }
            };
            // Of several who took the same value, the one who removes it has it.
            if let Some(value) = value
                && let Some(left) = shared.table.remove(key, Some(id))
            {
                count(&shared.counters);
                drop(shared.settle(left));
                return Ok(Some(value));
            }
        }
    }

    /// Removes a key; `true` if it was there. Never reads a tier. The space it takes there is given back in
    /// the background.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn remove<Q>(&self, key: &Q) -> Result<bool, Error>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let shared = self.shared();
        shared.check_open("remove")?;
        let left = shared.table.remove(key, None);
        let there = left.is_some();
        match left {
            Some(left) => drop(shared.settle(left)),
            None => shared.check_open("remove")?,
        }
        Ok(there)
    }

    /// Removes every key that is there now. Never reads a tier. Takes time in the number of keys.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn clear(&self) -> Result<(), Error> {
        self.shared().check_open("clear")?;
        self.shared().remove_all();
        Ok(())
    }

    // ---- look

    /// Whether there is a value under a key. Moves nothing and reads nothing.
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.shared().table.find(key).is_some()
    }

    /// Where the value under a key is; `None` when there is none. It may have moved by the time you look.
    pub fn location<Q>(&self, key: &Q) -> Option<Location>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (_, _, phase, place) = self.shared().table.find(key)?;
        let tier = place.and_then(|place| self.shared().tiers.get(place.tier()));
        let tier = tier.map(|tier| tier.name.to_string()).unwrap_or_default();
        Some(match phase {
            Phase::Clean => Location::Both(tier),
            Phase::Spilled | Phase::Restoring => Location::Tier(tier),
            Phase::Absent | Phase::Resident | Phase::Spilling => Location::Memory,
        })
    }

    /// Every key. One that is there throughout the call appears exactly once. Takes time and memory in the
    /// number of keys.
    pub fn keys(&self) -> Vec<K> {
        self.shared().table.keys()
    }

    /// How many keys there are.
    pub fn len(&self) -> u64 {
        self.shared().table.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K: Key, V: Send + Sync + 'static> Shared<K, V> {
    /// The answer for a key that is not there; unless that is because everything was just closed.
    fn absent(&self, operation: &'static str) -> Result<Option<Arc<V>>, Error> {
        self.check_open(operation)?;
        self.counters.miss();
        Ok(None)
    }
}
