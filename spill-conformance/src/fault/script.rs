//! What should go wrong: which calls, and how. [`Faults`](super::Faults) keeps these as rules.

use std::{sync::Arc, time::Duration};

use spill_core::{BlobId, StoreError, StoreErrorKind};
use tokio::sync::{Semaphore, watch};

use super::record::Operation;

/// Picks calls: of one operation, by position, by blob. An [`Operation`] alone picks all of its calls.
///
/// Positions count from the moment the rule is made, among the calls that match the blobs.
///
/// ```
/// use spill_conformance::{Calls, Operation};
/// let third = Calls::of(Operation::Put).nth(3);
/// let next_five = Calls::of(Operation::Get).next(5);
/// let after_ten = Calls::of(Operation::Delete).skip(10);
/// # let _ = (third, next_five, after_ten);
/// ```
#[derive(Clone, Debug)]
pub struct Calls {
    operation: Operation,
    skip: u64,
    left: u64,
    pub(super) blobs: Vec<BlobId>,
}

impl Calls {
    /// All calls of `operation`, until healed.
    pub fn of(operation: Operation) -> Self {
        Self { operation, skip: 0, left: u64::MAX, blobs: Vec::new() }
    }

    /// Not the first `count` of them.
    #[must_use]
    pub fn skip(mut self, count: u64) -> Self {
        self.skip = count;
        self
    }

    /// Only `count` of them, after those that are skipped.
    #[must_use]
    pub fn next(mut self, count: u64) -> Self {
        self.left = count;
        self
    }

    /// Only the `position`-th of them, counted from one.
    #[must_use]
    pub fn nth(self, position: u64) -> Self {
        self.skip(position.saturating_sub(1)).next(1)
    }

    /// Only those about this blob. Called again: about this one too.
    #[must_use]
    pub fn blob(mut self, id: BlobId) -> Self {
        self.blobs.push(id);
        self
    }

    pub(super) fn operation(&self) -> Operation {
        self.operation
    }

    pub(super) fn is_spent(&self) -> bool {
        self.left == 0
    }

    /// Whether this call is one of them. Moves the position on.
    pub(super) fn take(&mut self, operation: Operation, ids: &[BlobId]) -> bool {
        let about = self.blobs.is_empty() || ids.iter().any(|id| self.blobs.contains(id));
        if operation != self.operation || !about {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        if self.left == 0 {
            return false;
        }
        // All of them is a count that never runs out.
        if self.left < u64::MAX {
            self.left -= 1;
        }
        true
    }
}

impl From<Operation> for Calls {
    fn from(operation: Operation) -> Self {
        Self::of(operation)
    }
}

/// An error to answer with.
///
/// A kind alone is a fault before the effect.
///
/// A `delete` that fails because of [`Calls::blob`] removes the other blobs of its batch, and its error
/// names those that stayed; a `delete` that fails as a whole removes none and names none.
#[derive(Clone, Debug)]
pub struct Fault {
    kind: StoreErrorKind,
    retry_after: Option<Duration>,
    throttled: bool,
    pub(super) after_effect: bool,
}

impl Fault {
    /// Fails with this kind, before anything happened.
    pub fn new(kind: StoreErrorKind) -> Self {
        Self { kind, retry_after: None, throttled: false, after_effect: false }
    }

    /// Says that there were too many requests: a passing error, before anything happened.
    pub fn throttled() -> Self {
        Self { throttled: true, ..Self::new(StoreErrorKind::Transient) }
    }

    /// Fails after the inner store did what it was asked: the acknowledgement is lost.
    #[must_use]
    pub fn after_effect(mut self) -> Self {
        self.after_effect = true;
        self
    }

    /// The error asks to wait this long.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    pub(super) fn error(&self, operation: Operation, target: &str, ids: &[BlobId]) -> StoreError {
        let when = if self.after_effect { "injected after the effect" } else { "injected" };
        let mut error = StoreError::new(self.kind, operation.name(), target).with_source(when);
        if let (Operation::Put | Operation::Get | Operation::Punch, [id]) = (operation, ids) {
            error = error.with_blob(*id);
        }
        if self.throttled {
            error = error.with_throttled();
        }
        match self.retry_after {
            Some(wait) => error.with_retry_after(wait),
            None => error,
        }
    }
}

impl From<StoreErrorKind> for Fault {
    fn from(kind: StoreErrorKind) -> Self {
        Self::new(kind)
    }
}

/// What is done to the bytes of a read, which then answers `Ok`. Positions count within the answer and wrap
/// around its length; an empty answer stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Flips the bit with this number, eight to a byte.
    FlipBit(usize),
    /// Cuts so many bytes off the end.
    Truncate(usize),
    /// Swaps the bytes at two positions.
    Swap(usize, usize),
    /// Appends so many zero bytes.
    Append(usize),
}

impl Damage {
    pub(super) fn apply(self, bytes: &mut Vec<u8>) {
        let len = bytes.len();
        if len == 0 {
            return;
        }
        match self {
            Self::FlipBit(bit) => bytes[bit / 8 % len] ^= 1 << (bit % 8),
            Self::Truncate(count) => bytes.truncate(len.saturating_sub(count)),
            Self::Swap(first, second) => bytes.swap(first % len, second % len),
            Self::Append(count) => bytes.resize(len.saturating_add(count), 0),
        }
    }
}

/// Holds calls until it is released or dropped. Made by [`Faults::hold`](super::Faults::hold).
#[derive(Debug)]
#[must_use = "dropping a gate lets the calls go on"]
pub struct Gate(pub(super) Arc<Turnstile>);

#[derive(Debug)]
pub(super) struct Turnstile {
    passes: Semaphore,
    held: watch::Sender<u64>,
}

impl Gate {
    /// Waits until at least `count` calls are held at once. Returns at once when the gate is released.
    ///
    /// # Cancel safety
    /// Nothing happens when the future is dropped.
    pub async fn held(&self, count: u64) {
        let mut held = self.0.held.subscribe();
        // The sender is ours: it can't be gone.
        let _ = held.wait_for(|now| *now >= count || self.0.passes.is_closed()).await;
    }

    /// How many calls are held now.
    pub fn holding(&self) -> u64 {
        *self.0.held.borrow()
    }

    /// Lets one call pass: the one that has waited longest, or the next to come.
    pub fn release_one(&self) {
        self.0.passes.add_permits(1);
    }

    /// Opens the gate for good.
    pub fn release(self) {
        drop(self);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.0.open();
    }
}

impl Turnstile {
    pub(super) fn new() -> Self {
        Self { passes: Semaphore::new(0), held: watch::Sender::new(0) }
    }

    pub(super) fn open(&self) {
        self.passes.close();
        self.held.send_modify(|_| ());
    }

    pub(super) fn is_open(&self) -> bool {
        self.passes.is_closed()
    }

    pub(super) async fn pass(&self) {
        struct Held<'a>(&'a watch::Sender<u64>);
        impl Drop for Held<'_> {
            fn drop(&mut self) {
                self.0.send_modify(|now| *now -= 1);
            }
        }
        self.held.send_modify(|now| *now += 1);
        let _held = Held(&self.held);
        // An error means that it was opened for good.
        if let Ok(pass) = self.passes.acquire().await {
            pass.forget();
        }
    }
}
