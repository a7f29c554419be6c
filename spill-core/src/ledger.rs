//! The books: who holds how many bytes of memory and of each tier, and who waits for some.
//!
//! Bytes are taken before they are used and given back by dropping what was taken, so no path, and no
//! error on it, can forget to. [`Memory`] counts against the memory limit and keeps the queue of those who
//! wait; [`Quota`] counts against one tier's `max_spill`.

use std::{
    collections::VecDeque,
    future::Future,
    ops::Deref,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::*},
    },
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;

use crate::{Admission, CapacityPolicy, Levels, stripe::Padded};

/// The memory budget. Its capacity policy decides who comes in; it counts, and lets those who wait in
/// first come first served.
#[derive(Debug)]
pub(crate) struct Memory {
    limit: AtomicU64,
    /// Written by every insert and remove; the others, which those read, by few.
    used: Padded<AtomicU64>,
    leaving: AtomicU64,
    policy: Arc<dyn CapacityPolicy>,
    /// How many wait. Only changed under the lock of `queue`; read without it by those in a hurry.
    waiting: AtomicUsize,
    queue: Mutex<VecDeque<Arc<Waiter>>>,
}

#[derive(Debug)]
struct Waiter {
    need: u64,
    state: Mutex<WaiterState>,
}

#[derive(Debug)]
enum WaiterState {
    Waiting(Option<Waker>),
    /// Its bytes are taken; the future has not fetched them yet.
    Granted,
    /// It can never be resident by now; the future has not heard of it yet.
    TurnedAway,
    /// The bytes were fetched, or the future was dropped.
    Gone,
}

impl Memory {
    pub(crate) fn new(limit: u64, policy: Arc<dyn CapacityPolicy>) -> Arc<Self> {
        Arc::new(Self {
            limit: limit.into(),
            used: Padded(0.into()),
            leaving: 0.into(),
            policy,
            waiting: 0.into(),
            queue: Mutex::default(),
        })
    }

    pub(crate) fn policy(&self) -> &dyn CapacityPolicy {
        &*self.policy
    }

    pub(crate) fn levels(&self) -> Levels {
        Levels {
            limit: self.limit.load(SeqCst),
            used: self.used.0.load(SeqCst),
            leaving: self.leaving.load(SeqCst),
        }
    }

    /// What the policy says to `need` more bytes as things stand.
    pub(crate) fn admission(&self, need: u64) -> Admission {
        self.policy.admit(&self.levels(), need)
    }

    /// Takes bytes if nobody waits for some and the policy says now.
    pub(crate) fn try_take(self: &Arc<Self>, need: u64) -> Option<Share> {
        self.may_take(need).then(|| self.adopt(need))
    }

    /// The same for a caller who keeps them no longer than the call: counts no reference to the books.
    pub(crate) fn try_take_here(&self, need: u64) -> Option<Share<&Self>> {
        self.may_take(need).then(|| self.adopt_here(need))
    }

    fn may_take(&self, need: u64) -> bool {
        // Bytes for those who wait are not up for grabs.
        let free = need == 0 || self.waiting.load(SeqCst) == 0;
        free && self.admit_now(need)
    }

    /// Takes bytes whatever the limit says.
    pub(crate) fn take_over(self: &Arc<Self>, bytes: u64) -> Share {
        self.used.0.fetch_add(bytes, SeqCst);
        Share { memory: self.clone(), bytes }
    }

    /// Takes bytes as soon as it is this caller's turn and the policy says now. `None`: it can never be
    /// resident, since the limit was lowered.
    pub(crate) fn wait(self: &Arc<Self>, need: u64) -> Wait {
        let waiter = Arc::new(Waiter { need, state: Mutex::new(WaiterState::Waiting(None)) });
        let mut queue = self.queue.lock();
        queue.push_back(waiter.clone());
        self.waiting.fetch_add(1, SeqCst);
        drop(queue);
        // Bytes that came free between the caller's failed try and the push would wake nobody.
        self.wake();
        Wait { memory: self.clone(), waiter }
    }

    /// What the first in the queue needs.
    pub(crate) fn first_need(&self) -> Option<u64> {
        if self.waiting.load(SeqCst) == 0 {
            return None;
        }
        self.queue.lock().front().map(|waiter| waiter.need)
    }

    pub(crate) fn set_limit(&self, limit: u64) {
        self.limit.store(limit, SeqCst);
        self.wake();
    }

    /// An entry leaves the bytes of its weight to whoever spills it, or gives them up.
    pub(crate) fn adopt(self: &Arc<Self>, bytes: u64) -> Share {
        Share { memory: self.clone(), bytes }
    }

