//! A SeaweedFS server in a temporary directory, on free ports of loopback.

use std::{
    fs::File,
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

    /// Whether the bucket is there: a request that is not signed is refused once it is.
    fn answers(&self) -> bool {
        use std::io::{Read, Write};
        let Ok(mut stream) = TcpStream::connect(self.address()) else { return false };
        let request =
            format!("HEAD /{BUCKET} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address());
        let mut answer = String::new();
        let asked = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
        asked.is_ok() && answer.starts_with("HTTP/1.1 403")
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
