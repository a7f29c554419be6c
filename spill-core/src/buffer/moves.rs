//! Moving entries on purpose: spilling, reclaiming, pinning, weighing again.

use std::{borrow::Borrow, hash::Hash, ops::Deref, sync::Arc};

use super::SpillBuffer;
use crate::{
    EntryId, Error,
    engine::Outcome,
    table::{Arrived, Evicted, Key, Pinning},
};

/// What an eviction moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Eviction {
    /// The weight that left memory, in bytes.
    pub weight: u64,
    /// Bytes of the frame that was written for it; zero when the entry was clean and nothing had to be.
    pub stored: u64,
}

impl<K: Key, V: Send + Sync + 'static> SpillBuffer<K, V> {
    /// Moves one entry to a tier now; `true` if it moved. `false`: it is spilled already, is pinned, or is
    /// not there.
    ///
    /// # Errors
    /// [`Error::Full`] when no tier takes it, [`Error::Encode`] when it can't be encoded; it then stays in
    /// memory. [`Error::Closed`].
    ///
    /// # Cancel safety
    /// The move goes on when the future is dropped.
    pub async fn spill<Q>(&self, key: &Q) -> Result<bool, Error>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized + Sync,
    {
        let shared = self.shared();
        shared.check_open("spill")?;
        let Some((candidate, slot)) = shared.table.candidate(key) else { return Ok(false) };
        if let Some(slot) = slot {
            shared.queue.forget(slot, candidate.id);
        }
        self.evict(candidate, "spill").await.map(|moved| moved.is_some())
    }

    async fn evict(&self, candidate: Arrived, operation: &'static str) -> Result<Option<Eviction>, Error> {
        let shared = self.shared();
        let item = match shared.table.begin_spill(candidate) {
            Evicted::Put(item) => item,
            Evicted::Freed { weight } => {
                shared.room_in_memory();
                return Ok(Some(Eviction { weight, stored: 0 }));
            }
            Evicted::Stale => return Ok(None),
        };
        let (name, weight) = (format!("{:?}", item.key), item.weight);
        let outcomes = shared.spill_in_job(vec![item]).await.ok_or_else(|| shared.gone(operation))?;
        match outcomes.into_iter().next().map(|outcome| outcome.stored) {
            Some(Ok(stored)) => Ok(Some(Eviction { weight, stored })),
            Some(Err(refusal)) => Err(shared.full_error(operation, name, weight, Some(&refusal))),
            None => Err(shared.gone(operation)),
        }
    }

    /// Moves the next victim to a tier; `Ok(None)` when there is nothing in memory that could move.
    ///
    /// # Errors
    /// As for [`spill`](Self::spill).
    ///
    /// # Cancel safety
    /// The move goes on when the future is dropped.
    pub async fn evict_one(&self) -> Result<Option<Eviction>, Error> {
        self.shared().check_open("evict_one")?;
        self.shared().offer_parked();
        while let Some(victim) = self.shared().queue.victim(&self.shared().table) {
            if let Some(eviction) = self.evict(victim, "evict_one").await? {
                return Ok(Some(eviction));
            }
        }
        self.shared().nothing_to_evict()
    }

    /// Frees at least `bytes` of memory if that is possible, and says how many were freed.
    ///
    /// # Errors
    /// [`Error::Closed`]. That less could be freed than asked for is no error.
    ///
    /// # Cancel safety
    /// Moves that have begun go on when the future is dropped.
    pub async fn reclaim(&self, bytes: u64) -> Result<u64, Error> {
        let shared = self.shared();
        shared.check_open("reclaim")?;
        shared.offer_parked();
        let cap = shared.tiers.iter().map(|tier| tier.batch_bytes).max().unwrap_or_default() as u64;
        let mut freed = 0;
        while freed < bytes {
            let evicted = shared.evict_in_job(bytes - freed, cap).await;
            let (mut round, outcomes) = evicted.ok_or_else(|| shared.gone("reclaim"))?;
            round += outcomes
                .iter()
                .filter(|outcome| outcome.stored.is_ok())
                .map(|outcome| outcome.weight)
                .sum::<u64>();
            // What can't be encoded or is too big for the room left does not keep those behind it.
            let go_on = !outcomes.is_empty() && !outcomes.iter().any(Outcome::is_hopeless);
            if round == 0 && !go_on {
                break;
            }
            freed += round;
        }
        Ok(freed)
    }

    /// Keeps an entry in memory as long as the guard lives, bringing it back first if it must. `None`: there
    /// is no such key. Replacing or removing the entry ends the pin; the guard still has the value.
    ///
    /// # Errors
    /// [`Error::TooHeavy`] for a value that memory can't hold, [`Error::Full`] when there is no room for it
    /// now; otherwise as for [`get`](Self::get).
    ///
    /// # Cancel safety
    /// When the future is dropped nothing is pinned.
    pub async fn pin<Q>(&self, key: &Q) -> Result<Option<PinGuard<K, V>>, Error>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized + Sync,
    {
        let shared = self.shared();
        shared.check_open("pin")?;
        // It can be evicted again between being read and being pinned, but hardly so often: kept here, it is
        // brought in the next time without waiting for a read.
        let mut kept = None;
        for _ in 0..3 {
            match shared.table.pin(key) {
                Pinning::Absent => return Ok(None),
                Pinning::Pinned(key, id, value) => {
                    return Ok(Some(PinGuard { buffer: self.clone(), key, id, value }));
                }
                Pinning::Away => {
                    let value = Box::pin(shared.bring_home(key)).await?;
                    drop(std::mem::replace(&mut kept, value));
                }
            }
        }
        Err(shared.full_error("pin", "an entry".into(), 0, None))
    }

    /// Weighs an entry that is in memory again, after its value changed weight behind its `Arc`; its new
    /// weight. `None` when it is not in memory, or not there.
    ///
    /// # Errors
    /// [`Error::Weigh`] when the weigher fails; [`Error::Closed`].
    pub fn reweigh(&self, key: &K) -> Result<Option<u64>, Error> {
        let shared = self.shared();
        shared.check_open("reweigh")?;
        let Some((id, value)) = shared.table.look(key) else { return Ok(None) };
        let weight = shared.weigh(key, &value)?;
        Ok(shared.reweigh(key, id, weight).then_some(weight))
    }
}

/// Keeps one entry in memory as long as it lives. Dereferences to the value.
pub struct PinGuard<K: Key, V: Send + Sync + 'static> {
    buffer: SpillBuffer<K, V>,
    key: K,
    id: EntryId,
    value: Arc<V>,
}

impl<K: Key, V: Send + Sync + 'static> PinGuard<K, V> {
    /// The value, to be held beyond the pin.
    pub fn value(&self) -> &Arc<V> {
        &self.value
    }
}

impl<K: Key, V: Send + Sync + 'static> Deref for PinGuard<K, V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.value
    }
}

impl<K: Key, V: Send + Sync + 'static> std::fmt::Debug for PinGuard<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PinGuard").field("key", &self.key).finish_non_exhaustive()
    }
}

impl<K: Key, V: Send + Sync + 'static> Drop for PinGuard<K, V> {
    fn drop(&mut self) {
        self.buffer.shared().unpin(&self.key, self.id);
    }
}