    /// The same for one who keeps them no longer than the call.
    pub(crate) fn adopt_here(&self, bytes: u64) -> Share<&Self> {
        Share { memory: self, bytes }
    }

    fn admit_now(&self, need: u64) -> bool {
        self.used
            .0
            .fetch_update(SeqCst, SeqCst, |used| {
                let levels = Levels { used, ..self.levels() };
                (self.policy.admit(&levels, need) == Admission::Now).then(|| used.saturating_add(need))
            })
            .is_ok()
    }

    fn release(&self, bytes: u64) {
        if bytes > 0 {
            let before = self.used.0.fetch_sub(bytes, SeqCst);
            debug_assert!(before >= bytes, "{bytes} bytes given back of {before} taken");
            self.wake();
        }
    }

    /// Lets in whoever can come in now, and sends away who would wait for ever.
    pub(crate) fn wake(&self) {
        if self.waiting.load(SeqCst) > 0 {
            let wakers = self.grant(&mut self.queue.lock());
            // Not under the lock: a waker may drop a future that waits here.
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    fn grant(&self, queue: &mut VecDeque<Arc<Waiter>>) -> Vec<Waker> {
        let mut wakers = Vec::new();
        while let Some(first) = queue.front() {
            let mut state = first.state.lock();
            if let WaiterState::Waiting(waker) = &mut *state {
                let next = if self.admit_now(first.need) {
                    WaiterState::Granted
                } else {
                    match self.admission(first.need) {
                        Admission::ToTier | Admission::Refuse => WaiterState::TurnedAway,
                        Admission::Now | Admission::AfterRoom => break,
                    }
                };
                wakers.extend(waker.take());
                *state = next;
            }
            drop(state);
            queue.pop_front();
            self.waiting.fetch_sub(1, SeqCst);
        }
        wakers
    }

    fn leave_queue(&self, waiter: &Arc<Waiter>) {
        let mut queue = self.queue.lock();
        if let Some(place) = queue.iter().position(|other| Arc::ptr_eq(other, waiter)) {
            queue.remove(place);
            self.waiting.fetch_sub(1, SeqCst);
        }
    }
}

/// Bytes of memory taken; given back when dropped.
#[derive(Debug)]
pub(crate) struct Share<M: Deref<Target = Memory> = Arc<Memory>> {
    memory: M,
    bytes: u64,
}

impl<M: Deref<Target = Memory>> Share<M> {
    /// Leaves the bytes to an entry: they stay taken until [`Memory::adopt`] takes them back.
    pub(crate) fn into_entry(mut self) {
        self.bytes = 0;
    }

    /// Adds bytes taken elsewhere.
    pub(crate) fn join<N: Deref<Target = Memory>>(&mut self, mut other: Share<N>) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Takes `bytes` of it (at most all) out into a share of their own.
    pub(crate) fn split(&mut self, bytes: u64) -> Self
    where
        M: Clone,
    {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { memory: self.memory.clone(), bytes }
    }

    /// Leaves this many of its bytes (at most all) to an entry.
    pub(crate) fn leave_to_entry(&mut self, bytes: u64) {
        self.bytes -= bytes.min(self.bytes);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl<M: Deref<Target = Memory>> Drop for Share<M> {
    fn drop(&mut self) {
        self.memory.release(self.bytes);
    }
}

/// Bytes of memory on their way out: still taken, and not to be made room for twice.
#[derive(Debug)]
pub(crate) struct Leaving {
    share: Option<Share>,
}

impl Leaving {
    pub(crate) fn new(share: Share) -> Self {
        share.memory.leaving.fetch_add(share.bytes, SeqCst);
        Self { share: Some(share) }
    }

    /// They stay after all.
    pub(crate) fn stay(mut self) -> Option<Share> {
        self.end()
    }

    fn end(&mut self) -> Option<Share> {
        let share = self.share.take()?;
        share.memory.leaving.fetch_sub(share.bytes, SeqCst);
        Some(share)
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        drop(self.end());
    }
}

/// Waits for bytes of memory. Dropping it gives up the place in the queue, and bytes granted meanwhile.
#[derive(Debug)]
pub(crate) struct Wait {
    memory: Arc<Memory>,
    waiter: Arc<Waiter>,
}

impl Future for Wait {
    type Output = Option<Share>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Share>> {
        let mut state = self.waiter.state.lock();
        match &mut *state {
            WaiterState::Waiting(waker) => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            WaiterState::Granted => {
                *state = WaiterState::Gone;
                Poll::Ready(Some(self.memory.adopt(self.waiter.need)))
            }
            WaiterState::TurnedAway => {
                *state = WaiterState::Gone;
                Poll::Ready(None)
            }
            WaiterState::Gone => Poll::Pending,
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let before = std::mem::replace(&mut *self.waiter.state.lock(), WaiterState::Gone);
        match before {
            WaiterState::Granted => self.memory.release(self.waiter.need),
            WaiterState::Waiting(_) => {
                self.memory.leave_queue(&self.waiter);
                // Those behind may fit where this one did not.
                self.memory.wake();
            }
            WaiterState::TurnedAway | WaiterState::Gone => {}
        }
    }
}

/// One tier's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QuotaLevels {
    /// `max_spill`; no cap without it.
    pub(crate) limit: Option<u64>,
    /// Frames of live entries.
    pub(crate) stored: u64,
    /// Dead frames that are not gone yet.
    pub(crate) garbage: u64,
    /// Being written.
    pub(crate) in_flight: u64,
}

impl QuotaLevels {
    pub(crate) fn used(&self) -> u64 {
        self.stored + self.garbage + self.in_flight
    }

    /// Bytes that still fit.
    pub(crate) fn room(&self) -> u64 {
        self.room_without(0)
    }

    /// Bytes that would fit with `freed` less in use. Less than the sum of the two when the limit was lowered
    /// below what is in use.
    pub(crate) fn room_without(&self, freed: u64) -> u64 {
        self.limit.map_or(u64::MAX, |limit| limit.saturating_sub(self.used().saturating_sub(freed)))
    }
}

/// What one tier may hold: live, dead and being written together never exceed `max_spill`.
#[derive(Debug)]
pub(crate) struct Quota(Mutex<QuotaLevels>);

impl Quota {
    pub(crate) fn new(limit: Option<u64>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(QuotaLevels { limit, ..QuotaLevels::default() })))
    }

    pub(crate) fn levels(&self) -> QuotaLevels {
        *self.0.lock()
    }

    pub(crate) fn set_limit(&self, limit: Option<u64>) {
        self.0.lock().limit = limit;
    }

    /// Takes bytes before they are written.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: u64) -> Option<Reservation> {
        let mut levels = self.0.lock();
        if bytes > levels.room() {
            return None;
        }
        levels.in_flight += bytes;
        Some(Reservation { quota: self.clone(), bytes })
    }

    /// A live frame died.
    pub(crate) fn bury(&self, bytes: u64) {
        let mut levels = self.0.lock();
        debug_assert!(levels.stored >= bytes, "{bytes} bytes died of {levels:?}");
        levels.stored -= bytes;
        levels.garbage += bytes;
    }

    /// Garbage is gone from the medium.
    pub(crate) fn reclaim(&self, bytes: u64) {
        let mut levels = self.0.lock();
        debug_assert!(levels.garbage >= bytes, "{bytes} bytes given back of {levels:?}");
        levels.garbage -= bytes;
    }
}

/// Bytes of a tier that are being written; given back when dropped before they are settled.
#[derive(Debug)]
pub(crate) struct Reservation {
    quota: Arc<Quota>,
    bytes: u64,
}

impl Reservation {
    /// Adds more, if there is room.
    pub(crate) fn grow(&mut self, bytes: u64) -> bool {
        let more = self.quota.reserve(bytes);
        more.is_some_and(|mut more| {
            self.bytes += std::mem::take(&mut more.bytes);
            true
        })
    }

