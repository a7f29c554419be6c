//! The victim queue: the policy, the entries behind its slots, and those it must not offer for now.
//!
//! An entry that arrives is noted in the table, and the policy told of it only when memory gets short: see
//! [`learn`](Queue::learn).
//!
//! An entry in memory is among those the policy is to learn of, or the *candidates* it knows, or *parked*, because no tier has room for
//! something of its size, or neither: because it is leaving, is pinned, or can never be encoded. Whoever is
//! taken out comes back only by [`Queue::admit`], so that asking for victims always ends.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::{
    Arrival, EntryId, Marks, Policy, Slot,
    entry::Phase,
    table::{Arrived, Key, Table},
};

/// The room of an entry whose frame is too long for any blob: not even a tier without a cap has it.
pub(crate) const NEVER: u64 = u64::MAX;

/// Arrivals that are learned of under one lock, so that others who need it get their turn.
const LEARNED_AT_ONCE: usize = 64;

/// Arrivals that are learned of before victims are picked: together about a third of a millisecond's work.
const CAUGHT_UP: usize = 2048;

#[derive(Debug)]
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    /// Whoever learns: another must not take those who are in his hands for gone.
    learning: Mutex<()>,
}

#[derive(Debug)]
struct Inner {
    policy: Box<dyn Policy>,
    /// By slot.
    candidates: Vec<Option<Arrived>>,
    free: Vec<u32>,
    /// Hashes, by the bytes a tier must have free before another try makes sense.
    parked: BTreeMap<(u64, EntryId), u64>,
}

struct SlotMarks<'a, K: Key, V> {
    candidates: &'a [Option<Arrived>],
    table: &'a Table<K, V>,
}

impl<K: Key, V> SlotMarks<'_, K, V> {
    fn at(&self, slot: Slot) -> Option<Arrived> {
        self.candidates.get(slot.index()).copied().flatten()
    }
}

impl<K: Key, V> Marks for SlotMarks<'_, K, V> {
    fn get(&self, slot: Slot) -> u64 {
        self.at(slot).map_or(0, |candidate| self.table.mark(candidate))
    }

    fn reset(&self, slot: Slot, count: u8) {
        if let Some(candidate) = self.at(slot) {
            self.table.reset_mark(candidate, count);
        }
    }
}

impl Queue {
    pub(crate) fn new(policy: Box<dyn Policy>) -> Self {
        let (candidates, free, parked) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { inner: Mutex::new(Inner { policy, candidates, free, parked }), learning: Mutex::default() }
    }

    /// An entry can be picked from now on, if it is in memory still.
    pub(crate) fn admit<K: Key, V>(&self, table: &Table<K, V>, key: &K, id: EntryId) {
        self.inner.lock().admit(table, Arrived { hash: table.hash(key), id });
    }

    /// Tells the policy of arrivals it has not heard of, the oldest of each thread; with `unfinished` even if they
    /// are few. How many there were.
    pub(crate) fn learn<K: Key, V>(&self, table: &Table<K, V>, unfinished: bool) -> usize {
        let _one_at_a_time = self.learning.lock();
        let learning = table.take_arrivals(unfinished);
        for some in learning.arrived.chunks(LEARNED_AT_ONCE) {
            let mut inner = self.inner.lock();
            for (arrived, noted) in some {
                inner.place(|slot| table.learn_slot(arrived.hash, *noted, slot));
            }
        }
        table.learned(&learning);
        learning.arrived.len()
    }

    /// Learns of all arrivals if there are not too many. Of the others the victims are not yet picked: they came
    /// last.
    pub(crate) fn catch_up<K: Key, V>(&self, table: &Table<K, V>) {
        let mut learned = 0;
        while learned < CAUGHT_UP {
            match self.learn(table, true) {
                0 => break,
                some => learned += some,
            }
        }
    }

    /// An entry left memory by itself.
    pub(crate) fn forget(&self, slot: Slot, id: EntryId) {
        let mut inner = self.inner.lock();
        // The slot may have been given up, and even to another entry, since it was read in the table.
        if inner.candidates[slot.index()].is_some_and(|candidate| candidate.id == id) {
            inner.policy.forget(slot);
            inner.release(slot);
        }
    }

    /// Takes the next victim out.
    pub(crate) fn victim<K: Key, V>(&self, table: &Table<K, V>) -> Option<Arrived> {
        loop {
            let victim = self.inner.lock().victim(table);
            if victim.is_some() || self.learn(table, true) == 0 {
                return victim;
            }
        }
    }

    /// No tier has room for `need` bytes: an entry is not offered again until one has.
    pub(crate) fn park<K: Key, V>(&self, table: &Table<K, V>, key: &K, id: EntryId, need: u64) {
        let hash = table.hash(key);
        let mut inner = self.inner.lock();
        // Entries that were removed since they were parked go when they are most of them.
        if inner.parked.len() as u64 > 2 * table.tally(Phase::Resident).entries + 64 {
            inner.parked.retain(|(_, id), hash| table.is_resident(Arrived { hash: *hash, id: *id }));
        }
        inner.parked.insert((need, id), hash);
    }

