//! What every insert and remove writes besides the entry: how many entries are in each phase, and the arrivals.
//! Under the lock of a stripe, which is the innermost of all.

use parking_lot::Mutex;

use super::{
    NO_SLOT,
    arrivals::{Arrivals, Arrived},
};
use crate::{
    entry::Phase,
    stripe::{STRIPES, Striped},
    usage::Tally,
};

/// Set in the slot of an entry that was noted as an arrival: the rest names the stripe and the chunk.
const NOTED: u32 = 1 << 31;
const CHUNK_BITS: u32 = 27;

#[derive(Debug, Default)]
pub(super) struct Stripes(Striped<Mutex<Stripe>>);

#[derive(Debug, Default)]
struct Stripe {
    /// Of each phase, what became of it by changes that were booked here, modulo 2^64: an entry may come in one
    /// stripe and go in another. Only the sums mean something.
    counts: [Tally; 5],
    arrivals: Arrivals,
}

/// Arrivals that the victim queue is learning of.
#[derive(Debug, Default)]
pub(crate) struct Learning {
    /// Oldest first, and the slot that each was given: an entry that has another slot by now was learned of, or is
    /// another one.
    pub(crate) arrived: Vec<(Arrived, u32)>,
    /// Where they were noted.
    chunks: Vec<(usize, u32)>,
}

impl Stripes {
    /// What is in each phase, all at one instant: nobody sees an entry twice or not at all while it moves.
    pub(super) fn tallies(&self) -> [Tally; 5] {
        let all: Vec<_> = self.0.iter().map(Mutex::lock).collect();
        let mut sums = [Tally::default(); 5];
        for stripe in &all {
            sums.iter_mut().zip(&stripe.counts).for_each(|(sum, count)| add(sum, *count));
        }
        sums
    }

    /// An entry of one phase and weight became one of another.
    pub(super) fn replaced(&self, from: Phase, old: u64, to: Phase, new: u64) {
        if (from, old) != (to, new) {
            self.0.own().lock().replaced(from, old, to, new);
        }
    }

    /// A value became resident, in place of one of this phase and weight. Its slot for now, and whether it is time
    /// for somebody to learn of arrivals.
    pub(super) fn arrived(&self, arrived: Arrived, weight: u64, from: (Phase, u64)) -> (u32, bool) {
        let (number, stripe) = self.0.numbered();
        let mut stripe = stripe.lock();
        stripe.replaced(from.0, from.1, Phase::Resident, weight);
        let (chunk, full) = stripe.arrivals.note(arrived);
        (slot_of(number, chunk), full)
    }

    /// An entry was removed. Whether stale notes take much memory.
    pub(super) fn left(&self, phase: Phase, weight: u64, slot: u32) -> bool {
        let Some((number, chunk)) = noted(slot) else {
            self.replaced(phase, weight, Phase::Absent, 0);
            return false;
        };
        let mut stripe = self.0.get(number).lock();
        stripe.replaced(phase, weight, Phase::Absent, 0);
        stripe.arrivals.gone(chunk);
        stripe.arrivals.is_sparse()
    }

    /// An entry with this slot left memory, or has another slot from now on.
    pub(super) fn forget(&self, slot: u32) {
        if let Some((number, chunk)) = noted(slot) {
            self.0.get(number).lock().arrivals.gone(chunk);
        }
    }

    /// Takes out the oldest arrivals, a chunk of each stripe, to be learned of; with `unfinished` those as well
    /// whose chunk is not full.
    pub(super) fn take(&self, unfinished: bool) -> Learning {
        let mut learning = Learning::default();
        for (number, stripe) in self.0.iter().enumerate() {
            if let Some((chunk, notes)) = stripe.lock().arrivals.take(unfinished) {
                learning.chunks.push((number, chunk));
                let slot = slot_of(number, chunk);
                learning.arrived.extend(notes.into_iter().map(|arrived| (arrived, slot)));
            }
        }
        if learning.chunks.len() > 1 {
            learning.arrived.sort_unstable_by_key(|(arrived, _)| arrived.id);
        }
        learning
    }

    /// The entries that were being learned of have slots of the queue by now, or are gone.
    pub(super) fn learned(&self, learning: &Learning) {
        for (number, chunk) in &learning.chunks {
            self.0.get(*number).lock().arrivals.learned(*chunk);
        }
    }

    /// Whether stale notes take much more memory than live ones.
    pub(super) fn is_sparse(&self) -> bool {
        self.0.iter().any(|stripe| stripe.lock().arrivals.is_sparse())
    }
}

impl Stripe {
    fn replaced(&mut self, from: Phase, old: u64, to: Phase, new: u64) {
        if let Some(index) = index(to) {
            add(&mut self.counts[index], Tally { entries: 1, weight: new });
        }
        if let Some(index) = index(from) {
            add(&mut self.counts[index], Tally { entries: 1_u64.wrapping_neg(), weight: old.wrapping_neg() });
        }
    }
}

/// Whether a slot says that its entry was noted as an arrival.
pub(super) fn is_noted(slot: u32) -> bool {
    slot & NOTED != 0 && slot != NO_SLOT
}

#[expect(clippy::cast_possible_truncation, reason = "less than 16 stripes")]
fn slot_of(stripe: usize, chunk: u32) -> u32 {
    debug_assert!(stripe < STRIPES && chunk < 1 << CHUNK_BITS);
    NOTED | (stripe as u32) << CHUNK_BITS | chunk
}

/// The stripe and the chunk where an entry was noted.
fn noted(slot: u32) -> Option<(usize, u32)> {
    let (number, chunk) = ((slot & !NOTED) >> CHUNK_BITS, slot & ((1 << CHUNK_BITS) - 1));
    is_noted(slot).then_some((number as usize, chunk))
}

fn add(sum: &mut Tally, more: Tally) {
    sum.entries = sum.entries.wrapping_add(more.entries);
    sum.weight = sum.weight.wrapping_add(more.weight);
}

pub(super) fn index(phase: Phase) -> Option<usize> {
    match phase {
        Phase::Absent => None,
        Phase::Resident => Some(0),
        Phase::Spilling => Some(1),
        Phase::Spilled => Some(2),
        Phase::Restoring => Some(3),
        Phase::Clean => Some(4),
    }
}
