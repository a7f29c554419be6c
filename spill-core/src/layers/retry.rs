//! Repeats calls whose trouble may pass.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;

use crate::{
    BlobId, BlobMeta, Layer, Payload, Store, StoreError, StoreErrorKind, StoreInfo, Stored, chance::mix,
};

/// Repeats a call that failed with `Transient`, and no other: `NoSpace` above all is never repeated, because
/// what helps there is to wait for room, which is the buffer's business.
///
/// Between two tries it waits: 100 ms at first, twice as long each time, 10 s at most, of which the upper
/// half is left to chance so that many who failed together don't come back together. Chance comes from a
/// seed, so that a test sees the same waits each time. A longer wait that the other side asked for is kept
/// to; one above the longest wait ends the tries, and the error goes to the caller with the wait in it.
///
/// What is repeated:
/// - a `put` whose failure may only be a lost answer is undone first: the id is deleted, then put again. So
///   an id never has two blobs, and a store that refuses a used id is served as well. If the deleting fails
///   for good, that is the answer. After the last failure the blob may be there whole: delete the id.
///   With a [`Timeout`](super::Timeout) inside, the first put may have been dropped half way: what the
///   store then cleans up in the background must be that put's own, never what is put again. A request that
///   a service carries out only after it was given up puts the same bytes under the same id: it harms nobody
///   as long as the blob is needed. One that arrives after the blob was deleted leaves an object that nobody
///   counts, which goes when the store is closed or swept.
/// - a `delete` that names what failed is repeated for those only.
/// - a `punch` after a lost answer says how much the last try gave back.
///
/// # Cancel safety
/// Dropping a call ends the tries; what the store promises for its own calls holds. A `put` dropped
/// between two tries has left its blob there whole, or not at all.
///
/// # Panics
/// Calls that wait panic on a runtime whose timer is not enabled.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), spill_core::StoreError> {
/// use std::{sync::Arc, time::Duration};
/// use spill_core::{BlobId, Layer, MemoryStore, Store, StoreErrorKind, layers::Retry};
/// let retry = Retry::new(3).waits(Duration::from_millis(20), Duration::from_secs(1));
/// let store = retry.layer(Arc::new(MemoryStore::new()));
/// store.put(BlobId::new(1), b"payload".to_vec().into()).await?;
/// assert_eq!(store.get(BlobId::new(1), 0..3).await?, "pay");
///
/// let missing = store.get(BlobId::new(2), 0..1).await.unwrap_err(); // at once: repeating won't help
/// assert_eq!(missing.kind(), StoreErrorKind::NotFound);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    attempts: u32,
    first_wait: Duration,
    longest_wait: Duration,
    seed: u64,
}

impl Retry {
    /// At most so many tries for a call, the first one included. 0 counts as 1: no call is repeated.
    pub fn new(attempts: u32) -> Self {
        Self {
            attempts: attempts.max(1),
            first_wait: Duration::from_millis(100),
            longest_wait: Duration::from_secs(10),
            seed: 0,
        }
    }

    /// The same with these waits after the first failure, and at most.
    #[must_use]
    pub fn waits(mut self, first: Duration, longest: Duration) -> Self {
        self.first_wait = first;
        self.longest_wait = longest;
        self
    }

    /// The same with this seed of chance, which is 0 unless set. Processes that share a service, and stores in
    /// one of them, should have different ones: with the same they retry in step.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The wait after failure number `failures` (from 1) of call number `call`.
    fn wait(&self, call: u64, failures: u32) -> Duration {
        let doubled = 2_u32.saturating_pow(failures - 1);
        let whole = self.first_wait.saturating_mul(doubled).min(self.longest_wait);
        let chance = mix(self.seed ^ mix(call ^ mix(u64::from(failures))));
        // The upper 16 bits as a share of a half.
        let half = whole / 2;
        half + half.mul_f64((chance >> 48) as f64 / f64::from(1 << 16))
    }
}

impl Layer for Retry {
    fn layer(&self, inner: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(Retried { inner, retry: *self, calls: AtomicU64::new(0) })
    }
}

#[derive(Debug)]
struct Retried {
    inner: Arc<dyn Store>,
    retry: Retry,
    calls: AtomicU64,
}

/// The tries of one call.
struct Tries {
    retry: Retry,
    call: u64,
    failures: u32,
}

