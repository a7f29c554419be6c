//! A store that fails on demand. Tests wrap a real store in [`FaultStore`] and script it through a
//! [`Faults`] handle. Which calls and how they fail is in `script`, what was recorded in `record`.

mod record;
mod script;

use std::{collections::HashMap, ops::Range, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use spill_core::{BlobId, BlobMeta, Layer, Payload, Store, StoreError, StoreErrorKind, StoreInfo, Stored};

use self::{record::Record, script::Turnstile};
pub use self::{
    record::{Call, Counts, Operation, Outcome, RECORD_LIMIT},
    script::{Calls, Damage, Fault, Gate},
};

/// The script and the record of one or more [`FaultStore`]s. Clones are the same handle.
///
/// Rules are kept in the order they were made, and each counts the calls it matches. Of several rules
/// that make one call fail at the same point, the oldest decides; delays add up; damages are all done.
/// A call passes, in this order: delays, gates, faults before the effect, the quota, the inner store,
/// damage, gates after the effect, faults after the effect.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use std::sync::Arc;
/// use spill_conformance::{Calls, Faults, Operation};
/// use spill_core::{BlobId, Layer, MemoryStore, Store, StoreErrorKind};
///
/// let faults = Faults::new();
/// let store = faults.layer(Arc::new(MemoryStore::new()));
/// faults.fail(Calls::of(Operation::Put).nth(2), StoreErrorKind::NoSpace);
///
/// assert!(store.put(BlobId::new(1), b"one".to_vec().into()).await.is_ok());
/// let error = store.put(BlobId::new(2), b"two".to_vec().into()).await.unwrap_err();
/// assert_eq!(error.kind(), StoreErrorKind::NoSpace);
/// assert!(store.put(BlobId::new(2), b"two".to_vec().into()).await.is_ok());
/// assert_eq!(faults.counts(Operation::Put).failed, 1);
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    rules: Vec<Rule>,
    record: Record,
    space: Space,
    stores: u64,
}

#[derive(Debug)]
struct Rule {
    calls: Calls,
    action: Action,
}

#[derive(Clone, Debug)]
enum Action {
    Fail(Fault),
    Delay(Duration),
    Hold { turnstile: Arc<Turnstile>, after_effect: bool },
    Damage(Damage),
}

/// What puts may still take.
#[derive(Debug, Default)]
struct Space {
    quota: Option<u64>,
    /// Bytes that may still be put before there is no space any more, whatever is deleted.
    left: Option<u64>,
    /// By the store's number and the blob: stores on one handle have ids of their own.
    held: HashMap<(u64, BlobId), u64>,
    used: u64,
}

impl Space {
    fn reserve(&mut self, bytes: u64) -> Result<(), String> {
        if let Some(quota) = self.quota
            && self.used.saturating_add(bytes) > quota
        {
            return Err(format!(
                "injected: {bytes} bytes more than {} exceed the quota of {quota}",
                self.used
            ));
        }
        if let Some(left) = self.left {
            match left.checked_sub(bytes) {
                Some(rest) => self.left = Some(rest),
                None => {
                    self.left = Some(0);
                    return Err(format!("injected: only {left} of {bytes} bytes were left"));
                }
            }
        }
        self.used = self.used.saturating_add(bytes);
        Ok(())
    }

    fn settle(&mut self, store: u64, id: BlobId, bytes: u64) {
        // A store that lets an id be put again has the newer blob only.
        self.used -= self.held.insert((store, id), bytes).unwrap_or(0);
    }

    fn remove(&mut self, store: u64, ids: &[BlobId]) {
        for id in ids {
            self.used -= self.held.remove(&(store, *id)).unwrap_or(0);
        }
    }

    fn remove_all(&mut self, store: u64) {
        let freed: u64 = self.held.extract_if(|(of, _), _| *of == store).map(|(_, bytes)| bytes).sum();
        self.used -= freed;
    }
}

impl Faults {
    /// No rules and an empty record: a store with it behaves as the inner one.
    pub fn new() -> Self {
        Self::default()
    }

    fn add(&self, calls: impl Into<Calls>, action: Action) {
        self.0.lock().rules.push(Rule { calls: calls.into(), action });
    }

    /// Makes calls fail.
    pub fn fail(&self, calls: impl Into<Calls>, fault: impl Into<Fault>) {
        self.add(calls, Action::Fail(fault.into()));
    }

