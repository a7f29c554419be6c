//! The victim queue: the policy, the keys behind its slots, and those it must not offer for now.
//!
//! An entry in memory is among the *candidates* the policy knows, or *parked*, because no tier has room for
//! something of its size, or neither: because it is leaving, is pinned, or can never be encoded. Whoever is
//! taken out comes back only by [`Queue::admit`], so that asking for victims always ends.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::{
    Arrival, EntryId, Marks, Policy, Slot,
    entry::Phase,
    table::{Key, Table},
};

/// The room of an entry whose frame is too long for any blob: not even a tier without a cap has it.
pub(crate) const NEVER: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct Queue<K>(Mutex<Inner<K>>);

#[derive(Debug)]
struct Inner<K> {
    policy: Box<dyn Policy>,
    slots: Vec<Option<Candidate<K>>>,
    free: Vec<u32>,
    /// By the bytes a tier must have free before another try makes sense.
    parked: BTreeMap<(u64, EntryId), K>,
}

#[derive(Debug)]
struct Candidate<K> {
    key: K,
    id: EntryId,
}

struct SlotMarks<'a, K: Key, V> {
    slots: &'a [Option<Candidate<K>>],
    table: &'a Table<K, V>,
}

impl<K: Key, V> Marks for SlotMarks<'_, K, V> {
    fn get(&self, slot: Slot) -> u64 {
        let candidate = self.slots.get(slot.index()).and_then(Option::as_ref);
        candidate.map_or(0, |Candidate { key, id }| self.table.mark(key, *id))
    }

    fn reset(&self, slot: Slot, count: u8) {
        if let Some(Candidate { key, id }) = self.slots.get(slot.index()).and_then(Option::as_ref) {
            self.table.reset_mark(key, *id, count);
        }
    }
}

impl<K: Key> Queue<K> {
    pub(crate) fn new(policy: Box<dyn Policy>) -> Self {
        Self(Mutex::new(Inner { policy, slots: Vec::new(), free: Vec::new(), parked: BTreeMap::new() }))
    }

    /// An entry can be picked from now on, if it is in memory still.
    pub(crate) fn admit<V>(&self, table: &Table<K, V>, key: K, id: EntryId) {
        self.0.lock().admit(table, key, id);
    }

    /// An entry left memory by itself.
    pub(crate) fn forget(&self, slot: Slot, id: EntryId) {
        let mut inner = self.0.lock();
        // The slot may have been given up, and even to another entry, since it was read in the table.
        if inner.slots[slot.index()].as_ref().is_some_and(|candidate| candidate.id == id) {
            inner.policy.forget(slot);
            drop(inner.release(slot));
        }
    }

    /// Takes the next victim out.
    pub(crate) fn victim<V>(&self, table: &Table<K, V>) -> Option<(K, EntryId)> {
        let mut inner = self.0.lock();
        loop {
            let Inner { policy, slots, .. } = &mut *inner;
            let slot = policy.victim(&SlotMarks { slots, table })?;
            if let Some(Candidate { key, id }) = inner.release(slot) {
                return Some((key, id));
            }
        }
    }

    /// No tier has room for `need` bytes: an entry is not offered again until one has.
    pub(crate) fn park<V>(&self, table: &Table<K, V>, key: K, id: EntryId, need: u64) {
        let mut inner = self.0.lock();
        // Entries that were removed since they were parked go when they are most of them.
        if inner.parked.len() as u64 > 2 * table.tally(Phase::Resident).entries + 64 {
            inner.parked.retain(|(_, id), key| table.is_resident(key, *id));
        }
        inner.parked.insert((need, id), key);
    }

    /// A tier has this much room now: those that wait for no more can be picked again.
    pub(crate) fn unpark<V>(&self, table: &Table<K, V>, room: u64) -> bool {
        let mut inner = self.0.lock();
        let mut any = false;
        while let Some(first) =
            inner.parked.first_entry().filter(|entry| entry.key().0 <= room.min(NEVER - 1))
        {
            let ((_, id), key) = first.remove_entry();
            inner.admit(table, key, id);
            any = true;
        }
        any
    }

    /// Forgets what only names entries that are gone.
    pub(crate) fn clear_parked(&self) {
        let parked = std::mem::take(&mut self.0.lock().parked);
        drop(parked);
    }
}

impl<K: Key> Inner<K> {
    fn admit<V>(&mut self, table: &Table<K, V>, key: K, id: EntryId) {
        let slot = match self.free.pop() {
            Some(slot) => Slot::new(slot),
            None => {
                // Slots are dense, so 2^32 of them would be that many entries in memory at once.
                let Ok(slot) = u32::try_from(self.slots.len()) else { return };
                self.slots.push(None);
                Slot::new(slot)
            }
        };
        let Some((tick, weight)) = table.set_slot(&key, id, slot) else {
            self.free.push(slot.get());
            return;
        };
        let fingerprint = table.fingerprint(&key);
        self.slots[slot.index()] = Some(Candidate { key, id });
        self.policy.admit(&Arrival { slot, weight, fingerprint, tick });
    }

    fn release(&mut self, slot: Slot) -> Option<Candidate<K>> {
        let candidate = self.slots.get_mut(slot.index())?.take()?;
        self.free.push(slot.get());
        Some(candidate)
    }
}
