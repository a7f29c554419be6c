//! The directory of one opened store, from birth to removal, and the sweep of those whose owner is dead.
//!
//! A session is alive while the lock on its `lock` file is held; the system lets go of it when the process
//! dies, however that happens. `.spill-lock` in ROOT is held for the moments in which a session is made or
//! its directory disappears, so nobody ever sees half of either. It is not held while blobs are deleted,
//! which can take long: whoever removes a session holds that session's own lock meanwhile.

use std::{
    collections::BTreeSet,
    fs::{DirBuilder, File, TryLockError},
    hash::{BuildHasher, Hasher, RandomState},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::{
    fs::{AtFlags, Mode, OFlags},
    io::{Errno, retry_on_intr},
};
use spill_core::{StoreError, StoreErrorKind};

use crate::{
    FsOptions,
    sys::{self, Sys, System},
};

const ROOT_LOCK: &str = ".spill-lock";
const SESSION_LOCK: &str = "lock";

/// How long to wait for a lock that is held for moments only.
const ROOT_LOCK_PATIENCE: Duration = Duration::from_secs(10);
const ROOT_LOCK_PAUSE: Duration = Duration::from_millis(5);

/// How many names to try for a new session; random ones, so that the second is not expected to be needed.
const NAME_TRIES: usize = 16;

/// How many dead sessions to hold (two open files each) between looks at the directory.
const CLAIMS_AT_ONCE: usize = 8;

/// What a [`sweep`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SweepReport {
    /// Dead sessions that were removed.
    pub removed: usize,
    /// Bytes of the file system that their blobs took.
    pub bytes: u64,
    /// Sessions that are alive, and were left alone.
    pub living: usize,
    /// Sessions that could not be looked into or not be removed completely: somebody else's, say, or with
    /// foreign files in them. The log says why.
    pub failed: usize,
}

/// Removes what dead processes left in `root`, and nothing else.
///
/// Opening a store does this too, so it is only needed where no store will be opened again. Safe at any
/// time, also beside running processes. A root that is not there has nothing to sweep. Blocks the calling
/// thread until all is removed: call it from a blocking thread in async code.
///
/// # Errors
/// When `root` can't be read, or its lock can't be had; what is wrong with one session is only counted.
///
/// ```
/// let root = tempfile::tempdir()?;
/// std::fs::create_dir(root.path().join("spill-0123456789abcdef"))?;
/// let report = spill_backend_fs::sweep(root.path())?;
/// assert_eq!((report.removed, report.living), (1, 0));
/// assert_eq!(std::fs::read_dir(root.path())?.count(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn sweep(root: &Path) -> Result<SweepReport, StoreError> {
    match File::open(root) {
        Ok(directory) => Root { path: root.to_owned(), directory }.sweep("sweep"),
        Err(error) if sys::is_missing(&error) => Ok(SweepReport::default()),
        Err(error) => Err(refused("sweep", root, &error)),
    }
}

/// The directory that holds the sessions.
#[derive(Debug)]
pub(crate) struct Root {
    pub(crate) path: PathBuf,
    pub(crate) directory: File,
}

impl Root {
    /// Opens the directory, and makes it if it is not there.
    pub(crate) fn open(options: &FsOptions) -> Result<Self, StoreError> {
        let path = std::path::absolute(&options.root);
        let path = path.map_err(|error| refused("open", &options.root, &error))?;
        // Without a slash at its end, so that one directory has one name.
        let path: PathBuf = path.components().collect();
        let wrong = |error: io::Error| refused("open", &path, &error);
        if !options.allow_tmpfs && sys::in_memory(&existing_ancestor(&path).map_err(wrong)?).map_err(wrong)? {
            return Err(in_memory(&path));
        }
        // Of an existing directory the mode is the owner's business: what is in a session is safe anyhow.
        DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(wrong)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = retry_on_intr(|| rustix::fs::open(&path, flags, Mode::empty()));
        let directory = directory.map_err(|errno| wrong(errno.into()))?.into();
        Ok(Self { path, directory })
    }

    /// Takes the lock under which sessions are born and disappear; dropping the file releases it.
    fn lock(&self, operation: &'static str) -> Result<File, StoreError> {
        self.lock_within(operation, ROOT_LOCK_PATIENCE)
    }

