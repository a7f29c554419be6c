//! What every store owes its callers, and what this one adds, seen from outside.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use std::{fs, os::unix::fs::MetadataExt, path::PathBuf, sync::Arc};

use bytes::Bytes;
use spill_backend_fs::{FsOptions, FsStore};
use spill_core::{BlobId, Payload, Store, StoreErrorKind};
use tempfile::TempDir;

async fn open() -> (TempDir, FsStore) {
    let root = tempfile::tempdir().unwrap();
    let store = FsStore::open(FsOptions::new(root.path()).allow_tmpfs(true)).await.unwrap();
    (root, store)
}

/// Bytes whose period is a prime, so that no block can be mistaken for another one.
fn pattern(length: usize) -> Bytes {
    (0..=250).cycle().take(length).collect()
}

fn blob_path(store: &FsStore, id: BlobId) -> PathBuf {
    store.directory().join(format!("{id}.blob"))
}

const ID: BlobId = BlobId::new(1);

#[tokio::test]
async fn s01_an_id_is_put_once() {
    let (_root, store) = open().await;
    store.put(ID, pattern(10).into()).await.unwrap();
    let error = store.put(ID, pattern(20).into()).await.unwrap_err();
    assert!(error.to_string().contains("never overwritten"), "{error}");
    assert_eq!(store.list(None, 10).await.unwrap()[0].stored.bytes, 10);
    assert_eq!(store.get(ID, 0..10).await.unwrap(), pattern(10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_28_of_64_puts_of_one_id_one_wins_whole() {
    let (_root, store) = open().await;
    let store = Arc::new(store);
    let puts: Vec<_> = (1..=64u8)
        .map(|length| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.put(ID, vec![length; usize::from(length) * 1000].into()).await })
        })
        .collect();
    let mut won = Vec::new();
    for put in puts {
        won.extend(put.await.unwrap().ok());
    }
    assert_eq!(won.len(), 1);
    let bytes = store.get(ID, 0..won[0].bytes).await.unwrap();
    assert!(bytes.iter().all(|&byte| usize::from(byte) * 1000 == bytes.len()));
    assert_eq!(fs::read_dir(store.directory()).unwrap().count(), 2, "the lock and one blob");
}

#[tokio::test]
async fn s02_ranges_are_exact_and_aligned() {
    let (_root, store) = open().await;
    for (number, length) in [0usize, 1, 63, 64, 65, 4095, 4096, 4097, 3 << 20].into_iter().enumerate() {
        let id = BlobId::new(number as u64);
        let whole = pattern(length);
        store.put(id, whole.clone().into()).await.unwrap();
        let middle = (length / 3, length - length / 5);
        for (start, end) in [(0, length), middle, (length, length), (0, length.min(1))] {
            let got = store.get(id, start as u64..end as u64).await.unwrap();
            assert_eq!(got, whole.slice(start..end), "{start}..{end} of {length}");
            assert!(got.is_empty() || got.as_ptr().addr() % 64 == 0, "{start}..{end} of {length}");
        }
    }
}

#[tokio::test]
async fn s02_what_is_not_there_is_an_error() {
    let (_root, store) = open().await;
    store.put(ID, pattern(100).into()).await.unwrap();
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
    let wrong = [0..101, 100..101, 101..101, 5..u64::MAX, 9..3];
    for range in wrong {
        let error = store.get(ID, range.clone()).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{range:?}");
    }
    let error = store.get(BlobId::new(2), 0..0).await.unwrap_err();
    assert_eq!((error.kind(), error.blob()), (StoreErrorKind::NotFound, Some(BlobId::new(2))));
    if store.info().can_punch {
        let error = store.punch(BlobId::new(2), &[0..4096, 8192..9000]).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::NotFound);
    }
}

