//! Looking at entries: as a reader, who leaves a mark; without a trace; and for the victim queue.

use std::{
    borrow::Borrow,
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::*},
    },
};

use super::{Arrived, Entry, Found, Key, Learning, Place, State, Table};
use crate::{Arrival, EntryId, Slot, Touch, entry::Phase};

impl<K: Key, V> Table<K, V> {
    /// Looks a key up as a reader: leaves the policy's mark.
    pub(crate) fn read<Q>(&self, key: &Q) -> Found<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let Some(entry) = self.map.get(key) else { return Found::Absent };
        match &entry.state {
            State::Resident { value, mark, .. } => {
                self.leave_mark(mark);
                Found::Here { value: value.clone(), clean: false }
            }
            State::Clean { value, mark, .. } => {
                self.leave_mark(mark);
                Found::Here { value: value.clone(), clean: true }
            }
            State::Spilling { value, touched, .. } => {
                touched.store(1, Relaxed);
                Found::Here { value: value.clone(), clean: false }
            }
            State::Spilled { .. } | State::Restoring { .. } => Found::Away,
        }
    }

    /// Looks a key up without leaving a trace.
    pub(crate) fn peek<Q>(&self, key: &Q) -> Option<Arc<V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.map.get(key)?.state.value().cloned()
    }

    /// The entry's id, weight, phase and frame.
    pub(crate) fn find<Q>(&self, key: &Q) -> Option<(EntryId, u64, Phase, Option<Place>)>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let entry = self.map.get(key)?;
        Some((entry.id, entry.weight, entry.state.phase(), entry.state.place()))
    }

    pub(crate) fn key_of<Q>(&self, key: &Q) -> Option<K>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.map.get(key).map(|entry| entry.key().clone())
    }

    /// The value under a key if it is in memory, and which entry it is of. Leaves no trace.
    pub(crate) fn look(&self, key: &K) -> Option<(EntryId, Arc<V>)> {
        let entry = self.map.get(key)?;
        Some((entry.id, entry.state.value()?.clone()))
    }

    /// An entry that could leave memory, and its slot if it has one.
    pub(crate) fn candidate<Q>(&self, key: &Q) -> Option<(Arrived, Option<Slot>)>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let entry = self.map.get(key)?;
        let id = entry.id;
        let free = matches!(entry.state.phase(), Phase::Resident | Phase::Clean)
            && !self.pins.lock().contains_key(&id);
        free.then(|| (Arrived { hash: self.hash(key), id }, entry.state.slot()))
    }

    /// Whether this frame is the second copy of a value in memory.
    pub(crate) fn is_clean_at(&self, key: &K, at: Place) -> bool {
        self.find(key).is_some_and(|(_, _, phase, place)| phase == Phase::Clean && place == Some(at))
    }

    /// Every key, once. Locks one shard at a time.
    pub(crate) fn keys(&self) -> Vec<K> {
        self.map.iter().map(|entry| entry.key().clone()).collect()
    }

    /// As many keys as there are, up to `most`. Takes time in these, and in how large the table has been.
    pub(crate) fn some_keys(&self, most: usize) -> Vec<K> {
        self.map.iter().take(most).map(|entry| entry.key().clone()).collect()
    }

    /// Gives back the memory of one part of the table that is empty, the `number`th. `false`: there are not so many.
    pub(crate) fn free_part(&self, number: usize) -> bool {
        let Some(shard) = self.map.shards().get(number) else { return false };
        shard.write().shrink_to(0, |(key, _)| self.hash(key));
        true
    }

    /// Every entry's phase and weight, for an audit. Locks one shard at a time.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&K, Phase, u64, Option<Place>)) {
        for entry in &self.map {
            visit(entry.key(), entry.state.phase(), entry.weight, entry.state.place());
        }
    }

    pub(super) fn leave_mark(&self, mark: &AtomicU32) {
        match self.touch {
            Touch::Nothing => {}
            Touch::Count(most) => {
                let count = mark.load(Relaxed);
                // Two readers at once may count as one: it is a hint, and costs no locked instruction.
                if count < u32::from(most) {
                    mark.store(count + 1, Relaxed);
                }
            }
            Touch::Stamp => mark.store(self.next_tick(), Relaxed),
        }
    }

    /// The next tick. Marks keep its low 32 bits; [`widen`](Self::widen) gives the rest back.
    #[expect(clippy::cast_possible_truncation, reason = "the low half is what is kept")]
    fn next_tick(&self) -> u32 {
        self.tick.fetch_add(1, Relaxed) as u32
    }

    /// The latest tick with these low bits. Wrong only for an entry that nobody read for 2^32 ticks: it then
    /// counts as read that much later.
    fn widen(&self, mark: u32) -> u64 {
        if self.touch != Touch::Stamp {
            return mark.into();
        }
        let now = self.tick.load(Relaxed);
        let tick = now & !u64::from(u32::MAX) | u64::from(mark);
        if tick > now { tick.saturating_sub(1 << 32) } else { tick }
    }

    pub(super) fn first_mark(&self) -> u32 {
        if self.touch == Touch::Stamp { self.next_tick() } else { 0 }
    }

    // ---- for the victim queue

    /// What `look` sees of the entry, if it is there.
    fn look_at<R>(&self, at: Arrived, look: impl FnOnce(&Entry<V>) -> R) -> Option<R> {
        let shard = self.map.shards()[self.shard_of(at.hash)].read();
        shard.get(at.hash, |(_, entry)| entry.get().id == at.id).map(|(_, entry)| look(entry.get()))
    }

    /// Gives an entry in memory its slot; what the policy wants to know. `None`: it is not in memory any more.
    pub(crate) fn set_slot(&self, at: Arrived, to: Slot) -> Option<Arrival> {
        self.give_slot(at.hash, |entry| entry.id == at.id, to).map(|(_, arrival)| arrival)
    }

    /// The same for one that arrived and was given the slot `noted`: the value that is there by now.
    pub(crate) fn learn_slot(&self, hash: u64, noted: u32, to: Slot) -> Option<(Arrived, Arrival)> {
        self.give_slot(hash, |entry| entry.state.kept_slot() == noted, to)
    }

    fn give_slot(
        &self,
        hash: u64,
        mut is_it: impl FnMut(&Entry<V>) -> bool,
        to: Slot,
    ) -> Option<(Arrived, Arrival)> {
        let mut shard = self.map.shards()[self.shard_of(hash)].write();
        let (_, entry) = shard.get_mut(hash, |(_, entry)| is_it(entry.get()))?;
        let Entry { id, weight, state } = entry.get_mut();
        let (State::Resident { mark, slot, .. } | State::Clean { mark, slot, .. }) = state else {
            return None;
        };
        *slot = to.get();
        let tick = self.widen(mark.load(Relaxed));
        let arrival = Arrival { slot: to, weight: *weight, fingerprint: hash, tick };
        Some((Arrived { hash, id: *id }, arrival))
    }

    pub(crate) fn mark(&self, at: Arrived) -> u64 {
        let mark = self.look_at(at, |entry| match &entry.state {
            State::Resident { mark, .. } | State::Clean { mark, .. } => self.widen(mark.load(Relaxed)),
            _ => 0,
        });
        mark.unwrap_or_default()
    }

    pub(crate) fn reset_mark(&self, at: Arrived, count: u8) {
        self.look_at(at, |entry| {
            if let State::Resident { mark, .. } | State::Clean { mark, .. } = &entry.state
                && self.touch != Touch::Stamp
            {
                mark.store(count.into(), Relaxed);
            }
        });
    }

    /// Whether this entry's value is only in memory, and not on its way out.
    pub(crate) fn is_resident(&self, at: Arrived) -> bool {
        self.look_at(at, |entry| entry.state.phase() == Phase::Resident).unwrap_or_default()
    }

    /// Takes out arrivals to learn of, the oldest of each thread; with `unfinished` even if they are few.
    pub(crate) fn take_arrivals(&self, unfinished: bool) -> Learning {
        self.stripes.take(unfinished)
    }

    /// Each of these was given a slot if it was still there.
    pub(crate) fn learned(&self, learning: &Learning) {
        self.stripes.learned(learning);
    }

    /// Whether arrivals that are gone take much memory.
    pub(crate) fn has_sparse_arrivals(&self) -> bool {
        self.stripes.is_sparse()
    }
}
