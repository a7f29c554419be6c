//! The contract of a victim policy, which decides who leaves memory next. The shipped ones are in
//! [`policies`](crate::policies).
//!
//! A read must cost next to nothing, so it never calls the policy: it leaves a *mark* on the entry, of the
//! kind the policy asked for once ([`Policy::touch`]), and the policy looks at the marks when it has to
//! pick a victim.

use std::fmt;

/// Names one resident entry to a policy: a small dense number, used again after the entry left.
/// A policy can keep its state in a `Vec` indexed by it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u32);

impl Slot {
    /// The slot with this number.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number, to index with.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({})", self.0)
    }
}

/// What a read leaves on an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// Nothing: reads don't matter.
    Nothing,
    /// One more, up to this many. Reads beyond that write nothing, so hot entries stay shared between
    /// cores.
    Count(u8),
    /// The time of the read, as a tick of a clock that goes on by one for each arrival and each read.
    /// Exact, but every read writes a line that all cores share.
    Stamp,
}

/// The marks of the resident entries, for a policy that picks a victim.
pub trait Marks {
    /// The mark of an entry: its count of reads since the last reset for [`Touch::Count`], the tick of
    /// its last read (or arrival) for [`Touch::Stamp`], zero for [`Touch::Nothing`] and for a slot that
    /// is empty by now.
    fn get(&self, slot: Slot) -> u64;

    /// Sets a count to `count`. Does nothing for the other kinds.
    fn reset(&self, slot: Slot, count: u8);
}

/// An entry that has come into memory.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Its slot, free until now.
    pub slot: Slot,
    /// Its weight in bytes.
    pub weight: u64,
    /// A hash of its key: equal for equal keys, so that a policy can recognise one that left before.
    pub fingerprint: u64,
    /// The tick of its arrival, for [`Touch::Stamp`].
    pub tick: u64,
}

/// Decides who leaves memory next.
///
/// The buffer calls it under one lock of its own, from any thread; it must not call back into the buffer,
/// block, or panic. Every entry that was admitted and not forgotten is offered as a victim in the end:
/// calling [`victim`](Self::victim) again and again empties the policy.
///
/// ```
/// use spill_core::{Arrival, Marks, Policy, Slot, Touch};
///
/// /// The heaviest first.
/// #[derive(Debug, Default)]
/// struct Heaviest(Vec<(u64, Slot)>);
///
/// impl Policy for Heaviest {
///     fn name(&self) -> &'static str {
///         "heaviest"
///     }
///     fn touch(&self) -> Touch {
///         Touch::Nothing
///     }
///     fn admit(&mut self, arrival: &Arrival) {
///         self.0.push((arrival.weight, arrival.slot));
///         self.0.sort_unstable();
///     }
///     fn forget(&mut self, slot: Slot) {
///         self.0.retain(|(_, other)| *other != slot);
///     }
///     fn victim(&mut self, _marks: &dyn Marks) -> Option<Slot> {
///         self.0.pop().map(|(_, slot)| slot)
///     }
/// }
/// ```
pub trait Policy: fmt::Debug + Send + 'static {
    /// Its name in configs and statistics. Constant.
    fn name(&self) -> &'static str;

    /// What a read leaves on an entry. Constant.
    fn touch(&self) -> Touch;

    /// An entry has come into memory: inserted, restored, or given back after it could not be spilled. Of what is
    /// inserted it hears, in order, only when memory gets short, and never of what was removed before.
    fn admit(&mut self, arrival: &Arrival);

    /// An entry left memory by itself: removed or replaced. Does nothing for a slot it does not hold.
    fn forget(&mut self, slot: Slot);

    /// Picks the next to leave, and drops it from its own books. `None` when it holds no entry.
    fn victim(&mut self, marks: &dyn Marks) -> Option<Slot>;
}
