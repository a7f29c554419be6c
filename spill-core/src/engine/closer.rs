//! Ends a buffer, and the odd things that are neither spilling nor restoring.

use std::{sync::Arc, time::Duration};

use super::Shared;
use crate::{EntryId, Error, entry::Phase, table::Key};

impl<K: Key, V: Send + Sync + 'static> Shared<K, V> {
    /// Waits for what is under way, then removes everything. New calls are refused already.
    pub(crate) async fn close(self: &Arc<Self>, deadline: Duration) -> Result<(), Error> {
        self.tasks.refuse_jobs();
        // Whoever waits for room looks up and finds the buffer closed.
        self.stuck.send_modify(|times| *times += 1);
        self.room_news.send_replace(());
        let end = tokio::time::Instant::now() + deadline;
        let timed_out = |_| Error::CloseTimeout { deadline };
        tokio::time::timeout_at(end, self.tasks.idle()).await.map_err(timed_out)?;
        tokio::time::timeout_at(end, self.tasks.end()).await.map_err(timed_out)?;
        self.remove_all();
        for tier in &self.tiers {
            let closed = tokio::time::timeout_at(end, tier.store.close()).await.map_err(timed_out)?;
            closed.map_err(|source| Error::Store { operation: "close", key: "everything".into(), source })?;
            for doomed in tier.doomed(usize::MAX) {
                tier.deleted(doomed);
            }
        }
        Ok(())
    }

    /// Removes every key that is there now.
    pub(crate) fn remove_all(&self) {
        for key in self.table.keys() {
            if let Some(left) = self.table.remove(&key, None) {
                drop(self.settle(left));
            }
        }
        self.queue.clear_parked();
    }

    /// What evicting one comes to when there is no candidate.
    pub(crate) fn nothing_to_evict<T>(&self) -> Result<Option<T>, Error> {
        // Clean ones are pinned as well.
        let here = self.table.tally(Phase::Resident) + self.table.tally(Phase::Clean);
        if here.entries <= self.table.pinned().entries {
            return Ok(None);
        }
        // Every one that is there was refused by all tiers, or can't be encoded.
        Err(self.full_error("evict_one", "any entry".into(), 0, None))
    }

    /// Gives an entry in memory a new weight. `false`: it is not in memory any more.
    pub(crate) fn reweigh(&self, key: &K, id: EntryId, weight: u64) -> bool {
        // The value is in memory already, so its weight counts whatever the limit says.
        let mut share = self.memory.take_over(weight);
        let Some((old, place)) = self.table.reweigh(key, id, weight, &mut share) else { return false };
        drop(share);
        if let Some(tier) = place.and_then(|place| self.tiers.get(place.tier())) {
            tier.with_blobs(|blobs| blobs.reweigh(old, weight));
        }
        self.wake_spiller.notify_one();
        true
    }
}
