//! The oldest that was not read since the last look leaves first.

use super::MAX_LOOKS;
use crate::list::{Links, List};
use crate::{Arrival, Marks, Policy, Slot, Touch};

/// FIFO with a second chance: an entry whose turn has come but that was read since is put back as the newest.
///
/// The first read after a look writes one bit, others write nothing. Admitting and forgetting are O(1); picking a
/// victim is O(1) amortised over the reads and looks at no more than 1024 marks in one call: after that many
/// entries that were all read, the next one leaves anyway. 8 bytes for each slot.
///
/// ```
/// use std::cell::Cell;
/// use spill_core::policies::Clock;
/// use spill_core::{Arrival, Marks, Policy, Slot};
///
/// #[derive(Debug)]
/// struct Table([Cell<u8>; 3]);
/// impl Marks for Table {
///     fn get(&self, slot: Slot) -> u64 {
///         self.0[slot.index()].get().into()
///     }
///     fn reset(&self, slot: Slot, count: u8) {
///         self.0[slot.index()].set(count);
///     }
/// }
///
/// let mut policy = Clock::new();
/// for number in 0..3 {
///     policy.admit(&Arrival { slot: Slot::new(number), weight: 100, fingerprint: 0, tick: 0 });
/// }
/// // Someone read the oldest: it gets a second chance, and comes last.
/// let table = Table([Cell::new(1), Cell::new(0), Cell::new(0)]);
/// assert_eq!(policy.victim(&table), Some(Slot::new(1)));
/// assert_eq!(policy.victim(&table), Some(Slot::new(2)));
/// assert_eq!(policy.victim(&table), Some(Slot::new(0)));
/// assert_eq!(policy.victim(&table), None);
/// ```
#[derive(Debug, Default)]
pub struct Clock {
    links: Links,
    queue: List,
}

impl Clock {
    /// A policy that holds no entry.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Policy for Clock {
    fn name(&self) -> &'static str {
        "clock"
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
            self.queue.remove(&mut self.links, slot);
        }
    }

    fn victim(&mut self, marks: &dyn Marks) -> Option<Slot> {
        let mut candidate = self.queue.oldest()?;
        for _ in 0..self.queue.len().min(MAX_LOOKS) {
            if marks.get(candidate) == 0 {
                break;
            }
            marks.reset(candidate, 0);
            self.queue.renew(&mut self.links, candidate);
            candidate = self.queue.oldest()?;
        }
        self.queue.remove(&mut self.links, candidate);
        Some(candidate)
    }
}
