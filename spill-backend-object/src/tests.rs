//! The store over an object store that waits at every step, fails on demand, and counts what is unfinished.

use std::{
    fmt,
    future::Future,
    ops::Range,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, stream::BoxStream};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
    memory::InMemory, path::Path,
};
use spill_core::{BlobId, Payload, Store, StoreErrorKind};

use super::{ObjectOptions, ObjectStoreBackend};

const PART: usize = 1000;

/// What goes wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Fault {
    #[default]
    Nothing,
    /// The part with this number.
    Part(usize),
    Complete,
    /// Deleting a path that ends like this.
    Delete(&'static str),
    /// A body lacks its last byte.
    ShortBody,
    /// A body has a byte too many, in a piece of its own.
    LongBody,
    /// A body never ends.
    EndlessBody,
}

#[derive(Debug, Default)]
struct Scripted {
    inner: InMemory,
    fault: Fault,
    unfinished: Arc<AtomicUsize>,
    /// Aborts that are still to fail.
    bad_aborts: Arc<AtomicUsize>,
    reads: AtomicUsize,
}

impl fmt::Display for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("scripted:/")
    }
}

fn broken<T>() -> Result<T> {
    Err(Error::Generic { store: "scripted", source: "status code: 503: on purpose".into() })
}

#[derive(Debug)]
struct ScriptedUpload {
    inner: Box<dyn MultipartUpload>,
    fault: Fault,
    parts: usize,
    unfinished: Arc<AtomicUsize>,
    bad_aborts: Arc<AtomicUsize>,
}

#[async_trait]
impl MultipartUpload for ScriptedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        assert!(data.content_length() <= PART);
        let fails = self.fault == Fault::Part(self.parts);
        self.parts += 1;
        let put = self.inner.put_part(data);
        Box::pin(async move {
            tokio::task::yield_now().await;
            if fails { broken() } else { put.await }
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        tokio::task::yield_now().await;
        if self.fault == Fault::Complete {
            return broken();
        }
        let done = self.inner.complete().await?;
        self.unfinished.fetch_sub(1, Ordering::Relaxed);
        Ok(done)
    }

    async fn abort(&mut self) -> Result<()> {
        tokio::task::yield_now().await;
        let fewer = |left: usize| left.checked_sub(1);
        if self.bad_aborts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_ok() {
            return broken();
        }
        self.unfinished.fetch_sub(1, Ordering::Relaxed);
        self.inner.abort().await
    }
}

#[async_trait]
impl ObjectStore for Scripted {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        tokio::task::yield_now().await;
        let done = self.inner.put_opts(path, payload, options).await;
        tokio::task::yield_now().await;
        done
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        tokio::task::yield_now().await;
        let inner = self.inner.put_multipart_opts(path, options).await?;
        self.unfinished.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await;
        let (unfinished, bad_aborts) = (Arc::clone(&self.unfinished), Arc::clone(&self.bad_aborts));
        Ok(Box::new(ScriptedUpload { inner, fault: self.fault, parts: 0, unfinished, bad_aborts }))
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await;
        let mut answer = self.inner.get_opts(path, options).await?;
        #[allow(irrefutable_let_patterns, reason = "with a feature of object_store there is another variant")]
        if let GetResultPayload::Stream(body) = answer.payload {
            answer.payload = GetResultPayload::Stream(match self.fault {
                Fault::ShortBody => body.map(|piece| piece.map(|b| b.slice(..b.len() - 1))).boxed(),
                Fault::LongBody => {
                    body.chain(futures_util::stream::iter([Ok(Bytes::from_static(b"!"))])).boxed()
                }
                Fault::EndlessBody => futures_util::stream::repeat_with(|| Ok(Bytes::new())).boxed(),
                _ => body,
            });
        }
        Ok(answer)
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let (inner, fault) = (self.inner.clone(), self.fault);
        let delete = move |path: Result<Path>| {
            let inner = inner.clone();
            async move {
                let path = path?;
                tokio::task::yield_now().await;
                match fault {
                    Fault::Delete(end) if path.as_ref().ends_with(end) => broken(),
                    _ => inner.delete(&path).await.map(|()| path),
                }
            }
        };
        paths.map(delete).buffered(3).boxed()
    }

    /// Last first: a service owes nobody an order.
    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let listed = self.inner.list(prefix).collect::<Vec<_>>();
        let reversed = futures_util::stream::once(listed).map(|mut all| {
            all.reverse();
            futures_util::stream::iter(all)
        });
        reversed.flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