impl Tries {
    /// Waits until the next try is due, or gives the error back when there is to be none.
    async fn pause(&mut self, error: StoreError) -> Result<(), StoreError> {
        self.failures += 1;
        if error.kind() != StoreErrorKind::Transient || self.failures >= self.retry.attempts {
            return Err(error);
        }
        let asked = error.retry_after().unwrap_or_default();
        if asked > self.retry.longest_wait {
            return Err(error);
        }
        let wait = self.retry.wait(self.call, self.failures).max(asked);
        tracing::debug!(%error, ?wait, failures = self.failures, "a store call is repeated");
        tokio::time::sleep(wait).await;
        Ok(())
    }
}

impl Retried {
    fn tries(&self) -> Tries {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        Tries { retry: self.retry, call, failures: 0 }
    }

    /// Puts a blob of which an earlier try may have left something, or all.
    async fn put_again(&self, id: BlobId, blob: Payload) -> Result<Stored, StoreError> {
        self.inner.delete(&[id]).await?;
        self.inner.put(id, blob).await
    }
}

#[async_trait]
impl Store for Retried {
    fn info(&self) -> &StoreInfo {
        self.inner.info()
    }

    async fn put(&self, id: BlobId, blob: Payload) -> Result<Stored, StoreError> {
        let mut tries = self.tries();
        let mut answer = self.inner.put(id, blob.clone()).await;
        while let Err(error) = answer {
            tries.pause(error).await?;
            answer = self.put_again(id, blob.clone()).await;
        }
        answer
    }

    async fn get(&self, id: BlobId, range: Range<u64>) -> Result<Bytes, StoreError> {
        let mut tries = self.tries();
        loop {
            match self.inner.get(id, range.clone()).await {
                Err(error) => tries.pause(error).await?,
                done => return done,
            }
        }
    }

    async fn delete(&self, ids: &[BlobId]) -> Result<(), StoreError> {
        let mut tries = self.tries();
        let mut answer = self.inner.delete(ids).await;
        let mut left = Vec::new();
        while let Err(error) = answer {
            if !error.failed().is_empty() {
                left = error.failed().to_vec();
            }
            // A later try that fails as a whole leaves what the one before it named.
            let error = if left.is_empty() { error } else { error.with_failed(left.clone()) };
            tries.pause(error).await?;
            answer = self.inner.delete(if left.is_empty() { ids } else { &left }).await;
        }
        answer
    }

    async fn punch(&self, id: BlobId, ranges: &[Range<u64>]) -> Result<u64, StoreError> {
        let mut tries = self.tries();
        loop {
            match self.inner.punch(id, ranges).await {
                Err(error) => tries.pause(error).await?,
                done => return done,
            }
        }
    }

    async fn list(&self, after: Option<BlobId>, limit: usize) -> Result<Vec<BlobMeta>, StoreError> {
        let mut tries = self.tries();
        loop {
            match self.inner.list(after, limit).await {
                Err(error) => tries.pause(error).await?,
                done => return done,
            }
        }
    }

