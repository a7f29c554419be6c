//! Moves entries out of memory: picks victims, writes them in batches, hands a batch to the next tier when
//! one can't take it, and says so when nothing more can leave.

use std::{
    sync::{Arc, atomic::Ordering::Release},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, oneshot},
    time::Instant,
};

use super::{
    INLINE_ENCODE, Shared, compactor, reclaimer,
    stage::{Framed, Framing, Staged, blob, stage},
    turns::Turns,
    written::Written,
};
use crate::{
    CodecError, Event, StoreError,
    blobs::FrameLen,
    entry::Phase,
    frame::frame_len,
    ledger::{QuotaLevels, Reservation},
    queue::NEVER,
    table::{Abandoned, Evicted, Item, Key, PutEnd},
    tier::Tier,
    usage::Pressure,
};

/// How long a value that memory was taken for may stay on its way before the spiller looks again by itself.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Why an entry could not leave memory.
#[derive(Clone, Debug)]
pub(crate) enum Refusal {
    /// It can't be encoded, and never could.
    Encode(CodecError),
    /// No tier has room for its frame.
    NoRoom { need: u64, levels: QuotaLevels },
    /// Tiers that may have room fail. The others, if any, have none for a frame of `need` bytes.
    Failed { need: u64, source: Option<StoreError> },
    /// Its frame is longer than any tier's blobs may be.
    TooLong,
    /// The runtime was shut down.
    RuntimeGone,
}

/// What became of one entry.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) weight: u64,
    /// Bytes of its frame, or why it has none.
    pub(crate) stored: Result<u64, Refusal>,
}

impl Outcome {
    /// Whether others can't leave memory either, for the reason this one could not.
    pub(crate) fn is_hopeless(&self) -> bool {
        matches!(self.stored, Err(Refusal::Failed { .. } | Refusal::RuntimeGone))
    }
}

/// Entries picked to leave memory.
#[derive(Debug)]
pub(crate) struct Evicting<K, V> {
    /// To be written.
    pub(crate) items: Vec<Item<K, V>>,
    /// Weight of clean entries, which have left already.
    pub(crate) freed: u64,
}

impl<K, V> Default for Evicting<K, V> {
    fn default() -> Self {
        Self { items: Vec::new(), freed: 0 }
    }
}

/// Spills whenever memory has to shrink, as long as the buffer lives.
pub(crate) async fn run<K: Key, V: Send + Sync + 'static>(shared: Arc<Shared<K, V>>) {
    let shared = Spiller(shared);
    loop {
        let retry_at = shared.0.drain().await;
        let far = Instant::now() + Duration::from_secs(3600);
        tokio::select! {
            () = shared.0.wake_spiller.notified() => {}
            () = tokio::time::sleep_until(retry_at.unwrap_or(far)) => {}
        }
    }
}

/// Tells those who wait for room when nobody makes any: with the runtime, or the buffer.
struct Spiller<K: Key, V>(Arc<Shared<K, V>>);

impl<K: Key, V> Drop for Spiller<K, V> {
    fn drop(&mut self) {
        self.0.ended.store(true, Release);
        self.0.stuck.send_modify(|times| *times += 1);
        self.0.room_news.send_replace(());
    }
}