    /// Makes calls take this much longer, by the clock of tokio: virtual time works.
    pub fn delay(&self, calls: impl Into<Calls>, by: Duration) {
        self.add(calls, Action::Delay(by));
    }

    /// Damages what reads answer. Does nothing to other operations.
    pub fn damage(&self, calls: impl Into<Calls>, damage: Damage) {
        self.add(calls, Action::Damage(damage));
    }

    /// Holds calls before the effect, until the gate is released or dropped.
    pub fn hold(&self, calls: impl Into<Calls>) -> Gate {
        self.hold_at(calls.into(), false)
    }

    /// Holds calls after the effect, before they answer.
    pub fn hold_after_effect(&self, calls: impl Into<Calls>) -> Gate {
        self.hold_at(calls.into(), true)
    }

    fn hold_at(&self, calls: Calls, after_effect: bool) -> Gate {
        let turnstile = Arc::new(Turnstile::new());
        self.add(calls, Action::Hold { turnstile: Arc::clone(&turnstile), after_effect });
        Gate(turnstile)
    }

    /// Lets the stores hold at most so many bytes together: a put beyond is `NoSpace`, and deletes give
    /// space back; punching does not. `None` lifts it. Counts blobs put since the handle was made.
    pub fn set_quota(&self, bytes: Option<u64>) {
        self.0.lock().space.quota = bytes;
    }

    /// Lets puts take so many bytes more in total; then all are `NoSpace`, but empty ones, whatever is
    /// deleted. `None` lifts it. The put that goes over uses up what was left, as a full disk would.
    pub fn set_space_left(&self, bytes: Option<u64>) {
        self.0.lock().space.left = bytes;
    }

    /// Takes all rules back, for every operation: faults, delays, damage, the quota and the space that is
    /// left. Gates are opened.
    pub fn heal(&self) {
        let mut state = self.0.lock();
        (state.space.quota, state.space.left) = (None, None);
        let rules = std::mem::take(&mut state.rules);
        drop(state);
        rules.iter().for_each(Rule::open);
    }

    /// Takes the rules for one operation back, and opens its gates. The quota stays.
    pub fn heal_operation(&self, operation: Operation) {
        let healed: Vec<Rule> =
            self.0.lock().rules.extract_if(.., |rule| rule.calls.operation() == operation).collect();
        healed.iter().for_each(Rule::open);
    }

    /// Every call so far in the order they began, the latest [`RECORD_LIMIT`] of them.
    pub fn calls(&self) -> Vec<Call> {
        self.0.lock().record.calls()
    }

    /// Calls of one operation so far, in the order they began.
    pub fn calls_of(&self, operation: Operation) -> Vec<Call> {
        self.calls().into_iter().filter(|call| call.operation == operation).collect()
    }

    /// Empties the record of calls. Counters stay.
    pub fn clear_calls(&self) {
        self.0.lock().record.clear();
    }

    /// How often an operation was called, and how that went.
    pub fn counts(&self, operation: Operation) -> Counts {
        self.0.lock().record.counts(operation)
    }

    /// Bytes of the blobs that were put and not deleted, with those being put.
    pub fn used(&self) -> u64 {
        self.0.lock().space.used
    }

    /// Records the beginning of a call and asks the rules about it.
    fn begin(&self, operation: Operation, ids: &[BlobId], bytes: u64) -> Pending<'_> {
        let mut state = self.0.lock();
        let number = state.record.begin(operation, ids, bytes);
        let mut plan = Plan::default();
        for rule in &mut state.rules {
            if rule.calls.take(operation, ids) {
                plan.add(rule);
            }
        }
        state.rules.retain(|rule| !rule.calls.is_spent() && !rule.is_open());
        Pending { faults: self, operation, number, bytes, reserved: 0, ended: false, plan }
    }
}

impl Layer for Faults {
    fn layer(&self, inner: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(FaultStore::new(inner, self.clone()))
    }
}

impl Rule {
    fn open(&self) {
        if let Action::Hold { turnstile, .. } = &self.action {
            turnstile.open();
        }
    }

    fn is_open(&self) -> bool {
        matches!(&self.action, Action::Hold { turnstile, .. } if turnstile.is_open())
    }
}

