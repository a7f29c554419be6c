//! Tells the victim policy of those who arrived, while there is still time until it is asked for victims, and when
//! notes of arrivals that are gone take more memory than those of the others.

use std::sync::Arc;

use super::Shared;
use crate::table::Key;

/// Learns whenever it is woken and there is reason to, as long as the buffer lives.
pub(crate) async fn run<K: Key, V: Send + Sync + 'static>(shared: Arc<Shared<K, V>>) {
    loop {
        shared.wake_learner.notified().await;
        while shared.should_learn() && shared.queue.learn(&shared.table, false) > 0 {
            tokio::task::yield_now().await;
        }
    }
}

impl<K: Key, V: Send + Sync + 'static> Shared<K, V> {
    /// Whether memory is half full, so that before long somebody may have to leave, or notes take too much of it.
    pub(crate) fn should_learn(&self) -> bool {
        let levels = self.memory.levels();
        levels.used > levels.limit / 2 || self.table.has_sparse_arrivals()
    }
}
