//! Brings new values in: at once when there is room, else when it is their turn, or straight to a tier when
//! they can never be resident or nothing else can leave.

use std::{
    ops::Deref,
    sync::{Arc, Weak, atomic::Ordering::Acquire},
    time::Duration,
};

use tokio::time::Instant;

use super::{Refusal, Shared, guarded};
use crate::{
    Admission, EntryId, Error, MAX_WEIGHT, OnFull, Resource, StoreError, TierLevel,
    entry::Phase,
    frame::frame_len,
    ledger::{Memory, Share},
    table::{Inserted, Item, Key, Pinning, Shortfall},
    tier::Tier,
};

/// The most that all entries may weigh together: half of what the sums can hold, for those that are being
/// inserted at the same time.
const MAX_TOTAL: u64 = 1 << 63;

/// A value that wants in.
#[derive(Debug)]
pub(crate) struct Newcomer<K, V> {
    pub(crate) key: K,
    pub(crate) id: EntryId,
    pub(crate) weight: u64,
    pub(crate) value: Arc<V>,
}

impl<K: Key, V> Newcomer<K, V> {
    /// The value as something to be written, not in the table yet, as long as `caller` waits for it.
    fn item(&self, caller: Weak<()>) -> Item<K, V> {
        Item {
            key: self.key.clone(),
            id: self.id,
            weight: self.weight,
            value: self.value.clone(),
            leaving: None,
            encoded: None,
            need: 0,
            too_long: false,
            caller,
        }
    }
}