/// What the rules said about one call.
#[derive(Debug, Default)]
struct Plan {
    delay: Duration,
    gates: Vec<Arc<Turnstile>>,
    late_gates: Vec<Arc<Turnstile>>,
    fault: Option<(Fault, Vec<BlobId>)>,
    late_fault: Option<Fault>,
    damages: Vec<Damage>,
}

impl Plan {
    fn add(&mut self, rule: &Rule) {
        match rule.action.clone() {
            Action::Fail(fault) if fault.after_effect => {
                self.late_fault.get_or_insert(fault);
            }
            Action::Fail(fault) => {
                self.fault.get_or_insert_with(|| (fault, rule.calls.blobs.clone()));
            }
            Action::Delay(by) => self.delay = self.delay.saturating_add(by),
            Action::Hold { turnstile, after_effect: false } => self.gates.push(turnstile),
            Action::Hold { turnstile, after_effect: true } => self.late_gates.push(turnstile),
            Action::Damage(damage) => self.damages.push(damage),
        }
    }
}

/// A call that has begun. Dropped before its end, it is recorded as cancelled.
#[derive(Debug)]
struct Pending<'a> {
    faults: &'a Faults,
    operation: Operation,
    number: u64,
    bytes: u64,
    /// Bytes of the quota that were taken and go back unless the put succeeds.
    reserved: u64,
    ended: bool,
    plan: Plan,
}

impl Pending<'_> {
    async fn before(&mut self) {
        if !self.plan.delay.is_zero() {
            tokio::time::sleep(self.plan.delay).await;
        }
        for gate in &self.plan.gates {
            gate.pass().await;
        }
    }

    fn fault(&self, target: &str, ids: &[BlobId]) -> Result<(), StoreError> {
        self.plan.fault.as_ref().map_or(Ok(()), |(fault, _)| Err(fault.error(self.operation, target, ids)))
    }

    async fn after(&mut self, target: &str, ids: &[BlobId]) -> Result<(), StoreError> {
        for gate in &self.plan.late_gates {
            gate.pass().await;
        }
        let late = self.plan.late_fault.as_ref();
        late.map_or(Ok(()), |fault| Err(fault.error(self.operation, target, ids)))
    }

    fn reserve(&mut self, id: BlobId, target: &str) -> Result<(), StoreError> {
        self.faults.0.lock().space.reserve(self.bytes).map_err(|reason| {
            StoreError::new(StoreErrorKind::NoSpace, "put", target).with_blob(id).with_source(reason)
        })?;
        self.reserved = self.bytes;
        Ok(())
    }

    fn settle(&mut self, store: u64, id: BlobId) {
        let bytes = std::mem::take(&mut self.reserved);
        self.faults.0.lock().space.settle(store, id, bytes);
    }

    fn end<T>(mut self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        let outcome = answer.as_ref().map_or_else(|error| Outcome::Failed(error.kind()), |_| Outcome::Done);
        self.note(outcome);
        answer
    }

    fn note(&mut self, outcome: Outcome) {
        self.ended = true;
        let mut state = self.faults.0.lock();
        state.space.used -= self.reserved;
        state.record.end(self.number, self.operation, self.bytes, outcome);
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.note(Outcome::Cancelled);
        }
    }
}

/// Wraps a store and does to it what its [`Faults`] handle says.
///
/// Cancelling a call cancels the inner one. A cancelled put gives its share of the quota back, whether or
/// not the inner store has the blob by then.
#[derive(Clone, Debug)]
pub struct FaultStore {
    inner: Arc<dyn Store>,
    faults: Faults,
    /// Tells the stores on one handle apart.
    number: u64,
}

impl FaultStore {
    /// `inner`, scripted and recorded by `faults`.
    pub fn new(inner: Arc<dyn Store>, faults: Faults) -> Self {
        let mut state = faults.0.lock();
        state.stores += 1;
        let number = state.stores;
        drop(state);
        Self { inner, faults, number }
    }

