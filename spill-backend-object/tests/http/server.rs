//! A server on loopback that answers as a test tells it to, down to the byte, and remembers what it was
//! asked.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// What was asked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// Decoded, without the slash it starts with.
    pub(crate) path: String,
    pub(crate) query: Vec<(String, String)>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(header, _)| header == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn query(&self, name: &str) -> Option<&str> {
        let found = self.query.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    /// `PUT bucket/object`, with the names in the query that say what is meant.
    pub(crate) fn line(&self) -> String {
        let telling = ["delete", "uploads", "uploadId", "partNumber", "list-type", "comp"];
        let query: Vec<_> = telling.into_iter().filter(|name| self.query(name).is_some()).collect();
        let mark = if query.is_empty() { "" } else { "?" };
        format!("{} {}{mark}{}", self.method, self.path, query.join("&"))
    }

    /// Whether it is a heartbeat, or the sweep that looks for those of others: it comes when it likes, and is no business
    /// of a test that is about something else.
    pub(crate) fn is_about_life(&self) -> bool {
        self.path.ends_with("/alive") || self.query("delimiter").is_some()
    }

    /// The bytes of a `Range` header, the last one included.
    pub(crate) fn range(&self) -> Option<(usize, usize)> {
        let range = self.header("range").or_else(|| self.header("x-ms-range"))?;
        let (start, end) = range.strip_prefix("bytes=")?.split_once('-')?;
        Some((start.parse().ok()?, end.parse().ok()?))
    }
}

/// What becomes of a body on the way.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    Whole,
    /// So many bytes, then the connection ends.
    CutAfter(usize),
    /// So many bytes, then nothing any more.
    StallAfter(usize),
    /// A byte at a time, each after a pause.
    Drip(Duration),
}

/// What is answered.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) way: Way,
}

impl Reply {
    pub(crate) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into(), way: Way::Whole }
    }

    /// An error as S3 writes it.
    pub(crate) fn xml_error(status: u16, code: &str) -> Self {
        let body = format!(
            "<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>message of {code}</Message></Error>"
        );
        Self::new(status, body).with("content-type", "application/xml")
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub(crate) fn way(mut self, way: Way) -> Self {
        self.way = way;
        self
    }
}

pub(crate) enum Action {
    Reply(Reply),
    /// The connection is reset.
    Reset,
    /// There is no answer.
    Silence,
}

impl From<Reply> for Action {
    fn from(reply: Reply) -> Self {
        Self::Reply(reply)
    }
}

type Script = Box<dyn FnMut(&Request) -> Action + Send>;

#[derive(Clone)]
struct Shared {
    script: Arc<Mutex<Script>>,
    requests: Arc<Mutex<Vec<Request>>>,
}

/// The server; it ends when it is dropped.
pub(crate) struct Server {
    pub(crate) url: String,
    shared: Shared,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub(crate) async fn start(script: impl FnMut(&Request) -> Action + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Shared { script: Arc::new(Mutex::new(Box::new(script))), requests: Arc::default() };
        let serving = shared.clone();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let shared = serving.clone();
                connections.spawn(async move { serve(stream, shared).await.is_ok() });
            }
        });
        Self { url, shared, task }
    }

    /// What was asked since the last call, and is not about life.
    pub(crate) fn take(&self) -> Vec<Request> {
        let mut requests = std::mem::take(&mut *self.shared.requests.lock().unwrap());
        requests.retain(|request| !request.is_about_life());
        requests
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.take().iter().map(Request::line).collect()
    }
}

async fn serve(mut stream: TcpStream, shared: Shared) -> io::Result<()> {
    let mut read = Vec::new();
    while let Some(request) = next_request(&mut stream, &mut read).await? {
        shared.requests.lock().unwrap().push(request.clone());
        let action = (shared.script.lock().unwrap())(&request);
        match action {
            Action::Reply(reply) => send(&mut stream, &request, reply).await?,
            Action::Silence => std::future::pending().await,
            Action::Reset => {
                // What is sent when a socket that lingers for no time is closed.
                return stream.set_zero_linger();
            }
        }
    }
    Ok(())
}

async fn next_request(stream: &mut TcpStream, read: &mut Vec<u8>) -> io::Result<Option<Request>> {
    let end = loop {
        if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(read).await? == 0 {
            return Ok(None);
        }
    };
    let mut request = parse_head(&String::from_utf8_lossy(&read[..end]));
    let length = request.header("content-length").map_or(0, |length| length.parse().unwrap());
    assert_eq!(request.header("transfer-encoding"), None, "every body has a known length");
    read.drain(..end + 4);
    while read.len() < length {
        if stream.read_buf(read).await? == 0 {
            return Ok(None);
        }
    }
    request.body = read.drain(..length).collect();
    Ok(Some(request))
}

fn parse_head(head: &str) -> Request {
    let mut lines = head.split("\r\n");
    let mut first = lines.next().unwrap().split(' ');
    let (method, target) = (first.next().unwrap(), first.next().unwrap());
    let url: url::Url = format!("http://host{target}").parse().unwrap();
    let headers = lines.filter_map(|line| line.split_once(':'));
    Request {
        method: method.to_owned(),
        path: decode(url.path().trim_start_matches('/')),
        query: url.query_pairs().into_owned().collect(),
        headers: headers.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect(),
        body: Vec::new(),
    }
}

fn decode(path: &str) -> String {
    let pairs = format!("path={}", path.replace('+', "%2B"));
    let url = format!("http://host/?{pairs}").parse::<url::Url>().unwrap();
    url.query_pairs().next().unwrap().1.into_owned()
}

async fn send(stream: &mut TcpStream, request: &Request, reply: Reply) -> io::Result<()> {
    use std::fmt::Write as _;
    let mut head = format!("HTTP/1.1 {} Some Reason\r\n", reply.status);
    for (name, value) in &reply.headers {
        write!(head, "{name}: {value}\r\n").unwrap();
    }
    if !reply.headers.iter().any(|(name, _)| *name == "content-length") {
        write!(head, "content-length: {}\r\n", reply.body.len()).unwrap();
    }
    stream.write_all(format!("{head}\r\n").as_bytes()).await?;
    let body = if request.method == "HEAD" { &[][..] } else { &reply.body[..] };
    match reply.way {
        Way::Whole => stream.write_all(body).await,
        Way::CutAfter(length) => {
            stream.write_all(&body[..length]).await?;
            stream.shutdown().await?;
            Err(io::ErrorKind::ConnectionAborted.into())
        }
        Way::StallAfter(length) => {
            stream.write_all(&body[..length]).await?;
            std::future::pending().await
        }
        Way::Drip(pause) => {
            for byte in body.chunks(1) {
                tokio::time::sleep(pause).await;
                stream.write_all(byte).await?;
            }
            Ok(())
        }
    }
}
