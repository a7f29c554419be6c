//! What was called and how it went: the record and the counters of a [`Faults`](super::Faults) handle.

use std::collections::VecDeque;

use spill_core::{BlobId, StoreErrorKind};

/// The most calls a record keeps; the oldest are dropped first. Counters go on.
pub const RECORD_LIMIT: usize = 65_536;

/// A method of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// [`Store::put`](spill_core::Store::put).
    Put,
    /// [`Store::get`](spill_core::Store::get).
    Get,
    /// [`Store::delete`](spill_core::Store::delete).
    Delete,
    /// [`Store::punch`](spill_core::Store::punch).
    Punch,
    /// [`Store::list`](spill_core::Store::list).
    List,
    /// [`Store::close`](spill_core::Store::close).
    Close,
}

impl Operation {
    /// Every one of them.
    pub const ALL: [Self; 6] = [Self::Put, Self::Get, Self::Delete, Self::Punch, Self::List, Self::Close];

    /// The method's name, as errors show it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::Delete => "delete",
            Self::Punch => "punch",
            Self::List => "list",
            Self::Close => "close",
        }
    }
}

/// How a call went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has not ended yet.
    Pending,
    /// It answered `Ok`.
    Done,
    /// It answered an error of this kind, injected or the inner store's own.
    Failed(StoreErrorKind),
    /// Its future was dropped before the end.
    Cancelled,
}

/// One call, as it was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The method.
    pub operation: Operation,
    /// The blobs it was about; for a listing the one it starts after, if any.
    pub ids: Vec<BlobId>,
    /// Bytes of the payload of a put, of the range of a get, given back by a punch; else zero.
    pub bytes: u64,
    /// How it went.
    pub outcome: Outcome,
}

/// How often a method was called, and how that went. Only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls that began.
    pub started: u64,
    /// Calls that answered `Ok`.
    pub done: u64,
    /// Calls that answered an error.
    pub failed: u64,
    /// Calls whose future was dropped before the end.
    pub cancelled: u64,
    /// Bytes of the calls that answered `Ok`; see [`Call::bytes`].
    pub bytes: u64,
}

impl Counts {
    /// Calls that have begun and not ended.
    pub fn pending(&self) -> u64 {
        self.started - self.done - self.failed - self.cancelled
    }
}

#[derive(Debug, Default)]
pub(super) struct Record {
    calls: VecDeque<Call>,
    /// Number of the call at the front; calls are numbered from zero as they begin.
    first: u64,
    counts: [Counts; Operation::ALL.len()],
}

impl Record {
    pub(super) fn begin(&mut self, operation: Operation, ids: &[BlobId], bytes: u64) -> u64 {
        if self.calls.len() == RECORD_LIMIT {
            self.calls.pop_front();
            self.first += 1;
        }
        self.calls.push_back(Call { operation, ids: ids.to_vec(), bytes, outcome: Outcome::Pending });
        self.counts[operation as usize].started += 1;
        self.first + self.calls.len() as u64 - 1
    }

    pub(super) fn end(&mut self, number: u64, operation: Operation, bytes: u64, outcome: Outcome) {
        let counts = &mut self.counts[operation as usize];
        match outcome {
            Outcome::Pending => {}
            Outcome::Done => {
                counts.done += 1;
                counts.bytes += bytes;
            }
            Outcome::Failed(_) => counts.failed += 1,
            Outcome::Cancelled => counts.cancelled += 1,
        }
        let index = number.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        if let Some(call) = index.and_then(|index| self.calls.get_mut(index)) {
            (call.bytes, call.outcome) = (bytes, outcome);
        }
    }

    pub(super) fn counts(&self, operation: Operation) -> Counts {
        self.counts[operation as usize]
    }

    pub(super) fn calls(&self) -> Vec<Call> {
        self.calls.iter().cloned().collect()
    }

    pub(super) fn clear(&mut self) {
        self.first += self.calls.len() as u64;
        self.calls.clear();
    }
}
