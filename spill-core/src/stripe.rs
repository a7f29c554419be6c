//! What every thread writes all the time, in as many copies as threads are likely to run at once, so that they do
//! not take a cache line from each other.

use std::{
    cell::Cell,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Copies of what is striped. With more threads than that some share one, and only lose time by it.
pub(crate) const STRIPES: usize = 16;

/// Keeps a value out of the cache lines of its neighbours. Two lines, since processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

/// One `T` for each stripe.
#[derive(Debug, Default)]
pub(crate) struct Striped<T>([Padded<T>; STRIPES]);

impl<T> Striped<T> {
    /// The stripe of this thread, and its number.
    pub(crate) fn numbered(&self) -> (usize, &T) {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static STRIPE: Cell<usize> = Cell::new(NEXT.fetch_add(1, Relaxed) % STRIPES);
        }
        // A thread that is ending has no stripe any more; any will do.
        let number = STRIPE.try_with(Cell::get).unwrap_or_default();
        (number, &self.0[number % STRIPES].0)
    }

    /// The stripe of this thread.
    pub(crate) fn own(&self) -> &T {
        self.numbered().1
    }

    /// The stripe with this number.
    pub(crate) fn get(&self, number: usize) -> &T {
        &self.0[number % STRIPES].0
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|padded| &padded.0)
    }
}