/// What waiting for room came to.
enum Room {
    InMemory(Share),
    /// It went to a tier instead.
    Stored,
    /// The limit was lowered: it weighs more than memory holds by now.
    TooHeavy,
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
        // Lighter ones can't be so many.
        if weight >= 1 << 32 && self.table.weight().saturating_add(weight) > MAX_TOTAL {
            return Err(failed(format!("all entries together would weigh more than {MAX_TOTAL} bytes")));
        }
        Ok(weight)
    }

    /// Inserts if that needs no waiting. `Err` gives the newcomer back.
    pub(crate) fn insert_now(&self, newcomer: Newcomer<K, V>) -> Result<(), Newcomer<K, V>> {
        // For an overwrite, what is there pays for most of it: one that grows must fit, one that does not always does.
        self.enter(newcomer, &mut self.memory.adopt_here(0), true)
    }

    fn enter<M: Deref<Target = Memory>>(
        &self,
        newcomer: Newcomer<K, V>,
        share: &mut Share<M>,
        more: bool,
    ) -> Result<(), Newcomer<K, V>> {
        let Newcomer { key, id, weight, value } = newcomer;
        match self.table.insert(key, id, weight, value, share, more) {
            Ok(Inserted { at, left, many }) => {
                if let Some(left) = left {
                    drop(self.settle(left));
                }
                // Closing may have removed everything just before this came in. One that was spilled meanwhile has been
                // inserted, and closing removes it.
                if self.closed.load(Acquire)
                    && let Some((key, left)) = self.table.take_out(at)
                {
                    let back = self.settle(left).map(|value| Newcomer { key, id, weight, value });
                    return back.map_or(Ok(()), Err);
                }
                if many && self.should_learn() {
                    self.wake_learner.notify_one();
                }
                self.shrink();
                Ok(())
            }
            Err(Shortfall(key, value)) => Err(Newcomer { key, id, weight, value }),
        }
    }

    /// Inserts, waiting for room as long as the capacity policy allows.
    pub(crate) async fn insert_waiting(self: &Arc<Self>, mut newcomer: Newcomer<K, V>) -> Result<(), Error> {
        let deadline = match self.memory.policy().on_full() {
            // Without end, if that is beyond all clocks.
            OnFull::Wait(wait) => Instant::now().checked_add(wait),
            OnFull::Reject | OnFull::Keep => None,
        };
        loop {
            match self.memory.admission(newcomer.weight) {
                Admission::Refuse => return Err(self.full(&newcomer, newcomer.weight, None)),
                Admission::ToTier => match self.insert_heavy(newcomer, deadline).await? {
                    None => return Ok(()),
                    Some(back) => newcomer = back,
                },
                Admission::Now | Admission::AfterRoom => {}
            }
            // What is being replaced is no victim: it would be written for nothing.
            let present = Pinned::new(self, &newcomer.key);
            let held = present.as_ref().map_or(0, |pinned| pinned.weight.min(newcomer.weight));
            let mut share = match self.room_for(&newcomer, newcomer.weight - held, deadline).await? {
                Room::InMemory(share) => share,
                Room::Stored => return Ok(()),
                Room::TooHeavy => {
                    // Whatever a policy answers next, others get their turn.
                    tokio::task::yield_now().await;
                    continue;
                }
            };
            match self.enter(newcomer, &mut share, false) {
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
                    self.check_running("insert")?;
                    return Ok(share.map_or(Room::TooHeavy, Room::InMemory));
                }
                // Before what may come again and again.
                () = until(deadline) => return Err(self.full(newcomer, need, attempt.last.as_ref())),
                changed = stuck.changed() => changed.map_err(|_| Error::RuntimeGone { operation: "insert" })?,
            }
            self.check_running("insert")?;
            // Nothing else can leave. The newcomer is the last candidate itself.
            if self.may_fit(&attempt) && attempt.note(self.store_directly(newcomer, deadline).await) {
                return Ok(Room::Stored);
            }
            match self.memory.policy().on_full() {
                OnFull::Wait(_) => {}
                OnFull::Reject => return Err(self.full(newcomer, need, attempt.last.as_ref())),
                OnFull::Keep => return Ok(Room::InMemory(self.memory.take_over(need))),
            }
        }
    }

    /// Stores what weighs more than memory holds. Gives it back if the limit is raised above that meanwhile.
    async fn insert_heavy(
        self: &Arc<Self>,
        newcomer: Newcomer<K, V>,
        deadline: Option<Instant>,
    ) -> Result<Option<Newcomer<K, V>>, Error> {
        let mut attempt = Attempt::default();
        let mut news = self.room_news.subscribe();
        loop {
            news.mark_unchanged();
            if self.memory.admission(newcomer.weight) != Admission::ToTier {
                return Ok(Some(newcomer));
            }
            if self.may_fit(&attempt) && attempt.note(self.store_directly(&newcomer, deadline).await) {
                return Ok(None);
            }
            self.check_running("insert")?;
            match (&attempt.last, self.memory.policy().on_full()) {
                (Some(Refusal::Encode(error)), _) => {
                    return Err(Error::Encode { key: format!("{:?}", newcomer.key), source: error.clone() });
                }
                (Some(Refusal::RuntimeGone), _) => return Err(Error::RuntimeGone { operation: "insert" }),
                (_, OnFull::Keep) => {
                    let mut share = self.memory.take_over(newcomer.weight);
                    return self
                        .enter(newcomer, &mut share, false)
                        .map(|()| None)
                        .map_err(|_| self.gone("insert"));
                }
                (_, OnFull::Wait(_)) if !self.tiers.is_empty() => {}
                _ => return Err(self.full(&newcomer, newcomer.weight, attempt.last.as_ref())),
            }
            let retry_at = self.tiers.iter().filter_map(|tier| tier.available(Instant::now()).err()).min();
            tokio::select! {
                biased;
                () = until(deadline) => return Err(self.full(&newcomer, newcomer.weight, attempt.last.as_ref())),
                changed = news.changed() => changed.map_err(|_| Error::RuntimeGone { operation: "insert" })?,
                () = until(retry_at) => {}
            }
        }
    }

    /// Whether another try to store a newcomer makes sense: some tier is not failing and has room for what is
    /// known to be needed.
    fn may_fit(&self, attempt: &Attempt) -> bool {
        if let Some(Refusal::Encode(_) | Refusal::TooLong | Refusal::RuntimeGone) = attempt.last {
            return false;
        }
        let need = attempt.need.max(frame_len(0));
        let now = Instant::now();
        self.tiers.iter().any(|tier| {
            tier.available(now).is_ok()
                && (tier.room_to_be_had() >= need || (attempt.need == 0 && tier.has_slack()))
        })
    }

    /// Writes a newcomer to a tier and enters it as spilled. What was under its key before stays until then.
    async fn store_directly(
        self: &Arc<Self>,
        newcomer: &Newcomer<K, V>,
        deadline: Option<Instant>,
    ) -> Result<(), Refusal> {
        // Goes with this future.
        let waiting = Arc::new(());
        let item = newcomer.item(Arc::downgrade(&waiting));
        let outcomes = tokio::select! {
            biased;
            outcomes = self.spill_in_job(vec![item]) => outcomes,
            // The caller finds that its time is over. What is still written is given up with `waiting`.
            () = until(deadline) => return Err(Refusal::Failed { need: 0, source: None }),
        };
        let outcome = outcomes.and_then(|outcomes| outcomes.into_iter().next());
        outcome.map_or(Err(Refusal::RuntimeGone), |outcome| outcome.stored.map(drop))
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
        let full = |resource, need, used, limit, source: Option<StoreError>| Error::Full {
            operation,
            key: key.clone(),
            resource,
            need,
            used,
            limit,
            tiers: Arc::new(self.tier_levels()),
            waited: Duration::ZERO,
            source: source.map(Arc::new),
        };
        match last {
            Some(Refusal::Encode(source)) => Error::Encode { key, source: source.clone() },
            Some(Refusal::RuntimeGone) => Error::RuntimeGone { operation },
            Some(Refusal::TooLong) => {
                let longest = self.tiers.iter().map(|tier| tier.store.info().max_blob).max();
                full(Resource::Spill, need, 0, longest, None)
            }
            Some(Refusal::NoRoom { need, levels }) => {
                full(Resource::Spill, *need, levels.used(), levels.limit, None)
            }
            Some(Refusal::Failed { source, .. }) => {
                let used = self.tiers.iter().map(|tier| tier.quota.levels().used()).sum();
                full(Resource::Spill, need, used, None, source.clone())
            }
            None => {
                let levels = self.memory.levels();
                // Nobody asked the tiers for this one, because they fail: why is what matters.
                let why = self.tiers.iter().find_map(|tier| tier.last_error());
                full(Resource::Memory, need, levels.used, Some(levels.limit), why)
            }
        }
    }

    fn tier_levels(&self) -> Vec<TierLevel> {
        let now = Instant::now();
        let level = |tier: &Arc<Tier<K>>| {
            let levels = tier.quota.levels();
            TierLevel::new(&tier.name, levels.used(), levels.limit, tier.available(now).is_err())
        };
        self.tiers.iter().map(level).collect()
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
        if let Refusal::NoRoom { need, .. } | Refusal::Failed { need, .. } = &refusal {
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
    weight: u64,
}

impl<'a, K: Key, V: Send + Sync + 'static> Pinned<'a, K, V> {
    fn new(shared: &'a Shared<K, V>, key: &K) -> Option<Self> {
        // One that is being written has left its weight to the write: it pays for nothing, and pinning it would
        // only bring it back.
        let pays = |phase| matches!(phase, Phase::Resident | Phase::Clean);
        shared.table.find(key).filter(|(_, _, phase, _)| pays(*phase))?;
        let Pinning::Pinned(key, id, _) = shared.table.pin(key) else { return None };
        let present = shared.table.find(&key).filter(|(there, _, phase, _)| *there == id && pays(*phase));
        let weight = present.map_or(0, |(_, weight, ..)| weight);
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
            self.queue.admit(&self.table, key, id);
        }
        self.room_in_memory();
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
