//! Brings new values in: at once when there is room, else when it is their turn, or straight to a tier when
//! they can never be resident or nothing else can leave.

use std::sync::{Arc, atomic::Ordering::Acquire};

use tokio::{sync::oneshot, time::Instant};

use super::{Refusal, Shared, guarded};
use crate::{
    EntryId, Error, MAX_WEIGHT, OnFull, Resource,
    entry::Phase,
    frame::frame_len,
    ledger::Share,
    table::{Item, Key, Pinning},
};

/// A value that wants in.
#[derive(Debug)]
pub(crate) struct Newcomer<K, V> {
    pub(crate) key: K,
    pub(crate) id: EntryId,
    pub(crate) weight: u64,
    pub(crate) value: Arc<V>,
}

/// What waiting for room came to.
enum Room {
    InMemory(Share),
    /// It went to a tier instead.
    Stored,
}

impl<K: Key, V: Send + Sync + 'static> Shared<K, V> {
    /// Weighs a value and gives it an id.
    pub(crate) fn weigh(&self, key: &K, value: &V) -> Result<u64, Error> {
        let failed = |reason: String| Error::Weigh { key: format!("{key:?}"), reason };
        let weight = guarded(|| self.weigher.weigh(key, value))
            .map_err(|panic| failed(format!("the weigher {panic}")))?;
        if weight > MAX_WEIGHT {
            return Err(failed(format!("the weigher says {weight} bytes, the most is {MAX_WEIGHT}")));
        }
        Ok(weight)
    }

    /// Inserts if that needs no waiting. `Err` gives the newcomer back.
    pub(crate) fn insert_now(&self, newcomer: Newcomer<K, V>) -> Result<(), Newcomer<K, V>> {
        let Some(mut share) = self.memory.try_take(newcomer.weight).or_else(|| self.exchange(&newcomer))
        else {
            return Err(newcomer);
        };
        self.enter(newcomer, &mut share)
    }

    /// For an overwrite of a resident value, what is there pays for most of it.
    fn exchange(&self, newcomer: &Newcomer<K, V>) -> Option<Share> {
        let (_, held, phase, _) = self.table.find(&newcomer.key)?;
        if !matches!(phase, Phase::Resident | Phase::Clean) {
            return None;
        }
        let more = newcomer.weight.saturating_sub(held);
        // One that grows must fit, one that does not always does: it makes nothing worse.
        if more == 0 { Some(self.memory.adopt(0)) } else { self.memory.try_take(more) }
    }

    fn enter(&self, newcomer: Newcomer<K, V>, share: &mut Share) -> Result<(), Newcomer<K, V>> {
        let Newcomer { key, id, weight, value } = newcomer;
        match self.table.insert(key.clone(), id, weight, &value, share) {
            Ok(left) => {
                if let Some(left) = left {
                    drop(self.settle(left));
                }
                // Closing may have removed everything just before this came in.
                if self.closed.load(Acquire)
                    && let Some(left) = self.table.remove(&key, Some(id))
                {
                    drop(self.settle(left));
                    return Err(Newcomer { key, id, weight, value });
                }
                self.queue.admit(&self.table, key, id);
                if self.memory.policy().spill_down_to(&self.memory.levels()).is_some() {
                    self.wake_spiller.notify_one();
                }
                Ok(())
            }
            Err(_) => Err(Newcomer { key, id, weight, value }),
        }
    }

    /// Inserts, waiting for room as long as the capacity policy allows.
    pub(crate) async fn insert_waiting(self: &Arc<Self>, mut newcomer: Newcomer<K, V>) -> Result<(), Error> {
        let deadline = match self.memory.policy().on_full() {
            OnFull::Wait(wait) => Some(Instant::now() + wait),
            OnFull::Reject | OnFull::Keep => None,
        };
        if newcomer.weight > self.memory.levels().limit {
            return self.insert_heavy(newcomer, deadline).await;
        }
        loop {
            // What is being replaced is no victim: it would be written for nothing.
            let present = Pinned::new(self, &newcomer.key);
            let held = present.as_ref().map_or(0, |pinned| pinned.weight.min(newcomer.weight));
            let mut share = match self.room_for(&newcomer, newcomer.weight - held, deadline).await? {
                Room::InMemory(share) => share,
                Room::Stored => return Ok(()),
            };
            match self.enter(newcomer, &mut share) {
                Ok(()) => return Ok(()),
                // What was there went meanwhile, so more is needed. Nothing is held on to while waiting for it:
                // two that hold a part each could wait for ever.
                Err(back) => newcomer = back,
            }
        }
    }

    async fn room_for(
        self: &Arc<Self>,
        newcomer: &Newcomer<K, V>,
        need: u64,
        deadline: Option<Instant>,
    ) -> Result<Room, Error> {
        let mut stuck = self.stuck.subscribe();
        let mut wait = std::pin::pin!(self.memory.wait(need));
        self.wake_spiller.notify_one();
        let mut attempt = Attempt::default();
        loop {
            self.check_running("insert")?;
            tokio::select! {
                biased;
                share = &mut wait => {
                    self.check_open("insert")?;
                    return Ok(Room::InMemory(share));
                }
                changed = stuck.changed() => changed.map_err(|_| Error::RuntimeGone { operation: "insert" })?,
                () = until(deadline) => return Err(self.full(newcomer, need, attempt.last.as_ref())),
            }
            self.check_running("insert")?;
            // Nothing else can leave. The newcomer is the last candidate itself.
            if self.may_fit(&attempt) && attempt.note(self.store_directly(newcomer).await) {
                return Ok(Room::Stored);
            }
            match self.memory.policy().on_full() {
                OnFull::Wait(_) => {}
                OnFull::Reject => return Err(self.full(newcomer, need, attempt.last.as_ref())),
                OnFull::Keep => return Ok(Room::InMemory(self.memory.take_over(need))),
            }
        }
    }

    async fn insert_heavy(
        self: &Arc<Self>,
        newcomer: Newcomer<K, V>,
        deadline: Option<Instant>,
    ) -> Result<(), Error> {
        let mut attempt = Attempt::default();
        let mut news = self.stuck.subscribe();
        loop {
            news.mark_unchanged();
            if self.may_fit(&attempt) && attempt.note(self.store_directly(&newcomer).await) {
                return Ok(());
            }
            self.check_running("insert")?;
            match (&attempt.last, self.memory.policy().on_full()) {
                (Some(Refusal::Encode(error)), _) => {
                    return Err(Error::Encode { key: format!("{:?}", newcomer.key), source: error.clone() });
                }
                (Some(Refusal::RuntimeGone), _) => return Err(Error::RuntimeGone { operation: "insert" }),
                (_, OnFull::Keep) => {
                    let mut share = self.memory.take_over(newcomer.weight);
                    return self.enter(newcomer, &mut share).map_err(|_| self.gone("insert"));
                }
                (_, OnFull::Wait(_)) if !self.tiers.is_empty() => {}
                _ => return Err(self.full(&newcomer, newcomer.weight, attempt.last.as_ref())),
            }
            let retry_at = self.tiers.iter().filter_map(|tier| tier.available(Instant::now()).err()).min();
            tokio::select! {
                changed = news.changed() => changed.map_err(|_| Error::RuntimeGone { operation: "insert" })?,
                () = until(retry_at) => {}
                () = until(deadline) => return Err(self.full(&newcomer, newcomer.weight, attempt.last.as_ref())),
            }
        }
    }

    /// Whether another try to store a newcomer makes sense: some tier is not failing and has room for what is
    /// known to be needed.
    fn may_fit(&self, attempt: &Attempt) -> bool {
        if let Some(Refusal::Encode(_) | Refusal::RuntimeGone) = attempt.last {
            return false;
        }
        let need = attempt.need.max(frame_len(0));
        let now = Instant::now();
        self.tiers.iter().any(|tier| {
            tier.available(now).is_ok()
                && (tier.quota.levels().room() >= need || (attempt.need == 0 && tier.has_slack()))
        })
    }

    /// Writes a newcomer to a tier and enters it as spilled. What was under its key before stays until then.
    async fn store_directly(self: &Arc<Self>, newcomer: &Newcomer<K, V>) -> Result<(), Refusal> {
        let Newcomer { key, id, weight, value } = newcomer;
        // Goes with this future.
        let waiting = Arc::new(());
        let item = Item {
            key: key.clone(),
            id: *id,
            weight: *weight,
            value: value.clone(),
            leaving: None,
            encoded: None,
            need: 0,
            caller: Arc::downgrade(&waiting),
        };
        let (done, outcome) = oneshot::channel();
        let shared = self.clone();
        self.tasks.spawn_job(async move {
            let permit = shared.spilling.clone().acquire_owned().await;
            let outcomes = shared.spill(vec![item]).await;
            drop(permit);
            // Nobody listens when the insert was dropped.
            drop(done.send(outcomes.into_iter().next().map(|outcome| outcome.stored)));
        });
        match outcome.await {
            Ok(Some(Ok(_))) => Ok(()),
            Ok(Some(Err(refusal))) => Err(refusal),
            Ok(None) | Err(_) => Err(Refusal::RuntimeGone),
        }
    }

    fn full(&self, newcomer: &Newcomer<K, V>, need: u64, last: Option<&Refusal>) -> Error {
        let key = format!("{:?}", newcomer.key);
        let levels = self.memory.levels();
        if newcomer.weight > levels.limit && self.tiers.is_empty() {
            return Error::TooHeavy {
                operation: "insert",
                key,
                weight: newcomer.weight,
                limit: levels.limit,
            };
        }
        self.full_error("insert", key, need, last)
    }

    /// The error of something that found no room, from the last answer of the tiers.
    pub(crate) fn full_error(
        &self,
        operation: &'static str,
        key: String,
        need: u64,
        last: Option<&Refusal>,
    ) -> Error {
        let levels = self.memory.levels();
        match last {
            Some(Refusal::Encode(source)) => Error::Encode { key, source: source.clone() },
            Some(Refusal::RuntimeGone) => Error::RuntimeGone { operation },
            Some(Refusal::NoRoom { need, levels }) => Error::Full {
                operation,
                key,
                resource: Resource::Spill,
                need: *need,
                used: levels.used(),
                limit: levels.limit,
                source: None,
            },
            Some(Refusal::Failed(source)) => Error::Full {
                operation,
                key,
                resource: Resource::Spill,
                need,
                used: self.tiers.iter().map(|tier| tier.quota.levels().used()).sum(),
                limit: None,
                source: source.clone().map(Arc::new),
            },
            None => Error::Full {
                operation,
                key,
                resource: Resource::Memory,
                need,
                used: levels.used,
                limit: Some(levels.limit),
                source: None,
            },
        }
    }
}