    fn lock_within(&self, operation: &'static str, patience: Duration) -> Result<File, StoreError> {
        let wrong = |error: &io::Error| refused(operation, &self.path, error);
        let start = Instant::now();
        loop {
            let file = sys::open(&self.directory, ROOT_LOCK, OFlags::RDWR | OFlags::CREATE);
            let file = file.map_err(|error| wrong(&error))?;
            match lock_current(&file) {
                Ok(true) => return Ok(file),
                Ok(false) => {}
                Err(TryLockError::WouldBlock) if start.elapsed() < patience => {
                    std::thread::sleep(ROOT_LOCK_PAUSE);
                }
                Err(TryLockError::WouldBlock) => {
                    let source = format!(
                        "another process holds the lock {ROOT_LOCK} for {} s; find out which, or choose another directory",
                        patience.as_secs()
                    );
                    return Err(
                        error_at(StoreErrorKind::Transient, operation, &self.path).with_source(source)
                    );
                }
                Err(TryLockError::Error(error)) => return Err(wrong(&error)),
            }
        }
    }

    /// Removes the lock file when no session is left. The lock is held by the caller.
    fn tidy(&self) -> io::Result<()> {
        if self.session_names()?.is_empty() {
            sys::unlink(&self.directory, ROOT_LOCK)?;
        }
        Ok(())
    }

