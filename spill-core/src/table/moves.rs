//! Entries on their way between memory and a tier.

use std::{
    borrow::Borrow,
    hash::Hash,
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, Ordering::*},
    },
};

use super::{
    Arrived, Entry, Evicted, Fetch, Item, Key, NO_SLOT, Pilot, Pin, Pinning, Place, PutEnd, Request, State,
    Table,
};
use crate::{
    EntryId, Tally,
    entry::{Effect, Event, Phase, step},
    ledger::{Leaving, Memory, Share},
};

/// An entry that followed its frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    pub(crate) weight: u64,
    pub(crate) clean: bool,
}

impl<K: Key, V> Table<K, V> {
    /// An entry was picked to leave memory.
    pub(crate) fn begin_spill(&self, picked: Arrived) -> Evicted<K, V> {
        let Arrived { hash, id } = picked;
        let mut shard = self.map.shards()[self.shard_of(hash)].write();
        let found = shard.get_mut(hash, |(_, entry)| entry.get().id == id);
        let Some((key, entry)) = found.filter(|_| !self.is_pinned(id)) else { return Evicted::Stale };
        let entry = entry.get_mut();
        let (phase, weight) = (entry.state.phase(), entry.weight);
        let Some((next, _)) = step(phase, Event::Evict) else { return Evicted::Stale };
        match &entry.state {
            State::Resident { value, mark, slot } => {
                self.stripes.forget(*slot);
                let (key, value, mark) = (key.clone(), value.clone(), mark.load(Relaxed));
                entry.state = State::Spilling { value: value.clone(), touched: 0.into(), mark };
                self.moved(phase, next, weight);
                drop(shard);
                let leaving = Some(Leaving::new(self.memory.adopt(weight)));
                Evicted::Put(Item {
                    key,
                    id,
                    weight,
                    value,
                    leaving,
                    encoded: None,
                    need: 0,
                    too_long: false,
                    caller: Weak::new(),
                })
            }
            State::Clean { value, at, .. } => {
                let (value, at) = (value.clone(), *at);
                let share = self.leave_memory(entry, &value, at);
                self.moved(phase, next, weight);
                drop(shard);
                // After the lock: dropping the value runs foreign code, freeing the weight wakes others.
                drop((value, share));
                Evicted::Freed { weight }
            }
            _ => Evicted::Stale,
        }
    }