fn scripted(fault: Fault) -> (Arc<Scripted>, ObjectStoreBackend) {
    let bucket = Arc::new(Scripted { fault, ..Scripted::default() });
    let store =
        ObjectStoreBackend::with_part(ObjectOptions::new(bucket.clone(), "/some/prefix/"), PART).unwrap();
    (bucket, store)
}

fn bytes(length: usize) -> Vec<u8> {
    (0..=250).cycle().take(length).collect()
}

/// In three chunks, none of which ends where a part does.
fn payload(length: usize) -> Payload {
    let whole = Bytes::from(bytes(length));
    let (first, second) = (length / 3, length / 2);
    [whole.slice(..first), whole.slice(first..second), whole.slice(second..)].into_iter().collect()
}

fn id(number: u64) -> BlobId {
    BlobId::new(number)
}

async fn ids(store: &dyn Store, after: Option<BlobId>, limit: usize) -> Vec<u64> {
    store.list(after, limit).await.unwrap().iter().map(|blob| blob.id.get()).collect()
}

/// Lets whatever runs in the background come to its end: more turns than anything here takes.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Polls `future` at most `polls` times, then drops it. `None` when it was not done by then.
async fn poll_at_most<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..polls {
        let poll = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(output) = poll {
            return Some(output);
        }
        // What the future has spawned gets its turn.
        tokio::task::yield_now().await;
    }
    None
}

