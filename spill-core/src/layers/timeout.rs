//! Ends a call that takes too long.

use std::{future::Future, num::NonZeroU64, ops::Range, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;

use crate::{BlobId, BlobMeta, Layer, Payload, Store, StoreError, StoreErrorKind, StoreInfo, Stored};

const NANOS: u128 = 1_000_000_000;

/// Gives each call a time limit. A call that is not done by then is dropped and answered with a `Transient`
/// error that names the limit.
///
/// With a [`least_rate`](Self::least_rate) a transfer has more time the more bytes it moves, so that a slow
/// one that gets on is left alone while one that is stuck is not. Without one a blob that takes longer than
/// the limit can never be put.
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
/// // 30 seconds, and 8 more for each MiB that is put or read.
/// let timeout = Timeout::new(Duration::from_secs(30)).least_rate(128 << 10);
/// let store = timeout.layer(Arc::new(MemoryStore::new()));
/// store.put(BlobId::new(1), b"payload".to_vec().into()).await?;
/// assert_eq!(store.get(BlobId::new(1), 0..3).await?, "pay");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout {
    limit: Duration,
    least_rate: Option<NonZeroU64>,
}

impl Timeout {
    /// The most time that one call may take, however much it moves.
    pub fn new(limit: Duration) -> Self {
        Self { limit, least_rate: None }
    }

    /// The same, with as much more time for a `put` or a `get` as its bytes take at this rate. 0: no more
    /// time.
    #[must_use]
    pub fn least_rate(mut self, bytes_per_second: u64) -> Self {
        self.least_rate = NonZeroU64::new(bytes_per_second);
        self
    }

    /// What a call that moves so many bytes may take.
    fn limit_for(&self, bytes: u64) -> Duration {
        let Some(rate) = self.least_rate else { return self.limit };
        let (seconds, rest) = (bytes / rate, u128::from(bytes % rate) * NANOS / u128::from(rate.get()));
        // Less than a second.
        let rest = Duration::from_nanos(u64::try_from(rest).unwrap_or(u64::MAX));
        self.limit.saturating_add(Duration::from_secs(seconds)).saturating_add(rest)
    }
}

impl Layer for Timeout {
    fn layer(&self, inner: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(Timed { inner, timeout: *self })
    }
}

#[derive(Debug)]
struct Timed {
    inner: Arc<dyn Store>,
    timeout: Timeout,
}

impl Timed {
    async fn within<T>(
        &self,
        operation: &'static str,
        blob: Option<BlobId>,
        bytes: u64,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let limit = self.timeout.limit_for(bytes);
        if let Ok(answer) = tokio::time::timeout(limit, call).await {
            return answer;
        }
        // To the millisecond is enough for anybody.
        let limit = Duration::from_millis(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
        let limit = humantime::format_duration(limit);
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
        let bytes = blob.len() as u64;
        self.within("put", Some(id), bytes, self.inner.put(id, blob)).await
    }

    async fn get(&self, id: BlobId, range: Range<u64>) -> Result<Bytes, StoreError> {
        let bytes = range.end.saturating_sub(range.start);
        self.within("get", Some(id), bytes, self.inner.get(id, range)).await
    }

    async fn delete(&self, ids: &[BlobId]) -> Result<(), StoreError> {
        self.within("delete", None, 0, self.inner.delete(ids)).await
    }

    async fn punch(&self, id: BlobId, ranges: &[Range<u64>]) -> Result<u64, StoreError> {
        self.within("punch", Some(id), 0, self.inner.punch(id, ranges)).await
    }

    async fn list(&self, after: Option<BlobId>, limit: usize) -> Result<Vec<BlobMeta>, StoreError> {
        self.within("list", None, 0, self.inner.list(after, limit)).await
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

    /// What is large and gets on is left alone; what is small and slow is not, and other calls gain nothing.
    #[tokio::test(start_paused = true)]
    async fn a_transfer_has_more_time_the_more_it_moves() {
        const MIB: u64 = 1 << 20;
        let timeout = Timeout::new(LIMIT).least_rate(MIB / 8);
        let blob = |mib: u64| Payload::from(vec![7; usize::try_from(mib * MIB).unwrap()]);
        let script = Scripted::slow(LIMIT + Duration::from_secs(63));
        let store = timeout.layer(script.clone());
        store.put(id(1), blob(8)).await.unwrap();
        assert_eq!(store.get(id(1), 0..8 * MIB).await.unwrap().len() as u64, 8 * MIB);
        let late = [
            store.put(id(2), blob(7)).await.unwrap_err(),
            store.get(id(1), MIB..8 * MIB).await.unwrap_err(),
            store.list(None, 1).await.unwrap_err(),
            store.delete(&[id(1)]).await.unwrap_err(),
        ];
        for (error, limit) in late.iter().zip(["1m 26s", "1m 26s", "30s", "30s"]) {
            assert_eq!(error.kind(), StoreErrorKind::Transient);
            assert!(error.to_string().contains(&format!("time limit of {limit};")), "{error}");
        }
    }

    #[test]
    fn limits_are_exact_and_never_overflow() {
        let limit = |rate, bytes| Timeout::new(LIMIT).least_rate(rate).limit_for(bytes);
        assert_eq!(limit(0, u64::MAX), LIMIT);
        assert_eq!(limit(1000, 0), LIMIT);
        assert_eq!(limit(1000, 1500), LIMIT + Duration::from_millis(1500));
        assert_eq!(limit(3, 1), LIMIT + Duration::from_nanos(333_333_333));
        assert_eq!(limit(u64::MAX, u64::MAX), LIMIT + Duration::from_secs(1));
        assert_eq!(
            limit(1, u64::MAX),
            Duration::MAX.min(LIMIT.saturating_add(Duration::from_secs(u64::MAX)))
        );
    }
}
