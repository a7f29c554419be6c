//! What a buffer tells those who watch it: the events, and the contract of an observer.
//! Numbers that can be asked for are in `counters` and `usage`.

use std::{sync::Arc, time::Duration};

use crate::{BlobId, CodecError, StoreError};

/// Something that happened. Keys appear only where something went wrong with one, as their `Debug`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// Entries moved from memory to a tier, in one blob.
    Spilled {
        /// The tier's name.
        tier: Arc<str>,
        /// How many entries.
        entries: u64,
        /// What they weighed in memory, in bytes.
        weight: u64,
        /// Bytes of the blob.
        stored: u64,
        /// From picking the entries until the blob was down.
        took: Duration,
    },
    /// Entries were read back from a tier, in one read.
    Restored {
        /// The tier's name.
        tier: Arc<str>,
        /// How many entries.
        entries: u64,
        /// Bytes read.
        stored: u64,
        /// From the first request until the values were there.
        took: Duration,
    },
    /// A value could not be encoded and stays in memory until it is replaced. Reported once per entry.
    EncodeFailed {
        /// The key.
        key: String,
        /// What the codec said.
        error: CodecError,
    },
    /// A tier refused a blob; what was in it went to the next tier or stays in memory.
    WriteFailed {
        /// The tier's name.
        tier: Arc<str>,
        /// What the store said.
        error: StoreError,
        /// When the tier is tried again.
        retry_in: Duration,
    },
    /// A tier that had failed took a blob again.
    TierHealed {
        /// The tier's name.
        tier: Arc<str>,
    },
    /// Reading an entry failed; it is still spilled.
    RestoreFailed {
        /// The key.
        key: String,
        /// Why, as a caller sees it.
        error: crate::Error,
    },
    /// Blobs could not be deleted. They are counted as garbage, and tried again.
    DeleteFailed {
        /// The tier's name.
        tier: Arc<str>,
        /// Which blobs.
        blobs: Vec<BlobId>,
        /// What the store said.
        error: StoreError,
    },
    /// Space of removed entries was given back.
    Reclaimed {
        /// The tier's name.
        tier: Arc<str>,
        /// Bytes given back.
        freed: u64,
        /// Bytes copied to a new blob for that.
        copied: u64,
    },
    /// Entries moved from a tier that runs short to one behind it, in one blob.
    Demoted {
        /// The name of the tier they were in.
        from: Arc<str>,
        /// The name of the tier they are in now.
        to: Arc<str>,
        /// How many entries.
        entries: u64,
        /// Bytes of their frames.
        bytes: u64,
    },
    /// Memory has to shrink and nothing more can be spilled.
    Stuck {
        /// Bytes in use.
        used: u64,
        /// What entries may weigh together.
        limit: u64,
    },
}

/// Is told of every event, for logs and metrics.
///
/// Called on the thread where the event happened, which may be within a call that reads, and never under a lock of
/// the buffer. Keep it short; for anything slow take
/// the event stream of the buffer instead. A panic is caught and ignored.
pub trait Observer: Send + Sync + 'static {
    /// `event` has just happened.
    fn on_event(&self, event: &Event);
}

impl<F: Fn(&Event) + Send + Sync + 'static> Observer for F {
    fn on_event(&self, event: &Event) {
        self(event);
    }
}
