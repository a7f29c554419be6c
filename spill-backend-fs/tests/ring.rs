//! Reads that are not cached, many at once: by the ring where there is one, by threads elsewhere. What must hold is
//! the same.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    path::Path,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use spill_backend_fs::{FsOptions, FsStore};
use spill_core::{BlobId, Store, StoreErrorKind};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

const BLOBS: u64 = 12;
const LENGTH: u64 = 700_000;

/// On a disk, if the build directory is on one.
fn root() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn byte(blob: u64, at: u64) -> u8 {
    u8::try_from((blob * 31 + at) % 251).unwrap()
}

async fn filled(root: &Path) -> Arc<FsStore> {
    let store = FsStore::open(FsOptions::new(root).allow_tmpfs(true)).await.unwrap();
    for blob in 0..BLOBS {
        let bytes: Vec<u8> = (0..LENGTH).map(|at| byte(blob, at)).collect();
        store.put(BlobId::new(blob), bytes.into()).await.unwrap();
    }
    make_cold(&store);
    Arc::new(store)
}

fn make_cold(store: &FsStore) {
    for entry in fs::read_dir(store.directory()).unwrap() {
        let file = fs::File::open(entry.unwrap().path()).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
}

/// Numbers that look random, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Reads parts of blobs, and goes away from every third read after it has begun.
async fn reads(store: Arc<FsStore>, seed: u64, rounds: u64) {
    let mut numbers = Numbers(seed);
    for round in 0..rounds {
        let (blob, start) = (numbers.below(BLOBS), numbers.below(LENGTH));
        let longest = if round % 8 == 0 { LENGTH } else { 6000 };
        let end = (start + numbers.below(longest)).min(LENGTH);
        let mut read = store.get(BlobId::new(blob), start..end);
        if round % 3 == 0 {
            let begun = read.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if let Poll::Ready(bytes) = begun {
                bytes.unwrap();
            }
            continue;
        }
        let bytes = read.await.unwrap();
        assert_eq!(bytes.len() as u64, end - start);
        assert!(
            bytes.iter().zip(start..).all(|(found, at)| *found == byte(blob, at)),
            "{blob} {start}..{end}"
        );
        assert!(bytes.is_empty() || bytes.as_ptr().addr().is_multiple_of(64));
    }
}

fn many_reads(runtime: &Runtime, store: &Arc<FsStore>, seed: u64) -> Vec<tokio::task::JoinHandle<()>> {
    (0..200).map(|number| runtime.spawn(reads(store.clone(), seed + number, 30))).collect()
}

#[test]
fn s02_many_reads_some_of_them_abandoned_on_several_runtimes() {
    let (root, first, second) = (root(), runtime(), runtime());
    let single = Builder::new_current_thread().enable_all().build().unwrap();
    let bare = Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let store = first.block_on(filled(root.path()));
    let one = many_reads(&first, &store, 1);
    let other = many_reads(&second, &store, 1000);
    single.block_on(reads(store.clone(), 5000, 100));
    bare.block_on(reads(store.clone(), 6000, 100));
    for (runtime, tasks) in [(&first, one), (&second, other)] {
        tasks.into_iter().for_each(|task| runtime.block_on(task).unwrap());
    }
    make_cold(&store);
    second.block_on(reads(store.clone(), 7000, 100));
    first.block_on(store.close()).unwrap();
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn s02_a_runtime_that_ends_amid_its_reads_leaves_the_store_to_others() {
    let root = root();
    let store = runtime().block_on(filled(root.path()));
    for round in 0..10 {
        let ending = runtime();
        drop(many_reads(&ending, &store, round * 1000));
        ending.block_on(reads(store.clone(), round, 5));
        drop(ending);
        runtime().block_on(reads(store.clone(), round, 30));
        make_cold(&store);
    }
    runtime().block_on(store.close()).unwrap();
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn s06_closing_waits_for_reads_that_nobody_waits_for() {
    let (root, runtime) = (root(), runtime());
    runtime.block_on(async {
        let store = filled(root.path()).await;
        let mut numbers = Numbers(7);
        for _ in 0..100 {
            let start = numbers.below(LENGTH - 5000);
            let mut read = store.get(BlobId::new(numbers.below(BLOBS)), start..start + 5000);
            let _ = read.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
        let reading = store.clone();
        let going_on = tokio::spawn(async move { reading.get(BlobId::new(0), 0..LENGTH).await });
        store.close().await.unwrap();
        drop(going_on.await);
        assert_eq!(store.get(BlobId::new(1), 0..10).await.unwrap_err().kind(), StoreErrorKind::Other);
    });
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn s02_a_read_moves_to_another_runtime() {
    let root = root();
    let store = filled(root.path()).await;
    let mut read = store.get(BlobId::new(3), 1..5001);
    let begun = read.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    let bytes = match begun {
        Poll::Ready(bytes) => bytes,
        Poll::Pending => std::thread::scope(|scope| {
            let elsewhere = Builder::new_current_thread().enable_all().build().unwrap();
            scope.spawn(move || elsewhere.block_on(read)).join().unwrap()
        }),
    };
    assert!(bytes.unwrap().iter().zip(1..).all(|(found, at)| *found == byte(3, at)));
    store.close().await.unwrap();
}

#[tokio::test]
async fn s04_what_is_not_there_is_told() {
    let root = root();
    let store = filled(root.path()).await;
    let kind = |range| {
        let store = store.clone();
        async move { store.get(BlobId::new(0), range).await.map(drop).map_err(|error| error.kind()) }
    };
    assert_eq!(kind(LENGTH - 10..LENGTH).await, Ok(()));
    assert_eq!(kind(LENGTH - 10..LENGTH + 1).await, Err(StoreErrorKind::Corrupt));
    let name = format!("{}.blob", BlobId::new(0));
    let file = fs::File::options().write(true).open(store.directory().join(&name)).unwrap();
    file.set_len(5000).unwrap();
    assert_eq!(kind(4000..5000).await, Ok(()));
    assert_eq!(kind(4000..5001).await, Err(StoreErrorKind::Corrupt));
    fs::remove_file(store.directory().join(name)).unwrap();
    assert_eq!(kind(0..10).await, Err(StoreErrorKind::NotFound));
    store.close().await.unwrap();
}
