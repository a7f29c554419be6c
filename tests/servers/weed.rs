//! A SeaweedFS server in a temporary directory, on free ports of loopback.

use std::{
    fs::File,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;

pub(crate) const BUCKET: &str = "spill";
pub(crate) const ACCESS_KEY: &str = "spill-access";
pub(crate) const SECRET_KEY: &str = "spill-secret";

/// It serves within two seconds on an idle machine.
const UP_WITHIN: Duration = Duration::from_secs(90);

/// A server under way; killed when dropped.
pub(crate) struct Weed {
    program: PathBuf,
    directory: TempDir,
    ports: Ports,
    child: Option<Child>,
}

/// Where the parts of the server listen; each has a second port 10 000 above the first.
struct Ports {
    s3: u16,
    others: [(&'static str, u16); 4],
}

impl Ports {
    fn free() -> Self {
        let mut taken = Vec::new();
        let mut next = || {
            let port = free_port(&taken);
            taken.extend([port, port + 10_000]);
            port
        };
        let others =
            ["-master.port", "-volume.port", "-filer.port", "-admin.port"].map(|option| (option, next()));
        Self { s3: next(), others }
    }
}

fn free_port(taken: &[u16]) -> u16 {
    let is_free =
        |port: u16| !taken.contains(&port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    // Below the range that the system hands out by itself.
    let start = 12_000 + u16::try_from(std::process::id() % 8_000).unwrap();
    (start..22_000).chain(12_000..start).find(|port| is_free(*port) && is_free(port + 10_000)).unwrap()
}

impl Weed {
    /// Starts an empty server, with a bucket.
    pub(crate) fn start(program: &Path) -> Self {
        let directory = TempDir::with_prefix_in("spill-weed-", "/var/tmp").unwrap();
        let mut weed = Self { program: program.to_owned(), directory, ports: Ports::free(), child: None };
        weed.restart();
        weed
    }

    /// Where its S3 service listens.
    pub(crate) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.ports.s3).into()
    }

    /// Ends the process by SIGKILL.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Starts it again, over what it kept.
    pub(crate) fn restart(&mut self) {
        let data = self.directory.path().join("data");
        std::fs::create_dir_all(&data).unwrap();
        let log = File::options().create(true).append(true).open(self.directory.path().join("log")).unwrap();
        let mut command = Command::new(&self.program);
        command
            .arg("mini")
            .arg(format!("-dir={}", data.display()))
            .arg(format!("-bucket={BUCKET}"))
            .args(["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false", "-webdav=false"])
            .args(["-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0"])
            .arg(format!("-s3.port={}", self.ports.s3))
            .args(self.ports.others.iter().map(|(option, port)| format!("{option}={port}")))
            .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
            .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        self.child = Some(command.spawn().unwrap());
        self.wait_until_up();
    }

    fn wait_until_up(&mut self) {
        let started = Instant::now();
        while !self.answers() {
            assert!(started.elapsed() < UP_WITHIN, "not up after {UP_WITHIN:?}:\n{}", self.log());
            if let Some(status) = self.child.as_mut().unwrap().try_wait().unwrap() {
                panic!("ended with {status}:\n{}", self.log());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Whether the bucket is there: it is a directory of the server's file service. Its S3 service answers before.
    fn answers(&self) -> bool {
        let [.., (_, filer), _] = self.ports.others;
        let answer = ask(filer, &format!("HEAD /buckets/{BUCKET}/"));
        answer.is_some_and(|answer| answer.starts_with("HTTP/1.0 200"))
            && ask(self.ports.s3, "HEAD /").is_some()
    }

    /// The objects in the bucket.
    pub(crate) fn objects(&self) -> Vec<String> {
        let mut found = Vec::new();
        self.collect(&format!("/buckets/{BUCKET}"), &mut found);
        found
    }

    fn collect(&self, directory: &str, found: &mut Vec<String>) {
        const DIRECTORY: u64 = 1 << 31;
        let [.., (_, filer), _] = self.ports.others;
        let answer = ask(filer, &format!("GET {directory}/?limit=10000")).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let listed: serde_json::Value = serde_json::from_str(body).unwrap();
        for entry in listed["Entries"].as_array().into_iter().flatten() {
            let path = entry["FullPath"].as_str().unwrap();
            if entry["Mode"].as_u64().unwrap() & DIRECTORY == 0 {
                found.push(path.to_owned());
            } else {
                self.collect(path, found);
            }
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Weed {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a service on this port answers to `METHOD /path`.
fn ask(port: u16, what: &str) -> Option<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let request = format!("{what} HTTP/1.0\r\nHost: 127.0.0.1\r\nAccept: application/json\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}