    /// Gives back what is more than this.
    pub(crate) fn shrink_to(&mut self, bytes: u64) {
        let more = self.bytes.saturating_sub(bytes);
        self.bytes -= more;
        self.quota.0.lock().in_flight -= more;
    }

    /// They were written and hold live frames.
    pub(crate) fn settle(self) {
        self.become_of(|levels, bytes| levels.stored += bytes);
    }

    /// They may or may not have been written, and hold nothing that is needed.
    pub(crate) fn abandon(self) {
        self.become_of(|levels, bytes| levels.garbage += bytes);
    }

    fn become_of(mut self, change: impl FnOnce(&mut QuotaLevels, u64)) {
        let bytes = std::mem::take(&mut self.bytes);
        let mut levels = self.quota.0.lock();
        levels.in_flight -= bytes;
        change(&mut levels, bytes);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.quota.0.lock().in_flight -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, pin::pin, task::Waker};

    use super::*;
    use crate::FixedBudget;

    fn memory(limit: u64) -> Arc<Memory> {
        Memory::new(limit, Arc::new(FixedBudget::exact()))
    }

    fn poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    #[test]
    fn what_is_taken_comes_back_when_dropped() {
        let memory = memory(100);
        let share = memory.try_take(60).unwrap();
        assert!(memory.try_take(41).is_none());
        assert_eq!(memory.try_take(40).unwrap().bytes(), 40);
        drop(share);
        assert_eq!(memory.levels().used, 0);
    }

