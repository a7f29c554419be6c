//! A hand walks over the entries and takes the first that was not read since it last came by.

use super::MAX_LOOKS;
use crate::list::{Links, List};
use crate::{Arrival, Marks, Policy, Slot, Touch};

/// SIEVE: a hand walks from the oldest entry to the newest and round again. It takes the first entry that was
/// not read since it last passed; entries that were read keep their place.
///
/// New entries wait at the end the hand is walking towards, so those nobody reads are soon sifted out between the
/// settled ones. The price: entries that were read once and never again stay for a whole round.
///
/// The first read after a look writes one bit, others write nothing. Admitting and forgetting are O(1); picking a
/// victim is O(1) amortised over the reads and looks at no more than 1024 marks in one call: after that many
/// entries that were all read, the next one leaves anyway. 8 bytes for each slot.
///
/// ```
/// use std::cell::Cell;
/// use spill_core::policies::Sieve;
/// use spill_core::{Arrival, Marks, Policy, Slot};
///
/// #[derive(Debug)]
/// struct Table([Cell<u8>; 4]);
/// impl Marks for Table {
///     fn get(&self, slot: Slot) -> u64 {
///         self.0[slot.index()].get().into()
///     }
///     fn reset(&self, slot: Slot, count: u8) {
///         self.0[slot.index()].set(count);
///     }
/// }
///
/// let arrival = |number| Arrival { slot: Slot::new(number), weight: 100, fingerprint: 0, tick: 0 };
/// let mut policy = Sieve::new();
/// for number in 0..3 {
///     policy.admit(&arrival(number));
/// }
/// // The oldest was read: the hand clears its mark, leaves it where it is, and takes the next.
/// let table = Table([Cell::new(1), Cell::new(0), Cell::new(0), Cell::new(0)]);
/// assert_eq!(policy.victim(&table), Some(Slot::new(1)));
/// // The hand goes on from there: a newcomer is sifted out before the oldest is looked at again.
/// policy.admit(&arrival(3));
/// assert_eq!(policy.victim(&table), Some(Slot::new(2)));
/// assert_eq!(policy.victim(&table), Some(Slot::new(3)));
/// assert_eq!(policy.victim(&table), Some(Slot::new(0)));
/// assert_eq!(policy.victim(&table), None);
/// ```
#[derive(Debug, Default)]
pub struct Sieve {
    links: Links,
    queue: List,
    /// The next to look at; `None` means the oldest.
    hand: Option<Slot>,
}

impl Sieve {
    /// A policy that holds no entry.
    pub fn new() -> Self {
        Self::default()
    }

    fn remove(&mut self, slot: Slot) {
        if self.hand == Some(slot) {
            self.hand = self.links.newer(slot);
        }
        self.queue.remove(&mut self.links, slot);
    }
}

impl Policy for Sieve {
    fn name(&self) -> &'static str {
        "sieve"
    }

    fn touch(&self) -> Touch {
        Touch::Count(1)
    }

    fn admit(&mut self, arrival: &Arrival) {
        self.forget(arrival.slot);
        self.queue.push(&mut self.links, arrival.slot);
    }

    fn forget(&mut self, slot: Slot) {
        if self.links.holds(slot) {
            self.remove(slot);
        }
    }

    fn victim(&mut self, marks: &dyn Marks) -> Option<Slot> {
        let mut candidate = self.hand.or(self.queue.oldest())?;
        for _ in 0..self.queue.len().min(MAX_LOOKS) {
            if marks.get(candidate) == 0 {
                break;
            }
            marks.reset(candidate, 0);
            candidate = self.links.newer(candidate).or(self.queue.oldest())?;
        }
        self.hand = Some(candidate);
        self.remove(candidate);
        Some(candidate)
    }
}
