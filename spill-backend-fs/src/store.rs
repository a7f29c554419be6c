//! The store itself: [`FsStore`]. Each operation is one job on a blocking thread, but for reads of what is cached.
//!
//! How a blob is read is in `read`, how it is written in `write`, what is kept open in `files`, the directory in `session`.

use std::{
    collections::{BinaryHeap, HashSet},
    fs::File,
    io,
    ops::Range,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use rustix::{fs::OFlags, io::Errno};
use spill_core::{
    BlobId, BlobMeta, Payload, Store, StoreError, StoreErrorKind, StoreInfo, Stored, format_bytes,
};
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore},
};

use crate::{
    FsOptions, ReserveFree,
    buffers::Buffers,
    crew::Crew,
    direct::Direct,
    files::Files,
    ring::Ring,
    session::{Root, Session},
    sys::{self, Sys, System},
    write::{Durability, NewFile, Wanted},
};

/// Jobs at once, of each sort. A disk is busy with fewer; more would only take threads from others.
const READS: usize = 16;
const WRITES: u32 = 4;
const OTHERS: u32 = 4;

/// Reads in the ring at once. Disks are no faster with more.
const IN_RING: usize = 128;

/// Reads under way or waiting for one of the threads that read; others wait in the order in which they came.
const READS_WAITING: u32 = 256;

/// Keeps blobs as files in a directory of its own. See the [crate's page](crate) for what is where on disk.
///
/// - `put` writes blobs of 256 KiB and more past the page cache where the file system can (see
///   [`FsOptions::direct`]): a long chunk that begins at a page from where it lies, others copied together in 1 MiB;
///   else the chunks of a payload as they are, without copying. It reports as allocated what the file system
///   says, and at least the length in whole blocks.
/// - `get` reads exactly the range into a buffer that starts at a multiple of 64 bytes: at once, up to 1 MiB that
///   are in the page cache, else by [the ring](crate#the-ring) or on a blocking thread. A blob whose file is
///   too short, or was put and is not there, is an error of the kind `Corrupt`, or `NotFound`.
/// - `delete` unlinks a whole batch in one job; a `get` in flight answers with the bytes or `NotFound`.
/// - `punch` gives whole blocks inside the ranges back, where the file system can (ext4, XFS, btrfs, tmpfs).
/// - `list` reads the directory once per page.
/// - `close` waits for what is under way, then removes everything. After it each call is an error.
///
/// Dropping the store without closing it leaves its directory to the next [`sweep`](crate::sweep). It may be
/// used from several runtimes and dropped outside of any.
///
/// # Errors
/// The kind is `NoSpace` for ENOSPC, EDQUOT, EFBIG and `reserve_free`; `Denied` for EACCES, EPERM, EROFS;
/// `Transient` for EMFILE, ENFILE, EAGAIN, ETIMEDOUT, ENOMEM; `Other` for the rest, EIO among them, and for
/// a call outside of a tokio runtime.
#[derive(Debug)]
pub struct FsStore {
    info: StoreInfo,
    inner: Arc<Inner>,
    reads: Arc<Semaphore>,
    crew: Crew,
    writes: Arc<Semaphore>,
    others: Arc<Semaphore>,
}

/// What jobs share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) sys: Arc<dyn Sys>,
    pub(crate) session: Session,
    /// The session's path, as errors show it.
    target: String,
    pub(crate) files: Files,
    reserve_free: ReserveFree,
    durability: Durability,
    direct: Direct,
    /// Files are opened a second time, to be read past the page cache.
    pub(crate) reads_direct: bool,
    /// The file system can read what is cached without waiting for the disk, as far as is known.
    pub(crate) reads_cached: AtomicBool,
    pub(crate) buffers: Arc<Buffers>,
    /// Where the system has one, unless the calls of the system are a test's.
    pub(crate) ring: Option<Ring>,
    /// Bytes of the puts under way, of which the file system may not know yet.
    in_flight: AtomicU64,
    /// Blobs being put.
    writing: Mutex<HashSet<BlobId>>,
}

/// How blob files that may be open are shared by those who read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shares {
    /// Blobs that may be open; where there is a ring each takes two files.
    blobs: usize,
    by_threads: usize,
    in_ring: usize,
}

