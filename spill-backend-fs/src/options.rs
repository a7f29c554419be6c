//! How a file store is opened: [`FsOptions`]. Reading it from a URL and settings by name is in `factory`.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use spill_core::{Share, format_bytes, parse_bytes};

/// How a file store is opened. See the methods for what each setting does when it is left alone.
///
/// ```
/// use spill_backend_fs::{FsOptions, ReserveFree};
/// let options = FsOptions::new("/var/tmp/app").reserve_free("5%".parse::<ReserveFree>()?).open_files(8);
/// assert_eq!(options.root(), std::path::Path::new("/var/tmp/app"));
/// # Ok::<(), spill_backend_fs::ParseReserveFreeError>(())
/// ```
#[derive(Clone, Debug)]
pub struct FsOptions {
    pub(crate) root: PathBuf,
    pub(crate) reserve_free: ReserveFree,
    pub(crate) durable: bool,
    pub(crate) direct: bool,
    pub(crate) ring: bool,
    pub(crate) allow_tmpfs: bool,
    pub(crate) open_files: Option<usize>,
}

impl FsOptions {
    /// The most that [`open_files`](Self::open_files) can be.
    pub const MAX_OPEN_FILES: usize = 1024;

    /// A store in this directory, which is made, with its parents, when it is not there.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        Self {
            root,
            reserve_free: ReserveFree::Bytes(0),
            durable: false,
            direct: true,
            ring: true,
            allow_tmpfs: false,
            open_files: None,
        }
    }

    /// The same, leaving this much of the file system to others: a `put` that would take more is refused
    /// with `NoSpace`. Nothing is reserved unless this is set.
    #[must_use]
    pub fn reserve_free(mut self, reserve: impl Into<ReserveFree>) -> Self {
        self.reserve_free = reserve.into();
        self
    }

    /// The same, with a `put` that returns only when the blob would survive power loss. Costs two waits for
    /// the disk per blob. Off unless this is set.
    #[must_use]
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// The same, writing past the page cache (`O_DIRECT`), or not. Past it a large write costs a quarter of the CPU
    /// time, takes a steady time, and leaves the cache, which counts against a container's memory, to others;
    /// through it what is read again soon is still in memory. On unless this is set, where the file system can.
    #[must_use]
    pub fn direct(mut self, direct: bool) -> Self {
        self.direct = direct;
        self
    }

    /// The same, reading what is not cached by `io_uring`, or by threads. By the ring one read costs half as much
    /// waiting and many at once a fraction of the CPU time. On unless this is set; it does nothing where the system
    /// has or allows no `io_uring`, on runtimes without an I/O driver, and in programs built with
    /// `panic = "abort"`.
    #[must_use]
    pub fn ring(mut self, ring: bool) -> Self {
        self.ring = ring;
        self
    }

    /// The same, also where files are kept in memory (tmpfs, ramfs), so that spilling frees none. Refused
    /// unless this is set.
    #[must_use]
    pub fn allow_tmpfs(mut self, allow: bool) -> Self {
        self.allow_tmpfs = allow;
        self
    }

    /// The same, with at most this many blob files open for reading, in use or kept open for the next read.
    /// Taken as 1 when it is 0, and as [`MAX_OPEN_FILES`](Self::MAX_OPEN_FILES) when it is more. Unless this is
    /// set 1024, or a quarter of what the process may open (`ulimit -n`) when that is less. Where what is not cached
    /// is read past the page cache by the [`ring`](Self::ring), a blob takes two of them.
    #[must_use]
    pub fn open_files(mut self, files: usize) -> Self {
        self.open_files = Some(files.clamp(1, Self::MAX_OPEN_FILES));
        self
    }

    /// The directory, as it was given.
    pub fn root(&self) -> &Path {
        &self.root
    }
}

/// How much of a file system to leave to others.
///
/// ```
/// use spill_backend_fs::ReserveFree;
/// assert_eq!("5%".parse::<ReserveFree>()?.of(1000), 50);
/// assert_eq!("2 KiB".parse::<ReserveFree>()?.of(1000), 2048);
/// assert!("some".parse::<ReserveFree>().is_err());
/// # Ok::<(), spill_backend_fs::ParseReserveFreeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveFree {
    /// This many bytes.
    Bytes(u64),
    /// This share of the file system's size.
    Share(Share),
}

impl ReserveFree {
    /// The bytes to leave on a file system of `size` bytes.
    pub fn of(self, size: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Share(share) => share.of(size),
        }
    }
}

impl From<u64> for ReserveFree {
    fn from(bytes: u64) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<Share> for ReserveFree {
    fn from(share: Share) -> Self {
        Self::Share(share)
    }
}

impl fmt::Display for ReserveFree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => f.write_str(&format_bytes(*bytes)),
            Self::Share(share) => share.fmt(f),
        }
    }
}

impl FromStr for ReserveFree {
    type Err = ParseReserveFreeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.trim_end().ends_with('%') {
            return text.parse().map(Self::Share).map_err(|_| ParseReserveFreeError);
        }
        parse_bytes(text).map(Self::Bytes).map_err(|_| ParseReserveFreeError)
    }
}

/// The text is neither a share nor a number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseReserveFreeError;

impl fmt::Display for ParseReserveFreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "write a share of the file system from 0% to 100%, like \"5%\", or bytes, like \"10 GiB\"",
        )
    }
}

impl std::error::Error for ParseReserveFreeError {}
