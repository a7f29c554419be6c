//! The table: every entry, and the one place where its state changes.
//!
//! A sharded map from key to entry. [`step`] says what an entry becomes; the methods here carry it out under
//! the lock of one shard and hand back [`Leftovers`] to be dealt with after it. No lock of a shard is held
//! across I/O, an await or foreign code, and no guard of the map leaves this file.
//!
//! Lock order: the victim queue may look into the table, never the other way round.

use std::{
    borrow::Borrow,
    collections::HashMap,
    hash::{BuildHasher, Hash, Hasher},
    ops::Deref,
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*},
    },
};

use dashmap::{DashMap, SharedValue};
use foldhash::fast::RandomState;
use parking_lot::Mutex;

mod arrivals;
mod flight;
mod look;
mod moves;
mod stripes;

use self::stripes::{Stripes, index, is_noted};
pub(crate) use self::{
    arrivals::Arrived,
    flight::{Flight, Landing, Pilot},
    stripes::Learning,
};
use crate::{
    EntryId, Payload, Slot, Touch,
    entry::{Effect, Event, Phase, step},
    ledger::{Leaving, Memory, Share},
    usage::Tally,
};

/// Parts of the map with a lock of their own. So many that threads rarely meet, and that a part which grows, and is
/// copied for that under its lock, is small.
const SHARDS: usize = 128;

/// A key: what it must be able to do. Implemented for everything that can.
pub trait Key: Eq + Hash + Clone + std::fmt::Debug + Send + Sync + 'static {}

impl<K: Eq + Hash + Clone + std::fmt::Debug + Send + Sync + 'static> Key for K {}

/// Where a frame is: the tier, its blob in that tier's books, and the frame in that blob.
///
/// Six bytes at an alignment of two, so that an entry fits in 40 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place([u16; 3]);

/// Blobs that one tier's books can hold: 28 bits, the other four name the tier.
pub(crate) const MAX_BLOBS: u32 = 1 << 28;
/// Frames that one blob can hold.
pub(crate) const MAX_FRAMES: usize = 1 << 16;
/// Tiers that one buffer can have.
pub(crate) const MAX_TIERS: usize = 16;

impl Place {
    pub(crate) fn new(tier: u8, blob: u32, frame: u16) -> Self {
        debug_assert!(usize::from(tier) < MAX_TIERS && blob < MAX_BLOBS);
        let [b0, b1, b2, b3] = (u32::from(tier) << 28 | blob).to_le_bytes();
        Self([u16::from_le_bytes([b0, b1]), u16::from_le_bytes([b2, b3]), frame])
    }

    fn word(self) -> u32 {
        u32::from(self.0[0]) | u32::from(self.0[1]) << 16
    }

    pub(crate) fn tier(self) -> usize {
        (self.word() >> 28) as usize
    }

    pub(crate) fn blob(self) -> u32 {
        self.word() & (MAX_BLOBS - 1)
    }

    pub(crate) fn frame(self) -> usize {
        usize::from(self.0[2])
    }
}

/// No slot: not among those the victim policy knows, nor among the arrivals it is to learn of.
const NO_SLOT: u32 = u32::MAX;

#[derive(Debug)]
struct Entry<V> {
    id: EntryId,
    weight: u64,
    state: State<V>,
}

#[derive(Debug)]
enum State<V> {
    Resident {
        value: Arc<V>,
        mark: AtomicU32,
        slot: u32,
    },
    Spilling {
        value: Arc<V>,
        touched: AtomicU32,
        mark: u32,
    },
    /// `held`: somebody outside may still hold the value.
    Spilled {
        at: Place,
        held: bool,
    },
    Restoring {
        at: Place,
        flight: Arc<Flight<V>>,
    },
    Clean {
        value: Arc<V>,
        at: Place,
        mark: AtomicU32,
        slot: u32,
    },
}

impl<V> State<V> {
    fn phase(&self) -> Phase {
        match self {
            Self::Resident { .. } => Phase::Resident,
            Self::Spilling { .. } => Phase::Spilling,
            Self::Spilled { .. } => Phase::Spilled,
            Self::Restoring { .. } => Phase::Restoring,
            Self::Clean { .. } => Phase::Clean,
        }
    }

    fn place(&self) -> Option<Place> {
        match self {
            Self::Spilled { at, .. } | Self::Restoring { at, .. } | Self::Clean { at, .. } => Some(*at),
            Self::Resident { .. } | Self::Spilling { .. } => None,
        }
    }

    fn value(&self) -> Option<&Arc<V>> {
        match self {
            Self::Resident { value, .. } | Self::Spilling { value, .. } | Self::Clean { value, .. } => {
                Some(value)
            }
            Self::Spilled { .. } | Self::Restoring { .. } => None,
        }
    }

