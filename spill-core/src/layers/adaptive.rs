//! Bounds how many calls are under way at once by what the other side bears.

use std::sync::Arc;

use super::gate::{Gate, Gated};
use crate::{Layer, Store};

/// Calls at once to begin with, unless set.
const START: usize = 16;

/// Lets as many calls through at once as the other side bears; others wait, first come, first served.
///
/// The bound is found as TCP finds its window: one more call at once after each window of calls that all
/// succeeded, half as many when an answer says that there were too many
/// ([`StoreError::is_throttled`](crate::StoreError::is_throttled)). Of calls that were under way together only
/// the first such answer counts, so that one burst of refusals halves the bound once. It grows only while it is
/// reached, stays between 1 and the most, and other errors change nothing.
///
/// Writes (`put`, `punch`), reads (`get`, `list`) and deletes have bounds of their own, so that a restore or
/// a delete never queues behind a spill. `close` has none. Each store that the layer is put around starts
/// afresh. Retries belong outside: a call that waits to be repeated has no place here meanwhile.
///
/// # Cancel safety
/// A call that is dropped while it waits leaves the queue; one that is under way gives its place back.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), spill_core::StoreError> {
/// use std::sync::Arc;
/// use spill_core::{BlobId, Layer, MemoryStore, Store, layers::AdaptiveLimit};
/// let store = AdaptiveLimit::new(64).start(8).layer(Arc::new(MemoryStore::new()));
/// store.put(BlobId::new(1), b"payload".to_vec().into()).await?;
/// assert_eq!(store.get(BlobId::new(1), 0..3).await?, "pay");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptiveLimit {
    start: usize,
    most: usize,
}

impl AdaptiveLimit {
    /// Never more than so many writes, so many reads and so many deletes at once. 0 counts as 1. It starts
    /// at 16, or at the most if that is less.
    pub fn new(most: usize) -> Self {
        Self { start: START, most }
    }

    /// The same, starting at so many calls at once: at least one, and not above the most.
    #[must_use]
    pub fn start(mut self, calls: usize) -> Self {
        self.start = calls;
        self
    }
}