    /// The handle that scripts it.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    fn name(&self) -> &str {
        &self.inner.info().name
    }

    async fn put_faulty(
        &self,
        call: &mut Pending<'_>,
        id: BlobId,
        blob: Payload,
    ) -> Result<Stored, StoreError> {
        call.before().await;
        call.fault(self.name(), &[id])?;
        call.reserve(id, self.name())?;
        let stored = self.inner.put(id, blob).await?;
        call.settle(self.number, id);
        call.after(self.name(), &[id]).await?;
        Ok(stored)
    }

    async fn get_faulty(
        &self,
        call: &mut Pending<'_>,
        id: BlobId,
        range: Range<u64>,
    ) -> Result<Bytes, StoreError> {
        call.before().await;
        call.fault(self.name(), &[id])?;
        let mut bytes = self.inner.get(id, range).await?;
        if !call.plan.damages.is_empty() {
            let mut copy = Vec::from(bytes);
            call.plan.damages.iter().for_each(|damage| damage.apply(&mut copy));
            bytes = copy.into();
        }
        call.after(self.name(), &[id]).await?;
        Ok(bytes)
    }

    async fn delete_faulty(&self, call: &mut Pending<'_>, ids: &[BlobId]) -> Result<(), StoreError> {
        call.before().await;
        let failing: Vec<BlobId> = match &call.plan.fault {
            Some((_, blobs)) => ids.iter().copied().filter(|id| blobs.contains(id)).collect(),
            None => Vec::new(),
        };
        if failing.is_empty() {
            call.fault(self.name(), ids)?;
            self.remove(ids).await?;
        } else {
            let others: Vec<BlobId> = ids.iter().copied().filter(|id| !failing.contains(id)).collect();
            self.remove(&others).await?;
            call.fault(self.name(), ids).map_err(|error| error.with_failed(failing))?;
        }
        call.after(self.name(), ids).await
    }

    async fn remove(&self, ids: &[BlobId]) -> Result<(), StoreError> {
        self.inner.delete(ids).await?;
        self.faults.0.lock().space.remove(self.number, ids);
        Ok(())
    }
}

#[async_trait]
impl Store for FaultStore {
    fn info(&self) -> &StoreInfo {
        self.inner.info()
    }

    async fn put(&self, id: BlobId, blob: Payload) -> Result<Stored, StoreError> {
        let mut call = self.faults.begin(Operation::Put, &[id], blob.len() as u64);
        let answer = self.put_faulty(&mut call, id, blob).await;
        call.end(answer)
    }

    async fn get(&self, id: BlobId, range: Range<u64>) -> Result<Bytes, StoreError> {
        let mut call = self.faults.begin(Operation::Get, &[id], range.end.saturating_sub(range.start));
        let answer = self.get_faulty(&mut call, id, range).await;
        call.end(answer)
    }

    async fn delete(&self, ids: &[BlobId]) -> Result<(), StoreError> {
        let mut call = self.faults.begin(Operation::Delete, ids, 0);
        let answer = self.delete_faulty(&mut call, ids).await;
        call.end(answer)
    }

    async fn punch(&self, id: BlobId, ranges: &[Range<u64>]) -> Result<u64, StoreError> {
        let mut call = self.faults.begin(Operation::Punch, &[id], 0);
        call.before().await;
        let answer = match call.fault(self.name(), &[id]) {
            Ok(()) => self.inner.punch(id, ranges).await,
            Err(error) => return call.end(Err(error)),
        };
        if let Ok(bytes) = answer {
            call.bytes = bytes;
        }
        let late = if answer.is_ok() { call.after(self.name(), &[id]).await } else { Ok(()) };
        call.end(late.and(answer))
    }

    async fn list(&self, after: Option<BlobId>, limit: usize) -> Result<Vec<BlobMeta>, StoreError> {
        let mut call = self.faults.begin(Operation::List, after.as_slice(), 0);
        call.before().await;
        let answer = match call.fault(self.name(), &[]) {
            Ok(()) => self.inner.list(after, limit).await,
            Err(error) => Err(error),
        };
        let late = if answer.is_ok() { call.after(self.name(), &[]).await } else { Ok(()) };
        call.end(late.and(answer))
    }

    async fn close(&self) -> Result<(), StoreError> {
        let mut call = self.faults.begin(Operation::Close, &[], 0);
        call.before().await;
        let answer = match call.fault(self.name(), &[]) {
            Ok(()) => self.inner.close().await,
            Err(error) => Err(error),
        };
        if answer.is_ok() {
            self.faults.0.lock().space.remove_all(self.number);
        }
        let late = if answer.is_ok() { call.after(self.name(), &[]).await } else { Ok(()) };
        call.end(late.and(answer))
    }
}