impl Shares {
    fn of(files: usize, options: &FsOptions) -> Self {
        let blobs = if options.direct { files / 2 } else { files };
        if !options.ring || !cfg!(target_os = "linux") || blobs < 2 {
            return Self { blobs: files, by_threads: files.min(READS), in_ring: 0 };
        }
        let by_threads = (blobs / 2).min(READS);
        Self { blobs, by_threads, in_ring: (blobs - by_threads).min(IN_RING) }
    }
}

impl FsStore {
    /// Opens a store in a new session directory, after removing those of dead processes.
    ///
    /// # Errors
    /// When the directory can't be made, written to or locked, or is in memory and that is not allowed. The
    /// error names the path and says what to do. A dead session that can't be removed is only logged.
    ///
    /// # Cancel safety
    /// When the future is dropped, an empty session directory may be left to the next sweep.
    pub async fn open(options: FsOptions) -> Result<Self, StoreError> {
        Self::open_on(options, Arc::new(System), true).await
    }

    /// The same over other system calls, for tests of this crate.
    #[doc(hidden)]
    pub async fn open_with(options: FsOptions, sys: Arc<dyn Sys>) -> Result<Self, StoreError> {
        Self::open_on(options, sys, false).await
    }

    async fn open_on(mut options: FsOptions, sys: Arc<dyn Sys>, ring: bool) -> Result<Self, StoreError> {
        options.ring &= ring;
        let target = options.root.display().to_string();
        on_blocking_thread("open", &target, move || Self::open_blocking(&options, sys)).await?
    }

    fn open_blocking(options: &FsOptions, sys: Arc<dyn Sys>) -> Result<Self, StoreError> {
        let root = Root::open(options)?;
        if let Err(error) = root.sweep("open") {
            tracing::warn!(%error, "can't sweep dead sessions");
        }
        let name = root.path.display().to_string();
        let session = Session::create(root, options.durable)?;
        let shares = Shares::of(options.open_files.unwrap_or_else(sys::open_files), options);
        let block_size = session.directory().metadata().map_or(4096, |metadata| metadata.blksize()).max(1);
        Ok(Self {
            info: StoreInfo::new(name).can_punch(session.can_punch()),
            reads: Arc::new(Semaphore::new(READS_WAITING as usize)),
            crew: Crew::new(shares.by_threads),
            writes: Arc::new(Semaphore::new(WRITES as usize)),
            others: Arc::new(Semaphore::new(OTHERS as usize)),
            inner: Arc::new(Inner {
                target: session.path().display().to_string(),
                files: Files::new(shares.blobs),
                reserve_free: options.reserve_free,
                durability: Durability { durable: options.durable, block_size },
                reads_cached: true.into(),
                buffers: Arc::default(),
                reads_direct: options.direct && shares.in_ring > 0 && session.tells_cached(&*sys),
                ring: (shares.in_ring > 0).then(|| Ring::new(shares.in_ring)),
                session,
                sys,
                direct: Direct::new(options.direct),
                in_flight: AtomicU64::new(0),
                writing: Mutex::default(),
            }),
        })
    }

    /// The session's directory.
    pub fn directory(&self) -> &Path {
        self.inner.session.path()
    }

