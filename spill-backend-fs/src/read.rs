//! Reading a blob: from the page cache on the spot, else by the ring, else by a thread that waits for it.
//!
//! Which of them is used when is for `store` to say; the ring is in `ring`, the memory in `buffers`.

use std::{
    fs::File,
    io,
    ops::Range,
    os::unix::fs::MetadataExt,
    sync::{Arc, atomic::Ordering},
};

use bytes::Bytes;
use rustix::io::Errno;
use spill_core::{BlobId, StoreError, StoreErrorKind};

use crate::{
    buffers::ALIGNMENT,
    files::{DirectFile, OpenFile},
    ring::{Place, Ring, Wanted},
    store::Inner,
    sys::{self, Sys},
};

/// The most that is read by the ring. Longer reads are copied from the page cache for too long to be done by a thread
/// of the runtime.
const MOST_BY_RING: u64 = 256 << 10;

/// Reads through the page cache that the ring has at the same time. With more in flight, threads share the copying: for
/// 64 KiB the ring took a sixth less time one at a time, and threads a tenth less 32 at a time.
const MOST_THROUGH_CACHE: usize = 2;

/// The most that is read past the page cache. Longer reads keep the disk busy by themselves, and were slower past it
/// than through it: 64 KiB by a tenth one at a time, by a third 32 at a time.
const MOST_PAST_CACHE: u64 = 32 << 10;

/// The most that is copied from the page cache on the spot: a frame of 1 MiB.
/// Copying that takes about 150 µs; up to there a thread would cost more than a tenth of it.
const MOST: u64 = (1 << 20) + (64 << 10);