    async fn close(&self) -> Result<(), StoreError> {
        let mut tries = self.tries();
        loop {
            match self.inner.close().await {
                Err(error) => tries.pause(error).await?,
                done => return done,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::layers::scripted::{Scripted, Step, error, id};

    use StoreErrorKind::{Corrupt, Denied, NoSpace, NotFound, Other, Transient};

    #[tokio::test(start_paused = true)]
    async fn only_transient_errors_are_repeated() {
        for kind in [NotFound, NoSpace, Denied, Corrupt, Other] {
            let script = Scripted::of([Step::Fail(error(kind))]);
            let store = Retry::new(5).layer(script.clone());
            assert_eq!(store.put(id(1), Payload::new()).await.unwrap_err().kind(), kind);
            assert_eq!(script.calls(), ["put 1"], "{kind}");
        }
        let script = Scripted::of([Step::Fail(error(Transient)), Step::Work, Step::Fail(error(NoSpace))]);
        let store = Retry::new(5).layer(script.clone());
        assert_eq!(store.put(id(1), Payload::new()).await.unwrap_err().kind(), NoSpace);
        assert_eq!(script.calls(), ["put 1", "delete [1]", "put 1"]);
    }

    #[tokio::test(start_paused = true)]
    async fn every_call_is_tried_as_often_as_allowed() {
        for attempts in [0, 1, 2, 4] {
            let tries = attempts.max(1) as usize;
            let script = Scripted::slow(Duration::ZERO);
            script.fail([Transient; 100]);
            let store = Retry::new(attempts).layer(script.clone());
            assert_eq!(store.get(id(1), 0..0).await.unwrap_err().kind(), Transient);
            assert_eq!(script.calls().len(), tries);
            store.list(None, 1).await.unwrap_err();
            store.punch(id(1), &[]).await.unwrap_err();
            store.delete(&[id(1)]).await.unwrap_err();
            store.close().await.unwrap_err();
            assert_eq!(script.calls().len(), 5 * tries);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_put_whose_answer_got_lost_is_undone_and_put_again() {
        let lost = || Step::LoseAnswer(error(Transient));
        // Put, delete, delete, put: the second and third calls lose their answers, too.
        let script = Scripted::of([lost(), lost(), Step::Work, lost(), Step::Work, Step::Work]);
        let store = Retry::new(9).layer(script.clone());
        let stored = store.put(id(1), b"payload".to_vec().into()).await.unwrap();
        assert_eq!(stored.bytes, 7);
        assert_eq!(script.calls(), ["put 1", "delete [1]", "delete [1]", "put 1", "delete [1]", "put 1"]);
        assert_eq!(store.get(id(1), 0..7).await.unwrap(), "payload");
        assert_eq!(store.list(None, 9).await.unwrap().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_delete_is_repeated_for_what_failed_only() {
        let partly = error(Transient).with_failed(vec![id(2)]);
        let script = Scripted::of([Step::LoseAnswer(partly.clone()), Step::Fail(error(Transient))]);
        let store = Retry::new(5).layer(script.clone());
        store.delete(&[id(1), id(2), id(3)]).await.unwrap();
        assert_eq!(script.calls(), ["delete [1, 2, 3]", "delete [2]", "delete [2]"]);

        let script = Scripted::of([Step::Fail(partly), Step::Fail(error(Transient))]);
        let store = Retry::new(2).layer(script.clone());
        assert_eq!(store.delete(&[id(1), id(2)]).await.unwrap_err().failed(), [id(2)]);
    }

    #[tokio::test(start_paused = true)]
    async fn waits_double_up_to_the_longest_and_depend_on_the_seed_only() {
        let retry = Retry::new(9).waits(Duration::from_millis(100), Duration::from_secs(1)).seed(7);
        let waits: Vec<_> = (1..9).map(|failures| retry.wait(0, failures)).collect();
        for (wait, whole) in waits.iter().zip([100, 200, 400, 800, 1000, 1000, 1000, 1000]) {
            let whole = Duration::from_millis(whole);
            assert!((whole / 2..=whole).contains(wait), "{wait:?} of {whole:?}");
        }
        assert_ne!(waits[5], waits[6], "no chance in it");
        assert_ne!(retry.wait(0, 1), retry.wait(1, 1));
        assert_ne!(retry.wait(0, 1), retry.seed(8).wait(0, 1));
        assert_eq!(retry.wait(0, u32::MAX), retry.wait(0, u32::MAX));

        let script = Scripted::slow(Duration::ZERO);
        script.fail([Transient; 3]);
        let before = Instant::now();
        retry.layer(script).get(id(1), 0..0).await.unwrap_err();
        let waited = before.elapsed();
        let expected: Duration = waits[..3].iter().sum();
        // The timer counts whole milliseconds.
        assert!(
            waited >= expected && waited <= expected + Duration::from_millis(3),
            "{waited:?}, {expected:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_was_asked_for_is_kept_to_unless_it_is_too_long() {
        let asks = |seconds| Step::Fail(error(Transient).with_retry_after(Duration::from_secs(seconds)));
        let script = Scripted::of([asks(5)]);
        script.memory.put(id(1), Payload::new()).await.unwrap();
        let before = Instant::now();
        Retry::new(2).layer(script).get(id(1), 0..0).await.unwrap();
        assert_eq!(before.elapsed(), Duration::from_secs(5));

        let script = Scripted::of([asks(11)]);
        let error = Retry::new(2).layer(script.clone()).get(id(1), 0..0).await.unwrap_err();
        assert_eq!(error.retry_after(), Some(Duration::from_secs(11)));
        assert_eq!(script.calls().len(), 1);
    }
}