    /// Waits for all writes under way, and lets none start until this is dropped.
    #[cfg(test)]
    pub(crate) async fn write_places(&self) -> tokio::sync::SemaphorePermit<'_> {
        self.writes.acquire_many(WRITES).await.unwrap()
    }

    /// Waits for what is on its way in the ring, whose runtime may be gone.
    async fn end_ring(&self) -> Result<(), StoreError> {
        let Some(ring) = self.inner.ring.as_ref().and_then(Ring::stop) else { return Ok(()) };
        self.run_in("close", Vec::new(), move |inner| {
            ring.wait().map_err(|error| inner.error(sys::kind(&error), "close").with_source(error))
        })
        .await
    }

    /// Waits for a place among the jobs of this sort, then does one.
    async fn run<T: Send + 'static>(
        &self,
        operation: &'static str,
        places: &Arc<Semaphore>,
        job: impl FnOnce(&Inner) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let place = self.place(operation, places).await?;
        self.run_in(operation, vec![place], job).await
    }

    async fn place(
        &self,
        operation: &'static str,
        places: &Arc<Semaphore>,
    ) -> Result<OwnedSemaphorePermit, StoreError> {
        let place = Arc::clone(places).acquire_owned().await;
        place.map_err(|_| self.lost(operation, "the store is closed".into()))
    }

    fn lost(&self, operation: &'static str, why: String) -> StoreError {
        self.inner.error(StoreErrorKind::Other, operation).with_source(why)
    }

    async fn run_in<T: Send + 'static>(
        &self,
        operation: &'static str,
        places: Vec<OwnedSemaphorePermit>,
        job: impl FnOnce(&Inner) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let inner = Arc::clone(&self.inner);
        on_blocking_thread(operation, &self.inner.target, move || {
            let result = job(&inner);
            // Held until the job is over, not until its future is dropped.
            drop(places);
            result
        })
        .await?
    }
}

async fn on_blocking_thread<T: Send + 'static>(
    operation: &'static str,
    target: &str,
    job: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StoreError> {
    let failed =
        |source: String| StoreError::new(StoreErrorKind::Other, operation, target).with_source(source);
    let runtime = Handle::try_current().map_err(|error| failed(error.to_string()))?;
    runtime.spawn_blocking(job).await.map_err(|error| failed(error.to_string()))
}

#[async_trait]
impl Store for FsStore {
    fn info(&self) -> &StoreInfo {
        &self.info
    }

    async fn put(&self, id: BlobId, blob: Payload) -> Result<Stored, StoreError> {
        let (_waiting, wanted) = Wanted::new();
        self.run("put", &self.writes, move |inner| inner.put(id, &blob, &wanted)).await
    }

    async fn get(&self, id: BlobId, range: Range<u64>) -> Result<Bytes, StoreError> {
        if !self.reads.is_closed()
            && let Some(bytes) = self.inner.get_cached(id, &range)
        {
            return Ok(bytes);
        }
        let place = Arc::new(self.place("get", &self.reads).await?);
        if let Some(result) = self.inner.get_by_ring(id, &range, &place).await {
            return result;
        }
        let runtime = Handle::try_current().map_err(|error| self.lost("get", error.to_string()))?;
        // A second time, in case it was waiting for another runtime, which was shut down.
        for _ in 0..2 {
            let (inner, range, place) = (Arc::clone(&self.inner), range.clone(), Arc::clone(&place));
            let read = move || {
                let result = inner.get(id, range);
                // Held until the job is over, not until its future is dropped.
                drop(place);
                result
            };
            if let Some(result) = self.crew.run(&runtime, read).await {
                return result;
            }
        }
        Err(self.lost("get", "the thread that read ended early".into()))
    }

    async fn delete(&self, ids: &[BlobId]) -> Result<(), StoreError> {
        if ids.is_empty() {
            return Ok(());
        }
        let ids = ids.to_vec();
        self.run("delete", &self.others, move |inner| inner.delete(&ids)).await
    }

    async fn punch(&self, id: BlobId, ranges: &[Range<u64>]) -> Result<u64, StoreError> {
        if ranges.is_empty() || !self.info.can_punch {
            return Ok(0);
        }
        let ranges = ranges.to_vec();
        self.run("punch", &self.others, move |inner| inner.punch(id, &ranges)).await
    }

    async fn list(&self, after: Option<BlobId>, limit: usize) -> Result<Vec<BlobMeta>, StoreError> {
        self.run("list", &self.others, move |inner| inner.list(after, limit)).await
    }

    /// # Cancel safety
    /// When the future is dropped while it waits for other calls, the store stays open. After that it is
    /// closed in the background.
    async fn close(&self) -> Result<(), StoreError> {
        let all = [(&self.reads, READS_WAITING), (&self.writes, WRITES), (&self.others, OTHERS)];
        let mut places = Vec::with_capacity(all.len());
        self.end_ring().await?;
        for (sort, permits) in all {
            // Fails only when the store was closed before: then there are no jobs to wait for.
            places.extend(Arc::clone(sort).acquire_many_owned(permits).await.ok());
        }
        all.iter().for_each(|(sort, _)| sort.close());
        self.run_in("close", places, |inner| {
            inner.files.clear();
            inner.session.remove(&*inner.sys)
        })
        .await
    }
}

