//! Newcomers prove themselves in a small queue; who is read again and again, or comes back soon, gets into the
//! main one. How large the small one is follows from what main's entries are worth.

use super::MAX_LOOKS;
use super::ghost::{Ghost, fold};
use crate::list::{Links, List};
use crate::{Arrival, Marks, Policy, Slot, Touch};

/// Reads that carry an entry from the small queue into the main one.
const PROVEN: u64 = 2;
/// All of memory, in the fixed point of shares.
const ALL: i64 = 1 << 20;
/// What the small queue gets at least and at most.
const LEAST: i64 = ALL / 10;
const MOST: i64 = ALL / 10 * 9;
/// How far one entry that came back, and one that was read in the main queue, move the balance: this many entries.
const GROW: i64 = 1;
const SHRINK: i64 = 8;
/// One in this many of those that come back gets into a main queue that is full.
const CHANCE: u32 = 8;

/// S3-FIFO, made to hold up when values are written, spilled, and read once.
///
/// Three queues, as published: newcomers wait in a *small* one, from which those with two reads go on to *main*
/// and the others leave; main gives an entry one more round for each read it saw (three at most); the fingerprints
/// of those that left the small queue are kept as *ghosts*, as many as there are entries, and who comes back
/// while its ghost is known is a candidate for main at once.
///
/// Two things differ from the paper, because a spill buffer sees many values that are written, spilled, and read once:
///
/// - **The small queue has no fixed share.** It starts at a tenth. An entry that comes back says the small queue is
///   too small; one that main finds read says main is worth its room, and counts eight times as much. With skewed
///   reads, scans and loops the share stays at a tenth. When entries come back and nobody reads them in
///   main (they were restored, read, and are dead), then after as many of them as there are entries the
///   share grows, to nine tenths at most.
/// - **When the small queue is down to a tenth, one of eight that come back gets into main**; the others wait in the
///   small queue once more. A loop a little longer than memory would otherwise push every entry out of main
///   shortly before its turn.
///
/// Shares are of the *weight* of all entries, not of their number: by number, a few large newcomers would count
/// as few and drive out thousands of small entries that are read all the time. Weights are kept in units of
/// 64 bytes, rounded up, at least one.
///
/// Reads count up to three and then write nothing. Admitting and forgetting are O(1) amortised; picking a victim
/// is O(1) amortised over the reads and looks at no more than 1024 marks in one call: after that many entries that
/// were all read, the next one leaves anyway. 16 bytes for each slot, and 13 to 20 for the ghost of each.
///
/// ```
/// use std::cell::Cell;
/// use spill_core::policies::S3Fifo;
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
/// let arrival = |number| Arrival { slot: Slot::new(number), weight: 100, fingerprint: number.into(), tick: 0 };
/// let mut policy = S3Fifo::new();
/// for number in 0..4 {
///     policy.admit(&arrival(number));
/// }
/// // The oldest was read twice and goes on to the main queue, the next once: that is not enough.
/// let table = Table([Cell::new(2), Cell::new(1), Cell::new(0), Cell::new(0)]);
/// assert_eq!(policy.victim(&table), Some(Slot::new(1)));
/// assert_eq!(policy.victim(&table), Some(Slot::new(2)));
/// assert_eq!(policy.victim(&table), Some(Slot::new(3)));
/// assert_eq!(policy.victim(&table), Some(Slot::new(0)));
/// assert_eq!(policy.victim(&table), None);
/// ```
#[derive(Debug)]
pub struct S3Fifo {
    links: Links,
    small: Queue,
    main: Queue,
    entries: Vec<Entry>,
    ghost: Ghost,
    /// The share of the small queue before it is kept between `LEAST` and `MOST`; from `-ALL`, so that it takes as
    /// many returns as there are entries before it moves.
    balance: i64,
    /// How many came back, to pick one of `CHANCE`.
    returns: u32,
}

#[derive(Debug, Default)]
struct Queue {
    list: List,
    units: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    fingerprint: u32,
    /// The weight in units of 64 bytes, and in the lowest bit whether it is in the main queue.
    packed: u32,
}

impl Entry {
    fn new(arrival: &Arrival, fingerprint: u32) -> Self {
        let units = u32::try_from(arrival.weight.div_ceil(64)).unwrap_or(u32::MAX).clamp(1, u32::MAX >> 1);
        Self { fingerprint, packed: units << 1 }
    }

