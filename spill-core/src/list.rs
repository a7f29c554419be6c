//! Doubly linked lists threaded through one `Vec` that is indexed by slot: 8 bytes for each slot, no
//! allocation for each entry, every operation O(1). Several lists can share the links, as long as a slot is in
//! one of them at a time.

use crate::Slot;

/// Stands for "nobody" behind the last and before the first.
const END: u32 = u32::MAX;
/// Stands in `newer` of a slot that is in no list.
const LOOSE: u32 = u32::MAX - 1;

#[derive(Clone, Copy, Debug)]
struct Link {
    older: u32,
    newer: u32,
}

/// The links of all slots.
#[derive(Debug, Default)]
pub(crate) struct Links(Vec<Link>);

impl Links {
    /// Whether the slot is in a list.
    pub(crate) fn holds(&self, slot: Slot) -> bool {
        self.0.get(slot.index()).is_some_and(|link| link.newer != LOOSE)
    }

    /// The neighbour that came after.
    pub(crate) fn newer(&self, slot: Slot) -> Option<Slot> {
        some(self.0[slot.index()].newer)
    }

    fn set(&mut self, slot: Slot, link: Link) {
        if slot.index() >= self.0.len() {
            self.0.resize(slot.index() + 1, Link { older: END, newer: LOOSE });
        }
        self.0[slot.index()] = link;
    }
}

/// One list, oldest to newest.
#[derive(Debug)]
pub(crate) struct List {
    oldest: u32,
    newest: u32,
    len: usize,
}

impl Default for List {
    fn default() -> Self {
        Self { oldest: END, newest: END, len: 0 }
    }
}

impl List {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn oldest(&self) -> Option<Slot> {
        some(self.oldest)
    }

    pub(crate) fn newest(&self) -> Option<Slot> {
        some(self.newest)
    }

    /// Adds a slot that is in no list.
    pub(crate) fn push(&mut self, links: &mut Links, slot: Slot) {
        debug_assert!(!links.holds(slot), "{slot:?} is in a list");
        links.set(slot, Link { older: self.newest, newer: END });
        match some(self.newest) {
            Some(newest) => links.0[newest.index()].newer = slot.get(),
            None => self.oldest = slot.get(),
        }
        self.newest = slot.get();
        self.len += 1;
    }

    /// Takes out a slot that is in this list.
    pub(crate) fn remove(&mut self, links: &mut Links, slot: Slot) {
        debug_assert!(links.holds(slot), "{slot:?} is in no list");
        let Link { older, newer } = links.0[slot.index()];
        match some(older) {
            Some(older) => links.0[older.index()].newer = newer,
            None => self.oldest = newer,
        }
        match some(newer) {
            Some(newer) => links.0[newer.index()].older = older,
            None => self.newest = older,
        }
        links.0[slot.index()].newer = LOOSE;
        self.len -= 1;
    }

    /// Makes a slot of this list its newest.
    pub(crate) fn renew(&mut self, links: &mut Links, slot: Slot) {
        self.remove(links, slot);
        self.push(links, slot);
    }
}

fn some(number: u32) -> Option<Slot> {
    (number != END).then(|| Slot::new(number))
}
