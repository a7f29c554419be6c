//! The oldest leaves first.

use crate::list::{Links, List};
use crate::{Arrival, Marks, Policy, Slot, Touch};

/// First in, first out: the entry that came into memory first leaves first, read or not.
///
/// Reads leave no mark, so they are as cheap as can be. Every call is O(1). 8 bytes for each slot.
///
/// ```
/// use spill_core::policies::Fifo;
/// use spill_core::{Arrival, Marks, Policy, Slot};
///
/// #[derive(Debug)]
/// struct NoMarks;
/// impl Marks for NoMarks {
///     fn get(&self, _slot: Slot) -> u64 {
///         0
///     }
///     fn reset(&self, _slot: Slot, _count: u8) {}
/// }
///
/// let mut policy = Fifo::new();
/// for number in [4, 2, 7] {
///     policy.admit(&Arrival { slot: Slot::new(number), weight: 100, fingerprint: 0, tick: 0 });
/// }
/// policy.forget(Slot::new(2));
/// assert_eq!(policy.victim(&NoMarks), Some(Slot::new(4)));
/// assert_eq!(policy.victim(&NoMarks), Some(Slot::new(7)));
/// assert_eq!(policy.victim(&NoMarks), None);
/// ```
#[derive(Debug, Default)]
pub struct Fifo {
    links: Links,
    queue: List,
}

impl Fifo {
    /// A policy that holds no entry.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Policy for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn touch(&self) -> Touch {
        Touch::Nothing
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

    fn victim(&mut self, _marks: &dyn Marks) -> Option<Slot> {
        let oldest = self.queue.oldest()?;
        self.queue.remove(&mut self.links, oldest);
        Some(oldest)
    }
}
