//! Ends a buffer, and the odd things that are neither spilling nor restoring.

use std::{sync::Arc, time::Duration};

use super::{Shared, turns::Turns};
use crate::{EntryId, Error, entry::Phase, table::Key};

/// Keys that closing removes before it looks for others.
const REMOVED_AT_ONCE: usize = 4096;

/// For deadlines beyond all clocks.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

impl<K: Key, V: Send + Sync + 'static> Shared<K, V> {
    /// Waits for what is under way, then removes everything. New calls are refused already.
    pub(crate) async fn close(self: &Arc<Self>, deadline: Duration) -> Result<(), Error> {
        self.tasks.refuse_jobs();
        // Whoever waits for room looks up and finds the buffer closed.
        self.stuck.send_modify(|times| *times += 1);
        self.room_news.send_replace(());
        let now = tokio::time::Instant::now();
        let end = now.checked_add(deadline).unwrap_or(now + LONGEST);
        let timed_out = |_| Error::CloseTimeout { deadline };
        tokio::time::timeout_at(end, self.tasks.idle()).await.map_err(timed_out)?;
        tokio::time::timeout_at(end, self.tasks.end()).await.map_err(timed_out)?;
        self.remove_in_turns().await;
        let mut result = Ok(());
        for tier in &self.tiers {
            let closed = match tokio::time::timeout_at(end, tier.store.close()).await {
                Ok(closed) => closed.map_err(|source| Error::Store {
                    operation: "close",
                    key: "everything".into(),
                    source,
                }),
                Err(late) => Err(timed_out(late)),
            };
            if closed.is_ok() {
                tier.doomed(usize::MAX).into_iter().for_each(|doomed| tier.deleted(doomed));
            }
            // One that can't be closed does not keep the others from it.
            result = result.and(closed);
        }
        result
    }

    /// Removes every key that is there now.
    pub(crate) fn remove_all(&self) {
        self.table.keys().iter().for_each(|key| self.remove_key(key));
        self.queue.clear_parked();
    }

    /// The same when no keys are added any more.
    async fn remove_in_turns(&self) {
        let mut turns = Turns::default();
        loop {
            let keys = self.table.some_keys(REMOVED_AT_ONCE);
            if keys.is_empty() {
                break;
            }
            for key in keys {
                turns.next().await;
                self.remove_key(&key);
            }
        }
        // Here, so that whoever drops the last handle does not give it all back at once.
        let mut part = 0;
        while self.table.free_part(part) {
            part += 1;
            tokio::task::yield_now().await;
        }
        self.queue.clear_parked();
    }

    fn remove_key(&self, key: &K) {
        if let Some(left) = self.table.remove(key, None) {
            drop(self.settle(left));
        }
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
