//! A store with one deliberate mistake.
#![allow(clippy::unwrap_used, reason = "a mistake here is one of the test")]

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use spill_conformance::StoreHarness;
use spill_core::{
    BlobId, BlobMeta, MemoryStore, Payload, Store, StoreError, StoreErrorKind, StoreInfo, Stored,
};

/// What a store does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    None,
    GetIsOffByOne,
    GetIsShort,
    PastTheEndIsClipped,
    MissingIsEmpty,
    MissingIsOther,
    EmptyRangeOfMissingIsEmpty,
    DeleteOfMissingFails,
    DeleteStopsAtTheFirstMissing,
    DeleteTakesAThousandAtMost,
    DeleteRemovesByPrefix,
    DeleteForgetsTheLast,
    ListIsUnordered,
    ListHasDuplicates,
    ListIgnoresTheLimit,
    ListIncludesTheGivenId,
    ListIsOneShort,
    ListGoesByPosition,
    ListShowsForeignThings,
    PutOverwrites,
    PutIsRefusedButOverwrites,
    PutSaysTheWrongSize,
    PutIsSeenHalf,
    PutTakesTheFirstChunkOnly,
    PutLosesTheLastByteOfLarge,
    PutForgetsChunksBeyondOneCall,
    EmptyIsNotKept,
    SessionsShareBlobs,
    CloseLeavesBlobs,
    CloseFails,
    CloseClosesAll,
    BlocksTheRuntime,
    HangsOnAnEmptyBatch,
    PanicsOnFarRanges,
    CountsAllocationInBlocks,
    PunchesTooMuch,
    WorksOnOneRuntimeOnly,
    TextIsTranslated,
    ReadsChangeTheListing,
    PreferredBlobIsZero,
    FailsWhenBusy,
    DropNeedsARuntime,
    PunchSaysTooMuch,
    BackwardRangeIsEmpty,
    DamagesPageEdges,
}

/// One session. Blobs of `bug: None` are those of a `MemoryStore`, which makes a model.
#[derive(Debug)]
pub(crate) struct Broken {
    bug: Bug,
    inner: MemoryStore,
    info: StoreInfo,
    order: Mutex<Vec<BlobId>>,
    space: Arc<Namespace>,
    opened_on: tokio::runtime::Id,
    busy: AtomicU32,
    reads: AtomicU32,
}

/// What all sessions of a namespace have in common.
#[derive(Debug, Default)]
pub(crate) struct Namespace {
    sessions: Mutex<Vec<MemoryStore>>,
    foreign: Mutex<bool>,
}

impl Broken {
    fn open(bug: Bug, space: &Arc<Namespace>) -> Self {
        let shared = space.sessions.lock().first().cloned();
        let inner = match (bug, shared) {
            (Bug::SessionsShareBlobs, Some(shared)) => shared,
            _ => MemoryStore::new(),
        };
        space.sessions.lock().push(inner.clone());
        let punches = matches!(bug, Bug::PunchesTooMuch | Bug::PunchSaysTooMuch);
        let preferred = if bug == Bug::PreferredBlobIsZero { 0 } else { 1 << 20 };
        let info = StoreInfo::new("broken:").can_punch(punches).max_blob(9 << 20).preferred_blob(preferred);
        let opened_on = tokio::runtime::Handle::current().id();
        Self {
            bug,
            inner,
            info,
            order: Mutex::default(),
            space: Arc::clone(space),
            opened_on,
            busy: AtomicU32::new(0),
            reads: AtomicU32::new(0),
        }
    }

    fn is(&self, bug: Bug) -> bool {
        self.bug == bug
    }

    fn error(kind: StoreErrorKind, operation: &'static str, id: BlobId) -> StoreError {
        StoreError::new(kind, operation, "broken:").with_blob(id)
    }

