//! A bounded number of blob files kept open for reading. What is done with them is in `store`.

use std::{
    collections::HashMap,
    fs::File,
    io,
    ops::{Deref, Range},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use spill_core::BlobId;

/// Blob files that are open: those in use, and those kept for the next read. One that is open twice, to be read past
/// the page cache as well, counts once.
///
/// Never more than the limit, if no more than the limit are in use at once: the caller sees to that by
/// bounding its readers. The one used longest ago is closed first.
#[derive(Debug)]
pub(crate) struct Files {
    limit: usize,
    /// Files that are open, in use or kept.
    open: Arc<AtomicUsize>,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    files: HashMap<BlobId, (Arc<OpenFile>, u64)>,
    /// Counts uses, to tell who was used longest ago.
    clock: u64,
    /// Counts calls of `forget`: a file opened before one and kept after it could be one that was deleted.
    forgets: u64,
}

/// An open blob file; counted as open until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenFile {
    file: File,
    direct: Option<DirectFile>,
    /// Where the last read ended.
    read_to: AtomicU64,
    /// It began where the one before it ended, or soon behind.
    in_order: AtomicBool,
    /// Declared after the files: counted down when they are closed, not before.
    _place: Place,
}

/// The same file opened a second time, to be read past the page cache (`O_DIRECT`).
#[derive(Debug)]
pub(crate) struct DirectFile {
    pub(crate) file: File,
    /// Offsets and lengths are multiples of this.
    pub(crate) offset_alignment: usize,
    /// Memory starts at a multiple of this.
    pub(crate) memory_alignment: usize,
}

/// Bytes between two reads that still count as one after the other.
const GAP: u64 = 128 << 10;

impl OpenFile {
    /// Whether a read from here goes on where the last one ended, which went on itself: then the system's read-ahead
    /// pays. One such read may be chance.
    pub(crate) fn goes_on_at(&self, start: u64) -> bool {
        self.in_order.load(Ordering::Relaxed) && self.follows(start)
    }

    fn follows(&self, start: u64) -> bool {
        let end = self.read_to.load(Ordering::Relaxed);
        end > 0 && (end..=end.saturating_add(GAP)).contains(&start)
    }

    /// Somebody reads this.
    pub(crate) fn note_read(&self, range: &Range<u64>) {
        self.in_order.store(self.follows(range.start), Ordering::Relaxed);
        self.read_to.store(range.end, Ordering::Relaxed);
    }

    /// To be read past the page cache, if it can.
    pub(crate) fn direct(&self) -> Option<&DirectFile> {
        self.direct.as_ref()
    }
}

#[derive(Debug)]
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Deref for OpenFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Files {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, open: Arc::default(), kept: Mutex::default() }
    }

    /// The open file of a blob, opened by `open` when it is not among those kept.
    pub(crate) fn get(
        &self,
        id: BlobId,
        open: impl FnOnce() -> io::Result<(File, Option<DirectFile>)>,
    ) -> io::Result<Arc<OpenFile>> {
        let (place, forgets) = {
            let mut kept = self.kept.lock();
            if let Some(file) = kept.touch(id) {
                return Ok(file);
            }
            (self.take_place(&mut kept), kept.forgets)
        };
        let (file, direct) = open()?;
        let file =
            Arc::new(OpenFile { file, direct, read_to: 0.into(), in_order: false.into(), _place: place });
        let mut kept = self.kept.lock();
        if kept.forgets == forgets {
            kept.clock += 1;
            let clock = kept.clock;
            // A file that another reader has put there meanwhile is in use or can go: it's the same blob.
            let replaced = kept.files.insert(id, (Arc::clone(&file), clock));
            drop(kept);
            drop(replaced);
        }
        Ok(file)
    }

    /// The file of a blob, if it is open.
    pub(crate) fn kept(&self, id: BlobId) -> Option<Arc<OpenFile>> {
        self.kept.lock().touch(id)
    }

    /// Closes the files of these blobs, once nobody uses them, and keeps none that is being opened now.
    ///
    /// To be called after the blobs were unlinked: an opener that was early enough to find the file is then
    /// either seen here, or sees that this was called.
    pub(crate) fn forget(&self, ids: &[BlobId]) {
        let mut kept = self.kept.lock();
        kept.forgets += 1;
        let closing: Vec<_> = ids.iter().filter_map(|id| kept.files.remove(id)).collect();
        drop(kept);
        drop(closing);
    }

    /// Closes all files, once nobody uses them.
    pub(crate) fn clear(&self) {
        let closing = {
            let mut kept = self.kept.lock();
            kept.forgets += 1;
            std::mem::take(&mut kept.files)
        };
        drop(closing);
    }

    /// A place for one more open file, made by closing others if need be.
    fn take_place(&self, kept: &mut Kept) -> Place {
        while self.open.load(Ordering::Relaxed) >= self.limit {
            if !kept.close_oldest() {
                break;
            }
        }
        self.open.fetch_add(1, Ordering::Relaxed);
        Place(Arc::clone(&self.open))
    }
}

