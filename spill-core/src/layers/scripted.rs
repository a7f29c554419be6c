//! A store for the tests of the layers: slow and failing as told, and with a record of its calls.

use std::{
    collections::VecDeque,
    ops::Range,
    pin::Pin,
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::{BlobId, BlobMeta, MemoryStore, Payload, Store, StoreError, StoreErrorKind, StoreInfo, Stored};

pub(super) fn id(number: u64) -> BlobId {
    BlobId::new(number)
}

/// Polls once and says whether there is more to come.
pub(super) fn is_pending<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> bool {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// What the next call does.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Work,
    Fail(StoreError),
    /// Does it, and fails all the same: the answer got lost.
    LoseAnswer(StoreError),
}

#[derive(Debug, Default)]
pub(super) struct Scripted {
    pub(super) memory: MemoryStore,
    delay: Duration,
    steps: Mutex<VecDeque<Step>>,
    calls: Mutex<Vec<String>>,
    at_once: Mutex<(usize, usize)>,
    /// Calls at once that are not refused.
    bears: Mutex<Option<usize>>,
}

/// One call under way; it is over when this is dropped.
struct UnderWay<'a>(&'a Scripted);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.at_once.lock().0 -= 1;
    }
}

pub(super) fn error(kind: StoreErrorKind) -> StoreError {
    StoreError::new(kind, "call", "scripted").with_source("on purpose")
}

impl Scripted {
    pub(super) fn slow(delay: Duration) -> Arc<Self> {
        Arc::new(Self { delay, ..Self::default() })
    }

    pub(super) fn of(steps: impl IntoIterator<Item = Step>) -> Arc<Self> {
        Arc::new(Self { steps: Mutex::new(steps.into_iter().collect()), ..Self::default() })
    }

    pub(super) fn fail(&self, kinds: impl IntoIterator<Item = StoreErrorKind>) {
        self.steps.lock().extend(kinds.into_iter().map(|kind| Step::Fail(error(kind))));
    }

    pub(super) fn push(&self, steps: impl IntoIterator<Item = Step>) {
        self.steps.lock().extend(steps);
    }

    /// With more calls at once than this, the one that comes last is refused.
    pub(super) fn bears(&self, calls: usize) {
        *self.bears.lock() = Some(calls);
    }

    pub(super) fn reset_most_at_once(&self) {
        self.at_once.lock().1 = 0;
    }

    pub(super) fn calls(&self) -> Vec<String> {
        self.calls.lock().clone()
    }

    pub(super) fn most_at_once(&self) -> usize {
        self.at_once.lock().1
    }

    async fn call<T>(
        &self,
        name: String,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.calls.lock().push(name);
        let too_many = {
            let mut at_once = self.at_once.lock();
            at_once.0 += 1;
            at_once.1 = at_once.1.max(at_once.0);
            self.bears.lock().is_some_and(|bears| at_once.0 > bears)
        };
        let _under_way = UnderWay(self);
        if !self.delay.is_zero() {
            tokio::time::sleep(self.delay).await;
        }
        if too_many {
            return Err(error(StoreErrorKind::Transient).with_throttled());
        }
        let step = self.steps.lock().pop_front().unwrap_or(Step::Work);
        match step {
            Step::Work => work.await,
            Step::Fail(error) => Err(error),
            Step::LoseAnswer(error) => work.await.and(Err(error)),
        }
    }
}

#[async_trait]
impl Store for Scripted {
    fn info(&self) -> &StoreInfo {
        self.memory.info()
    }

    async fn put(&self, id: BlobId, blob: Payload) -> Result<Stored, StoreError> {
        self.call(format!("put {}", id.get()), self.memory.put(id, blob)).await
    }

    async fn get(&self, id: BlobId, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.call(format!("get {}", id.get()), self.memory.get(id, range)).await
    }

    async fn delete(&self, ids: &[BlobId]) -> Result<(), StoreError> {
        let numbers: Vec<_> = ids.iter().map(|id| id.get()).collect();
        self.call(format!("delete {numbers:?}"), self.memory.delete(ids)).await
    }

    async fn punch(&self, id: BlobId, ranges: &[Range<u64>]) -> Result<u64, StoreError> {
        self.call(format!("punch {}", id.get()), self.memory.punch(id, ranges)).await
    }

    async fn list(&self, after: Option<BlobId>, limit: usize) -> Result<Vec<BlobMeta>, StoreError> {
        self.call("list".into(), self.memory.list(after, limit)).await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.call("close".into(), self.memory.close()).await
    }
}
