//! What the cases have in common: the place they run in, payloads, and checked calls.

use std::{
    ffi::OsString,
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, TryStreamExt, future::BoxFuture, stream};
use parking_lot::Mutex;
use spill_core::{BlobId, BlobMeta, Store, StoreError, StoreErrorKind};

use super::StoreHarness;
use crate::{
    medium::Medium,
    runner::{Stop, Verdict, ensure, ensure_eq},
};

/// How many calls a case that only needs blobs to be there makes at once.
const AT_ONCE: usize = 16;
/// The most polls of one future that a sweep cancels at.
const MOST_POLLS: u32 = 2000;
/// How often a case looks for something that comes about soon.
const LOOK: Duration = Duration::from_millis(5);

/// The namespace of one run of a case.
pub(super) struct Place {
    harness: Arc<StoreHarness>,
    namespace: String,
    wrap: Wrap,
    opened: Mutex<Vec<Arc<dyn Store>>>,
}

/// What is put around each store that is opened.
pub(super) type Wrap = Arc<dyn Fn(Arc<dyn Store>) -> Arc<dyn Store> + Send + Sync>;

impl Place {
    pub(super) fn new(harness: Arc<StoreHarness>, namespace: String, wrap: Wrap) -> Self {
        Self { harness, namespace, wrap, opened: Mutex::default() }
    }

    /// Opens a session.
    pub(super) async fn open(&self) -> Result<Arc<dyn Store>, Stop> {
        let store = self.opening().await?;
        self.adopt(&store);
        Ok(store)
    }