impl Layer for AdaptiveLimit {
    fn layer(&self, inner: Arc<dyn Store>) -> Arc<dyn Store> {
        let gate = || Gate::adaptive(self.start, self.most);
        Arc::new(Gated { inner, writes: gate(), reads: gate(), deletes: gate() })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::future::join_all;

    use super::*;
    use crate::layers::{
        Retry,
        scripted::{Scripted, Step, error, id, is_pending},
    };
    use crate::{Payload, StoreErrorKind};

    const SECOND: Duration = Duration::from_secs(1);

    /// So many callers, one call after the other each, for this long; how many calls were refused.
    async fn load(store: &Arc<dyn Store>, callers: u64, time: Duration) -> usize {
        let end = tokio::time::Instant::now() + time;
        let calls = (0..callers).map(|_| async {
            let mut refused = 0;
            while tokio::time::Instant::now() < end {
                refused += usize::from(store.get(id(0), 0..0).await.is_err());
            }
            refused
        });
        join_all(calls).await.into_iter().sum()
    }

    async fn slow(capacity: usize) -> Arc<Scripted> {
        let script = Scripted::slow(SECOND / 10);
        script.memory.put(id(0), Payload::new()).await.unwrap();
        script.bears(capacity);
        script
    }

    #[tokio::test(start_paused = true)]
    async fn it_finds_what_the_other_side_bears_and_follows_it() {
        let script = slow(10).await;
        let store = AdaptiveLimit::new(1000).start(100).layer(script.clone());
        load(&store, 200, 20 * SECOND).await;
        for (capacity, least, most) in [(10, 5, 11), (40, 20, 41), (3, 1, 4), (1, 1, 2), (10, 5, 11)] {
            script.bears(capacity);
            // Time to find it.
            load(&store, 200, 60 * SECOND).await;
            script.reset_most_at_once();
            let before = script.calls().len();
            let refused = load(&store, 200, 60 * SECOND).await;
            let calls = script.calls().len() - before;
            let at_once = script.most_at_once();
            assert!((least..=most).contains(&at_once), "{at_once} at once of {capacity}");
            // Calls take a tenth of a second; a sawtooth has three quarters of its height on the average.
            let ideal = capacity * 10 * 60;
            assert!(calls * 2 > ideal, "{calls} calls of {ideal} with {capacity}");
            let bearable = if capacity < 10 { calls / 2 } else { calls / 10 };
            assert!(refused <= bearable, "{refused} of {calls} refused with {capacity}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_burst_of_refusals_halves_it_once() {
        let script = slow(usize::MAX).await;
        let store = AdaptiveLimit::new(64).start(16).layer(script.clone());
        script.push((0..16).map(|_| Step::Fail(error(StoreErrorKind::Transient).with_throttled())));
        let refused = join_all((0..16).map(|_| store.get(id(0), 0..0))).await;
        assert!(refused.iter().all(Result::is_err));
        script.reset_most_at_once();
        join_all((0..8).map(|_| store.get(id(0), 0..0))).await;
        assert_eq!(script.most_at_once(), 8);
        join_all((0..100).map(|_| store.get(id(0), 0..0))).await;
        assert!((9..=20).contains(&script.most_at_once()), "it grows one by one: {}", script.most_at_once());
    }

    #[tokio::test(start_paused = true)]
    async fn it_stays_between_one_and_the_most_and_other_errors_change_nothing() {
        let script = slow(usize::MAX).await;
        let store = AdaptiveLimit::new(4).start(100).layer(script.clone());
        load(&store, 50, 60 * SECOND).await;
        assert_eq!(script.most_at_once(), 4);
        script.fail([StoreErrorKind::Transient, StoreErrorKind::NoSpace, StoreErrorKind::Denied]);
        assert_eq!(load(&store, 50, SECOND).await, 3);
        script.reset_most_at_once();
        load(&store, 50, SECOND).await;
        assert_eq!(script.most_at_once(), 4);
        script.bears(0);
        load(&store, 50, 10 * SECOND).await;
        script.reset_most_at_once();
        script.bears(usize::MAX);
        assert_eq!(load(&store, 50, SECOND / 20).await, 0, "one call goes through");
    }

    /// Few calls at a time succeed: that says nothing about more of them.
    #[tokio::test(start_paused = true)]
    async fn it_does_not_grow_while_it_is_not_reached() {
        let script = slow(usize::MAX).await;
        let store = AdaptiveLimit::new(1000).start(4).layer(script.clone());
        load(&store, 3, 600 * SECOND).await;
        script.reset_most_at_once();
        let mut many = Box::pin(join_all((0..100).map(|_| store.get(id(0), 0..0))));
        assert!(is_pending(&mut many));
        assert_eq!(script.most_at_once(), 4);
        many.await;
    }

    #[tokio::test(start_paused = true)]
    async fn reads_writes_and_deletes_do_not_wait_for_each_other() {
        let script = slow(usize::MAX).await;
        let store = AdaptiveLimit::new(1).layer(script.clone());
        let mut puts = Box::pin(join_all((1..9).map(|number| store.put(id(number), Payload::new()))));
        assert!(is_pending(&mut puts));
        let before = tokio::time::Instant::now();
        store.get(id(0), 0..0).await.unwrap();
        store.delete(&[id(0)]).await.unwrap();
        assert_eq!(before.elapsed(), SECOND / 5, "they took their own time only");
        puts.await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_call_gives_its_place_back() {
        let script = slow(usize::MAX).await;
        let store = AdaptiveLimit::new(1).layer(script.clone());
        let mut under_way = store.put(id(1), Payload::new());
        let mut waiting = store.put(id(2), Payload::new());
        assert!(is_pending(&mut under_way));
        assert!(is_pending(&mut waiting));
        drop(under_way);
        drop(waiting);
        store.put(id(3), Payload::new()).await.unwrap();
        assert_eq!(script.calls(), ["put 1", "put 3"], "what only waited never got through");
    }

    /// With retries around it everything gets through, however little the other side bears.
    #[tokio::test(start_paused = true)]
    async fn with_retries_around_it_everything_gets_through() {
        let script = slow(4).await;
        let store = Retry::new(20).layer(AdaptiveLimit::new(64).start(64).layer(script.clone()));
        let answers = join_all((0..500).map(|_| store.get(id(0), 0..0))).await;
        assert!(answers.iter().all(Result::is_ok));
        let calls = script.calls().len();
        assert!(calls < 800, "{calls} calls for 500 answers");
    }
}