    async fn len(&self, id: BlobId) -> Option<u64> {
        let found = self.inner.list(id.get().checked_sub(1).map(BlobId::new), 1).await.unwrap();
        found.first().filter(|meta| meta.id == id).map(|meta| meta.stored.bytes)
    }

    /// What is kept of a payload.
    fn kept(&self, blob: &Payload) -> Payload {
        let bytes = blob.to_bytes();
        match self.bug {
            Bug::PutTakesTheFirstChunkOnly => blob.chunks().next().cloned().unwrap_or_default().into(),
            Bug::PutForgetsChunksBeyondOneCall => blob.chunks().take(1024).cloned().collect(),
            Bug::PutLosesTheLastByteOfLarge if bytes.len() >= 8 << 20 => bytes.slice(1..).into(),
            Bug::TextIsTranslated => {
                let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\r').collect();
                if bytes.len() < 100 { lines.concat().into() } else { bytes.into() }
            }
            Bug::DamagesPageEdges if !bytes.is_empty() && (bytes.len() + 1) % 4096 <= 2 => {
                let mut damaged = Vec::from(bytes);
                damaged[0] ^= 1;
                damaged.into()
            }
            _ => bytes.into(),
        }
    }

    /// Takes its time, and fails when too many do so.
    async fn be_busy(&self, operation: &'static str, id: BlobId) -> Result<(), StoreError> {
        if self.is(Bug::FailsWhenBusy) {
            if self.busy.fetch_add(1, Ordering::Relaxed) >= 40 {
                return Err(Self::error(StoreErrorKind::Transient, operation, id));
            }
            tokio::task::yield_now().await;
            self.busy.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn put_own(&self, id: BlobId, blob: Payload) -> Result<Stored, StoreError> {
        match self.bug {
            Bug::PutOverwrites => self.inner.delete(&[id]).await?,
            Bug::PutIsSeenHalf if self.len(id).await.is_none() => {
                let bytes = blob.to_bytes();
                self.inner.put(id, bytes.slice(..bytes.len() / 2).into()).await?;
                // Long enough for a runtime to be dropped meanwhile, where that is what the case is about.
                match bytes.len() {
                    1_048_576 => tokio::time::sleep(Duration::from_millis(200)).await,
                    _ => tokio::task::yield_now().await,
                }
                self.inner.delete(&[id]).await?;
            }
            Bug::EmptyIsNotKept if blob.is_empty() => return Ok(Stored::default()),
            Bug::BlocksTheRuntime if blob.len() > 8 << 20 => thread::sleep(Duration::from_millis(900)),
            Bug::WorksOnOneRuntimeOnly if tokio::runtime::Handle::current().id() != self.opened_on => {
                return Err(Self::error(StoreErrorKind::Other, "put", id));
            }
            _ => {}
        }
        if self.len(id).await.is_some() {
            if self.is(Bug::PutIsRefusedButOverwrites) {
                self.inner.delete(&[id]).await?;
                self.inner.put(id, blob).await?;
            }
            return Err(Self::error(StoreErrorKind::Other, "put", id));
        }
        self.inner.put(id, self.kept(&blob)).await
    }

    async fn list_broken(&self, after: Option<BlobId>, limit: usize) -> Result<Vec<BlobMeta>, StoreError> {
        let mut all = self.inner.list(None, usize::MAX).await?;
        match self.bug {
            Bug::ListIsUnordered => {
                // As a directory is read: in the order of creation, from where the page ended.
                let order = self.order.lock().clone();
                all.sort_by_key(|meta| order.iter().position(|id| *id == meta.id));
                let skip = after.and_then(|after| all.iter().position(|meta| meta.id == after));
                all.drain(..skip.map_or(0, |skip| skip + 1));
            }
            Bug::ListGoesByPosition => {
                // The position of the id when it was listed is taken for its position now.
                let order = self.order.lock().clone();
                let mut sorted = order;
                sorted.sort_unstable();
                let skip = after.map_or(0, |after| sorted.partition_point(|id| *id <= after));
                all.drain(..skip.min(all.len()));
            }
            _ => {
                let from = match (self.bug, after) {
                    (_, None) => 0,
                    (Bug::ListIncludesTheGivenId, Some(after)) => all.partition_point(|meta| meta.id < after),
                    (_, Some(after)) => all.partition_point(|meta| meta.id <= after),
                };
                all.drain(..from);
            }
        }
        let limit = match self.bug {
            Bug::ListIgnoresTheLimit => usize::MAX,
            Bug::ListIsOneShort if limit > 1 => limit - 1,
            _ => limit,
        };
        if self.is(Bug::ListHasDuplicates) && all.len() > 1 {
            all.insert(1, all[0]);
        }
        if self.is(Bug::ListShowsForeignThings) && *self.space.foreign.lock() {
            all.push(BlobMeta { id: BlobId::new(u64::MAX), stored: Stored::default() });
        }
        all.truncate(limit);
        Ok(all)
    }
}

#[async_trait]
impl Store for Broken {
    fn info(&self) -> &StoreInfo {
        &self.info
    }

    async fn put(&self, id: BlobId, blob: Payload) -> Result<Stored, StoreError> {
        if blob.len() as u64 > self.info.max_blob {
            return Err(Self::error(StoreErrorKind::Other, "put", id));
        }
        self.be_busy("put", id).await?;
        let len = blob.len() as u64;
        self.put_own(id, blob).await?;
        self.order.lock().push(id);
        match self.bug {
            Bug::PutSaysTheWrongSize => Ok(Stored { bytes: len + 16, allocated: len }),
            Bug::CountsAllocationInBlocks => Ok(Stored { bytes: len, allocated: len * 512 }),
            _ => Ok(Stored { bytes: len, allocated: len }),
        }
    }

    async fn get(&self, id: BlobId, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.be_busy("get", id).await?;
        self.reads.fetch_add(1, Ordering::Relaxed);
        let Some(len) = self.len(id).await else {
            return match self.bug {
                Bug::MissingIsEmpty => Ok(Bytes::new()),
                Bug::MissingIsOther => Err(Self::error(StoreErrorKind::Other, "get", id)),
                Bug::EmptyRangeOfMissingIsEmpty if range.is_empty() => Ok(Bytes::new()),
                _ => Err(Self::error(StoreErrorKind::NotFound, "get", id)),
            };
        };
        match self.bug {
            Bug::GetIsOffByOne if range.start > 0 && range.end <= len && range.start <= range.end => {
                self.inner.get(id, range.start - 1..range.end - 1).await
            }
            Bug::GetIsShort if range.end <= len && range.end > range.start + 65_536 => {
                self.inner.get(id, range.start..range.start + 65_536).await
            }
            Bug::PastTheEndIsClipped if range.start <= range.end => {
                self.inner.get(id, range.start.min(len)..range.end.min(len)).await
            }
            Bug::BackwardRangeIsEmpty if range.start > range.end => Ok(Bytes::new()),
            Bug::PanicsOnFarRanges => {
                assert!(range.end <= 1 << 31, "the range does not fit");
                self.inner.get(id, range).await
            }
            _ => self.inner.get(id, range).await,
        }
    }

    async fn delete(&self, ids: &[BlobId]) -> Result<(), StoreError> {
        match self.bug {
            Bug::DeleteOfMissingFails => {
                let mut missing = None;
                for id in ids {
                    missing = if self.len(*id).await.is_none() { Some(*id) } else { missing };
                    self.inner.delete(&[*id]).await?;
                }
                missing.map_or(Ok(()), |id| Err(Self::error(StoreErrorKind::NotFound, "delete", id)))
            }
            Bug::DeleteStopsAtTheFirstMissing => {
                for id in ids {
                    if self.len(*id).await.is_none() {
                        return Ok(());
                    }
                    self.inner.delete(&[*id]).await?;
                }
                Ok(())
            }
            Bug::DeleteTakesAThousandAtMost => self.inner.delete(&ids[..ids.len().min(1000)]).await,
            Bug::DeleteForgetsTheLast if ids.len() > 1 => self.inner.delete(&ids[..ids.len() - 1]).await,
            Bug::DeleteRemovesByPrefix => {
                let short = |id: BlobId| format!("{:x}", id.get());
                let all = self.inner.list(None, usize::MAX).await?;
                let hit = |meta: &&BlobMeta| ids.iter().any(|id| short(meta.id).starts_with(&short(*id)));
                let hit: Vec<_> = all.iter().filter(hit).map(|meta| meta.id).collect();
                self.inner.delete(&hit).await
            }
            Bug::HangsOnAnEmptyBatch if ids.is_empty() => std::future::pending().await,
            _ => self.inner.delete(ids).await,
        }
    }

    async fn punch(&self, id: BlobId, ranges: &[Range<u64>]) -> Result<u64, StoreError> {
        if self.is(Bug::PunchSaysTooMuch) {
            return Ok(4096 + ranges.iter().map(|range| range.end - range.start).sum::<u64>());
        }
        if !self.is(Bug::PunchesTooMuch) {
            return Ok(0);
        }
        // Whole blocks, those that are touched only in part as well.
        for range in ranges.iter().filter(|range| !range.is_empty()) {
            let (from, to) = (range.start / 4096 * 4096, range.end.next_multiple_of(4096));
            let (from, to) = (usize::try_from(from).unwrap(), usize::try_from(to).unwrap());
            self.inner.tamper(id, |mut blob| {
                blob[from..to].fill(0);
                Some(blob)
            });
        }
        Ok(ranges.iter().map(|range| range.end - range.start).sum())
    }

    async fn list(&self, after: Option<BlobId>, limit: usize) -> Result<Vec<BlobMeta>, StoreError> {
        let mut page = self.list_broken(after, limit).await?;
        if self.is(Bug::ReadsChangeTheListing) {
            let reads = u64::from(self.reads.load(Ordering::Relaxed));
            page.iter_mut().for_each(|meta| meta.stored.allocated += reads);
        }
        Ok(page)
    }

    async fn close(&self) -> Result<(), StoreError> {
        match self.bug {
            Bug::CloseLeavesBlobs => Ok(()),
            Bug::CloseFails => Err(StoreError::new(StoreErrorKind::Other, "close", "broken:")),
            Bug::CloseClosesAll => {
                let sessions = self.space.sessions.lock().clone();
                for session in sessions {
                    session.close().await?;
                }
                Ok(())
            }
            _ => self.inner.close().await,
        }
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        if self.is(Bug::DropNeedsARuntime) {
            let _ = tokio::runtime::Handle::current();
        }
    }
}

/// A harness over stores with this bug that can look into them from outside.
pub(crate) fn harness(bug: Bug) -> StoreHarness {
    let spaces: Arc<Mutex<BTreeMap<String, Arc<Namespace>>>> = Arc::default();
    let space = move |namespace: String| Arc::clone(spaces.lock().entry(namespace).or_default());
    let (opened, looked_at, planted) = (space.clone(), space.clone(), space);
    StoreHarness::new(move |namespace| {
        let space = opened(namespace);
        async move { Ok(Arc::new(Broken::open(bug, &space)) as Arc<dyn Store>) }
    })
    .with_leftovers(move |namespace| {
        let space = looked_at(namespace);
        async move {
            let (sessions, mut left) = (space.sessions.lock().clone(), Vec::new());
            for (number, session) in sessions.into_iter().enumerate() {
                let blobs = session.list(None, usize::MAX).await?;
                left.extend(blobs.iter().map(|meta| format!("session {number}: {}", meta.id)));
            }
            Ok(left)
        }
    })
    .with_foreign(move |namespace| {
        *planted(namespace).foreign.lock() = true;
        async { Ok(()) }
    })
}
