//! Ends a call that takes too long.

use std::{future::Future, ops::Range, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;

use crate::{BlobId, BlobMeta, Layer, Payload, Store, StoreError, StoreErrorKind, StoreInfo, Stored};

/// Gives each call a time limit. A call that is not done by then is dropped and answered with a `Transient`
/// error that names the limit.
///
/// A `put` that ran out of time is like one whose future was dropped: the blob is there whole or, soon
/// after, not at all; so its id has to be deleted before anything else is made of it. A `delete` that ran
/// out of time may have removed any of its blobs.
///
/// `close` has no limit here: how long it takes depends on how much there is to remove, and a buffer that
/// closes has a deadline of its own.
///
/// # Panics
/// Calls panic on a runtime whose timer is not enabled.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), spill_core::StoreError> {
/// use std::{sync::Arc, time::Duration};
/// use spill_core::{BlobId, Layer, MemoryStore, Store, layers::Timeout};
/// let store = Timeout::new(Duration::from_secs(30)).layer(Arc::new(MemoryStore::new()));
/// store.put(BlobId::new(1), b"payload".to_vec().into()).await?;
/// assert_eq!(store.get(BlobId::new(1), 0..3).await?, "pay");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout {
    limit: Duration,
}

impl Timeout {
    /// The most time that one call may take.
    pub fn new(limit: Duration) -> Self {
        Self { limit }
    }
}

impl Layer for Timeout {
    fn layer(&self, inner: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(Timed { inner, limit: self.limit })
    }
}

#[derive(Debug)]
struct Timed {
    inner: Arc<dyn Store>,
    limit: Duration,
}

impl Timed {
    async fn within<T>(
        &self,
        operation: &'static str,
        blob: Option<BlobId>,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        if let Ok(answer) = tokio::time::timeout(self.limit, call).await {
            return answer;
        }
        let limit = humantime::format_duration(self.limit);
        let message =
            format!("no answer within the time limit of {limit}; raise `timeout` if that is too short");
        let target = self.inner.info().name.clone();
        let error = StoreError::new(StoreErrorKind::Transient, operation, target).with_source(message);
        Err(match blob {
            Some(blob) => error.with_blob(blob),
            None => error,
        })
    }
}

#[async_trait]
impl Store for Timed {
    fn info(&self) -> &StoreInfo {
        self.inner.info()
    }

    async fn put(&self, id: BlobId, blob: Payload) -> Result<Stored, StoreError> {
        self.within("put", Some(id), self.inner.put(id, blob)).await
    }

    async fn get(&self, id: BlobId, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.within("get", Some(id), self.inner.get(id, range)).await
    }

    async fn delete(&self, ids: &[BlobId]) -> Result<(), StoreError> {
        self.within("delete", None, self.inner.delete(ids)).await
    }

    async fn punch(&self, id: BlobId, ranges: &[Range<u64>]) -> Result<u64, StoreError> {
        self.within("punch", Some(id), self.inner.punch(id, ranges)).await
    }

    async fn list(&self, after: Option<BlobId>, limit: usize) -> Result<Vec<BlobMeta>, StoreError> {
        self.within("list", None, self.inner.list(after, limit)).await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.inner.close().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::scripted::{Scripted, id};

    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_call_that_takes_too_long_is_transient_and_names_the_limit() {
        let script = Scripted::slow(LIMIT + Duration::from_millis(1));
        let store = Timeout::new(LIMIT).layer(script.clone());
        let errors = [
            store.put(id(1), Payload::new()).await.unwrap_err(),
            store.get(id(1), 0..0).await.unwrap_err(),
            store.delete(&[id(1)]).await.unwrap_err(),
            store.punch(id(1), &[]).await.unwrap_err(),
            store.list(None, 1).await.unwrap_err(),
        ];
        for (error, operation) in errors.iter().zip(["put", "get", "delete", "punch", "list"]) {
            assert_eq!((error.kind(), error.operation()), (StoreErrorKind::Transient, operation));
            assert!(error.to_string().contains("within the time limit of 30s"), "{error}");
            assert!(error.failed().is_empty());
        }
        assert_eq!(errors[0].blob(), Some(id(1)));
        store.close().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_within_the_limit_is_left_alone() {
        let script = Scripted::slow(LIMIT - Duration::from_millis(1));
        let store = Timeout::new(LIMIT).layer(script.clone());
        store.put(id(1), b"payload".to_vec().into()).await.unwrap();
        assert_eq!(store.get(id(1), 0..7).await.unwrap(), "payload");
        script.fail([StoreErrorKind::NoSpace]);
        assert_eq!(store.put(id(2), Payload::new()).await.unwrap_err().kind(), StoreErrorKind::NoSpace);
    }
}
