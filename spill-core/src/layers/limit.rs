//! Bounds how many calls are under way at once.

use std::sync::Arc;

use super::gate::{Gate, Gated};
use crate::{Layer, Store};

/// Lets a bounded number of calls through at once; others wait, first come, first served.
///
/// Writes (`put`, `punch`), reads (`get`, `list`) and deletes have permits of their own, so that a restore
/// or a delete never queues behind a spill. `close` needs none. Each store that the layer is put around has
/// its own permits.
///
/// # Cancel safety
/// A call that is dropped while it waits leaves the queue; one that is under way gives its permit back.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), spill_core::StoreError> {
/// use std::sync::Arc;
/// use spill_core::{BlobId, Layer, MemoryStore, Store, layers::ConcurrencyLimit};
/// let limit = ConcurrencyLimit::new(4).reads(32);
/// let store = limit.layer(Arc::new(MemoryStore::new()));
/// store.put(BlobId::new(1), b"payload".to_vec().into()).await?;
/// assert_eq!(store.get(BlobId::new(1), 0..3).await?, "pay");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConcurrencyLimit {
    writes: usize,
    reads: usize,
    deletes: usize,
}

impl ConcurrencyLimit {
    /// So many writes, so many reads and so many deletes at once. 0 counts as 1.
    pub fn new(calls: usize) -> Self {
        Self { writes: calls, reads: calls, deletes: calls }
    }

    /// The same with so many writes at once. 0 counts as 1.
    #[must_use]
    pub fn writes(mut self, calls: usize) -> Self {
        self.writes = calls;
        self
    }

    /// The same with so many reads at once. 0 counts as 1.
    #[must_use]
    pub fn reads(mut self, calls: usize) -> Self {
        self.reads = calls;
        self
    }

    /// The same with so many deletes at once. 0 counts as 1.
    #[must_use]
    pub fn deletes(mut self, calls: usize) -> Self {
        self.deletes = calls;
        self
    }
}

impl Layer for ConcurrencyLimit {
    fn layer(&self, inner: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(Gated {
            inner,
            writes: Gate::fixed(self.writes),
            reads: Gate::fixed(self.reads),
            deletes: Gate::fixed(self.deletes),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::future::join_all;

    use super::*;
    use crate::Payload;
    use crate::layers::scripted::{Scripted, id, is_pending};

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn no_more_than_the_limit_are_under_way() {
        for (calls, most) in [(0, 1), (1, 1), (3, 3), (usize::MAX, 10)] {
            let script = Scripted::slow(SECOND);
            let store = ConcurrencyLimit::new(calls).layer(script.clone());
            let puts = join_all((0..10).map(|number| store.put(id(number), Payload::new()))).await;
            assert!(puts.iter().all(Result::is_ok));
            assert_eq!(script.most_at_once(), most, "limit {calls}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn reads_and_deletes_do_not_queue_behind_writes() {
        let script = Scripted::slow(SECOND);
        let store = ConcurrencyLimit::new(1).layer(script.clone());
        store.put(id(0), Payload::new()).await.unwrap();
        let mut puts = Box::pin(join_all((1..9).map(|number| store.put(id(number), Payload::new()))));
        assert!(is_pending(&mut puts));
        let before = tokio::time::Instant::now();
        store.get(id(0), 0..0).await.unwrap();
        store.delete(&[id(0)]).await.unwrap();
        assert_eq!(before.elapsed(), 2 * SECOND, "they took their own time only");
        puts.await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_call_gives_its_place_back() {
        let script = Scripted::slow(SECOND);
        let store = ConcurrencyLimit::new(1).layer(script.clone());
        let mut under_way = store.put(id(1), Payload::new());
        let mut waiting = store.put(id(2), Payload::new());
        assert!(is_pending(&mut under_way));
        assert!(is_pending(&mut waiting));
        drop(under_way);
        drop(waiting);
        store.put(id(3), Payload::new()).await.unwrap();
        assert_eq!(script.calls(), ["put 1", "put 3"], "what only waited never got through");
    }
}