/// Tries to store one newcomer directly.
#[derive(Default)]
struct Attempt {
    last: Option<Refusal>,
    /// Bytes of its frame, once known: it is not encoded again before that much is free.
    need: u64,
}

impl Attempt {
    /// Whether it was stored.
    fn note(&mut self, stored: Result<(), Refusal>) -> bool {
        let Err(refusal) = stored else { return true };
        if let Refusal::NoRoom { need, .. } = &refusal {
            self.need = *need;
        }
        self.last = Some(refusal);
        false
    }
}

/// What an overwrite replaces, kept in memory meanwhile.
struct Pinned<'a, K: Key, V: Send + Sync + 'static> {
    shared: &'a Shared<K, V>,
    key: K,
    id: EntryId,
    /// What it gives up when it is replaced.
    weight: u64,
}

impl<'a, K: Key, V: Send + Sync + 'static> Pinned<'a, K, V> {
    fn new(shared: &'a Shared<K, V>, key: &K) -> Option<Self> {
        let Pinning::Pinned(key, id, _) = shared.table.pin(key) else { return None };
        // One that is being written pays with nothing: its weight is the write's, until that has ended.
        let weight = match shared.table.find(&key) {
            Some((there, weight, Phase::Resident | Phase::Clean, _)) if there == id => weight,
            _ => 0,
        };
        Some(Self { shared, key, id, weight })
    }
}

impl<K: Key, V: Send + Sync + 'static> Drop for Pinned<'_, K, V> {
    fn drop(&mut self) {
        self.shared.unpin(&self.key, self.id);
    }
}

impl<K: Key, V: Send + Sync + 'static> Shared<K, V> {
    /// Lets a pinned entry be picked again.
    pub(crate) fn unpin(&self, key: &K, id: EntryId) {
        if self.table.unpin(id) {
            self.queue.admit(&self.table, key.clone(), id);
            self.wake_spiller.notify_one();
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