impl<K: Key, V: Send + Sync + 'static> Shared<K, V> {
    /// Starts writing until enough is on its way out, or nothing more can leave. Then says when a failing
    /// tier is to be tried again.
    async fn drain(self: &Arc<Self>) -> Option<Instant> {
        let mut going = None;
        while self.excess(&mut going).is_some() {
            let permit = self.spilling.clone().acquire_owned().await.ok()?;
            let Some(excess) = self.excess(&mut going) else { break };
            if *self.pressure.borrow() == Pressure::Normal {
                self.set_pressure(Pressure::Spilling);
            }
            let picked = match self.offer_parked() {
                Some(cap) => self.pick(excess, cap).await,
                None => self.pick_clean(excess).await,
            };
            if !picked.items.is_empty() {
                self.spawn_spill(picked.items, permit);
            } else if picked.freed == 0 {
                drop(permit);
                if self.memory.levels().leaving > 0 {
                    // What is on its way out may be enough: its end wakes this task.
                } else if self.is_arriving() {
                    // What is on its way in can be picked as soon as it is there.
                    return Some(Instant::now() + LOOK_AGAIN);
                } else {
                    self.report_stuck();
                }
                return self.tiers.iter().filter_map(|tier| tier.available(Instant::now()).err()).min();
            }
        }
        self.set_pressure(Pressure::Normal);
        None
    }

    /// Before victims are picked: lets the policy know who is there, and entries be picked again that no tier took and
    /// one may take now. The longest batch of those that may take something; `None`: there is no such tier.
    pub(crate) fn offer_parked(&self) -> Option<u64> {
        let now = Instant::now();
        let open: Vec<_> = self.tiers.iter().filter(|tier| tier.available(now).is_ok()).collect();
        let room = open.iter().map(|tier| tier.room_to_be_had()).max().unwrap_or_default();
        self.queue.catch_up(&self.table);
        self.queue.unpark(&self.table, room);
        let can_write = room >= frame_len(0) || open.iter().any(|tier| tier.has_slack());
        let cap = open.iter().map(|tier| tier.batch_bytes as u64).max();
        cap.filter(|_| can_write)
    }

    /// Whether memory is taken by something that is not in it yet: a value being read, or just let in.
    fn is_arriving(&self) -> bool {
        let here =
            [Phase::Resident, Phase::Spilling, Phase::Clean].map(|phase| self.table.tally(phase).weight);
        self.memory.levels().used > here.iter().sum()
    }

    /// Bytes that have to leave memory and are not on their way out yet. `going` remembers how far down the
    /// policy wanted to go, so that a batch which ends between its watermarks is not the last; a new limit
    /// starts afresh.
    fn excess(&self, going: &mut Option<(u64, u64)>) -> Option<u64> {
        let levels = self.memory.levels();
        *going = match self.memory.policy().spill_down_to(&levels) {
            Some(goal) => Some((levels.limit, goal)),
            None => going.filter(|(limit, _)| *limit == levels.limit),
        };
        let for_policy = going.map(|(_, goal)| goal);
        let for_first = self.memory.first_need().map(|need| levels.limit.saturating_sub(need));
        let goal = [for_policy, for_first].into_iter().flatten().min()?;
        let staying = levels.used.saturating_sub(levels.leaving);
        (staying > goal).then(|| staying - goal)
    }

    /// Picks victims until `want` bytes of weight leave, or their frames, if as long as their weight says, fill a
    /// batch of `cap` bytes: what is left over would be a small blob of its own. Clean ones leave at once.
    ///
    /// Only for tasks of the buffer: what was picked is lost to it when the future is dropped.
    async fn pick(&self, want: u64, cap: u64) -> Evicting<K, V> {
        let most = self.tiers.iter().map(|tier| tier.batch_entries).max().unwrap_or_default();
        let mut picked = Evicting::default();
        let (mut total, mut frames, mut next) = (0, 0, 0);
        let mut turns = Turns::default();
        while picked.freed + total < want && frames + next <= cap && picked.items.len() < most.max(1) {
            turns.next().await;
            let Some(victim) = self.queue.victim(&self.table) else { break };
            match self.table.begin_spill(victim) {
                Evicted::Put(item) => {
                    total += item.weight;
                    // The next one is likely to be like this one.
                    next = frame_len(item.weight.min(cap));
                    frames += next;
                    picked.items.push(item);
                }
                Evicted::Freed { weight } => {
                    picked.freed += weight;
                }
                Evicted::Stale => {}
            }
        }
        picked
    }

    /// When no tier takes anything: lets clean entries go, until `want` bytes of weight have left.
    async fn pick_clean(&self, want: u64) -> Evicting<K, V> {
        let mut picked = Evicting::default();
        let mut turns = Turns::default();
        for tier in &self.tiers {
            let mut pinned = Vec::new();
            while picked.freed < want
                && let Some((key, at)) = tier.copies.take_oldest()
            {
                turns.next().await;
                if !self.table.is_clean_at(&key, at) {
                    continue;
                }
                let Some((candidate, slot)) = self.table.candidate(&key) else {
                    pinned.push((key, at));
                    continue;
                };
                if let Some(slot) = slot {
                    self.queue.forget(slot, candidate.id);
                }
                match self.table.begin_spill(candidate) {
                    Evicted::Freed { weight } => picked.freed += weight,
                    Evicted::Put(item) => picked.items.push(item),
                    Evicted::Stale => {}
                }
            }
            // Their frames are second copies still.
            pinned.into_iter().for_each(|(key, at)| self.note_clean(key, at));
        }
        picked
    }

    fn spawn_spill(self: &Arc<Self>, items: Vec<Item<K, V>>, permit: OwnedSemaphorePermit) {
        let shared = self.clone();
        self.tasks.spawn_job(async move {
            shared.spill(items).await;
            drop(permit);
        });
    }

    /// [`spill`](Self::spill) in a job of its own, which goes on when this future is dropped. `None`: the
    /// runtime is gone.
    pub(crate) async fn spill_in_job(self: &Arc<Self>, items: Vec<Item<K, V>>) -> Option<Vec<Outcome>> {
        let shared = self.clone();
        self.in_job(async move { shared.spill_when_permitted(items).await }).await
    }

    /// Picks entries and spills them in a job of its own: the weight of clean ones that left, and what became of the
    /// others.
    pub(crate) async fn evict_in_job(self: &Arc<Self>, want: u64, cap: u64) -> Option<(u64, Vec<Outcome>)> {
        let shared = self.clone();
        self.in_job(async move {
            let picked = shared.pick(want, cap).await;
            if picked.items.is_empty() {
                // Clean ones wait for nobody's write.
                return (picked.freed, Vec::new());
            }
            (picked.freed, shared.spill_when_permitted(picked.items).await)
        })
        .await
    }

    async fn spill_when_permitted(self: &Arc<Self>, items: Vec<Item<K, V>>) -> Vec<Outcome> {
        let _permit = self.spilling.clone().acquire_owned().await;
        self.spill(items).await
    }

    async fn in_job<R: Send + 'static>(&self, work: impl Future<Output = R> + Send + 'static) -> Option<R> {
        let (done, result) = oneshot::channel();
        // Nobody listens when the caller's future was dropped.
        self.tasks.spawn_job(async move { drop(done.send(work.await)) });
        result.await.ok()
    }

    /// Writes items to the first tier that takes them, and puts back those that none takes.
    pub(crate) async fn spill(self: &Arc<Self>, items: Vec<Item<K, V>>) -> Vec<Outcome> {
        let mut job =
            Job { shared: self, outcomes: Vec::with_capacity(items.len()), short: None, failure: None };
        let mut left = items;
        let mut skipped = false;
        for tier in &self.tiers {
            if left.is_empty() {
                break;
            }
            if tier.available(Instant::now()).is_err() {
                skipped = true;
                job.failure = job.failure.or_else(|| tier.last_error());
                continue;
            }
            left = job.spill_to(tier, left).await;
        }
        job.give_back(left, skipped).await;
        let outcomes = job.outcomes;
        self.wake_spiller.notify_one();
        outcomes
    }
}