#[tokio::test]
async fn blobs_of_every_size_come_back() {
    let (bucket, store) = scripted(Fault::Nothing);
    for (number, length) in [0, 1, PART - 1, PART, PART + 1, 2 * PART, 10 * PART + 7].into_iter().enumerate()
    {
        let id = id(number as u64);
        let stored = store.put(id, payload(length)).await.unwrap();
        assert_eq!((stored.bytes, stored.allocated), (length as u64, length as u64));
        assert_eq!(store.get(id, 0..length as u64).await.unwrap(), bytes(length));
        let (start, end) = (length / 4, length - length / 5);
        assert_eq!(store.get(id, start as u64..end as u64).await.unwrap(), bytes(length)[start..end]);
    }
    assert_eq!(bucket.unfinished.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn s02_a_range_past_the_end_is_corrupt_and_a_missing_blob_is_not_found() {
    let (bucket, store) = scripted(Fault::Nothing);
    store.put(id(1), payload(10)).await.unwrap();
    #[allow(clippy::reversed_empty_ranges, reason = "what is to be refused")]
    let wrong: [Range<u64>; 7] = [0..11, 9..11, 10..11, 11..11, 500..600, 0..u64::MAX, 5..4];
    for range in wrong {
        let error = store.get(id(1), range.clone()).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{range:?}: {error}");
        assert_eq!(error.blob(), Some(id(1)));
    }
    assert_eq!(store.get(id(1), 10..10).await.unwrap(), "");
    for range in [0..0, 0..5] {
        let before = bucket.reads.load(Ordering::Relaxed);
        assert_eq!(store.get(id(2), range).await.unwrap_err().kind(), StoreErrorKind::NotFound);
        assert_eq!(bucket.reads.load(Ordering::Relaxed), before + 1, "one request is enough");
    }
}

#[tokio::test]
async fn s07_bodies_of_another_length_are_corrupt() {
    for fault in [Fault::ShortBody, Fault::LongBody, Fault::EndlessBody] {
        let (_, store) = scripted(fault);
        store.put(id(1), payload(10)).await.unwrap();
        for range in [0..10, 2..7, 9..10] {
            let error = store.get(id(1), range).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{fault:?}: {error}");
        }
    }
}

#[tokio::test]
async fn a_failed_upload_is_aborted_before_put_answers() {
    for fault in [Fault::Part(0), Fault::Part(2), Fault::Part(3), Fault::Complete] {
        let (bucket, store) = scripted(fault);
        let error = store.put(id(1), payload(3 * PART + 1)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Transient, "{fault:?}: {error}");
        assert_eq!(bucket.unfinished.load(Ordering::Relaxed), 0, "{fault:?}");
        assert!(ids(&store, None, 10).await.is_empty());
    }
}

/// One upload that failed, and of which so many aborts fail.
async fn unaborted(bad_aborts: usize) -> (Arc<Scripted>, ObjectStoreBackend) {
    let (bucket, store) = scripted(Fault::Part(0));
    bucket.bad_aborts.store(bad_aborts, Ordering::Relaxed);
    store.put(id(1), payload(2 * PART)).await.unwrap_err();
    assert_eq!(bucket.unfinished.load(Ordering::Relaxed), 1);
    (bucket, store)
}

#[tokio::test]
async fn s07_an_upload_that_could_not_be_aborted_is_aborted_later() {
    let (bucket, store) = unaborted(1).await;
    store.put(id(2), payload(2 * PART)).await.unwrap_err();
    assert_eq!(bucket.unfinished.load(Ordering::Relaxed), 0, "with the next upload");

    let (bucket, store) = unaborted(2).await;
    store.put(id(2), payload(10)).await.unwrap();
    let error = store.close().await.unwrap_err();
    assert_eq!((error.operation(), error.kind()), ("close", StoreErrorKind::Transient), "{error}");
    assert_eq!(ids(&store, None, 9).await, [0; 0], "all else is closed");
    for polls in 0..3 {
        poll_at_most(store.close(), polls).await;
    }
    store.close().await.unwrap();
    assert_eq!(bucket.unfinished.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn an_upload_that_can_not_be_aborted_is_given_up_in_the_end() {
    let (bucket, store) = unaborted(usize::MAX).await;
    for _ in 0..4 {
        store.close().await.unwrap_err();
    }
    store.close().await.unwrap();
    assert_eq!(
        (usize::MAX - bucket.bad_aborts.load(Ordering::Relaxed), ids(&store, None, 9).await),
        (5, vec![])
    );
}

#[tokio::test]
async fn s01_a_put_dropped_at_any_poll_leaves_the_blob_whole_or_nothing() {
    for length in [10, 5 * PART + 3] {
        for polls in 0.. {
            assert!(polls < 100, "put never ends");
            let (bucket, store) = scripted(Fault::Nothing);
            let done = poll_at_most(store.put(id(1), payload(length)), polls).await;
            settle().await;
            assert_eq!(bucket.unfinished.load(Ordering::Relaxed), 0, "{length} bytes, {polls} polls");
            let listed = store.list(None, 10).await.unwrap();
            match listed.first() {
                Some(blob) => {
                    assert_eq!(blob.stored.bytes, length as u64);
                    assert_eq!(store.get(id(1), 0..length as u64).await.unwrap(), bytes(length));
                }
                None => assert!(done.is_none(), "{polls} polls: reported as put, and is not there"),
            }
            // The same call again works, and closing leaves nothing.
            store.put(id(2), payload(length)).await.unwrap();
            store.close().await.unwrap();
            assert_eq!(bucket.inner.list(None).count().await, 0);
            if done.is_some() {
                assert!(polls > 1, "the sweep saw no await at all");
                break;
            }
        }
    }
}

#[tokio::test]
async fn reads_deletes_and_listings_can_be_dropped_at_any_poll() {
    let (_, store) = scripted(Fault::Nothing);
    for number in 0..5 {
        store.put(id(number), payload(50)).await.unwrap();
    }
    for polls in 0..6 {
        poll_at_most(store.get(id(1), 0..50), polls).await;
        poll_at_most(store.list(None, 3), polls).await;
        poll_at_most(store.delete(&[id(3), id(4)]), polls).await;
    }
    assert_eq!(store.get(id(1), 0..50).await.unwrap(), bytes(50));
    store.delete(&[id(3), id(4)]).await.unwrap();
    assert_eq!(ids(&store, None, 9).await, [0, 1, 2]);
}

#[tokio::test]
async fn s03_delete_is_idempotent_and_names_what_failed() {
    let (_, store) = scripted(Fault::Delete("0000000000000003"));
    for number in 0..9 {
        store.put(id(number), payload(5)).await.unwrap();
    }
    let batch: Vec<_> = (0..6).map(id).chain([id(77), id(0)]).collect();
    let error = store.delete(&batch).await.unwrap_err();
    assert_eq!((error.failed(), error.kind()), (&[id(3)][..], StoreErrorKind::Transient));
    assert_eq!(ids(&store, None, 100).await, [3, 6, 7, 8]);
    store.delete(&[id(0), id(1), id(77)]).await.unwrap();
    store.delete(&[]).await.unwrap();
    let error = store.close().await.unwrap_err();
    assert_eq!(error.failed(), [id(3)]);
    assert_eq!(ids(&store, None, 100).await, [3]);
}

#[tokio::test]
async fn s03_lists_page_in_order_and_ignore_foreign_names() {
    let (bucket, store) = scripted(Fault::Nothing);
    let numbers = [7, 0, 300, u64::MAX, 15, 16, 255];
    for number in numbers {
        store.put(id(number), payload(5)).await.unwrap();
    }
    let session = Path::from(store.info().name.strip_prefix("scripted://").unwrap());
    let foreign = ["lock", "00000000000000FF", "0000000000000001.tmp", "0000000000000001/part"];
    for name in foreign {
        let path = Path::parse(format!("{session}/{name}")).unwrap();
        bucket.inner.put(&path, "foreign".into()).await.unwrap();
    }
    let mut all = Vec::new();
    loop {
        let page = ids(&store, all.last().copied().map(id), 2).await;
        all.extend(&page);
        if page.len() < 2 {
            break;
        }
    }
    assert_eq!(all, [0, 7, 15, 16, 255, 300, u64::MAX]);
    assert!(ids(&store, None, 0).await.is_empty());
    store.close().await.unwrap();
    assert_eq!(bucket.inner.list(None).count().await, foreign.len(), "what is not ours stays");
}

#[tokio::test]
async fn s08_two_sessions_on_one_bucket_do_not_see_each_other() {
    let bucket = Arc::new(Scripted::default());
    let mine = ObjectStoreBackend::new(bucket.clone(), "shared").unwrap();
    let yours = ObjectStoreBackend::new(bucket.clone(), "shared").unwrap();
    assert_ne!(mine.info().name, yours.info().name);
    mine.put(id(1), payload(10)).await.unwrap();
    assert_eq!(yours.get(id(1), 0..1).await.unwrap_err().kind(), StoreErrorKind::NotFound);
    yours.put(id(1), payload(20)).await.unwrap();
    yours.put(id(2), payload(20)).await.unwrap();
    mine.delete(&[id(2)]).await.unwrap();
    assert_eq!(ids(&mine, None, 9).await, [1]);
    mine.close().await.unwrap();
    assert_eq!(ids(&yours, None, 9).await, [1, 2]);
    assert_eq!(yours.get(id(1), 0..20).await.unwrap(), bytes(20));
    yours.close().await.unwrap();
    assert_eq!(bucket.inner.list(None).count().await, 0);
}

#[tokio::test]
async fn what_is_too_big_or_has_no_path_is_refused_by_name() {
    let bucket = Arc::new(InMemory::new());
    let store = ObjectStoreBackend::with_part(ObjectOptions::new(bucket.clone(), ""), 1).unwrap();
    let error = store.put(id(1), payload(10_001)).await.unwrap_err();
    assert!(error.to_string().ends_with("the blob has 10001 bytes, the most is 10000"), "{error}");
    for prefix in ["a//b", "a/../b", "."] {
        let error = ObjectStoreBackend::new(bucket.clone(), prefix).unwrap_err();
        assert!(error.to_string().contains(prefix), "{error}");
    }
}

#[test]
fn s04_an_upload_whose_runtime_ended_harms_nothing() {
    let (_, store) = scripted(Fault::Nothing);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(poll_at_most(store.put(id(1), payload(5 * PART)), 4));
    let mut put = Box::pin(store.put(id(2), payload(5 * PART)));
    runtime.block_on(async { assert!(futures_util::poll!(&mut put).is_pending()) });
    drop(runtime);
    drop(put);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    runtime.block_on(async {
        store.put(id(3), payload(5 * PART)).await.unwrap();
        store.close().await.unwrap();
    });
}

#[tokio::test]
async fn memory_urls_with_more_in_them_are_refused() {
    use spill_core::{Options, StoreFactory};
    for url in ["memory://host/", "memory:?size=1", "memory:#top", "s3://bucket"] {
        let error = crate::MemoryFactory.open(&url.parse().unwrap(), Options::new()).await.unwrap_err();
        assert!(error.to_string().contains("write `memory:`"), "{error}");
    }
    for url in ["memory:", "memory:/", "memory:///", "memory:/some/prefix"] {
        crate::MemoryFactory.open(&url.parse().unwrap(), Options::new()).await.unwrap();
    }
}
