//! Tests of what happens when calls of the system fail, are cut short, or are left alone in the middle.

use std::{
    fmt,
    fs::File,
    io::{self, IoSlice},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    task::Poll,
};

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::io::Errno;
use spill_core::{BlobId, Payload, Store, StoreErrorKind};
use tempfile::TempDir;

use crate::{
    FsOptions, FsStore,
    sys::{Space, Sys, System},
};

type Hook = Box<dyn Fn(&'static str, &str) -> io::Result<()> + Send + Sync>;

/// The system, with a log of calls, a hook before each that may fail or block, and limits to make it clumsy.
struct Faults {
    calls: Mutex<Vec<&'static str>>,
    before: Hook,
    /// The most bytes one read or write moves.
    step: usize,
    /// What `space` answers.
    space: Option<Space>,
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faults")
    }
}

impl Faults {
    fn new(before: impl Fn(&'static str, &str) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self { calls: Mutex::default(), before: Box::new(before), step: usize::MAX, space: None }
    }

    fn call(&self, call: &'static str, name: &str) -> io::Result<()> {
        self.calls.lock().push(call);
        (self.before)(call, name)
    }
}

impl Sys for Faults {
    fn create(&self, directory: &File, name: &str) -> io::Result<File> {
        self.call("create", name)?;
        System.create(directory, name)
    }

    fn write(&self, file: &File, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.call("write", "")?;
        if self.step == usize::MAX {
            return System.write(file, slices);
        }
        let first = &slices[0];
        System.write(file, &[IoSlice::new(&first[..first.len().min(self.step)])])
    }

    fn set_direct(&self, file: &File, direct: bool) -> io::Result<()> {
        self.call("set_direct", if direct { "on" } else { "off" })?;
        System.set_direct(file, direct)
    }

    fn sync_file(&self, file: &File) -> io::Result<()> {
        self.call("sync_file", "")?;
        System.sync_file(file)
    }

    fn publish(&self, directory: &File, from: &str, to: &str) -> io::Result<()> {
        self.call("publish", to)?;
        System.publish(directory, from, to)
    }

    fn sync_directory(&self, directory: &File) -> io::Result<()> {
        self.call("sync_directory", "")?;
        System.sync_directory(directory)
    }

    fn unlink(&self, directory: &File, name: &str) -> io::Result<()> {
        self.call("unlink", name)?;
        System.unlink(directory, name)
    }

    fn read(&self, file: &File, buffer: &mut Vec<u8>, offset: u64) -> io::Result<usize> {
        self.call("read", "")?;
        if self.step == usize::MAX {
            return System.read(file, buffer, offset);
        }
        let mut small = Vec::with_capacity(self.step);
        System.read(file, &mut small, offset)?;
        small.truncate((buffer.capacity() - buffer.len()).min(self.step));
        buffer.extend_from_slice(&small);
        Ok(small.len())
    }

    /// Nothing is ever cached.
    fn read_cached(&self, _: &File, _: &mut [u8], _: u64) -> io::Result<usize> {
        Err(Errno::AGAIN.into())
    }