/// One batch on its way through the tiers.
struct Job<'a, K: Key, V> {
    shared: &'a Arc<Shared<K, V>>,
    outcomes: Vec<Outcome>,
    /// The last tier that had no room.
    short: Option<QuotaLevels>,
    failure: Option<StoreError>,
}

impl<K: Key, V: Send + Sync + 'static> Job<'_, K, V> {
    /// Writes what one tier takes, and gives back the rest.
    async fn spill_to(&mut self, tier: &Arc<Tier<K>>, items: Vec<Item<K, V>>) -> Vec<Item<K, V>> {
        let (mut left, mut refused) = (items, Vec::new());
        while !left.is_empty() {
            compactor::keep_up(self.shared, tier).await;
            if tier.quota.levels().room() < frame_len(0)
                && !reclaimer::make_room(self.shared, tier, frame_len(0)).await
            {
                self.short = Some(tier.quota.levels());
                break;
            }
            let started = Instant::now();
            let weight: u64 = left.iter().map(|item| item.weight).sum();
            let _buffered = self.shared.buffered(self.shared.stages.size() as u64);
            let Some(mut staged) = self.stage(tier, left, weight).await else { return refused };
            left = std::mem::take(&mut staged.rest);
            let frames = std::mem::take(&mut staged.frames);
            let most = tier.store.info().max_blob;
            let (frames, too_large): (Vec<_>, Vec<_>) =
                frames.into_iter().partition(|frame| frame.len.stored <= most);
            // No room that ever comes free here will do for these.
            refused.extend(too_large.into_iter().map(|frame| Item { too_long: true, ..frame.item }));
            let (fitting, misfits, reservation) = self.reserve(tier, frames).await;
            refused.extend(
                misfits
                    .into_iter()
                    .map(|frame| Item { need: frame.item.need.max(frame.len.stored), ..frame.item }),
            );
            let Some(reservation) = reservation else { continue };
            let payload = blob(staged.buffer(), fitting.iter());
            drop(staged);
            if let Err((error, fitting)) = self.put(tier, fitting, payload, reservation, started).await {
                self.failure = Some(error);
                refused.extend(fitting.into_iter().map(|frame| frame.item));
                break;
            }
        }
        refused.extend(left);
        refused
    }

