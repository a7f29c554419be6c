//! What the layers that bound calls share: gates that let some through at once, and the store behind them. Whether
//! a gate's bound is fixed or follows what the other side bears is said by `limit` and `adaptive`.

use std::{ops::Range, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::{BlobId, BlobMeta, Payload, Store, StoreError, StoreErrorKind, StoreInfo, Stored};

/// Lets a bounded number of calls through at once.
#[derive(Debug)]
pub(super) struct Gate {
    permits: Semaphore,
    /// Whether the bound follows what the other side bears.
    adapts: bool,
    most: usize,
    window: Mutex<Window>,
}

#[derive(Debug)]
struct Window {
    /// Calls that may be under way at once.
    limit: usize,
    /// Permits to be withdrawn as they come back: the limit was halved while they were out.
    owed: usize,
    successes: usize,
    /// How often it was halved.
    cuts: u64,
}

impl Gate {
    /// So many calls at once; 0 counts as 1.
    pub(super) fn fixed(calls: usize) -> Self {
        Self { adapts: false, ..Self::adaptive(calls, calls) }
    }

    /// Never more than `most` calls at once, 0 counts as 1, and `start` of them to begin with.
    pub(super) fn adaptive(start: usize, most: usize) -> Self {
        let most = most.clamp(1, Semaphore::MAX_PERMITS);
        let limit = start.clamp(1, most);
        let window = Window { limit, owed: 0, successes: 0, cuts: 0 };
        Self { permits: Semaphore::new(limit), adapts: true, most, window: Mutex::new(window) }
    }

    async fn enter(&self) -> Option<Place<'_>> {
        let permit = self.permits.acquire().await.ok()?;
        let cuts = self.window.lock().cuts;
        Some(Place { gate: self, permit: Some(permit), cuts })
    }

    fn succeeded(&self, cuts: u64) {
        let mut window = self.window.lock();
        // A bound that nobody reaches says nothing about how many would be too many.
        if window.cuts != cuts || self.permits.available_permits() > 0 {
            return;
        }
        window.successes += 1;
        if window.successes < window.limit || window.limit == self.most {
            return;
        }
        window.successes = 0;
        window.limit += 1;
        match window.owed.checked_sub(1) {
            Some(owed) => window.owed = owed,
            None => self.permits.add_permits(1),
        }
    }

    fn throttled(&self, cuts: u64) {
        let mut window = self.window.lock();
        if window.cuts != cuts {
            // It was sent before the limit was halved for one of its companions.
            return;
        }
        let limit = (window.limit / 2).max(1);
        let fewer = window.limit - limit;
        window.owed += fewer - self.permits.forget_permits(fewer);
        (window.limit, window.successes, window.cuts) = (limit, 0, cuts + 1);
    }
}

/// One call under way.
#[derive(Debug)]
struct Place<'a> {
    gate: &'a Gate,
    permit: Option<SemaphorePermit<'a>>,
    /// What was counted when it began.
    cuts: u64,
}

impl Place<'_> {
    fn end<T>(self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        match &answer {
            _ if !self.gate.adapts => {}
            Ok(_) => self.gate.succeeded(self.cuts),
            Err(error) if error.is_throttled() => self.gate.throttled(self.cuts),
            Err(_) => {}
        }
        answer
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        let mut window = self.gate.window.lock();
        if let Some(owed) = window.owed.checked_sub(1) {
            window.owed = owed;
            permit.forget();
        }
    }
}

/// A store behind gates: one for writes (`put`, `punch`), one for reads (`get`, `list`), one for deletes, so that
/// none queues behind another. `close` passes none.
#[derive(Debug)]
pub(super) struct Gated {
    pub(super) inner: Arc<dyn Store>,
    pub(super) writes: Gate,
    pub(super) reads: Gate,
    pub(super) deletes: Gate,
}

impl Gated {
    async fn place<'a>(&self, gate: &'a Gate, operation: &'static str) -> Result<Place<'a>, StoreError> {
        gate.enter().await.ok_or_else(|| {
            let target = self.inner.info().name.clone();
            StoreError::new(StoreErrorKind::Other, operation, target).with_source("the store is closed")
        })
    }
}

#[async_trait]
impl Store for Gated {
    fn info(&self) -> &StoreInfo {
        self.inner.info()
    }

    async fn put(&self, id: BlobId, blob: Payload) -> Result<Stored, StoreError> {
        let place = self.place(&self.writes, "put").await?;
        place.end(self.inner.put(id, blob).await)
    }

    async fn get(&self, id: BlobId, range: Range<u64>) -> Result<Bytes, StoreError> {
        let place = self.place(&self.reads, "get").await?;
        place.end(self.inner.get(id, range).await)
    }

    async fn delete(&self, ids: &[BlobId]) -> Result<(), StoreError> {
        let place = self.place(&self.deletes, "delete").await?;
        place.end(self.inner.delete(ids).await)
    }

    async fn punch(&self, id: BlobId, ranges: &[Range<u64>]) -> Result<u64, StoreError> {
        let place = self.place(&self.writes, "punch").await?;
        place.end(self.inner.punch(id, ranges).await)
    }

    async fn list(&self, after: Option<BlobId>, limit: usize) -> Result<Vec<BlobMeta>, StoreError> {
        let place = self.place(&self.reads, "list").await?;
        place.end(self.inner.list(after, limit).await)
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.inner.close().await
    }
}