impl Inner {
    /// The bytes, read by this thread.
    pub(crate) fn get(&self, id: BlobId, range: Range<u64>) -> Result<Bytes, StoreError> {
        let file = self.files.get(id, || self.open_blob(id, false));
        let file = file.map_err(|error| self.missing_or("get", id, error))?;
        file.note_read(&range);
        let metadata = file.metadata().map_err(|error| self.blob_error("get", id, error))?;
        if metadata.nlink() == 0 {
            // Unlinked behind our back. Keeping it open would keep its space from coming back.
            self.files.forget(&[id]);
            return Err(self.missing_or("get", id, io::ErrorKind::NotFound.into()));
        }
        let corrupt = |length: u64| {
            let source = format!("bytes {}..{} of a blob of {length}", range.start, range.end);
            self.error(StoreErrorKind::Corrupt, "get").with_blob(id).with_source(source)
        };
        if range.start > range.end || range.end > metadata.len() {
            return Err(corrupt(metadata.len()));
        }
        let length = usize::try_from(range.end - range.start).map_err(|_| corrupt(metadata.len()))?;
        match read_exactly(&*self.sys, &file, range.start, length) {
            Ok(bytes) => Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(corrupt(file.metadata().map_or(0, |metadata| metadata.len())))
            }
            Err(error) => Err(self.blob_error("get", id, error)),
        }
    }

    /// What `get` would, if the file is open and the range in the page cache. Does not wait for the disk.
    pub(crate) fn get_cached(&self, id: BlobId, range: &Range<u64>) -> Option<Bytes> {
        let length = range.end.checked_sub(range.start).filter(|length| (1..=MOST).contains(length))?;
        if !self.reads_cached.load(Ordering::Relaxed) {
            return None;
        }
        let file = self.at_hand(id)?;
        if self.sys.is_cached(&file, range.start, length).is_ok_and(|is_cached| !is_cached) {
            return None;
        }
        let length = usize::try_from(length).ok()?;
        let mut buffer = self.buffers.take(length, ALIGNMENT)?;
        let part = buffer.aligned().get_mut(..length)?;
        let read = self.sys.read_cached(&file, part, range.start);
        if read.as_ref().is_err_and(sys::is_unsupported) {
            self.reads_cached.store(false, Ordering::Relaxed);
        }
        // A file that was unlinked behind our back is for the other way to find out and to close.
        let whole = read.ok()? == length && file.metadata().ok()?.nlink() > 0;
        whole.then(|| {
            file.note_read(range);
            buffer.into_bytes(0..length)
        })
    }

    /// What `get` would, if there is a ring. `None`: it is for a thread to read, or to say what is wrong.
    pub(crate) async fn get_by_ring(
        &self,
        id: BlobId,
        range: &Range<u64>,
        place: &Place,
    ) -> Option<Result<Bytes, StoreError>> {
        let ring = self.ring.as_ref()?.here()?;
        let (wanted, part) = self.wanted(self.at_hand(id)?, range, place)?;
        if !wanted.past_cache && ring.in_flight() >= MOST_THROUGH_CACHE {
            return None;
        }
        // Not before it is clear who reads: whoever does takes note of it.
        wanted.file.note_read(range);
        let shift = wanted.shift;
        let (buffer, result) = Ring::read(&ring, wanted).await?;
        match usize::try_from(result) {
            Ok(read) => (shift + read >= part.end).then(|| Ok(buffer.into_bytes(part))),
            Err(_) => self.ring_failed(id, io::Error::from_raw_os_error(-result)).map(Err),
        }
    }

    /// `None`: a thread may do better.
    fn ring_failed(&self, id: BlobId, error: io::Error) -> Option<StoreError> {
        if sys::is_unsupported(&error) {
            tracing::debug!(%error, "this file system has no reads by io_uring: threads read");
            drop(self.ring.as_ref().and_then(Ring::stop));
            return None;
        }
        let is_passing =
            matches!(Errno::from_io_error(&error), Some(Errno::INTR | Errno::AGAIN | Errno::CANCELED));
        (!is_passing).then(|| self.blob_error("get", id, error))
    }

    /// The read to begin for a range, and where in what is read the range is. `None`: not by the ring.
    fn wanted(
        &self,
        file: Arc<OpenFile>,
        range: &Range<u64>,
        place: &Place,
    ) -> Option<(Wanted, Range<usize>)> {
        let length =
            range.end.checked_sub(range.start).filter(|length| (1..=MOST_BY_RING).contains(length))?;
        // What goes on where the last read ended is read through the page cache, which reads ahead for that.
        let past_cache = length <= MOST_PAST_CACHE && !file.goes_on_at(range.start);
        let metadata = file.metadata().ok()?;
        if metadata.nlink() == 0 || range.end > metadata.len() {
            return None;
        }
        let direct = file.direct().filter(|_| past_cache);
        let (offsets, memory) =
            direct.map_or((1, 1), |direct| (direct.offset_alignment, direct.memory_alignment));
        let before = range.start % offsets as u64;
        let offset = range.start - before;
        let (before, length) = (usize::try_from(before).ok()?, usize::try_from(length).ok()?);
        // So that the range itself is aligned in memory, where the disk allows that.
        let shift = (ALIGNMENT - before % ALIGNMENT) % ALIGNMENT;
        let shift = if shift.is_multiple_of(memory) { shift } else { 0 };
        let whole = (before + length).next_multiple_of(offsets);
        let buffer = self.buffers.take(shift + whole, memory.max(ALIGNMENT))?;
        let part = shift + before..shift + before + length;
        let place = Arc::clone(place);
        Some((Wanted { file, past_cache, offset, length: whole, buffer, shift, place }, part))
    }

    /// The file of a blob, if it is open or can be opened without the disk.
    fn at_hand(&self, id: BlobId) -> Option<Arc<OpenFile>> {
        self.files.kept(id).or_else(|| self.files.get(id, || self.open_blob(id, true)).ok())
    }

    fn open_blob(&self, id: BlobId, cached: bool) -> io::Result<(File, Option<DirectFile>)> {
        let (directory, name) = (self.session.directory(), sys::blob_name(id));
        let file =
            if cached { self.sys.open_cached(directory, &name) } else { self.sys.open(directory, &name) }?;
        let direct = self.reads_direct.then(|| sys::open_direct(directory, &name, cached).ok());
        Ok((file, direct.flatten()))
    }
}

/// Reads into memory that is aligned, and not zeroed first: both by allocating a little more than needed.
fn read_exactly(sys: &dyn Sys, file: &File, start: u64, length: usize) -> io::Result<Bytes> {
    if length == 0 {
        return Ok(Bytes::new());
    }
    let capacity = length.checked_add(ALIGNMENT - 1).ok_or(io::ErrorKind::OutOfMemory)?;
    let mut buffer: Vec<u8> = Vec::new();
    buffer.try_reserve_exact(capacity)?;
    let padding = buffer.as_ptr().addr().wrapping_neg() % ALIGNMENT;
    buffer.resize(padding, 0);
    let mut offset = start;
    while buffer.len() < padding + length {
        match sys.read(file, &mut buffer, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => offset += read as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    buffer.truncate(padding + length);
    Ok(Bytes::from(buffer).split_off(padding))
}