impl Kept {
    fn touch(&mut self, id: BlobId) -> Option<Arc<OpenFile>> {
        let (file, used) = self.files.get_mut(&id)?;
        self.clock += 1;
        *used = self.clock;
        Some(Arc::clone(file))
    }

    /// Closes the file that was used longest ago, of those not in use now; says whether there was one.
    ///
    /// Closing a file that was only read is quick, so it is done under the lock: this is what keeps the
    /// number of open files exact.
    fn close_oldest(&mut self) -> bool {
        let idle = self.files.iter().filter(|(_, (file, _))| Arc::strong_count(file) == 1);
        let oldest = idle.min_by_key(|(_, (_, used))| *used).map(|(id, _)| *id);
        oldest.is_some_and(|id| self.files.remove(&id).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn null() -> io::Result<(File, Option<DirectFile>)> {
        Ok((File::open("/dev/null")?, None))
    }

    fn must_not_open() -> io::Result<(File, Option<DirectFile>)> {
        panic!("opened again")
    }

    fn open_count(files: &Files) -> usize {
        files.open.load(Ordering::Relaxed)
    }

    #[test]
    fn s06_no_more_than_the_limit_are_open_and_the_oldest_goes_first() {
        let files = Files::new(2);
        for number in 0..100 {
            files.get(BlobId::new(number), null).unwrap();
            assert!(open_count(&files) <= 2);
        }
        files.get(BlobId::new(98), must_not_open).unwrap();
        files.get(BlobId::new(100), null).unwrap();
        files.get(BlobId::new(98), must_not_open).unwrap();
        assert_eq!(open_count(&files), 2);
        files.clear();
        assert_eq!(open_count(&files), 0);
    }

    #[test]
    fn s06_a_file_in_use_is_not_closed() {
        let files = Files::new(2);
        let used = files.get(BlobId::new(0), null).unwrap();
        for number in 1..10 {
            files.get(BlobId::new(number), null).unwrap();
        }
        files.get(BlobId::new(0), must_not_open).unwrap();
        drop(used);
    }

    #[test]
    fn a_file_whose_blob_is_deleted_while_it_opens_is_not_kept() {
        let files = Files::new(2);
        let id = BlobId::new(7);
        let file = files.get(id, || {
            files.forget(&[id]);
            null()
        });
        drop(file.unwrap());
        assert_eq!(open_count(&files), 0);
    }

    #[test]
    fn reads_that_follow_each_other_are_told_from_others() {
        let file = Files::new(1).get(BlobId::new(1), null).unwrap();
        assert!(!file.goes_on_at(0), "nothing was read yet");
        file.note_read(&(0..4096));
        assert!(!file.goes_on_at(4096), "one may be chance");
        file.note_read(&(4096..8192));
        assert!(file.goes_on_at(8192) && file.goes_on_at(8192 + GAP));
        assert!(!file.goes_on_at(8191) && !file.goes_on_at(8193 + GAP));
        file.note_read(&(0..4096));
        assert!(!file.goes_on_at(4096), "it began anew");
    }

    #[test]
    fn a_failed_open_takes_no_place() {
        let files = Files::new(1);
        assert!(files.get(BlobId::new(1), || Err(io::ErrorKind::NotFound.into())).is_err());
        assert_eq!(open_count(&files), 0);
    }
}