    /// Makes frames of as many items as fit in one blob. `None`: the runtime is gone, and so are they from
    /// here; their values stay readable in the table.
    async fn stage(&mut self, tier: &Tier<K>, items: Vec<Item<K, V>>, weight: u64) -> Option<Staged<K, V>> {
        let shared = self.shared;
        let framing = Framing {
            owner: shared.owner,
            ways: tier.compressing.ways(),
            plan: tier.compressing.plan(),
            max_bytes: tier.batch_bytes,
            max_entries: tier.batch_entries,
        };
        let large = items.iter().any(|item| item.weight > shared.stages.size() as u64);
        let _one_at_a_time = if large { shared.large.acquire().await.ok() } else { None };
        let (codec, pool) = (shared.codec.clone(), shared.stages.clone());
        let work = move || stage(items, &framing, &*codec, &pool);
        let mut staged = shared.compute(weight, INLINE_ENCODE, work).await.ok()?;
        shared.counters.encode(staged.encoding);
        shared.counters.compress(staged.compressing());
        tier.compressing.compressed(&staged.done);
        for (item, error) in std::mem::take(&mut staged.unencodable) {
            self.unencodable(item, error);
        }
        Some(staged)
    }

    /// It stays in memory, is reported once, and is not offered again until it is replaced.
    fn unencodable(&mut self, item: Item<K, V>, error: CodecError) {
        let key = format!("{:?}", item.key);
        if item.leaving.is_some() {
            tracing::warn!(key, %error, "a value can't be encoded and stays in memory");
        }
        self.outcomes.push(Outcome { weight: item.weight, stored: Err(Refusal::Encode(error.clone())) });
        if item.leaving.is_some() {
            self.shared.table.end_spill(item, None);
        }
        self.shared.watchers.tell(&Event::EncodeFailed { key, error });
    }

    /// Takes room for as many frames as fit, in order; a large one that does not is passed over.
    async fn reserve(
        &mut self,
        tier: &Arc<Tier<K>>,
        frames: Vec<Framed<K, V>>,
    ) -> (Vec<Framed<K, V>>, Vec<Framed<K, V>>, Option<Reservation>) {
        let whole: u64 = frames.iter().map(|frame| frame.len.stored).sum();
        let mut reservation = tier.quota.reserve(whole);
        if reservation.is_none() && !frames.is_empty() {
            // More than the cap can't be had: then what one frame needs.
            let most = tier.quota.levels().limit.unwrap_or(u64::MAX);
            let each = frames.iter().map(|frame| frame.len.stored).filter(|bytes| *bytes <= most).max();
            let want = if whole <= most { whole } else { each.unwrap_or_default() };
            reclaimer::make_room(self.shared, tier, want).await;
            reservation = tier.quota.reserve(whole);
        }
        if reservation.is_some() {
            return (frames, Vec::new(), reservation.filter(|_| whole > 0));
        }
        let mut part = tier.quota.reserve(0);
        let fits = |frame: &Framed<K, V>| part.as_mut().is_some_and(|part| part.grow(frame.len.stored));
        let (fitting, misfits): (Vec<_>, Vec<_>) = frames.into_iter().partition(fits);
        self.short = Some(tier.quota.levels());
        let part = part.filter(|_| !fitting.is_empty());
        (fitting, misfits, part)
    }

    /// Writes one blob and enters it. On failure the frames come back.
    async fn put(
        &mut self,
        tier: &Arc<Tier<K>>,
        frames: Vec<Framed<K, V>>,
        payload: crate::Payload,
        reservation: Reservation,
        started: Instant,
    ) -> Result<(), (StoreError, Vec<Framed<K, V>>)> {
        let writing = tier.compressing.write();
        match self.shared.write(tier, payload, reservation).await {
            Ok(written) => {
                let took = writing.wrote(written.stored.bytes);
                self.shared.counters.wrote(frames.len() as u64, written.stored.bytes, took);
                self.shared.took(tier);
                self.enter(tier, frames, written, started).await;
                Ok(())
            }
            Err(error) => Err((error, frames)),
        }
    }

