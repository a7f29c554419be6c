//! What the figures were measured on, and what the system says of this process: CPU time, memory, files.

use std::{
    ffi::c_long,
    fs::{self, File},
    io::{ErrorKind, Read},
    os::unix::fs::MetadataExt,
    path::Path,
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result};
use nix::sys::resource::{UsageWho, getrusage};
use rustix::{
    fs::Advice,
    time::{ClockId, clock_gettime},
};
use serde::{Deserialize, Serialize};

/// The machine, and the versions of what ran on it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Machine {
    pub(crate) date: String,
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory_gib: f64,
    pub(crate) kernel: String,
    pub(crate) rust: String,
    pub(crate) file_system: String,
    /// Names and versions of the systems compared.
    pub(crate) systems: Vec<String>,
}

impl Machine {
    /// All but the date.
    pub(crate) fn line(&self) -> String {
        let Self { date: _, cpu, cores, memory_gib, kernel, rust, file_system, systems } = self;
        let systems = systems.join(", ");
        format!("{cores} × {cpu}, {memory_gib:.0} GiB, {file_system}, {kernel}, {rust}; {systems}")
    }
}

pub(crate) fn describe(dir: &Path) -> Machine {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    Machine {
        date: said_by("date", &["-u", "+%Y-%m-%d"]),
        cpu: cpu.unwrap_or("an unknown CPU").into(),
        cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        memory_gib: kib_of("/proc/meminfo", "MemTotal:") as f64 / f64::from(1 << 20),
        kernel: said_by("uname", &["-sr"]),
        rust: said_by("rustc", &["--version"]),
        file_system: said_by("stat", &["-f", "-c", "%T", &dir.display().to_string()]),
        systems: versions(),
    }
}

fn said_by(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or_else(|_| "unknown".into(), |output| String::from_utf8_lossy(&output.stdout).trim().into())
}

/// What the lock file says of the systems compared: of several versions the last, as one of them may use an older.
fn versions() -> Vec<String> {
    let lock = include_str!("../../Cargo.lock");
    let version = |name: &&str| {
        let version = lock.rsplit_once(&format!("name = \"{name}\"\nversion = \""))?.1.split('"').next()?;
        Some(format!("{name} {version}"))
    };
    ["spill-buffer", "foyer", "moka", "quick_cache", "fjall", "redb", "object_store"]
        .iter()
        .filter_map(version)
        .collect()
}

/// The number behind a name in a file of `/proc`.
fn kib_of(path: &str, name: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}

/// CPU time of this process so far, in user mode and in the kernel.
pub(crate) fn cpu_time() -> Duration {
    time_of(ClockId::ProcessCPUTime)
}

/// The same of the thread that asks.
pub(crate) fn cpu_time_of_thread() -> Duration {
    time_of(ClockId::ThreadCPUTime)
}

/// How often the thread that asks has gone to sleep by itself: for a lock, for I/O, for want of work.
pub(crate) fn sleeps_of_thread() -> c_long {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.voluntary_context_switches())
}

fn time_of(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Bytes of memory of this process that are in use now.
pub(crate) fn memory_now() -> u64 {
    kib_of("/proc/self/status", "VmRSS:") << 10
}

/// The most there were since [`forget_memory_peak`].
pub(crate) fn memory_peak() -> u64 {
    kib_of("/proc/self/status", "VmHWM:") << 10
}

pub(crate) fn forget_memory_peak() -> Result<()> {
    fs::write("/proc/self/clear_refs", "5").context("can't reset the peak of memory")
}

/// Bytes of the files below a directory: as long as they say, and as the file system holds for them.
pub(crate) fn files_below(dir: &Path) -> Result<(u64, u64)> {
    let (mut bytes, mut allocated) = (0, 0);
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        // A store that still runs may have removed it meanwhile.
        let Ok(metadata) = path.symlink_metadata() else { continue };
        if metadata.is_dir() {
            let below = files_below(&path)?;
            (bytes, allocated) = (bytes + below.0, allocated + below.1);
        } else {
            (bytes, allocated) = (bytes + metadata.len(), allocated + metadata.blocks() * 512);
        }
    }
    Ok((bytes, allocated))
}

/// Writes everything of the file system that this directory is on to the disk.
pub(crate) fn sync(dir: &Path) -> Result<()> {
    rustix::fs::syncfs(fs::File::open(dir)?)?;
    Ok(())
}

/// Bytes that this process made the disk write so far.
pub(crate) fn written() -> u64 {
    kib_of("/proc/self/io", "write_bytes:")
}

/// Bytes that this process made the disk read so far.
pub(crate) fn read() -> u64 {
    kib_of("/proc/self/io", "read_bytes:")
}

/// Opens every file below a directory, one after the other.
fn each_below(dir: &Path, work: &dyn Fn(File) -> Result<()>) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            each_below(&path, work)?;
            continue;
        }
        match File::open(&path) {
            Ok(file) => work(file)?,
            // A store that still runs may have removed it meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("can't open {}", path.display())),
        }
    }
    Ok(())
}

/// Takes the files below a directory out of the page cache, once they are on the disk: only clean pages go.
pub(crate) fn make_cold(dir: &Path) -> Result<()> {
    sync(dir)?;
    each_below(dir, &|file| Ok(rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?))
}

/// Brings the files below a directory into the page cache.
pub(crate) fn make_warm(dir: &Path) -> Result<()> {
    sync(dir)?;
    each_below(dir, &|mut file| {
        let mut piece = vec![0; 1 << 20];
        while file.read(&mut piece)? > 0 {}
        Ok(())
    })
}
