//! Working memory that is used again: making it anew for every value costs more than a small value does.

use parking_lot::Mutex;

/// The most idle pieces a pool keeps, however many threads there are.
const MOST_IDLE: usize = 32;

/// Pieces of working memory nobody uses right now.
///
/// The lock is held to take one out or to put one back, never while one is used. When none is idle a new
/// one is made, so nobody waits; when enough are idle one that comes back is dropped.
pub(crate) struct Pool<T> {
    idle: Mutex<Vec<T>>,
    most_idle: usize,
}

impl<T> Default for Pool<T> {
    /// Keeps as many as threads can run at once, 32 at most.
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self::keeping(threads.min(MOST_IDLE))
    }
}

impl<T> Pool<T> {
    fn keeping(most_idle: usize) -> Self {
        Self { idle: Mutex::new(Vec::new()), most_idle }
    }

    /// Lends an idle piece, or a new one, to `work`.
    ///
    /// It comes back only after a success: one that a failure or a panic left half done is dropped, so
    /// that no later value can be harmed by it.
    pub(crate) fn with<R, E>(
        &self,
        make: impl FnOnce() -> Result<T, E>,
        work: impl FnOnce(&mut T) -> Result<R, E>,
    ) -> Result<R, E> {
        let idle = self.idle.lock().pop();
        let mut piece = match idle {
            Some(piece) => piece,
            None => make()?,
        };
        let result = work(&mut piece)?;
        self.put_back(piece);
        Ok(result)
    }

    fn put_back(&self, piece: T) {
        let mut idle = self.idle.lock();
        if idle.len() < self.most_idle {
            idle.push(piece);
            return;
        }
        // Freeing megabytes is nothing to do under a lock.
        drop(idle);
        drop(piece);
    }

    #[cfg(test)]
    fn idle(&self) -> usize {
        self.idle.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, panic::AssertUnwindSafe};

    use super::*;

    #[test]
    fn a_piece_is_used_again() {
        let pool = Pool::keeping(1);
        pool.with(
            || Ok::<_, Infallible>(1),
            |piece| {
                *piece += 1;
                Ok(())
            },
        )
        .unwrap();
        let seen = pool.with(|| panic!("one is idle"), |piece| Ok::<_, Infallible>(*piece)).unwrap();
        assert_eq!(seen, 2);
    }

    #[test]
    fn no_more_stay_idle_than_asked_for() {
        let pool = Pool::keeping(1);
        pool.with(|| Ok(0), |_| pool.with(|| Ok::<_, Infallible>(1), |_| Ok(()))).unwrap();
        assert_eq!(pool.idle(), 1);
    }

    #[test]
    fn a_failure_and_a_panic_take_the_piece_with_them() {
        let pool = Pool::keeping(2);
        pool.with(|| Ok(0), |_| Err::<(), _>("damaged")).unwrap_err();
        assert_eq!(pool.idle(), 0);
        let panicked = std::panic::catch_unwind(AssertUnwindSafe(|| {
            pool.with(|| Ok(0), |_| -> Result<(), Infallible> { panic!("on purpose") })
        }));
        assert!(panicked.is_err());
        assert_eq!(pool.idle(), 0);
        pool.with(|| Ok::<_, Infallible>(0), |_| Ok(())).unwrap();
        assert_eq!(pool.idle(), 1);
    }
}
