//! Entries that the victim queue has not heard of yet, in the order in which they came.
//!
//! To tell a policy of an entry costs several cache misses, and as many again when it is removed; and as long as
//! memory is enough no policy is needed. So an arrival is only noted here, in 16 bytes, and the queue learns of it
//! when memory gets short. An entry that goes before that costs a count: its note is found stale, or is thrown
//! away with all others of its chunk.

use crate::{
    EntryId, Slot,
    list::{Links, List},
};

/// Notes in one chunk: 4 KiB.
pub(super) const CHUNK: usize = 256;
/// Chunks below which it does not matter how many notes are stale: 64 KiB.
const FEW: usize = 16;
/// Empty chunks whose memory is kept for the next ones.
const SPARE: usize = 4;

/// An entry, as the table finds it again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    pub(crate) hash: u64,
    pub(crate) id: EntryId,
}

#[derive(Debug, Default)]
struct Chunk {
    notes: Vec<Arrived>,
    /// Entries that are still there and refer to this chunk.
    live: usize,
}

/// The notes. Each entry that is noted refers to its chunk by number, until it is gone or was learned of.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    chunks: Vec<Chunk>,
    links: Links,
    /// Chunks that wait to be learned of. The newest is being filled.
    order: List,
    free: Vec<Slot>,
    live: usize,
}

impl Arrivals {
    /// Notes an entry: the number of its chunk, and whether that is full now.
    pub(super) fn note(&mut self, arrived: Arrived) -> (u32, bool) {
        let filling = self.order.newest().filter(|slot| self.chunks[slot.index()].notes.len() < CHUNK);
        let slot = filling.unwrap_or_else(|| self.open());
        let chunk = &mut self.chunks[slot.index()];
        chunk.notes.push(arrived);
        chunk.live += 1;
        self.live += 1;
        (slot.get(), chunk.notes.len() == CHUNK)
    }

    fn open(&mut self) -> Slot {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.chunks.push(Chunk::default());
            // 2^27 chunks, which is what an entry can refer to, would be half a TiB of notes.
            Slot::new(u32::try_from(self.chunks.len() - 1).unwrap_or(u32::MAX))
        });
        self.chunks[slot.index()].notes.reserve_exact(CHUNK);
        self.order.push(&mut self.links, slot);
        slot
    }

    /// An entry is gone that refers to this chunk.
    pub(super) fn gone(&mut self, number: u32) {
        let slot = Slot::new(number);
        let Some(chunk) = self.chunks.get_mut(slot.index()) else { return };
        debug_assert!(chunk.live > 0, "more are gone than came");
        chunk.live -= 1;
        self.live -= 1;
        // One that is being learned of is in no list, and comes back by itself.
        if chunk.live == 0 && self.links.holds(slot) {
            if chunk.notes.len() < CHUNK {
                chunk.notes.clear();
            } else {
                self.order.remove(&mut self.links, slot);
                self.release(slot);
            }
        }
    }

    /// Takes out the oldest chunk, and with `unfinished` also one that is not full. Its number is not used again
    /// before [`learned`](Self::learned): entries that refer to it are still there.
    pub(super) fn take(&mut self, unfinished: bool) -> Option<(u32, Vec<Arrived>)> {
        let slot = self.order.oldest()?;
        let chunk = &mut self.chunks[slot.index()];
        if chunk.notes.is_empty() || (chunk.notes.len() < CHUNK && !unfinished) {
            return None;
        }
        self.order.remove(&mut self.links, slot);
        Some((slot.get(), std::mem::take(&mut chunk.notes)))
    }

    /// No entry refers any more to a chunk that was taken out.
    pub(super) fn learned(&mut self, number: u32) {
        let slot = Slot::new(number);
        if let Some(chunk) = self.chunks.get_mut(slot.index()) {
            self.live -= std::mem::take(&mut chunk.live);
            self.release(slot);
        }
    }

    fn release(&mut self, slot: Slot) {
        let notes = &mut self.chunks[slot.index()].notes;
        notes.clear();
        if self.free.len() >= SPARE {
            *notes = Vec::new();
        }
        self.free.push(slot);
    }

    /// Whether stale notes take much more memory than live ones.
    pub(super) fn is_sparse(&self) -> bool {
        self.order.len() > FEW && self.live < self.order.len() * CHUNK / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(arrivals: &mut Arrivals, numbers: std::ops::Range<u64>) -> Vec<u32> {
        let note = |id| arrivals.note(Arrived { hash: id, id: EntryId::new(id) }).0;
        numbers.map(note).collect()
    }

    #[test]
    fn what_is_taken_is_what_was_noted_in_order() {
        let mut arrivals = Arrivals::default();
        noted(&mut arrivals, 0..600);
        let mut seen = Vec::new();
        while let Some((chunk, notes)) = arrivals.take(seen.len() >= 512) {
            seen.extend(notes.iter().map(|arrived| arrived.id.get()));
            arrivals.learned(chunk);
        }
        assert_eq!(seen, (0..600).collect::<Vec<_>>());
        assert_eq!((arrivals.live, arrivals.order.len(), arrivals.free.len()), (0, 0, 3));
    }

    #[test]
    fn what_comes_and_goes_leaves_no_memory_behind() {
        let mut arrivals = Arrivals::default();
        for round in 0..1_000 {
            let chunks = noted(&mut arrivals, round * 300..(round + 1) * 300);
            chunks.into_iter().for_each(|chunk| arrivals.gone(chunk));
        }
        assert_eq!(arrivals.live, 0);
        assert!(arrivals.chunks.len() <= 4, "{} chunks", arrivals.chunks.len());

        let chunks = noted(&mut arrivals, 0..100_000);
        assert!(!arrivals.is_sparse());
        chunks.into_iter().for_each(|chunk| arrivals.gone(chunk));
        let held: usize = arrivals.chunks.iter().map(|chunk| chunk.notes.capacity()).sum();
        assert!(held <= (SPARE + 1) * CHUNK, "{held} notes' worth of memory is held for nothing");
    }

    #[test]
    fn one_in_many_that_stays_makes_it_sparse() {
        let mut arrivals = Arrivals::default();
        let chunks = noted(&mut arrivals, 0..100_000);
        for (_, chunk) in chunks.into_iter().enumerate().filter(|(number, _)| number % 100 != 0) {
            arrivals.gone(chunk);
        }
        assert!(arrivals.is_sparse());
    }

    #[test]
    fn one_that_goes_while_it_is_learned_of_is_counted_once() {
        let mut arrivals = Arrivals::default();
        let chunks = noted(&mut arrivals, 0..CHUNK as u64);
        let Some((taken, _)) = arrivals.take(false) else { panic!("one chunk is full") };
        arrivals.gone(chunks[0]);
        let next = noted(&mut arrivals, 0..1);
        assert_ne!(next[0], taken, "its number is still in use");
        arrivals.learned(taken);
        assert_eq!(arrivals.live, 1);
    }
}