    /// A tier has this much room now: those that wait for no more can be picked again.
    pub(crate) fn unpark<K: Key, V>(&self, table: &Table<K, V>, room: u64) -> bool {
        let mut inner = self.inner.lock();
        let mut any = false;
        while let Some(first) =
            inner.parked.first_entry().filter(|entry| entry.key().0 <= room.min(NEVER - 1))
        {
            let ((_, id), hash) = first.remove_entry();
            inner.admit(table, Arrived { hash, id });
            any = true;
        }
        any
    }

    /// Forgets what only names entries that are gone.
    pub(crate) fn clear_parked(&self) {
        self.inner.lock().parked.clear();
    }
}

impl Inner {
    fn admit<K: Key, V>(&mut self, table: &Table<K, V>, candidate: Arrived) {
        self.place(|slot| Some((candidate, table.set_slot(candidate, slot)?)));
    }

    /// Gives a slot to an entry that takes it.
    fn place(&mut self, take: impl FnOnce(Slot) -> Option<(Arrived, Arrival)>) {
        let slot = match self.free.pop() {
            Some(slot) => Slot::new(slot),
            None => {
                // Slots are dense, so 2^31 of them would be that many entries in memory at once.
                let Ok(slot) = i32::try_from(self.candidates.len()) else { return };
                self.candidates.push(None);
                Slot::new(slot.unsigned_abs())
            }
        };
        let Some((candidate, arrival)) = take(slot) else {
            self.free.push(slot.get());
            return;
        };
        self.candidates[slot.index()] = Some(candidate);
        self.policy.admit(&arrival);
    }

    fn victim<K: Key, V>(&mut self, table: &Table<K, V>) -> Option<Arrived> {
        loop {
            let slot = self.policy.victim(&SlotMarks { candidates: &self.candidates, table })?;
            let victim = self.release(slot);
            if victim.is_some() {
                return victim;
            }
        }
    }

    fn release(&mut self, slot: Slot) -> Option<Arrived> {
        let candidate = self.candidates.get_mut(slot.index())?.take()?;
        self.free.push(slot.get());
        Some(candidate)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, sync::Arc, thread};

    use super::*;
    use crate::{
        FixedBudget, Touch,
        ledger::Memory,
        policies,
        table::{Evicted, Leftovers},
    };

    type Entries = Table<u64, u64>;

    fn entries(touch: Touch) -> (Entries, Arc<Memory>) {
        let memory = Memory::new(u64::MAX, Arc::new(FixedBudget::exact()));
        (Table::new(touch, memory.clone()), memory)
    }

    fn insert<'a>(table: &'a Entries, memory: &Arc<Memory>, key: u64) -> Option<Leftovers<'a, u64>> {
        let mut share = memory.try_take(1).unwrap();
        let inserted = table.insert(key, table.new_id(), 1, Arc::new(key), &mut share, false).unwrap();
        inserted.left
    }

    fn settle(queue: &Queue, left: Option<Leftovers<'_, u64>>) {
        if let Some((slot, id)) = left.and_then(|left| Some((left.slot?, left.id))) {
            queue.forget(slot, id);
        }
    }

    /// Who is offered, until nobody is.
    fn victims(queue: &Queue, table: &Entries) -> Vec<u64> {
        let next = || queue.victim(table);
        let leave = |victim| match table.begin_spill(victim) {
            Evicted::Put(item) => Some(item.key),
            Evicted::Freed { .. } | Evicted::Stale => None,
        };
        std::iter::from_fn(next).filter_map(leave).collect()
    }

    #[test]
    fn arrivals_are_offered_in_the_order_in_which_they_came() {
        let ((table, memory), queue) = (entries(Touch::Nothing), Queue::new(Box::new(policies::Fifo::new())));
        (0..1000).for_each(|key| settle(&queue, insert(&table, &memory, key)));
        for key in (0..1000).filter(|key| key % 3 == 0) {
            settle(&queue, table.remove(&key, None));
        }
        (0..10).for_each(|key| settle(&queue, insert(&table, &memory, key * 3)));
        let expected = (0..1000).filter(|key| key % 3 != 0).chain((0..10).map(|key| key * 3));
        assert_eq!(victims(&queue, &table), expected.collect::<Vec<_>>());
    }

    /// Threads insert, replace and remove, others learn: in the end each that is there is offered once, and no other.
    #[test]
    fn whoever_is_there_is_offered_once_however_threads_meet() {
        const KEYS: u64 = 20_000;
        let ((table, memory), queue) =
            (entries(Touch::Count(3)), Queue::new(Box::new(policies::S3Fifo::new())));
        thread::scope(|scope| {
            for thread in 0..3 {
                let (table, queue, memory) = (&table, &queue, &memory);
                scope.spawn(move || {
                    for step in 0..KEYS {
                        // Each thread replaces and removes what others insert.
                        settle(queue, insert(table, memory, step * 7 % KEYS));
                        if step % 4 != 0 {
                            settle(queue, table.remove(&((step * 7 + thread * 11) % KEYS), None));
                        }
                        if step % 500 == thread {
                            queue.learn(table, step % 1000 < 500);
                        }
                    }
                });
            }
        });
        let there: BTreeSet<u64> = table.keys().into_iter().collect();
        let offered = victims(&queue, &table);
        assert_eq!(offered.len(), there.len(), "somebody is offered twice or not at all");
        assert_eq!(offered.into_iter().collect::<BTreeSet<_>>(), there);
        assert_eq!(queue.learn(&table, true), 0);
        assert!(!table.has_sparse_arrivals());
    }
}
