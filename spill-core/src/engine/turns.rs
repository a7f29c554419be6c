//! Long work on a runtime thread, cut into turns: moving an entry takes about a microsecond, and a batch has
//! thousands of them.

/// Entries after which others get their turn: a fifth of a millisecond's work or so.
const ENTRIES: usize = 128;

/// Counts the entries of one turn.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    moved: usize,
}

impl Turns {
    /// Before the next entry is moved: lets others run when it is time for that.
    ///
    /// # Cancel safety
    /// As for any await: what a future holds that is dropped here is dropped. Whoever has entries in hand awaits this
    /// in a job only.
    pub(crate) async fn next(&mut self) {
        self.moved += 1;
        if self.moved > ENTRIES {
            self.moved = 1;
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn others_run_after_so_many_entries() {
        let mut turns = Turns::default();
        for _ in 0..3 {
            for _ in 0..ENTRIES {
                assert!(turns.next().now_or_never().is_some());
            }
            let others = tokio::spawn(async {});
            turns.next().await;
            assert!(others.is_finished());
            turns.moved = 0;
        }
    }
}