    fn into_value(self) -> Option<Arc<V>> {
        match self {
            Self::Resident { value, .. } | Self::Spilling { value, .. } | Self::Clean { value, .. } => {
                Some(value)
            }
            Self::Spilled { .. } | Self::Restoring { .. } => None,
        }
    }

    /// As it is kept: see [`stripes`].
    fn kept_slot(&self) -> u32 {
        match self {
            Self::Resident { slot, .. } | Self::Clean { slot, .. } => *slot,
            Self::Spilling { .. } | Self::Spilled { .. } | Self::Restoring { .. } => NO_SLOT,
        }
    }

    /// The slot that the victim policy knows it by.
    fn slot(&self) -> Option<Slot> {
        let slot = self.kept_slot();
        (slot != NO_SLOT && !is_noted(slot)).then(|| Slot::new(slot))
    }
}

/// What a lookup found.
#[derive(Debug)]
pub(crate) enum Found<V> {
    Absent,
    /// In memory. `clean`: also in a tier.
    Here {
        value: Arc<V>,
        clean: bool,
    },
    /// Only in a tier.
    Away,
}

/// What a caller who wants a spilled value has to do.
#[derive(Debug)]
pub(crate) enum Fetch<K, V> {
    Absent,
    /// It is in memory by now.
    Here(Arc<V>, EntryId),
    /// Somebody still holds it.
    Alive(Arc<V>, EntryId),
    Join(Arc<Flight<V>>, EntryId),
    Start(Request<K, V>, Arc<Flight<V>>),
}

/// A read to be done.
#[derive(Debug)]
pub(crate) struct Request<K, V> {
    pub(crate) key: K,
    pub(crate) id: EntryId,
    pub(crate) weight: u64,
    /// Where its frame was when it was asked for.
    pub(crate) at: Place,
    pub(crate) pilot: Pilot<V>,
}

/// A value on its way to a tier.
#[derive(Debug)]
pub(crate) struct Item<K, V> {
    pub(crate) key: K,
    pub(crate) id: EntryId,
    pub(crate) weight: u64,
    pub(crate) value: Arc<V>,
    /// Its weight. `None` for a value that is not in the table yet: a heavy one being inserted.
    pub(crate) leaving: Option<Leaving>,
    /// The value encoded, if it had to wait for the next blob.
    pub(crate) encoded: Option<Payload>,
    /// Bytes of its frame in the tier where it needs most, of those that had no room for it.
    pub(crate) need: u64,
    /// Its frame is longer than a blob may be in one of the tiers.
    pub(crate) too_long: bool,
    /// For a heavy value being inserted: whether its caller still waits.
    pub(crate) caller: Weak<()>,
}

/// What an eviction came to.
#[derive(Debug)]
pub(crate) enum Evicted<K, V> {
    /// It has to be written.
    Put(Item<K, V>),
    /// It was clean: its weight is free already.
    Freed { weight: u64 },
    /// It is not in memory any more, or never was.
    Stale,
}

/// What the end of a write came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PutEnd {
    /// It has left memory.
    Spilled,
    /// It stays in memory as well and can be picked again.
    Clean,
    /// It stays in memory only.
    Resident,
    /// It was removed or replaced; the frame, if there is one, is garbage.
    Gone,
}

/// What an entry leaves behind, to be dealt with after the lock.
#[derive(Debug)]
pub(crate) struct Leftovers<'a, V> {
    pub(crate) id: EntryId,
    pub(crate) weight: u64,
    pub(crate) slot: Option<Slot>,
    /// A frame that is garbage now.
    pub(crate) frame: Option<Place>,
    pub(crate) value: Option<Arc<V>>,
    pub(crate) share: Option<Share<&'a Memory>>,
    /// Notes of arrivals that are gone take much memory: somebody should learn of the others.
    pub(crate) sparse: bool,
}

/// What an insert came to.
#[derive(Debug)]
pub(crate) struct Inserted<'a, V> {
    /// To find it again.
    pub(crate) at: Arrived,
    /// Of what it replaced.
    pub(crate) left: Option<Leftovers<'a, V>>,
    /// Many have arrived: it is time to ask whether somebody should learn of them.
    pub(crate) many: bool,
}

/// An insert that its share does not pay for: what was there went meanwhile. Key and value come back.
#[derive(Debug)]
pub(crate) struct Shortfall<K, V>(pub(crate) K, pub(crate) Arc<V>);

/// A heavy insert whose caller does not wait for it any more.
#[derive(Debug)]
pub(crate) struct Abandoned;