impl Inner {
    pub(crate) fn error(&self, kind: StoreErrorKind, operation: &'static str) -> StoreError {
        StoreError::new(kind, operation, self.target.clone())
    }

    pub(crate) fn blob_error(&self, operation: &'static str, id: BlobId, error: io::Error) -> StoreError {
        self.error(sys::kind(&error), operation).with_blob(id).with_source(error)
    }

    /// The same, for a call that finds an existing blob.
    pub(crate) fn missing_or(&self, operation: &'static str, id: BlobId, error: io::Error) -> StoreError {
        if sys::is_missing(&error) {
            return self.error(StoreErrorKind::NotFound, operation).with_blob(id).with_source(error);
        }
        self.blob_error(operation, id, error)
    }

    fn put(&self, id: BlobId, blob: &Payload, wanted: &Wanted) -> Result<Stored, StoreError> {
        let directory = self.session.directory();
        let failed = |error: io::Error| match Errno::from_io_error(&error) {
            Some(Errno::NOENT) => self.error(StoreErrorKind::Other, "put").with_blob(id).with_source(
                "the session directory was removed while in use; open the store again, and let nothing but \
                 a sweep remove sessions",
            ),
            _ => self.blob_error("put", id, error),
        };
        let bytes = blob.len() as u64;
        let _in_flight = self.take_space(id, bytes)?;
        // Only one call at a time writes this blob, so none of this id appears after the check.
        let _writing = Writing::begin(&self.writing, id).ok_or_else(|| {
            let source = "an earlier put of this blob has not ended; repeat it later, or use a new id";
            self.error(StoreErrorKind::Transient, "put").with_blob(id).with_source(source)
        })?;
        let file = NewFile::create(&*self.sys, directory, sys::part_name(id)).map_err(failed)?;
        let name = sys::blob_name(id);
        if sys::size(directory, &name).map_err(failed)?.is_some() {
            let source = "the id was used before; a blob is never overwritten";
            return Err(self.error(StoreErrorKind::Other, "put").with_blob(id).with_source(source));
        }
        let allocated = file.fill(blob, name, self.durability, &self.direct, wanted).map_err(failed)?;
        Ok(Stored { bytes, allocated })
    }