    /// Opens a session on whatever runtime drives the future. Give it to `adopt` when it is there.
    pub(super) fn opening(&self) -> BoxFuture<'static, Result<Arc<dyn Store>, StoreError>> {
        let (opening, wrap) = ((self.harness.open)(self.namespace.clone()), Arc::clone(&self.wrap));
        Box::pin(async move { opening.await.map(|store| wrap(store)) })
    }

    /// Opens a session over a medium with trouble, without taking it over.
    pub(super) fn opening_over(
        &self,
        medium: &Medium,
    ) -> BoxFuture<'static, Result<Arc<dyn Store>, StoreError>> {
        let Some(plan) = &self.harness.faults else {
            let error = StoreError::new(StoreErrorKind::Other, "open", self.namespace.clone());
            return Box::pin(async { Err(error.with_source("the harness has no faults")) });
        };
        let (opening, wrap) = ((plan.open)(self.namespace.clone(), medium.clone()), Arc::clone(&self.wrap));
        Box::pin(async move { opening.await.map(|store| wrap(store)) })
    }

    /// The bytes of the large blob in cases about faults.
    pub(super) fn large_blob(&self) -> u64 {
        self.harness.large_blob
    }

    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// What other processes find in their environment.
    pub(super) fn child_variables(&self) -> Vec<(String, OsString)> {
        self.harness.child_variables.clone()
    }

    pub(super) fn time_limit(&self) -> Duration {
        self.harness.time_limit
    }

    pub(super) fn settle_limit(&self) -> Duration {
        self.harness.settle_limit
    }

    pub(super) fn can_look_past_the_store(&self) -> bool {
        self.harness.leftovers.is_some()
    }

    /// Removes what dead sessions left; how many of them.
    pub(super) async fn sweep(&self) -> Result<u64, Stop> {
        let sweep = self.harness.sweep.as_ref().ok_or("the harness can't sweep")?;
        sweep(self.namespace.clone()).await.map_err(|error| format!("the sweep failed: {error}").into())
    }

    /// Sweeps again and again until nothing is left, as long as the harness allows. How many sessions that
    /// were.
    pub(super) async fn sweep_all(&self) -> Result<u64, Stop> {
        let swept = AtomicU64::new(0);
        self.soon(|| async {
            swept.fetch_add(self.sweep().await?, Ordering::Relaxed);
            ensure_eq!(self.leftovers().await?, Vec::<String>::new(), "left over after a sweep");
            Ok(())
        })
        .await?;
        Ok(swept.into_inner())
    }

    /// Takes over a session that was opened elsewhere.
    pub(super) fn adopt(&self, store: &Arc<dyn Store>) {
        self.opened.lock().push(Arc::clone(store));
    }

    /// Closes a session, as the last call on it.
    pub(super) async fn close(&self, store: Arc<dyn Store>) -> Verdict {
        self.opened.lock().retain(|other| !Arc::ptr_eq(other, &store));
        Ok(store.close().await?)
    }

    /// Forgets a session, which is then dropped and not closed.
    pub(super) fn forget(&self, store: &Arc<dyn Store>) {
        self.opened.lock().retain(|other| !Arc::ptr_eq(other, store));
    }

    /// Checks again and again until `look` passes, as long as the harness allows. For what a store may do
    /// soon after.
    pub(super) async fn soon<F: Future<Output = Verdict>>(&self, mut look: impl FnMut() -> F) -> Verdict {
        // A look that hangs must not hide what hangs.
        let patience = self.harness.settle_limit * 4;
        let begin = Instant::now();
        loop {
            let looked = tokio::time::timeout(patience, look()).await;
            let looked = looked.map_err(|_| format!("it does not answer within {patience:?}"))?;
            if looked.is_ok() || begin.elapsed() >= self.harness.settle_limit {
                return looked;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// What is really there, seen past the store.
    pub(super) async fn leftovers(&self) -> Result<Vec<String>, Stop> {
        let look = self.harness.leftovers.as_ref().ok_or("the harness can't look past the store")?;
        look(self.namespace.clone()).await.map_err(|error| format!("looking for leftovers: {error}").into())
    }

    /// Puts things there that are not the store's.
    pub(super) async fn plant_foreign(&self) -> Verdict {
        let plant = self.harness.foreign.as_ref().ok_or("the harness can't plant foreign things")?;
        plant(self.namespace.clone())
            .await
            .map_err(|error| format!("planting foreign things: {error}").into())
    }

    /// Closes what the case left open. How closing goes is what other cases check.
    pub(super) async fn clean_up(&self) {
        let opened = std::mem::take(&mut *self.opened.lock());
        for store in opened {
            // One that hangs would hide why the case failed.
            let _ = tokio::time::timeout(self.harness.settle_limit, store.close()).await;
        }
    }
}

pub(super) const fn id(number: u64) -> BlobId {
    BlobId::new(number)
}

/// The id for a position in a test's own list.
pub(super) fn nth(index: usize) -> BlobId {
    BlobId::new(index as u64)
}

/// Bytes that differ from blob to blob and from place to place, the same in every run.
pub(super) fn pattern(id: BlobId, len: usize) -> Bytes {
    let mut state = id.get().wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes.into()
}

/// The same, made where it does not block the runtime: that would be taken for the store's fault.
pub(super) async fn made_pattern(id: BlobId, len: usize) -> Result<Bytes, Stop> {
    const LARGE: usize = 256 << 10;
    if len < LARGE {
        return Ok(pattern(id, len));
    }
    let made = tokio::task::spawn_blocking(move || pattern(id, len)).await;
    made.map_err(|error| format!("no pattern of {len} bytes: {error}").into())
}

/// Puts the pattern of a blob, and checks what the store says about it.
pub(super) async fn put(store: &dyn Store, id: BlobId, len: usize) -> Verdict {
    put_bytes(store, id, &made_pattern(id, len).await?).await
}

pub(super) async fn put_bytes(store: &dyn Store, id: BlobId, bytes: &Bytes) -> Verdict {
    store
        .put(id, bytes.clone().into())
        .await
        .map_err(|error| format!("put of {} bytes: {error}", bytes.len()))?;
    Ok(())
}

/// Puts the patterns of many blobs, some at once.
pub(super) async fn put_all(store: &dyn Store, blobs: &[(BlobId, usize)]) -> Verdict {
    some_at_once(blobs.iter().map(|(id, len)| put(store, *id, *len).boxed()).collect()).await
}

/// Runs calls, some at once. Boxed, as the compiler does not see through the nested borrows otherwise.
pub(super) async fn some_at_once(calls: Vec<BoxFuture<'_, Verdict>>) -> Verdict {
    stream::iter(calls).buffer_unordered(AT_ONCE).try_collect::<()>().await
}

/// Reads a whole blob and checks that it is its pattern.
pub(super) async fn expect(store: &dyn Store, id: BlobId, len: usize) -> Verdict {
    expect_bytes(store, id, &made_pattern(id, len).await?).await
}

pub(super) async fn expect_bytes(store: &dyn Store, id: BlobId, wanted: &Bytes) -> Verdict {
    let found = store.get(id, 0..wanted.len() as u64).await?;
    same_bytes(&found, wanted, &format!("blob {id}"))
}

/// Fails with the place of the first difference rather than with megabytes.
pub(super) fn same_bytes(found: &[u8], wanted: &[u8], what: &str) -> Verdict {
    ensure_eq!(found.len(), wanted.len(), "bytes read of {what}");
    if found != wanted {
        let at = found.iter().zip(wanted).position(|(found, wanted)| found != wanted);
        return Err(format!("{what} differs from what was put at byte {}", at.unwrap_or(0)).into());
    }
    Ok(())
}

pub(super) async fn expect_all(store: &dyn Store, blobs: &[(BlobId, usize)]) -> Verdict {
    some_at_once(blobs.iter().map(|(id, len)| expect(store, *id, *len).boxed()).collect()).await
}

/// Checks that a blob is whole or missing, in reads and in the listing.
pub(super) async fn whole_or_missing(store: &dyn Store, id: BlobId, wanted: &Bytes, what: &str) -> Verdict {
    match store.get(id, 0..wanted.len() as u64).await {
        Ok(found) => same_bytes(&found, wanted, &format!("a blob {what}"))?,
        Err(error) if error.kind() == StoreErrorKind::NotFound => {}
        Err(error) => return Err(format!("part of a blob is left {what}: {error}").into()),
    }
    for meta in list_all(store, 1000).await? {
        if meta.id == id {
            ensure_eq!(meta.stored.bytes, wanted.len() as u64, "listed size of a blob {what}");
        }
    }
    Ok(())
}

/// Checks that a call failed with this kind.
pub(super) fn expect_kind<T>(answer: Result<T, StoreError>, kind: StoreErrorKind, what: &str) -> Verdict {
    match answer {
        Ok(_) => Err(format!("{what}: wanted an error of kind {kind:?}, found Ok").into()),
        Err(error) if error.kind() == kind => Ok(()),
        Err(error) => {
            Err(format!("{what}: wanted an error of kind {kind:?}, found {:?}: {error}", error.kind()).into())
        }
    }
}

pub(super) async fn expect_missing(store: &dyn Store, id: BlobId) -> Verdict {
    expect_kind(store.get(id, 0..1).await, StoreErrorKind::NotFound, &format!("get of missing blob {id}"))
}

/// The whole listing, in pages; checks only that it ends.
pub(super) async fn list_all(store: &dyn Store, page: usize) -> Result<Vec<BlobMeta>, Stop> {
    let mut all: Vec<BlobMeta> = Vec::new();
    loop {
        let after = all.last().map(|meta| meta.id);
        let found = store.list(after, page).await?;
        let last = found.len() < page;
        all.extend(found);
        if last {
            return Ok(all);
        }
        ensure!(all.len() < 1_000_000, "the listing does not end: {} blobs so far", all.len());
    }
}

/// The ids of the whole listing, sorted and each once: cases of their own are about that.
pub(super) async fn ids(store: &dyn Store) -> Result<Vec<BlobId>, Stop> {
    let mut ids: Vec<BlobId> = list_all(store, 1000).await?.iter().map(|meta| meta.id).collect();
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// Polls a future at most `polls` times, and drops it then. `None` when it was not done by then.
pub(super) async fn cancelled_after<T>(polls: u32, mut future: BoxFuture<'_, T>) -> Option<T> {
    let mut done = 0;
    poll_fn(move |context| {
        if done == polls {
            return Poll::Ready(None);
        }
        done += 1;
        match future.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending if done == polls => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Numbers of polls to cancel after: every one at first, then ever fewer.
pub(super) fn polls() -> impl Iterator<Item = u32> {
    std::iter::successors(Some(0), |polls: &u32| Some(polls + 1 + polls / 16))
        .take_while(|polls| *polls < MOST_POLLS)
}