    #[test]
    fn f05_those_who_wait_come_in_first_come_first_served() {
        let memory = memory(100);
        let held = memory.try_take(100).unwrap();
        let (mut large, mut small) = (memory.wait(90), memory.wait(10));
        assert!(poll(&mut large).is_none() && poll(&mut small).is_none());
        assert!(memory.try_take(1).is_none(), "nobody jumps the queue");
        drop(held);
        assert_eq!(poll(&mut large).flatten().map(|share| share.bytes()), Some(90));
        assert_eq!(poll(&mut small).flatten().map(|share| share.bytes()), Some(10));
        assert_eq!(memory.levels().used, 0);
    }

    #[test]
    fn giving_up_lets_the_next_one_in_and_loses_nothing() {
        let memory = memory(100);
        let held = memory.try_take(60).unwrap();
        let (mut large, mut small) = (memory.wait(90), memory.wait(40));
        assert!(poll(&mut large).is_none() && poll(&mut small).is_none());
        drop(large);
        assert!(poll(&mut small).is_some());
        drop(held);

        let granted = memory.wait(50); // granted at once, never fetched
        assert_eq!(memory.levels().used, 50);
        drop(granted);
        assert_eq!(memory.levels().used, 0);
    }

    #[test]
    fn raising_the_limit_wakes_those_who_wait() {
        let memory = memory(10);
        let mut wait = memory.wait(10);
        assert!(poll(&mut wait).is_some());
        let held = memory.try_take(10).unwrap();
        let mut wait = memory.wait(10);
        assert!(poll(&mut wait).is_none());
        memory.set_limit(20);
        assert!(poll(&mut wait).is_some());
        drop(held);
    }

    #[test]
    fn lowering_the_limit_sends_those_away_who_would_wait_for_ever() {
        let memory = memory(100);
        let held = memory.try_take(60).unwrap();
        let (mut large, mut small) = (memory.wait(90), memory.wait(50));
        assert!(poll(&mut large).is_none() && poll(&mut small).is_none());
        memory.set_limit(80);
        assert!(poll(&mut large).unwrap().is_none());
        assert!(poll(&mut small).is_none(), "its turn will come");
        drop(held);
        assert_eq!(poll(&mut small).flatten().map(|share| share.bytes()), Some(50));
        assert_eq!(memory.levels().used, 0);
    }

    /// Threads that take, wait, give up and drop at random always end with nothing taken and nobody left.
    #[test]
    fn no_wake_up_is_lost() {
        let memory = memory(8);
        let one = |seed: u64| {
            let memory = memory.clone();
            move || {
                let mut state = seed;
                for _ in 0..2_000 {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let need = 1 + (state >> 33) % 8;
                    let mut wait = memory.wait(need);
                    if (state >> 40).is_multiple_of(4) {
                        continue; // give up
                    }
                    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                    let share = runtime.block_on(poll_fn(|context| Pin::new(&mut wait).poll(context)));
                    assert_eq!(share.unwrap().bytes(), need);
                }
            }
        };
        std::thread::scope(|scope| (1..=4).for_each(|seed| drop(scope.spawn(one(seed)))));
        assert_eq!(memory.levels(), Levels { limit: 8, used: 0, leaving: 0 });
        assert_eq!(memory.first_need(), None);
    }

    #[test]
    fn f01_a_quota_refuses_before_anything_is_written_and_equality_fits() {
        let quota = Quota::new(Some(100));
        let mut first = quota.reserve(40).unwrap();
        assert!(quota.reserve(61).is_none());
        assert!(first.grow(60) && !first.grow(1));
        first.settle();
        assert_eq!(quota.levels(), QuotaLevels { limit: Some(100), stored: 100, garbage: 0, in_flight: 0 });
        quota.bury(30);
        assert!(quota.reserve(1).is_none(), "garbage counts until it is gone");
        quota.reclaim(30);
        quota.reserve(30).unwrap().abandon();
        assert_eq!(quota.levels().garbage, 30);
        drop(Quota::new(None).reserve(u64::MAX / 2).unwrap());
        assert!(Quota::new(Some(0)).reserve(1).is_none());
    }
}