#[derive(Debug)]
pub(crate) struct Table<K: Eq + Hash, V> {
    map: DashMap<K, Entry<V>, RandomState>,
    touch: Touch,
    tick: AtomicU64,
    next_id: AtomicU64,
    memory: Arc<Memory>,
    /// What is in each phase, and who came lately. Locked under a shard's lock, never the other way round.
    stripes: Stripes,
    /// Spilled values that somebody held when they left memory.
    held: Mutex<HashMap<EntryId, Weak<V>, RandomState>>,
    /// How many of those are kept before the dead among them are dropped.
    held_most: AtomicUsize,
    /// Entries that must stay in memory. Locked under a shard's lock, never the other way round.
    pins: Mutex<HashMap<EntryId, Pin, RandomState>>,
    /// How many entries are pinned: spares the lock when there are none.
    pinned: AtomicU64,
}

#[derive(Debug)]
struct Pin {
    count: u32,
    weight: u64,
    /// It was picked meanwhile: it has to be admitted again.
    picked: bool,
}

/// What pinning a key came to.
#[derive(Debug)]
pub(crate) enum Pinning<K, V> {
    Absent,
    /// Not in memory.
    Away,
    Pinned(K, EntryId, Arc<V>),
}

impl<K: Key, V> Table<K, V> {
    pub(crate) fn new(touch: Touch, memory: Arc<Memory>) -> Self {
        Self {
            map: DashMap::with_hasher_and_shard_amount(RandomState::default(), SHARDS),
            touch,
            tick: 0.into(),
            next_id: 0.into(),
            memory,
            stripes: Stripes::default(),
            held: Mutex::default(),
            held_most: 16.into(),
            pins: Mutex::default(),
            pinned: 0.into(),
        }
    }

    pub(crate) fn new_id(&self) -> EntryId {
        EntryId::new(self.next_id.fetch_add(1, Relaxed))
    }

    pub(crate) fn tally(&self, phase: Phase) -> Tally {
        index(phase).map_or_else(Tally::default, |index| self.tallies()[index])
    }

    /// What is resident, being spilled, spilled, being restored, and clean, all at one instant.
    pub(crate) fn tallies(&self) -> [Tally; 5] {
        self.stripes.tallies()
    }

    pub(crate) fn len(&self) -> u64 {
        self.tallies().iter().map(|tally| tally.entries).sum()
    }

    /// What all entries weigh, wherever they are.
    pub(crate) fn weight(&self) -> u64 {
        self.tallies().iter().map(|tally| tally.weight).sum()
    }

    /// Values that left memory and that somebody still holds.
    pub(crate) fn alive_elsewhere(&self) -> u64 {
        let mut held = self.held.lock();
        held.retain(|_, value| value.strong_count() > 0);
        held.len() as u64
    }

    fn moved(&self, from: Phase, to: Phase, weight: u64) {
        if from != to {
            self.stripes.replaced(from, weight, to, weight);
        }
    }