    fn units(self) -> u64 {
        (self.packed >> 1).into()
    }

    fn in_main(self) -> bool {
        self.packed & 1 == 1
    }
}

impl Default for S3Fifo {
    fn default() -> Self {
        Self {
            links: Links::default(),
            small: Queue::default(),
            main: Queue::default(),
            entries: Vec::new(),
            ghost: Ghost::default(),
            balance: -ALL,
            returns: 0,
        }
    }
}

impl S3Fifo {
    /// A policy that holds no entry.
    pub fn new() -> Self {
        Self::default()
    }

    fn len(&self) -> usize {
        self.small.list.len() + self.main.list.len()
    }

    /// What a share of all entries is in units.
    fn units(&self, share: i64) -> u64 {
        let all = i128::from(self.small.units) + i128::from(self.main.units);
        u64::try_from(all * i128::from(share) / i128::from(ALL)).unwrap_or(u64::MAX)
    }

    /// Moves the balance by the share of this many entries.
    fn shift(&mut self, entries: i64) {
        let len = i64::try_from(self.len()).unwrap_or(i64::MAX).max(1);
        self.balance = (self.balance + entries * ALL / len).clamp(-ALL, MOST);
    }

    /// Whether an arrival goes to the main queue at once.
    fn proves_itself(&mut self, fingerprint: u32) -> bool {
        if !self.ghost.remove(fingerprint) {
            return false;
        }
        self.shift(GROW);
        self.returns = self.returns.wrapping_add(1);
        // Main can grow until the small queue is down to its least; an eighth more is as good as that.
        let main_is_full = self.small.units <= self.units(LEAST + LEAST / 8);
        !main_is_full || self.returns.is_multiple_of(CHANCE)
    }

    fn enter(&mut self, slot: Slot, main: bool) {
        let entry = &mut self.entries[slot.index()];
        entry.packed = entry.packed & !1 | u32::from(main);
        let queue = if main { &mut self.main } else { &mut self.small };
        queue.list.push(&mut self.links, slot);
        queue.units += entry.units();
    }

    fn leave(&mut self, slot: Slot) {
        let entry = self.entries[slot.index()];
        let queue = if entry.in_main() { &mut self.main } else { &mut self.small };
        queue.list.remove(&mut self.links, slot);
        queue.units -= entry.units();
    }

    /// The next to look at.
    fn candidate(&self) -> Option<Slot> {
        let (small, main) = (self.small.list.oldest(), self.main.list.oldest());
        if self.small.units >= self.units(self.balance.clamp(LEAST, MOST)) {
            small.or(main)
        } else {
            main.or(small)
        }
    }
}

impl Policy for S3Fifo {
    fn name(&self) -> &'static str {
        "s3-fifo"
    }

    fn touch(&self) -> Touch {
        Touch::Count(3)
    }

    fn admit(&mut self, arrival: &Arrival) {
        self.forget(arrival.slot);
        if arrival.slot.index() >= self.entries.len() {
            self.entries.resize(arrival.slot.index() + 1, Entry::default());
        }
        let fingerprint = fold(arrival.fingerprint);
        self.entries[arrival.slot.index()] = Entry::new(arrival, fingerprint);
        let main = self.proves_itself(fingerprint);
        self.enter(arrival.slot, main);
        // Slow to shrink, so that those who left in one big sweep are still known when they come back.
        self.ghost.set_reach(self.len().max(self.ghost.reach().saturating_sub(1)));
    }

    fn forget(&mut self, slot: Slot) {
        if self.links.holds(slot) {
            self.leave(slot);
        }
    }

    fn victim(&mut self, marks: &dyn Marks) -> Option<Slot> {
        let mut looks = 0;
        loop {
            let candidate = self.candidate()?;
            let entry = self.entries[candidate.index()];
            let mark = if looks < MAX_LOOKS { marks.get(candidate) } else { 0 };
            looks += 1;
            if entry.in_main() && mark > 0 {
                marks.reset(candidate, u8::try_from(mark - 1).unwrap_or(u8::MAX));
                self.main.list.renew(&mut self.links, candidate);
                self.shift(-SHRINK);
            } else if !entry.in_main() && mark >= PROVEN {
                marks.reset(candidate, 0);
                self.leave(candidate);
                self.enter(candidate, true);
            } else {
                if !entry.in_main() {
                    self.ghost.insert(entry.fingerprint);
                }
                self.leave(candidate);
                return Some(candidate);
            }
        }
    }
}