    /// The blob is down: its entries have left memory, unless something became of them meanwhile.
    async fn enter(
        &mut self,
        tier: &Arc<Tier<K>>,
        frames: Vec<Framed<K, V>>,
        written: Written,
        started: Instant,
    ) {
        let keys = frames.iter().map(|frame| frame.item.key.clone()).collect();
        let lens: Vec<FrameLen> = frames.iter().map(|frame| frame.len).collect();
        let weight: u64 = frames.iter().map(|frame| frame.item.weight).sum();
        let stored = written.stored.bytes;
        let Some(blob) = written.enter(tier, keys, &lens, weight, None) else {
            // Out of room like any other.
            self.give_back(frames.into_iter().map(|frame| frame.item).collect(), true).await;
            return;
        };
        tier.wake_demoter.notify_one();
        let entries = frames.len() as u64;
        let mut turns = Turns::default();
        for (number, frame) in frames.into_iter().enumerate() {
            turns.next().await;
            let Some(at) = tier.location(blob, number) else { continue };
            let weight = frame.item.weight;
            self.outcomes.push(Outcome { weight, stored: Ok(frame.len.stored) });
            self.shared.land(frame.item, at);
        }
        self.shared.watchers.tell(&Event::Spilled {
            tier: tier.name.clone(),
            entries,
            weight,
            stored,
            took: started.elapsed(),
        });
    }

    /// No tier took them: they stay in memory, and are offered again once a tier that is not failing has
    /// room for them.
    async fn give_back(&mut self, items: Vec<Item<K, V>>, failing: bool) {
        let failing = failing || self.failure.is_some();
        let mut turns = Turns::default();
        for item in items {
            turns.next().await;
            let need = item.need.max(frame_len(0));
            let never = item.too_long && item.need == 0 && !failing;
            let need = if never { NEVER } else { need };
            let refusal = match self.short {
                _ if never => Refusal::TooLong,
                Some(levels) if !failing => Refusal::NoRoom { need, levels },
                Some(_) => Refusal::Failed { need, source: self.failure.clone() },
                None => Refusal::Failed { need: 0, source: self.failure.clone() },
            };
            self.outcomes.push(Outcome { weight: item.weight, stored: Err(refusal) });
            if item.leaving.is_none() {
                continue;
            }
            let (key, id) = (item.key.clone(), item.id);
            if self.shared.table.end_spill(item, None) == PutEnd::Resident {
                self.shared.queue.park(&self.shared.table, &key, id, need);
            }
        }
    }
}

impl<K: Key, V: Send + Sync + 'static> Shared<K, V> {
    /// A frame is down: its entry follows.
    fn land(&self, item: Item<K, V>, at: crate::table::Place) {
        let (key, id, weight) = (item.key.clone(), item.id, item.weight);
        if item.leaving.is_none() {
            // A heavy value being inserted: it becomes visible now, and what was there before goes.
            match self.table.insert_spilled(item, at) {
                Ok(left) => drop(left.and_then(|left| self.settle(left))),
                Err(Abandoned) => self.bury(at, weight),
            }
            return;
        }
        match self.table.end_spill(item, Some(at)) {
            PutEnd::Spilled | PutEnd::Resident => {}
            PutEnd::Clean => {
                self.queue.admit(&self.table, &key, id);
                self.note_clean(key, at);
            }
            PutEnd::Gone => self.bury(at, weight),
        }
    }

    /// A tier took a blob: whatever it failed at before is over.
    pub(crate) fn took(&self, tier: &Tier<K>) {
        if tier.healed() {
            self.room_news.send_replace(());
            self.watchers.tell(&Event::TierHealed { tier: tier.name.clone() });
        }
    }

    pub(crate) fn write_failed(&self, tier: &Tier<K>, error: &StoreError) {
        self.counters.write_failed();
        let back_off = tier.failed(Instant::now(), error);
        if back_off.log {
            tracing::warn!(tier = &*tier.name, %error, retry_in = ?back_off.wait, "a tier does not take what is spilled");
        }
        let (tier, error) = (tier.name.clone(), error.clone());
        self.watchers.tell(&Event::WriteFailed { tier, error, retry_in: back_off.wait });
    }
}