    fn session_names(&self) -> io::Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        sys::for_each_name(&self.directory, |name| {
            let id = name.strip_prefix("spill-").unwrap_or_default();
            // Written the same way as the id of a blob.
            if id.parse::<spill_core::BlobId>().is_ok() {
                names.insert(name.to_owned());
            }
        })?;
        Ok(names)
    }

    /// Removes dead sessions, a few at a time, so that neither the lock nor many files are held for long.
    pub(crate) fn sweep(&self, operation: &'static str) -> Result<SweepReport, StoreError> {
        let wrong = |error: io::Error| refused(operation, &self.path, &error);
        let mut report = SweepReport::default();
        let mut seen = BTreeSet::new();
        // Without the lock: a session that is being born now is not dead. A lock file without a session is left
        // by a process that died in between.
        let has_lock = sys::size(&self.directory, ROOT_LOCK).map_err(wrong)?.is_some();
        if !has_lock && self.session_names().map_err(wrong)?.is_empty() {
            return Ok(report);
        }
        loop {
            let lock = self.lock(operation)?;
            let names = self.session_names().map_err(wrong)?;
            let mut claims = Vec::new();
            for name in names {
                if claims.len() == CLAIMS_AT_ONCE {
                    break;
                }
                if !seen.insert(name.clone()) {
                    continue;
                }
                match self.claim(&name) {
                    Ok(Claim::Dead(directory, lock)) => claims.push((name, directory, lock)),
                    Ok(Claim::Living) => report.living += 1,
                    Ok(Claim::Foreign) => {}
                    Err(error) => {
                        report.failed += 1;
                        let path = self.path.join(name);
                        tracing::warn!(path = %path.display(), %error, "can't tell whether this session is dead");
                    }
                }
            }
            if claims.is_empty() {
                self.tidy().map_err(wrong)?;
                return Ok(report);
            }
            drop(lock);
            for (name, directory, _lock) in claims {
                self.remove_dead(operation, &name, &directory, &mut report);
            }
        }
    }

    fn remove_dead(&self, operation: &'static str, name: &str, directory: &File, report: &mut SweepReport) {
        let path = self.path.join(name);
        let removed = remove_blobs(&System, directory).and_then(|bytes| {
            let _lock = self.lock(operation).map_err(io::Error::other)?;
            remove_directory(&self.directory, name, directory).map(|()| bytes)
        });
        match removed {
            Ok(bytes) => {
                report.removed += 1;
                report.bytes += bytes;
                tracing::info!(path = %path.display(), bytes, "removed a dead session");
            }
            Err(error) => {
                report.failed += 1;
                tracing::warn!(path = %path.display(), %error, "can't remove a dead session completely");
            }
        }
    }

    /// Tries to become the owner of a session. The root's lock is held by the caller.
    fn claim(&self, name: &str) -> io::Result<Claim> {
        let directory = match sys::open_directory(&self.directory, name) {
            Ok(directory) => directory,
            Err(error) => {
                return match Errno::from_io_error(&error) {
                    Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(Claim::Foreign),
                    _ => Err(error),
                };
            }
        };
        // One without a lock file died while it was born or removed: making one claims it.
        let lock = sys::open(&directory, SESSION_LOCK, OFlags::RDWR | OFlags::CREATE)?;
        match lock.try_lock() {
            Ok(()) => Ok(Claim::Dead(directory, lock)),
            Err(TryLockError::WouldBlock) => Ok(Claim::Living),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

enum Claim {
    /// Ours now: its directory, and its lock, which is held.
    Dead(File, File),
    Living,
    Foreign,
}

/// The directory of one opened store. Alive until it is removed or dropped.
#[derive(Debug)]
pub(crate) struct Session {
    root: Root,
    name: String,
    path: PathBuf,
    directory: File,
    /// Held while the session lives.
    lock: Mutex<Option<File>>,
}

impl Session {
    /// Makes a session directory and takes its lock.
    pub(crate) fn create(root: Root, durable: bool) -> Result<Self, StoreError> {
        let lock = root.lock("open")?;
        let created = make_directory(&root.directory).and_then(|(name, directory)| {
            let made = take_session_lock(&directory).and_then(|lock| {
                if durable {
                    root.directory.sync_all()?;
                }
                Ok(lock)
            });
            match made {
                Ok(lock) => Ok((name, directory, lock)),
                Err(error) => {
                    // What is left of it, if this fails as well, is a dead session like any other.
                    let _ = remove_directory(&root.directory, &name, &directory);
                    Err(error)
                }
            }
        });
        drop(lock);
        let (name, directory, lock) = created.map_err(|error| refused("open", &root.path, &error))?;
        Ok(Self { path: root.path.join(&name), root, name, directory, lock: Mutex::new(Some(lock)) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn directory(&self) -> &File {
        &self.directory
    }

    /// Whether files here can be punched: asks the file system with the lock file, which has no bytes.
    pub(crate) fn can_punch(&self) -> bool {
        self.lock.lock().as_ref().is_some_and(|lock| sys::punch(lock, 0, 4096).is_ok())
    }

    /// Whether the system says what of a file is in the page cache.
    pub(crate) fn tells_cached(&self, sys: &dyn Sys) -> bool {
        self.lock.lock().as_ref().is_some_and(|lock| sys.is_cached(lock, 0, 1).is_ok())
    }

    /// Removes the blobs and the directory, and lets go of the lock. Nothing to do when it is gone already.
    pub(crate) fn remove(&self, sys: &dyn Sys) -> Result<(), StoreError> {
        let Some(held) = self.lock.lock().take() else { return Ok(()) };
        let removed = self.remove_held(sys);
        if removed.is_err() {
            // Still ours, so that closing again can try again.
            *self.lock.lock() = Some(held);
        }
        removed
    }

    fn remove_held(&self, sys: &dyn Sys) -> Result<(), StoreError> {
        let wrong = |error: io::Error| {
            error_at(sys::kind(&error), "close", &self.path)
                .with_source(format!("{error}; remove what is in the way, then close again or sweep"))
        };
        remove_blobs(sys, &self.directory).map_err(wrong)?;
        if self.root.directory.metadata().map_err(wrong)?.nlink() == 0 {
            // Somebody removed the root with all that was in it.
            return Ok(());
        }
        let _lock = self.root.lock("close")?;
        remove_directory(&self.root.directory, &self.name, &self.directory).map_err(wrong)?;
        self.root.tidy().map_err(wrong)
    }
}

/// Takes a lock, and says whether it guards anything: whoever held it before may have removed the file.
fn lock_current(file: &File) -> Result<bool, TryLockError> {
    file.try_lock()?;
    Ok(file.metadata().map_err(TryLockError::Error)?.nlink() > 0)
}

fn make_directory(root: &File) -> io::Result<(String, File)> {
    let mut tries = 0;
    loop {
        let name = format!("spill-{:016x}", random());
        match retry_on_intr(|| rustix::fs::mkdirat(root, &name, Mode::RWXU)) {
            Ok(()) => {
                let directory = sys::open_directory(root, &name)?;
                return Ok((name, directory));
            }
            Err(Errno::EXIST) if tries < NAME_TRIES => tries += 1,
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// The standard library seeds its hash maps from the system, which is as random as a name has to be.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn take_session_lock(directory: &File) -> io::Result<File> {
    let file = sys::open(directory, SESSION_LOCK, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Errno::AGAIN.into()),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Removes blobs and unfinished ones; the bytes they took. Tries all of them before it fails.
fn remove_blobs(sys: &dyn Sys, directory: &File) -> io::Result<u64> {
    let mut bytes = 0;
    // Names may be skipped while others are removed, so until none is found.
    loop {
        let (mut removed, mut failed) = (0usize, None);
        sys.names(directory, &mut |name| {
            if !sys::is_ours(name) {
                return;
            }
            let size = sys::size(directory, name).ok().flatten().map_or(0, |(_, allocated)| allocated);
            match sys.unlink(directory, name) {
                Ok(()) => (removed, bytes) = (removed + 1, bytes + size),
                Err(error) if sys::is_missing(&error) => {}
                Err(error) => failed = Some(io::Error::new(error.kind(), format!("{name}: {error}"))),
            }
        })?;
        match failed {
            Some(error) => return Err(error),
            None if removed == 0 => return Ok(bytes),
            None => {}
        }
    }
}

/// Removes a session directory that has nothing but the lock file in it. The root's lock is held by the
/// caller, so that nobody takes a directory for a session that is only half gone.
fn remove_directory(root: &File, name: &str, directory: &File) -> io::Result<()> {
    let missing_is_fine = |result: io::Result<()>| match result {
        Err(error) if !sys::is_missing(&error) => Err(error),
        _ => Ok(()),
    };
    missing_is_fine(sys::unlink(directory, SESSION_LOCK))?;
    let removed = retry_on_intr(|| rustix::fs::unlinkat(root, name, AtFlags::REMOVEDIR));
    missing_is_fine(removed.map_err(io::Error::from))
}

/// The directory itself, or the nearest one above it that is there.
fn existing_ancestor(path: &Path) -> io::Result<File> {
    for ancestor in path.ancestors() {
        match File::open(ancestor) {
            Err(error) if sys::is_missing(&error) => {}
            other => return other,
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

fn error_at(kind: StoreErrorKind, operation: &'static str, path: &Path) -> StoreError {
    StoreError::new(kind, operation, path.display().to_string())
}

fn in_memory(path: &Path) -> StoreError {
    let source = "files here are kept in memory (tmpfs), so spilling to them frees none; \
                  name a directory on a disk, or set `allow_tmpfs = true`";
    error_at(StoreErrorKind::Other, "open", path).with_source(source)
}

/// A directory that can't be used: what is wrong with it, and what to do.
fn refused(operation: &'static str, path: &Path, error: &io::Error) -> StoreError {
    let fix = match Errno::from_io_error(error) {
        Some(Errno::NOTDIR | Errno::EXIST) => "this is a file, or below one; name a directory",
        Some(Errno::ROFS) => "name a directory on a file system that can be written to",
        Some(Errno::ACCESS | Errno::PERM) => "name a directory that this user can write to",
        Some(Errno::NOSPC | Errno::DQUOT) => "free some space, or name a directory on another file system",
        Some(Errno::MFILE | Errno::NFILE) => "raise the limit of open files (`ulimit -n`)",
        Some(Errno::NOTSUP | Errno::NOLCK | Errno::NOSYS) => {
            "this file system has no file locks; name a directory on another one"
        }
        _ => "name a directory that this user can make and write to",
    };
    error_at(sys::kind(error), operation, path).with_source(format!("{error}; {fix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(path: &Path) -> Root {
        Root::open(&FsOptions::new(path).allow_tmpfs(true)).unwrap()
    }

    #[test]
    fn s05_a_lock_that_is_never_released_is_an_error_that_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let _held = root(directory.path()).lock("open").unwrap();
        let error = root(directory.path()).lock_within("open", Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Transient);
        let message = error.to_string();
        assert!(
            message.contains(ROOT_LOCK) && message.contains(&directory.path().display().to_string()),
            "{message}"
        );
    }

    #[test]
    fn s05_a_removed_lock_file_guards_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let root = root(directory.path());
        drop(root.lock("open").unwrap());
        let opened_early = sys::open(&root.directory, ROOT_LOCK, OFlags::RDWR).unwrap();
        let held = root.lock("close").unwrap();
        root.tidy().unwrap();
        drop(held);
        assert!(!lock_current(&opened_early).unwrap());
        assert!(lock_current(&root.lock("open").unwrap()).unwrap());
    }
}