    /// The hash of a key: says in which shard an entry is and, with its id, which one it is.
    #[expect(
        clippy::manual_hash_one,
        reason = "to the letter as the map does it, whose shards are found by it"
    )]
    pub(crate) fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        let mut hasher = self.map.hasher().build_hasher();
        key.hash(&mut hasher);
        hasher.finish()
    }

    /// The number of the shard where a key with this hash is.
    #[expect(clippy::cast_possible_truncation, reason = "what the map does itself")]
    fn shard_of(&self, hash: u64) -> usize {
        self.map.determine_shard(hash as usize)
    }

    /// Puts a value under a key if `share`, together with what the present entry holds, pays for it; with `more`
    /// also if the ledger has the rest at once.
    pub(crate) fn insert<M: Deref<Target = Memory>>(
        &self,
        key: K,
        id: EntryId,
        weight: u64,
        value: Arc<V>,
        share: &mut Share<M>,
        more: bool,
    ) -> Result<Inserted<'_, V>, Shortfall<K, V>> {
        let hash = self.hash(&key);
        let at = Arrived { hash, id };
        let resident = |value, slot| State::Resident { value, mark: self.first_mark().into(), slot };
        let mut shard = self.map.shards()[self.shard_of(hash)].write();
        let Some((_, present)) = shard.get_mut(hash, |(there, _)| *there == key) else {
            if !self.pay(share, weight, 0, more) {
                return Err(Shortfall(key, value));
            }
            let (slot, many) = self.stripes.arrived(at, weight, (Phase::Absent, 0));
            let entry = Entry { id, weight, state: resident(value, slot) };
            shard.insert(hash, (key, SharedValue::new(entry)), |(key, _)| self.hash(key));
            return Ok(Inserted { at, left: None, many });
        };
        let present = present.get_mut();
        let (phase, held) = (present.state.phase(), present.weight);
        let effects = step(phase, Event::Insert).map_or(&[][..], |(_, effects)| effects);
        let there = if effects.contains(&Effect::FreeWeight) { held } else { 0 };
        if !self.pay(share, weight, there, more) {
            return Err(Shortfall(key, value));
        }
        let slot = present.state.kept_slot();
        let (slot, many) = if is_noted(slot) {
            // Its note is good for this one as well.
            self.stripes.replaced(phase, held, Phase::Resident, weight);
            (slot, false)
        } else {
            self.stripes.arrived(at, weight, (phase, held))
        };
        let old = std::mem::replace(present, Entry { id, weight, state: resident(value, slot) });
        drop(shard);
        let mut left = self.leftovers(old, effects);
        if let Some(joined_above) = left.share.take() {
            joined_above.into_entry();
        }
        Ok(Inserted { at, left: Some(left), many })
    }

    /// Takes the price of an entry out of `share` and of what is there, and with `more` out of what is free.
    fn pay<M: Deref<Target = Memory>>(
        &self,
        share: &mut Share<M>,
        price: u64,
        there: u64,
        more: bool,
    ) -> bool {
        let short = price.saturating_sub(share.bytes().saturating_add(there));
        if short > 0 {
            let rest = if more { self.memory.try_take_here(short) } else { None };
            let Some(rest) = rest else { return false };
            share.join(rest);
        }
        share.join(self.memory.adopt_here(there));
        share.leave_to_entry(price);
        true
    }

    /// Puts a heavy entry, whose value is in a tier already, under its key. `Err`: its caller has given up.
    /// That is looked at under the lock: what the caller did since then must not be undone.
    pub(crate) fn insert_spilled(
        &self,
        item: Item<K, V>,
        at: Place,
    ) -> Result<Option<Leftovers<'_, V>>, Abandoned> {
        let Item { key, id, weight, caller, .. } = item;
        let entry = Entry { id, weight, state: State::Spilled { at, held: false } };
        let hash = self.hash(&key);
        let mut shard = self.map.shards()[self.shard_of(hash)].write();
        if caller.strong_count() == 0 {
            return Err(Abandoned);
        }
        let Some((_, present)) = shard.get_mut(hash, |(there, _)| *there == key) else {
            self.moved(Phase::Absent, Phase::Spilled, weight);
            shard.insert(hash, (key, SharedValue::new(entry)), |(key, _)| self.hash(key));
            return Ok(None);
        };
        let old = std::mem::replace(present.get_mut(), entry);
        let phase = old.state.phase();
        self.stripes.forget(old.state.kept_slot());
        self.stripes.replaced(phase, old.weight, Phase::Spilled, weight);
        drop(shard);
        let effects = step(phase, Event::Insert).map_or(&[][..], |(_, effects)| effects);
        Ok(Some(self.leftovers(old, effects)))
    }

    /// Removes an entry: any under this key, or only the one with this id.
    pub(crate) fn remove<Q>(&self, key: &Q, only: Option<EntryId>) -> Option<Leftovers<'_, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut sparse = false;
        let (_, old) = self.map.remove_if(key, |_, entry| {
            let right = only.is_none_or(|id| entry.id == id);
            if right {
                // Under the lock, so that no count is ever below what is there.
                sparse = self.stripes.left(entry.state.phase(), entry.weight, entry.state.kept_slot());
            }
            right
        })?;
        let (_, effects) = step(old.state.phase(), Event::Remove)?;
        Some(Leftovers { sparse, ..self.leftovers(old, effects) })
    }

    /// Removes the entry with this id, and gives its key back.
    pub(crate) fn take_out(&self, at: Arrived) -> Option<(K, Leftovers<'_, V>)> {
        let mut shard = self.map.shards()[self.shard_of(at.hash)].write();
        let (key, entry) = shard.remove_entry(at.hash, |(_, entry)| entry.get().id == at.id)?;
        let old = entry.into_inner();
        let phase = old.state.phase();
        self.stripes.left(phase, old.weight, old.state.kept_slot());
        drop(shard);
        Some((key, self.leftovers(old, step(phase, Event::Remove)?.1)))
    }

    fn leftovers(&self, old: Entry<V>, effects: &[Effect]) -> Leftovers<'_, V> {
        if matches!(old.state, State::Spilled { held: true, .. }) {
            self.held.lock().remove(&old.id);
        }
        if self.pinned.load(SeqCst) > 0 {
            let mut pins = self.pins.lock();
            pins.remove(&old.id);
            self.pinned.store(pins.len() as u64, SeqCst);
        }
        Leftovers {
            id: old.id,
            weight: old.weight,
            slot: old.state.slot(),
            frame: old.state.place().filter(|_| effects.contains(&Effect::BuryFrame)),
            share: effects.contains(&Effect::FreeWeight).then(|| self.memory.adopt_here(old.weight)),
            value: old.state.into_value(),
            sparse: false,
        }
    }
}