    fn space(&self, directory: &File) -> io::Result<Space> {
        self.space.map_or_else(|| System.space(directory), Ok)
    }
}

const ID: BlobId = BlobId::new(1);

fn root() -> (TempDir, FsOptions) {
    let root = tempfile::tempdir().unwrap();
    let options = FsOptions::new(root.path()).allow_tmpfs(true);
    (root, options)
}

async fn open(options: FsOptions, faults: Faults) -> (FsStore, Arc<Faults>) {
    let faults = Arc::new(faults);
    (FsStore::open_with(options, Arc::clone(&faults) as Arc<dyn Sys>).await.unwrap(), faults)
}

fn files(store: &FsStore) -> Vec<String> {
    let entries = std::fs::read_dir(store.directory()).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Bytes whose period is a prime, so that no block can be mistaken for another one.
fn pattern(length: usize) -> Bytes {
    (0..=250).cycle().take(length).collect()
}

#[tokio::test]
async fn case_26_durable_writes_are_in_order() {
    let (_root, options) = root();
    let (store, faults) = open(options.durable(true), Faults::new(|_, _| Ok(()))).await;
    store.put(ID, pattern(100).into()).await.unwrap();
    assert_eq!(*faults.calls.lock(), ["create", "write", "sync_file", "publish", "sync_directory"]);
}

#[tokio::test]
async fn case_26_without_durable_nothing_is_synced() {
    let (_root, options) = root();
    let (store, faults) = open(options, Faults::new(|_, _| Ok(()))).await;
    store.put(ID, pattern(100).into()).await.unwrap();
    assert_eq!(*faults.calls.lock(), ["create", "write", "publish"]);
}

/// `length` bytes of [`pattern`] in chunks of these lengths, again and again; the first begins `start` bytes behind a page.
fn chunked(length: usize, start: usize, chunks: &[usize]) -> Payload {
    let room = vec![0; 4096 + start];
    let padding = room.as_ptr().addr().wrapping_neg() % 4096;
    drop(room);
    let whole: Bytes = std::iter::repeat_n(0, padding + start).chain(pattern(length)).collect();
    let whole = whole.slice(padding + start..);
    let mut at = 0;
    let mut cut = |chunk: &usize| {
        let next = whole.slice(at..length.min(at + chunk));
        at += next.len();
        next
    };
    let rounds = length / chunks.iter().sum::<usize>() + 1;
    (0..rounds).flat_map(|_| chunks).map(&mut cut).collect()
}

#[tokio::test]
async fn s02_large_blobs_come_back_however_their_chunks_lie() {
    const MIB: usize = 1 << 20;
    let (_root, options) = root();
    let (store, faults) = open(options, Faults::new(|_, _| Ok(()))).await;
    let mut number = 0;
    for length in [MIB / 4 - 1, MIB / 4, MIB, MIB + 1, 3 * MIB - 4096, 3 * MIB + 4095, 9 * MIB] {
        for (start, chunks) in [
            (0, vec![length]),
            (1, vec![length]),
            (0, vec![64, 65_536]),
            (0, vec![8192, 100, 4096, 3_000_000]),
        ] {
            number += 1;
            let id = BlobId::new(number);
            let payload = chunked(length, start, &chunks);
            assert_eq!(payload.len(), length);
            let stored = store.put(id, payload).await.unwrap();
            assert_eq!(stored.bytes, length as u64);
            assert!(store.get(id, 0..length as u64).await.unwrap() == pattern(length), "{length} {chunks:?}");
        }
    }
    assert!(faults.calls.lock().contains(&"set_direct"));
}

#[tokio::test]
async fn s02_what_can_not_be_written_past_the_cache_is_written_through_it() {
    let length = (1 << 20) + 77;
    // It can't be switched on; the first write is refused; each write is cut short, at a block's end or not.
    let cases = [("set_direct", usize::MAX, 1), ("write", usize::MAX, 2), ("", 8192, 4), ("", 100_001, 2)];
    for (refused, step, switched) in cases {
        let (_root, options) = root();
        let refusals = AtomicUsize::new(0);
        let mut faults = Faults::new(move |call, _| {
            let now = call == refused && refusals.fetch_add(1, Ordering::Relaxed) == 0;
            if now { Err(Errno::INVAL.into()) } else { Ok(()) }
        });
        faults.step = step;
        let (store, faults) = open(options, faults).await;
        for number in 0..2 {
            store.put(BlobId::new(number), chunked(length, 0, &[length])).await.unwrap();
            let read = store.get(BlobId::new(number), 0..length as u64).await.unwrap();
            assert!(read == pattern(length), "{refused} {step}");
        }
        // That it is not possible is known from then on.
        let calls = faults.calls.lock().iter().filter(|call| **call == "set_direct").count();
        assert_eq!(calls, switched, "{refused} {step}");
    }
}

#[tokio::test]
async fn s02_direct_can_be_turned_off() {
    let (_root, options) = root();
    let (store, faults) = open(options.direct(false), Faults::new(|_, _| Ok(()))).await;
    store.put(ID, pattern(1 << 20).into()).await.unwrap();
    assert_eq!(*faults.calls.lock(), ["create", "write", "publish"]);
}

#[tokio::test]
async fn f03_a_large_put_that_fails_at_any_call_leaves_nothing() {
    for failing in 0..9 {
        let (_root, options) = root();
        let calls = AtomicUsize::new(0);
        let faults = Faults::new(move |call, _| {
            let now = calls.fetch_add(1, Ordering::Relaxed) == failing && call != "unlink";
            if now { Err(Errno::NOSPC.into()) } else { Ok(()) }
        });
        let (store, faults) = open(options, faults).await;
        let put = store.put(ID, chunked((2 << 20) + 5, 1, &[1 << 20])).await;
        // It does without what can't be switched on.
        if put.is_ok() {
            assert!(faults.calls.lock().get(failing).is_none_or(|call| *call == "set_direct"), "{failing}");
            continue;
        }
        assert_eq!(put.unwrap_err().kind(), StoreErrorKind::NoSpace, "{failing}");
        assert_eq!(files(&store), ["lock"], "{failing}");
    }
}

#[tokio::test]
async fn f03_a_put_that_fails_at_any_call_leaves_nothing() {
    for failing in ["create", "write", "sync_file", "publish", "sync_directory"] {
        for (errno, kind) in [
            (Errno::NOSPC, StoreErrorKind::NoSpace),
            (Errno::DQUOT, StoreErrorKind::NoSpace),
            (Errno::ROFS, StoreErrorKind::Denied),
            (Errno::MFILE, StoreErrorKind::Transient),
            (Errno::IO, StoreErrorKind::Other),
        ] {
            let (_root, options) = root();
            let faults = Faults::new(move |call, _| if call == failing { Err(errno.into()) } else { Ok(()) });
            let (store, _) = open(options.durable(true), faults).await;
            let error = store.put(ID, pattern(100).into()).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{failing} {errno:?}");
            assert_eq!(error.blob(), Some(ID));
            assert!(error.to_string().contains(&store.directory().display().to_string()), "{error}");
            assert_eq!(files(&store), ["lock"], "{failing} {errno:?}");
            assert_eq!(store.get(ID, 0..1).await.unwrap_err().kind(), StoreErrorKind::NotFound);
        }
    }
}

#[tokio::test]
async fn f03_no_space_in_the_middle_of_a_blob_leaves_nothing_and_the_id_can_be_used_again() {
    let (_root, options) = root();
    let writes = Mutex::new(0);
    let mut faults = Faults::new(move |call, _| {
        *writes.lock() += usize::from(call == "write");
        if call == "write" && *writes.lock() == 3 { Err(Errno::NOSPC.into()) } else { Ok(()) }
    });
    faults.step = 40;
    let (store, _) = open(options, faults).await;
    let error = store.put(ID, pattern(100).into()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NoSpace);
    assert_eq!(files(&store), ["lock"]);
    store.put(ID, pattern(100).into()).await.unwrap();
    assert_eq!(store.get(ID, 0..100).await.unwrap(), pattern(100));
}

#[tokio::test]
async fn f03_what_a_failed_put_could_not_remove_is_replaced() {
    let (_root, options) = root();
    let broken = Arc::new(Mutex::new(true));
    let is_broken = Arc::clone(&broken);
    let faults = Faults::new(move |call, _| {
        if *is_broken.lock() && matches!(call, "write" | "unlink") { Err(Errno::IO.into()) } else { Ok(()) }
    });
    let (store, _) = open(options, faults).await;
    assert_eq!(store.put(ID, pattern(100).into()).await.unwrap_err().kind(), StoreErrorKind::Other);
    *broken.lock() = false;
    assert_eq!(files(&store), [format!("{ID}.part"), "lock".to_owned()]);
    store.put(ID, pattern(70).into()).await.unwrap();
    assert_eq!(store.get(ID, 0..70).await.unwrap(), pattern(70));
    assert_eq!(files(&store), [format!("{ID}.blob"), "lock".to_owned()]);
}

#[tokio::test]
async fn s01_a_put_whose_future_is_dropped_at_any_call_leaves_nothing() {
    for stopping in ["create", "write", "sync_file", "publish", "sync_directory"] {
        let (_root, options) = root();
        let (entered, has_entered) = mpsc::channel();
        let (resume, may_go_on) = mpsc::channel::<()>();
        let may_go_on = Mutex::new(may_go_on);
        let faults = Faults::new(move |call, _| {
            if call == stopping {
                entered.send(()).unwrap();
                may_go_on.lock().recv().unwrap();
            }
            Ok(())
        });
        let (store, _) = open(options.durable(true), faults).await;
        let mut put = store.put(ID, pattern(100).into());
        std::future::poll_fn(|context| {
            assert!(put.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        has_entered.recv().unwrap();
        drop(put);
        resume.send(()).unwrap();
        // Closing waits for jobs under way; so does this, and it leaves the directory to be looked at.
        let all = store.write_places().await;
        assert_eq!(files(&store), ["lock"], "stopped at {stopping}");
        drop(all);
        assert_eq!(store.list(None, 10).await.unwrap(), []);
    }
}

#[tokio::test]
async fn s01_a_put_dropped_before_it_starts_makes_nothing() {
    let (_root, options) = root();
    let (store, faults) = open(options, Faults::new(|_, _| Ok(()))).await;
    let all = store.write_places().await;
    let mut put = store.put(ID, pattern(100).into());
    std::future::poll_fn(|context| {
        assert!(put.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
    drop(put);
    drop(all);
    drop(store.write_places().await);
    assert!(faults.calls.lock().is_empty());
}

#[tokio::test]
async fn s01_reads_and_deletes_do_not_wait_for_writes() {
    let (_root, options) = root();
    let (store, _) = open(options, Faults::new(|_, _| Ok(()))).await;
    store.put(ID, pattern(100).into()).await.unwrap();
    let all = store.write_places().await;
    assert_eq!(store.get(ID, 0..100).await.unwrap(), pattern(100));
    store.delete(&[ID]).await.unwrap();
    assert_eq!(store.list(None, 10).await.unwrap(), []);
    drop(all);
}

#[tokio::test]
async fn s02_short_and_interrupted_calls_move_every_byte() {
    for step in [1, 7, 4096] {
        let (_root, options) = root();
        let turn = Mutex::new(false);
        let mut faults = Faults::new(move |call, _| {
            let mut turn = turn.lock();
            *turn = !*turn;
            if *turn && matches!(call, "write" | "read") { Err(Errno::INTR.into()) } else { Ok(()) }
        });
        faults.step = step;
        let (store, _) = open(options, faults).await;
        let whole = pattern(5000);
        let blob: Payload =
            [0..1, 1..1, 1..3000, 3000..3001, 3001..5000].map(|r| whole.slice(r)).into_iter().collect();
        store.put(ID, blob).await.unwrap();
        assert_eq!(store.get(ID, 0..5000).await.unwrap(), whole);
        assert_eq!(store.get(ID, 17..4999).await.unwrap(), whole.slice(17..4999));
    }
}

#[tokio::test]
async fn s02_more_chunks_than_one_call_takes() {
    let (_root, options) = root();
    let (store, faults) = open(options, Faults::new(|_, _| Ok(()))).await;
    let whole = pattern(5000);
    store.put(ID, (0..5000).map(|at| whole.slice(at..=at)).collect()).await.unwrap();
    assert_eq!(store.get(ID, 0..5000).await.unwrap(), whole);
    let writes = faults.calls.lock().iter().filter(|call| **call == "write").count();
    assert_eq!(writes, 5, "1024 chunks in a call");
}

#[tokio::test]
async fn s02_a_file_cut_short_while_it_is_read_is_corrupt() {
    let (_root, options) = root();
    let path = Arc::new(Mutex::new(None));
    let cut = Arc::clone(&path);
    let faults = Faults::new(move |call, _| {
        if call == "read"
            && let Some(path) = cut.lock().take()
        {
            File::options().write(true).open::<std::path::PathBuf>(path)?.set_len(10)?;
        }
        Ok(())
    });
    let (store, _) = open(options, faults).await;
    store.put(ID, pattern(100).into()).await.unwrap();
    *path.lock() = Some(store.directory().join(format!("{ID}.blob")));
    let error = store.get(ID, 0..100).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    assert!(error.to_string().contains("bytes 0..100 of a blob of 10"), "{error}");
}

#[tokio::test]
async fn case_24_one_of_a_hundred_deletes_fails() {
    let (_root, options) = root();
    let bad = BlobId::new(42);
    let faults = Faults::new(move |call, name| {
        if call == "unlink" && name == format!("{bad}.blob") { Err(Errno::IO.into()) } else { Ok(()) }
    });
    let (store, _) = open(options, faults).await;
    let ids: Vec<_> = (0..100).map(BlobId::new).collect();
    for id in ids.iter().filter(|id| id.get() != 7) {
        store.put(*id, pattern(10).into()).await.unwrap();
    }
    let error = store.delete(&ids).await.unwrap_err();
    assert_eq!((error.kind(), error.failed()), (StoreErrorKind::Other, &[bad][..]));
    let left = store.list(None, 1000).await.unwrap();
    assert_eq!(left.iter().map(|meta| meta.id).collect::<Vec<_>>(), [bad]);
    assert_eq!(store.get(bad, 0..10).await.unwrap(), pattern(10));
}

#[tokio::test]
async fn f10_what_is_reserved_is_left_to_others() {
    let (_root, options) = root();
    let mut faults = Faults::new(|_, _| Ok(()));
    faults.space = Some(Space { size: 100_000, free: 6000 });
    let (store, faults) =
        open(options.reserve_free("5%".parse::<crate::ReserveFree>().unwrap()), faults).await;
    store.put(ID, pattern(1000).into()).await.unwrap();
    faults.calls.lock().clear();
    let error = store.put(BlobId::new(2), pattern(1001).into()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NoSpace);
    assert!(error.to_string().contains("`reserve_free` = 5%"), "{error}");
    assert!(faults.calls.lock().is_empty(), "refused before anything is written");
    // What was refused is not counted as being written.
    store.put(BlobId::new(3), pattern(1000).into()).await.unwrap();
}

#[tokio::test]
async fn f10_puts_under_way_count() {
    let (_root, options) = root();
    let (entered, has_entered) = mpsc::channel();
    let (resume, may_go_on) = mpsc::channel::<()>();
    let may_go_on = Mutex::new(may_go_on);
    let mut faults = Faults::new(move |call, _| {
        if call == "write" {
            entered.send(()).unwrap();
            may_go_on.lock().recv().unwrap();
        }
        Ok(())
    });
    faults.space = Some(Space { size: 100_000, free: 6000 });
    let (store, _) = open(options.reserve_free(5000), faults).await;
    let store = Arc::new(store);
    let first = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.put(ID, pattern(600).into()).await }
    });
    tokio::task::spawn_blocking(move || has_entered.recv().unwrap()).await.unwrap();
    let error = store.put(BlobId::new(2), pattern(600).into()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NoSpace);
    resume.send(()).unwrap();
    first.await.unwrap().unwrap();
}