#[tokio::test]
async fn case_17_a_truncated_blob_is_corrupt_also_when_it_is_open() {
    let (_root, store) = open().await;
    store.put(ID, pattern(100).into()).await.unwrap();
    store.get(ID, 0..100).await.unwrap();
    fs::File::options().write(true).open(blob_path(&store, ID)).unwrap().set_len(99).unwrap();
    assert_eq!(store.get(ID, 0..100).await.unwrap_err().kind(), StoreErrorKind::Corrupt);
    assert_eq!(store.get(ID, 0..99).await.unwrap(), pattern(99));
}

#[tokio::test]
async fn case_13_a_blob_unlinked_behind_our_back_is_not_found_also_when_it_is_open() {
    let (_root, store) = open().await;
    for id in [ID, BlobId::new(2), BlobId::new(3)] {
        store.put(id, pattern(100).into()).await.unwrap();
    }
    store.get(ID, 0..100).await.unwrap();
    for id in [ID, BlobId::new(2)] {
        fs::remove_file(blob_path(&store, id)).unwrap();
        assert_eq!(store.get(id, 0..100).await.unwrap_err().kind(), StoreErrorKind::NotFound);
    }
    store.delete(&[ID, BlobId::new(2)]).await.unwrap();
    assert_eq!(store.get(BlobId::new(3), 0..100).await.unwrap(), pattern(100));
}

