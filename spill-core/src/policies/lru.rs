//! The least recently inserted or read leaves first, exactly.

use crate::{Arrival, Marks, Policy, Slot, Touch};

/// Stands in `positions` for a slot that is not in the heap.
const ABSENT: u32 = u32::MAX;

/// Least recently used: the entry whose insert or last read lies furthest back leaves first. Exact.
///
/// Entries stand in a heap by the last tick the policy knows of. Reads move nothing; when an entry comes to the
/// top and its mark says it was read since, it sinks to where it belongs by now. That is enough to be exact: ticks
/// only grow, so no entry below can be older than what the heap says. Each entry is in the heap once, and one that
/// is forgotten leaves it at once.
///
/// Admitting is O(1), forgetting O(log n), picking a victim O(log n) for the victim and for each entry at the top
/// that was read since it was last there, so O(log n) amortised over the reads. One call may look at many marks:
/// that, and the shared line each read writes, is the price of being exact. 20 bytes: 16 for each entry and 4 for
/// each slot.
///
/// ```
/// use std::cell::Cell;
/// use spill_core::policies::Lru;
/// use spill_core::{Arrival, Marks, Policy, Slot};
///
/// #[derive(Debug)]
/// struct Table([Cell<u64>; 3]);
/// impl Marks for Table {
///     fn get(&self, slot: Slot) -> u64 {
///         self.0[slot.index()].get()
///     }
///     fn reset(&self, _slot: Slot, _count: u8) {}
/// }
///
/// let mut policy = Lru::new();
/// for (number, tick) in [(0, 10), (1, 11), (2, 12)] {
///     policy.admit(&Arrival { slot: Slot::new(number), weight: 100, fingerprint: 0, tick });
/// }
/// // Slot 1 was read at tick 13, then slot 0 at tick 14.
/// let table = Table([Cell::new(14), Cell::new(13), Cell::new(12)]);
/// assert_eq!(policy.victim(&table), Some(Slot::new(2)));
/// assert_eq!(policy.victim(&table), Some(Slot::new(1)));
/// assert_eq!(policy.victim(&table), Some(Slot::new(0)));
/// assert_eq!(policy.victim(&table), None);
/// ```
#[derive(Debug, Default)]
pub struct Lru {
    /// A binary heap, the smallest tick on top.
    heap: Vec<Record>,
    /// Where in the heap each slot is.
    positions: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    tick: u64,
    slot: Slot,
}

impl Lru {
    /// A policy that holds no entry.
    pub fn new() -> Self {
        Self::default()
    }

    fn position(&self, slot: Slot) -> Option<usize> {
        self.positions
            .get(slot.index())
            .filter(|position| **position != ABSENT)
            .map(|position| *position as usize)
    }

    fn place(&mut self, position: usize, record: Record) {
        self.heap[position] = record;
        // There are fewer entries than slots, and slots are numbered in 32 bits.
        self.positions[record.slot.index()] = u32::try_from(position).unwrap_or(ABSENT);
    }

    /// Moves the record at a position up, until nothing above it is newer.
    fn rise(&mut self, mut position: usize) {
        let record = self.heap[position];
        while position > 0 {
            let above = (position - 1) / 2;
            if self.heap[above].tick <= record.tick {
                break;
            }
            self.place(position, self.heap[above]);
            position = above;
        }
        self.place(position, record);
    }

    /// Moves the record at a position down, until nothing below it is older.
    fn sink(&mut self, mut position: usize) {
        let record = self.heap[position];
        loop {
            let left = 2 * position + 1;
            let Some(mut below) = self.heap.get(left).map(|_| left) else { break };
            if self.heap.get(left + 1).is_some_and(|right| right.tick < self.heap[left].tick) {
                below = left + 1;
            }
            if record.tick <= self.heap[below].tick {
                break;
            }
            self.place(position, self.heap[below]);
            position = below;
        }
        self.place(position, record);
    }

    fn remove(&mut self, position: usize) {
        let removed = self.heap.swap_remove(position);
        self.positions[removed.slot.index()] = ABSENT;
        if position < self.heap.len() {
            self.sink(position);
            self.rise(position);
        }
    }
}

impl Policy for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn touch(&self) -> Touch {
        Touch::Stamp
    }

    fn admit(&mut self, arrival: &Arrival) {
        self.forget(arrival.slot);
        if arrival.slot.index() >= self.positions.len() {
            self.positions.resize(arrival.slot.index() + 1, ABSENT);
        }
        self.heap.push(Record { tick: arrival.tick, slot: arrival.slot });
        self.rise(self.heap.len() - 1);
    }

    fn forget(&mut self, slot: Slot) {
        if let Some(position) = self.position(slot) {
            self.remove(position);
        }
    }

    fn victim(&mut self, marks: &dyn Marks) -> Option<Slot> {
        // Reads go on meanwhile and can renew an entry as often as it comes to the top; after one look for each
        // entry the oldest as of then is good enough.
        for _ in 0..self.heap.len() {
            let top = self.heap.first_mut()?;
            let mark = marks.get(top.slot);
            if mark <= top.tick {
                break;
            }
            top.tick = mark;
            self.sink(0);
        }
        let oldest = self.heap.first()?.slot;
        self.remove(0);
        Some(oldest)
    }
}