    /// Keeps an entry that is in memory there, until [`unpin`](Self::unpin).
    pub(crate) fn pin<Q>(&self, key: &Q) -> Pinning<K, V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        // The lock of the shard is held throughout, so that no eviction comes between.
        let Some(entry) = self.map.get(key) else { return Pinning::Absent };
        let Some(value) = entry.state.value() else { return Pinning::Away };
        if let State::Spilling { touched, .. } = &entry.state {
            // It stays in memory when the write has ended.
            touched.store(1, Relaxed);
        }
        let mut pins = self.pins.lock();
        pins.entry(entry.id).or_insert(Pin { count: 0, weight: entry.weight, picked: false }).count += 1;
        self.pinned.store(pins.len() as u64, SeqCst);
        Pinning::Pinned(entry.key().clone(), entry.id, value.clone())
    }

    /// Undoes one [`pin`](Self::pin). `true`: it was picked meanwhile, and has to be admitted again.
    pub(crate) fn unpin(&self, id: EntryId) -> bool {
        let mut pins = self.pins.lock();
        let Some(pin) = pins.get_mut(&id) else { return false };
        pin.count -= 1;
        let picked = pin.count == 0 && pin.picked;
        if pin.count == 0 {
            pins.remove(&id);
        }
        self.pinned.store(pins.len() as u64, SeqCst);
        picked
    }

    /// Entries that are pinned, and their weight.
    pub(crate) fn pinned(&self) -> Tally {
        let pins = self.pins.lock();
        Tally { entries: pins.len() as u64, weight: pins.values().map(|pin| pin.weight).sum() }
    }

    fn is_pinned(&self, id: EntryId) -> bool {
        self.pinned.load(SeqCst) > 0
            && self.pins.lock().get_mut(&id).is_some_and(|pin| {
                pin.picked = true;
                true
            })
    }

    /// Changes the weight of an entry in memory: the old one, and its frame. `share` pays for what is more.
    pub(crate) fn reweigh(
        &self,
        key: &K,
        id: EntryId,
        weight: u64,
        share: &mut Share,
    ) -> Option<(u64, Option<Place>)> {
        let mut entry = self.map.get_mut(key).filter(|entry| entry.id == id)?;
        let phase = entry.state.phase();
        if !matches!(phase, Phase::Resident | Phase::Clean) {
            return None;
        }
        let old = std::mem::replace(&mut entry.weight, weight);
        share.join(self.memory.adopt_here(old));
        share.leave_to_entry(weight);
        self.stripes.replaced(phase, old, phase, weight);
        if let Some(pin) = self.pins.lock().get_mut(&id) {
            pin.weight = weight;
        }
        Some((old, entry.state.place()))
    }

    /// The value goes, its frame stays. The weight comes back as a share, to be dropped after the lock.
    fn leave_memory(&self, entry: &mut Entry<V>, value: &Arc<V>, at: Place) -> Share<&Memory> {
        // Besides the entry's own and this one: somebody outside has it, and may lend it to us again.
        let held = Arc::strong_count(value) > 2;
        if held {
            self.hold(entry.id, value);
        }
        entry.state = State::Spilled { at, held };
        self.memory.adopt_here(entry.weight)
    }

    fn hold(&self, id: EntryId, value: &Arc<V>) {
        let mut held = self.held.lock();
        // Dead ones go before the map is twice as large as what was alive the last time.
        if held.len() >= self.held_most.load(Relaxed) {
            held.retain(|_, value| value.strong_count() > 0);
            let most = 2 * held.len() + 16;
            held.shrink_to(most);
            self.held_most.store(most, Relaxed);
        }
        held.insert(id, Arc::downgrade(value));
    }

    /// The write of an item has ended: `at` says where its frame is, or that no tier took it.
    pub(crate) fn end_spill(&self, item: Item<K, V>, at: Option<Place>) -> PutEnd {
        let Item { key, id, weight, value, leaving, .. } = item;
        let entry = self.map.get_mut(&key).filter(|entry| entry.id == id);
        let Some(mut entry) = entry else {
            drop((leaving, value));
            return PutEnd::Gone;
        };
        let State::Spilling { touched, mark, .. } = &entry.state else { return PutEnd::Gone };
        let (touched, mark) = (touched.load(Relaxed) != 0, *mark);
        let event = at.map_or(Event::PutFailed, |_| Event::PutDone { touched });
        let Some((next, _)) = step(Phase::Spilling, event) else { return PutEnd::Gone };
        let end = match (next, at) {
            (Phase::Spilled, Some(at)) => {
                // The item's reference and the entry's: replace the entry's first, so that only the item's counts.
                let held = Arc::strong_count(&value) > 2;
                if held {
                    self.hold(id, &value);
                }
                entry.state = State::Spilled { at, held };
                PutEnd::Spilled
            }
            (Phase::Clean, Some(at)) => {
                let mark = self.mark_after_read(mark).into();
                entry.state = State::Clean { value, at, mark, slot: NO_SLOT };
                PutEnd::Clean
            }
            _ => {
                let mark = if touched { self.mark_after_read(mark) } else { mark };
                entry.state = State::Resident { value, mark: mark.into(), slot: NO_SLOT };
                PutEnd::Resident
            }
        };
        self.moved(Phase::Spilling, next, weight);
        drop(entry);
        if end != PutEnd::Spilled
            && let Some(share) = leaving.and_then(Leaving::stay)
        {
            share.into_entry();
        }
        end
    }

    fn mark_after_read(&self, mark: u32) -> u32 {
        let mark = AtomicU32::new(mark);
        self.leave_mark(&mark);
        mark.into_inner()
    }

    /// A caller wants a value that is not in memory: finds out what to do for it.
    pub(crate) fn fetch<Q>(&self, key: &Q) -> Fetch<K, V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let Some(mut entry) = self.map.get_mut(key) else { return Fetch::Absent };
        let (id, weight, phase) = (entry.id, entry.weight, entry.state.phase());
        let (at, held) = match &entry.state {
            State::Resident { value, .. } | State::Spilling { value, .. } | State::Clean { value, .. } => {
                return Fetch::Here(value.clone(), id);
            }
            State::Restoring { flight, .. } => return Fetch::Join(flight.clone(), id),
            State::Spilled { at, held } => (*at, *held),
        };
        if held && let Some(value) = self.alive(id) {
            return Fetch::Alive(value, id);
        }
        let Some((next, [Effect::Read])) = step(phase, Event::Get) else { return Fetch::Absent };
        let pilot = Pilot::new();
        let flight = pilot.flight();
        entry.state = State::Restoring { at, flight: flight.clone() };
        self.moved(phase, next, weight);
        let key = entry.key().clone();
        Fetch::Start(Request { key, id, weight, at, pilot }, flight)
    }

    /// The value of a spilled entry, if somebody still holds it. If not, that is not asked again.
    fn alive(&self, id: EntryId) -> Option<Arc<V>> {
        let mut held = self.held.lock();
        let value = held.get(&id).and_then(Weak::upgrade);
        if value.is_none() {
            held.remove(&id);
        }
        value
    }

    /// Where the frame of a read is by now; `None` when the entry was removed or replaced meanwhile.
    pub(crate) fn locate(&self, key: &K, id: EntryId) -> Option<Place> {
        self.map.get(key).filter(|entry| entry.id == id)?.state.place()
    }

    /// The read of an entry has ended. With a value and a share for its weight it stays in memory, can be picked
    /// again, and its frame is a second copy: it says where.
    pub(crate) fn end_restore(
        &self,
        key: &K,
        id: EntryId,
        value: Option<(&Arc<V>, Option<Share>)>,
    ) -> Option<Place> {
        let mut entry = self.map.get_mut(key).filter(|entry| entry.id == id)?;
        let State::Restoring { at, .. } = &entry.state else { return None };
        let at = *at;
        let event = match &value {
            Some((_, share)) => Event::GetDone { stays: share.is_some() },
            None => Event::GetFailed,
        };
        let (next, _) = step(Phase::Restoring, event)?;
        match (value, next) {
            (Some((value, Some(share))), Phase::Clean) => {
                share.into_entry();
                let mark = self.first_mark().into();
                entry.state = State::Clean { value: value.clone(), at, mark, slot: NO_SLOT };
            }
            (value, _) => {
                let held = value.is_some();
                if let Some((value, _)) = value {
                    self.hold(id, value);
                }
                entry.state = State::Spilled { at, held };
            }
        }
        let weight = entry.weight;
        self.moved(Phase::Restoring, next, weight);
        (next == Phase::Clean).then_some(at)
    }

    /// A spilled value that somebody held comes back into memory without being read.
    pub(crate) fn come_home(&self, key: &K, id: EntryId, value: &Arc<V>, share: Share) -> bool {
        let entry = self.map.get_mut(key).filter(|entry| entry.id == id);
        let Some(mut entry) = entry else { return false };
        let State::Spilled { at, .. } = &entry.state else { return false };
        let (at, mark) = (*at, self.first_mark().into());
        share.into_entry();
        entry.state = State::Clean { value: value.clone(), at, mark, slot: NO_SLOT };
        self.held.lock().remove(&id);
        let weight = entry.weight;
        self.moved(Phase::Spilled, Phase::Clean, weight);
        true
    }

    /// A frame was copied elsewhere. If the entry follows it there, the old one is garbage; if not, the new one.
    pub(crate) fn relocate(&self, key: &K, from: Place, to: Place) -> Option<Moved> {
        let mut entry = self.map.get_mut(key)?;
        let (weight, clean) = (entry.weight, entry.state.phase() == Phase::Clean);
        match &mut entry.state {
            State::Spilled { at, .. } | State::Restoring { at, .. } | State::Clean { at, .. }
                if *at == from =>
            {
                *at = to;
                Some(Moved { weight, clean })
            }
            _ => None,
        }
    }

    /// A tier wants the second copy of an entry back; the frame that is garbage now, and the weight.
    pub(crate) fn drop_copy(&self, key: &K, from: Place) -> Option<u64> {
        let mut entry = self.map.get_mut(key)?;
        let weight = entry.weight;
        let (next, effects) = step(entry.state.phase(), Event::DropCopy)?;
        let State::Clean { value, at, mark, slot } = &entry.state else { return None };
        if *at != from {
            return None;
        }
        let (value, mark, slot) = (value.clone(), mark.load(Relaxed).into(), *slot);
        entry.state = State::Resident { value, mark, slot };
        self.moved(Phase::Clean, next, weight);
        effects.contains(&Effect::BuryFrame).then_some(weight)
    }
}