#[tokio::test]
async fn s03_delete_is_idempotent() {
    let (_root, store) = open().await;
    store.put(ID, pattern(100).into()).await.unwrap();
    store.get(ID, 0..1).await.unwrap();
    store.delete(&[]).await.unwrap();
    store.delete(&[ID, ID, BlobId::new(2)]).await.unwrap();
    store.delete(&[ID]).await.unwrap();
    assert_eq!(store.get(ID, 0..1).await.unwrap_err().kind(), StoreErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s03_a_get_of_a_blob_being_deleted_has_the_bytes_or_not_found() {
    let (_root, store) = open().await;
    let store = Arc::new(store);
    let whole = pattern(20_000);
    for number in 0..200 {
        let id = BlobId::new(number);
        store.put(id, whole.clone().into()).await.unwrap();
        let get = tokio::spawn({
            let store = Arc::clone(&store);
            async move { store.get(id, 0..20_000).await }
        });
        store.delete(&[id]).await.unwrap();
        match get.await.unwrap() {
            Ok(bytes) => assert_eq!(bytes, whole),
            Err(error) => assert_eq!(error.kind(), StoreErrorKind::NotFound, "{error}"),
        }
    }
    let open = open_blobs(&store);
    assert_eq!(open, 0, "deleted blobs are kept open, so their space does not come back");
}

/// Files of the store's blobs that this process has open; 0 where that can't be seen.
fn open_blobs(store: &FsStore) -> usize {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else { return 0 };
    let targets = entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    targets
        .filter(|target| target.starts_with(store.directory()) && target.to_string_lossy().contains(".blob"))
        .count()
}

#[tokio::test]
async fn s03_pages_are_ordered_and_leave_out_what_is_foreign_or_unfinished() {
    let (_root, store) = open().await;
    // In an order that is not theirs.
    for number in (0..100u16).map(|n| n * 37 % 100) {
        store.put(BlobId::new(number.into()), pattern(number.into()).into()).await.unwrap();
    }
    let directory = store.directory();
    for foreign in
        ["notes.txt", "0000000000000005.part", "5.blob", "00000000000000AA.blob", "fff0000000000000"]
    {
        fs::write(directory.join(foreign), "foreign").unwrap();
    }
    fs::create_dir(directory.join("ff00000000000000.blob")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", directory.join("ff00000000000001.blob")).unwrap();
    for limit in [1, 7, 100, 101, usize::MAX] {
        let (mut after, mut seen) = (None, Vec::new());
        loop {
            let page = store.list(after, limit).await.unwrap();
            assert!(page.len() <= limit);
            seen.extend(page.iter().map(|meta| (meta.id.get(), meta.stored.bytes)));
            after = page.last().map(|meta| meta.id);
            if page.len() < limit {
                break;
            }
        }
        assert_eq!(seen, (0..100).map(|number| (number, number)).collect::<Vec<_>>(), "pages of {limit}");
    }
    assert_eq!(store.list(None, 0).await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s03_what_stays_is_listed_once_while_others_come_and_go() {
    let (_root, store) = open().await;
    let store = Arc::new(store);
    let staying: Vec<_> = (0..100).map(|n| BlobId::new(n * 10)).collect();
    for id in &staying {
        store.put(*id, pattern(1).into()).await.unwrap();
    }
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let churn = tokio::spawn({
        let (store, stop) = (Arc::clone(&store), Arc::clone(&stop));
        async move {
            let mut number = 0u64;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                // Among the others, each id once.
                let id = BlobId::new(number % 100 * 10 + 1 + (number / 100) * 100_000);
                store.put(id, pattern(1).into()).await.unwrap();
                store.delete(&[id]).await.unwrap();
                number += 1;
            }
        }
    });
    for _ in 0..20 {
        let (mut after, mut seen) = (None, Vec::new());
        loop {
            let page = store.list(after, 9).await.unwrap();
            seen.extend(page.iter().map(|meta| meta.id));
            after = page.last().map(|meta| meta.id);
            if page.len() < 9 {
                break;
            }
        }
        assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
        seen.retain(|id| id.get() % 10 == 0);
        assert_eq!(seen, staying);
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    churn.await.unwrap();
}

#[tokio::test]
async fn a04_stored_and_allocated_are_what_the_file_system_says() {
    let (_root, store) = open().await;
    for (number, length) in [0usize, 1, 4096, 4097, 100_000, 9 << 20].into_iter().enumerate() {
        let id = BlobId::new(number as u64);
        let stored = store.put(id, pattern(length).into()).await.unwrap();
        let metadata = fs::metadata(blob_path(&store, id)).unwrap();
        assert_eq!(stored.bytes, length as u64);
        assert!(
            stored.allocated.abs_diff(metadata.blocks() * 512) <= metadata.blksize(),
            "{length}: {stored:?}"
        );
        let listed = store.list(None, 100).await.unwrap().pop().unwrap();
        assert_eq!((listed.id, listed.stored.bytes), (id, length as u64));
        assert_eq!(listed.stored.allocated, metadata.blocks() * 512);
    }
}

#[tokio::test]
async fn punching_gives_back_what_it_says() {
    let (_root, store) = open().await;
    if !store.info().can_punch {
        println!("skipped: the file system of {} has no holes", store.info().name);
        return;
    }
    let whole = pattern(1 << 20);
    store.put(ID, whole.clone().into()).await.unwrap();
    let allocated = async || store.list(None, 1).await.unwrap()[0].stored.allocated;
    let before = allocated().await;
    let freed = store.punch(ID, &[100..200, 65_000..300_000, 500_000..900_000]).await.unwrap();
    assert_eq!(freed, before - allocated().await);
    assert!((600_000..=635_000).contains(&freed), "{freed}");
    for (start, end) in [(0, 100), (200, 65_000), (300_000, 500_000), (900_000, 1 << 20)] {
        assert_eq!(store.get(ID, start as u64..end as u64).await.unwrap(), whole.slice(start..end));
    }
    assert_eq!(store.punch(ID, &[100..200, 65_000..300_000]).await.unwrap(), 0, "it is gone already");
    assert_eq!(store.list(None, 1).await.unwrap()[0].stored.bytes, 1 << 20, "the length stays");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_27_puts_and_deletes_in_one_directory_do_not_disturb_each_other() {
    let (_root, store) = open().await;
    let store = Arc::new(store);
    let loops: Vec<_> = (0..16u64)
        .map(|each| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                for round in 0..100 {
                    let id = BlobId::new(each << 32 | round);
                    store.put(id, pattern(3000).into()).await.unwrap();
                    assert_eq!(store.get(id, 0..3000).await.unwrap(), pattern(3000));
                    store.delete(&[id]).await.unwrap();
                }
            })
        })
        .collect();
    for each in loops {
        each.await.unwrap();
    }
    assert_eq!(fs::read_dir(store.directory()).unwrap().count(), 1, "only the lock is left");
}

#[tokio::test]
async fn s01_big_payloads_in_pieces_round_trip() {
    let (_root, store) = open().await;
    let whole = pattern(20 << 20);
    let cuts = [0, 1, 4096, 9 << 20, (9 << 20) + 7, 20 << 20];
    let blob: Payload = cuts.windows(2).map(|cut| whole.slice(cut[0]..cut[1])).collect();
    store.put(ID, blob).await.unwrap();
    assert!(store.get(ID, 0..20 << 20).await.unwrap() == whole);
}

#[test]
fn s04_one_store_serves_two_runtimes_and_is_dropped_outside_of_both() {
    let root = tempfile::tempdir().unwrap();
    let single = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let multi = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let options = FsOptions::new(root.path()).allow_tmpfs(true);
    let store = single.block_on(FsStore::open(options)).unwrap();
    multi.block_on(store.put(ID, pattern(10).into())).unwrap();
    assert_eq!(single.block_on(store.get(ID, 0..10)).unwrap(), pattern(10));
    drop(single);
    assert_eq!(multi.block_on(store.get(ID, 0..10)).unwrap(), pattern(10));
    drop(multi);
    let directory = store.directory().to_owned();
    drop(store);
    assert!(directory.join(format!("{ID}.blob")).exists(), "dropping removes nothing");
    let report = spill_backend_fs::sweep(root.path()).unwrap();
    assert_eq!((report.removed, report.living, report.failed), (1, 0, 0));
}

#[test]
fn s04_a_call_outside_of_a_runtime_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let store = runtime.block_on(FsStore::open(FsOptions::new(root.path()).allow_tmpfs(true))).unwrap();
    let mut get = store.get(ID, 0..1);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(Err(error)) = get.as_mut().poll(&mut context) else { panic!("no error") };
    assert_eq!(error.kind(), StoreErrorKind::Other);
}

#[tokio::test]
async fn e05_close_leaves_nothing_and_ends_everything() {
    let (root, store) = open().await;
    store.put(ID, pattern(10).into()).await.unwrap();
    store.get(ID, 0..10).await.unwrap();
    store.close().await.unwrap();
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    store.close().await.unwrap();
    let error = store.put(BlobId::new(2), pattern(10).into()).await.unwrap_err();
    assert!(error.to_string().contains("the store is closed"), "{error}");
    assert!(store.get(ID, 0..1).await.is_err() && store.list(None, 1).await.is_err());
}

#[tokio::test]
async fn e05_close_waits_for_puts_under_way() {
    let (root, store) = open().await;
    let store = Arc::new(store);
    let puts: Vec<_> = (0..50)
        .map(|number| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.put(BlobId::new(number), pattern(100_000).into()).await })
        })
        .collect();
    tokio::task::yield_now().await;
    store.close().await.unwrap();
    for put in puts {
        let _ = put.await.unwrap();
    }
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn e05_close_names_what_is_in_the_way_and_can_be_repeated() {
    let (root, store) = open().await;
    store.put(ID, pattern(10).into()).await.unwrap();
    let foreign = store.directory().join("notes.txt");
    fs::write(&foreign, "foreign").unwrap();
    let error = store.close().await.unwrap_err();
    assert!(error.to_string().contains(&store.directory().display().to_string()), "{error}");
    assert_eq!(fs::read_to_string(&foreign).unwrap(), "foreign");
    fs::remove_file(&foreign).unwrap();
    store.close().await.unwrap();
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}
