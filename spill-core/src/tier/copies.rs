//! Second copies: frames of entries that are in memory as well, in the order in which they became that.
//!
//! They are only noted: most have become something else by the time they are asked for. Notes that are wrong go a few
//! at a time, as new ones come, so that there are never many more than there are second copies, and nobody waits
//! for a long search.

use std::collections::VecDeque;

use parking_lot::Mutex;

use crate::table::Place;

/// Old notes that are looked at for a new one, while there are too many.
const CHECKED_PER_NOTE: usize = 4;

/// Notes that are kept without looking at any.
const KEPT_UNSEEN: usize = 1024;

type Note<K> = (K, Place);

#[derive(Debug)]
pub(crate) struct Copies<K> {
    notes: Mutex<Notes<K>>,
}

#[derive(Debug)]
struct Notes<K> {
    /// Those that were right when they were looked at in this round; older than the rest.
    right: VecDeque<Note<K>>,
    rest: VecDeque<Note<K>>,
    /// How many of the rest this round has yet to look at.
    unchecked: usize,
    /// With so many notes a round begins.
    check_at: usize,
}

impl<K> Default for Copies<K> {
    fn default() -> Self {
        let (right, rest) = (VecDeque::new(), VecDeque::new());
        Self { notes: Mutex::new(Notes { right, rest, unchecked: 0, check_at: KEPT_UNSEEN }) }
    }
}

impl<K> Copies<K> {
    /// The frame of an entry is a second copy from now on. `is_clean` says of others whether they are still.
    pub(crate) fn note(&self, key: K, at: Place, is_clean: impl Fn(&K, Place) -> bool) {
        let mut notes = self.notes.lock();
        notes.rest.push_back((key, at));
        let mut suspects = notes.take_suspects();
        drop(notes);
        suspects.retain(|(key, at)| is_clean(key, *at));
        if !suspects.is_empty() {
            self.notes.lock().right.extend(suspects);
        }
    }

    /// The one that was noted first. It may be none any more.
    pub(crate) fn take_oldest(&self) -> Option<(K, Place)> {
        let mut notes = self.notes.lock();
        if let Some(note) = notes.right.pop_front() {
            return Some(note);
        }
        notes.unchecked = notes.unchecked.saturating_sub(1);
        notes.rest.pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        let notes = self.notes.lock();
        notes.right.is_empty() && notes.rest.is_empty()
    }
}

impl<K> Notes<K> {
    /// Some that are to be looked at; none if there are few.
    fn take_suspects(&mut self) -> Vec<Note<K>> {
        if self.unchecked == 0 && self.right.len() + self.rest.len() > self.check_at {
            self.right.append(&mut self.rest);
            std::mem::swap(&mut self.right, &mut self.rest);
            self.unchecked = self.rest.len();
        }
        if self.unchecked == 0 {
            return Vec::new();
        }
        let some = CHECKED_PER_NOTE.min(self.unchecked);
        self.unchecked -= some;
        let suspects = self.rest.drain(..some).collect();
        if self.unchecked == 0 {
            self.check_at = 2 * (self.right.len() + self.rest.len()) + KEPT_UNSEEN;
        }
        suspects
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(frame: u16) -> Place {
        Place::new(0, 0, frame)
    }

    #[test]
    fn the_oldest_comes_first_through_all_rounds() {
        let copies = Copies::default();
        // Every 16th stays what it was noted as.
        (0..20_000_u16).for_each(|key| copies.note(key, at(key), |key, _| key % 16 == 0));
        let taken: Vec<u16> = std::iter::from_fn(|| copies.take_oldest()).map(|(key, _)| key).collect();
        assert!(copies.is_empty());
        assert!(taken.is_sorted());
        assert_eq!(taken.iter().filter(|key| *key % 16 == 0).count(), 20_000 / 16);
    }

    #[test]
    fn there_are_not_many_more_notes_than_second_copies() {
        let copies = Copies::default();
        let mut most = 0;
        for key in 0..60_000_u16 {
            // The last thousand are second copies.
            copies.note(key, at(key), |noted, _| key - noted < 1000);
            let notes = copies.notes.lock();
            most = most.max(notes.right.len() + notes.rest.len());
        }
        assert!((1000..2 * 1000 + 2 * KEPT_UNSEEN).contains(&most), "{most}");
    }
}