    /// Refuses a blob that would take what is reserved for others.
    fn take_space(&self, id: BlobId, bytes: u64) -> Result<Option<InFlight<'_>>, StoreError> {
        if self.reserve_free == ReserveFree::Bytes(0) {
            return Ok(None);
        }
        let before = self.in_flight.fetch_add(bytes, Ordering::AcqRel);
        let taken = InFlight { total: &self.in_flight, bytes };
        let space = self.sys.space(self.session.directory());
        let space = space.map_err(|error| self.blob_error("put", id, error))?;
        let reserve = self.reserve_free.of(space.size);
        let need = before.saturating_add(bytes);
        if space.free.checked_sub(need).is_some_and(|left| left >= reserve) {
            return Ok(Some(taken));
        }
        let source = format!(
            "{} are free, {} are being written, and `reserve_free` = {} leaves {} to others; free some space, or lower it",
            format_bytes(space.free),
            format_bytes(need),
            self.reserve_free,
            format_bytes(reserve),
        );
        Err(self.error(StoreErrorKind::NoSpace, "put").with_blob(id).with_source(source))
    }

    fn delete(&self, ids: &[BlobId]) -> Result<(), StoreError> {
        // Before, so that unlinking gives the space back at once; after, for those opened in between.
        self.files.forget(ids);
        let mut failed = Vec::new();
        let mut first = None;
        for &id in ids {
            match self.sys.unlink(self.session.directory(), &sys::blob_name(id)) {
                Err(error) if !sys::is_missing(&error) => {
                    failed.push(id);
                    first.get_or_insert(error);
                }
                _ => {}
            }
        }
        self.files.forget(ids);
        match first {
            None => Ok(()),
            Some(error) => {
                Err(self.error(sys::kind(&error), "delete").with_failed(failed).with_source(error))
            }
        }
    }

    fn punch(&self, id: BlobId, ranges: &[Range<u64>]) -> Result<u64, StoreError> {
        let file = sys::open(self.session.directory(), &sys::blob_name(id), OFlags::RDWR);
        let file = file.map_err(|error| self.missing_or("punch", id, error))?;
        self.punch_file(&file, ranges).map_err(|error| self.blob_error("punch", id, error))
    }

    fn punch_file(&self, file: &File, ranges: &[Range<u64>]) -> io::Result<u64> {
        let metadata = file.metadata()?;
        for range in ranges {
            if let Some(inside) = whole_blocks(range, metadata.len(), self.durability.block_size) {
                sys::punch(file, inside.start, inside.end - inside.start)?;
            }
        }
        Ok((metadata.blocks() * sys::BLOCK).saturating_sub(sys::allocated(file)?))
    }

    fn list(&self, mut after: Option<BlobId>, limit: usize) -> Result<Vec<BlobMeta>, StoreError> {
        let failed = |error: io::Error| self.error(sys::kind(&error), "list").with_source(error);
        let directory = self.session.directory();
        let mut page = Vec::new();
        // A blob may be deleted between the two looks at it: a short page would pass for the last one.
        while page.len() < limit {
            let wanted = limit - page.len();
            let ids = ids_after(&*self.sys, directory, after, wanted).map_err(failed)?;
            let is_last = ids.len() < wanted;
            after = ids.last().copied();
            for id in ids {
                if let Some((bytes, allocated)) = sys::size(directory, &sys::blob_name(id)).map_err(failed)? {
                    page.push(BlobMeta { id, stored: Stored { bytes, allocated } });
                }
            }
            if is_last {
                break;
            }
        }
        Ok(page)
    }
}

/// A blob being put, by nobody else.
#[derive(Debug)]
struct Writing<'a> {
    all: &'a Mutex<HashSet<BlobId>>,
    id: BlobId,
}

impl<'a> Writing<'a> {
    fn begin(all: &'a Mutex<HashSet<BlobId>>, id: BlobId) -> Option<Self> {
        let is_first = all.lock().insert(id);
        is_first.then(|| Self { all, id })
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.all.lock().remove(&self.id);
    }
}

#[derive(Debug)]
struct InFlight<'a> {
    total: &'a AtomicU64,
    bytes: u64,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// The lowest ids after `after`, at most `limit` of them, in order. Keeps no more than these in memory.
fn ids_after(
    sys: &dyn Sys,
    directory: &File,
    after: Option<BlobId>,
    limit: usize,
) -> io::Result<Vec<BlobId>> {
    let mut lowest = BinaryHeap::new();
    sys.names(directory, &mut |name| {
        let Some(id) = sys::blob_of(name) else { return };
        if after.is_some_and(|after| id <= after) {
            return;
        }
        if lowest.len() < limit {
            lowest.push(id);
        } else if let Some(mut highest) = lowest.peek_mut()
            && id < *highest
        {
            *highest = id;
        }
    })?;
    Ok(lowest.into_sorted_vec())
}

/// The whole blocks inside a range of a file; the last block of the file is whole however long it is.
fn whole_blocks(range: &Range<u64>, length: u64, block: u64) -> Option<Range<u64>> {
    let start = range.start.checked_next_multiple_of(block)?;
    let end =
        if range.end >= length { length.checked_next_multiple_of(block)? } else { range.end / block * block };
    (start < end).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn punching_takes_whole_blocks_inside_the_range() {
        for (range, expected) in [
            (0..4096, Some(0..4096)),
            (1..8191, None),
            (1..8192, Some(4096..8192)),
            (4096..10_000, Some(4096..12_288)),
            (9000..10_000, None),
            (0..u64::MAX, Some(0..12_288)),
            (u64::MAX - 1..u64::MAX, None),
            (0..0, None),
        ] {
            assert_eq!(whole_blocks(&range, 10_000, 4096), expected, "{range:?}");
        }
    }
}
