//! Limits that change, numbers and events to watch, and the end.

use std::{sync::atomic::Ordering::*, time::Duration};

use tokio::sync::{broadcast, watch};

use super::SpillBuffer;
use crate::{
    Error, Event, Stats,
    engine::Shared,
    table::Key,
    usage::{MemoryUsage, Pressure, TierUsage, Usage},
};

/// How long [`SpillBuffer::close`] waits for what is under way.
const CLOSE_WITHIN: Duration = Duration::from_secs(60);

impl<K: Key, V: Send + Sync + 'static> SpillBuffer<K, V> {
    /// Changes the memory limit, in bytes. A lower one is spilled down to in the background; a higher one
    /// restores nothing by itself. Takes effect at once, for every clone of the handle.
    pub fn set_memory_limit(&self, bytes: u64) {
        self.shared().set_memory_limit(bytes);
    }

    /// Changes what one tier (counted from 0) may hold, in bytes; `None`: no cap. A lower cap refuses new
    /// blobs and removes nothing. `false`: there is no such tier.
    pub fn set_max_spill(&self, tier: usize, bytes: Option<u64>) -> bool {
        let Some(tier) = self.shared().tiers.get(tier) else { return false };
        tier.quota.set_limit(bytes);
        self.shared().room_in_tier(tier);
        true
    }

    /// What the buffer holds, and where. Cheap; at rest equal to the sum over all entries. Also after close.
    pub fn usage(&self) -> Usage {
        self.shared().usage()
    }

    /// Recomputes what [`usage`](Self::usage) reports, from every entry and from what the stores list, and
    /// says where the two differ; nothing, if the books balance. For a buffer at rest: what moves meanwhile
    /// differs. Takes time in the number of keys and blobs.
    ///
    /// # Errors
    /// [`Error::Store`] when a store can't be listed.
    pub async fn audit(&self) -> Result<Vec<String>, Error> {
        self.shared().audit().await
    }

    /// What the buffer has done so far. Also after close.
    pub fn stats(&self) -> Stats {
        self.shared().counters.stats()
    }

    /// The events from now on.
    pub fn events(&self) -> Events {
        Events { receiver: self.shared().watchers.subscribe(), missed: 0 }
    }

    /// How hard memory is pressed, now and as it changes.
    pub fn pressure(&self) -> watch::Receiver<Pressure> {
        self.shared().pressure.subscribe()
    }

    /// Closes the buffer: waits for what is under way, at most for a minute, then removes everything it
    /// keeps in its tiers. Every other call of any clone that can fail is then [`Error::Closed`]; those that only
    /// look find nothing.
    ///
    /// # Errors
    /// As for [`close_within`](Self::close_within).
    ///
    /// # Cancel safety
    /// Closing goes on when the future is dropped.
    pub async fn close(&self) -> Result<(), Error> {
        self.close_within(CLOSE_WITHIN).await
    }

    /// [`close`](Self::close) with a deadline of one's own.
    ///
    /// # Errors
    /// [`Error::Closed`] when it was closed before; [`Error::CloseTimeout`] when the deadline came first,
    /// and [`Error::Store`] when a store could not remove what is there: what is left stays for a sweep.
    ///
    /// # Cancel safety
    /// Closing goes on when the future is dropped.
    pub async fn close_within(&self, deadline: Duration) -> Result<(), Error> {
        let shared = self.shared().clone();
        if shared.closed.swap(true, AcqRel) {
            return Err(Error::Closed { operation: "close" });
        }
        let closing = self.shared().tasks.runtime().spawn(async move { shared.close(deadline).await });
        closing.await.unwrap_or(Err(Error::RuntimeGone { operation: "close" }))
    }
}

/// A stream of events. A reader that falls behind by more than 256 misses the oldest.
#[derive(Debug)]
pub struct Events {
    receiver: broadcast::Receiver<Event>,
    missed: u64,
}

impl Events {
    /// The next event; `None` when the buffer is gone.
    ///
    /// # Cancel safety
    /// No event is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            match self.receiver.recv().await {
                Ok(event) => return Some(event),
                Err(broadcast::error::RecvError::Lagged(missed)) => self.missed += missed,
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }

    /// The next event if there is one already.
    pub fn try_next(&mut self) -> Option<Event> {
        loop {
            match self.receiver.try_recv() {
                Ok(event) => return Some(event),
                Err(broadcast::error::TryRecvError::Lagged(missed)) => self.missed += missed,
                Err(_) => return None,
            }
        }
    }

    /// How many events this reader has missed.
    pub fn missed(&self) -> u64 {
        self.missed
    }
}

impl<K: Key, V: Send + Sync + 'static> Shared<K, V> {
    pub(crate) fn usage(&self) -> Usage {
        let [resident, spilling, spilled, restoring, clean] = self.table.tallies();
        let levels = self.memory.levels();
        let in_memory = resident + spilling + clean;
        Usage {
            entries: (in_memory + spilled + restoring).entries,
            memory: MemoryUsage {
                limit: levels.limit,
                resident: in_memory,
                spilling,
                clean,
                pinned: self.table.pinned(),
                restoring: levels.used.saturating_sub(in_memory.weight),
                buffers: self.buffers.load(Relaxed),
            },
            spilled: spilled + restoring,
            alive_elsewhere: self.table.alive_elsewhere(),
            tiers: self.tiers.iter().map(|tier| tier_usage(tier)).collect(),
        }
    }
}

fn tier_usage<K>(tier: &crate::tier::Tier<K>) -> TierUsage {
    let (levels, holdings) = (tier.quota.levels(), tier.holdings());
    TierUsage {
        name: tier.name.to_string(),
        entries: holdings.entries,
        weight: holdings.weight,
        encoded: holdings.encoded,
        stored: levels.stored,
        allocated: holdings.allocated,
        garbage: levels.garbage,
        in_flight: levels.in_flight,
        blobs: holdings.blobs,
        max_spill: levels.limit,
    }
}
