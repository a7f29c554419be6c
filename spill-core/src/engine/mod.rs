//! The engine: the only place that runs effects. The spiller moves entries out, the restorer back in, the
//! reclaimer gives space back. All of it runs in tasks of the buffer, never in a caller's future: dropping a
//! future abandons a wait, never a transition.

mod audit;
mod closer;
mod compactor;
mod demoter;
mod inserter;
mod learner;
mod reclaimer;
mod restorer;
mod spiller;
mod stage;
mod tasks;
mod turns;
mod written;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::*},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, Semaphore, broadcast, watch},
    time::Instant,
};

pub(crate) use self::{inserter::Newcomer, restorer::Purpose, spiller::Outcome, tasks::Tasks};
use self::{spiller::Refusal, stage::StagePool};
use crate::{
    Codec, Compressor, Error, Event, Observer, Weigher, chance,
    counters::Counters,
    ledger::Memory,
    queue::Queue,
    table::{Key, Leftovers, Place, Table},
    tier::Tier,
    usage::Pressure,
};

/// Blobs that are written at the same time. Two keep the disk busy while the next batch is made.
pub(crate) const SPILLS_AT_ONCE: usize = 2;

/// Values of up to this many bytes together are encoded and compressed on the spot: handing them to a blocking
/// thread would cost more (7 to 50 µs), and it keeps a runtime thread for less than about 0.1 ms.
const INLINE_ENCODE: u64 = 32 << 10;

/// The same for verifying, decompressing and decoding, which is three times as fast.
const INLINE_DECODE: u64 = 96 << 10;

/// The least that each part of the slice for buffers has.
const LEAST_BUFFER: u64 = 64 << 10;

/// At most one report of being stuck in this time.
const STUCK_EVERY: Duration = Duration::from_secs(10);

/// Everything that the handles and the tasks of one buffer share.
pub(crate) struct Shared<K: Key, V> {
    pub(crate) table: Table<K, V>,
    pub(crate) queue: Queue,
    pub(crate) memory: Arc<Memory>,
    pub(crate) tiers: Vec<Arc<Tier<K>>>,
    pub(crate) codec: Arc<dyn Codec<V>>,
    pub(crate) weigher: Arc<dyn Weigher<K, V>>,
    pub(crate) compressors: Arc<[Arc<dyn Compressor>]>,
    pub(crate) counters: Counters,
    pub(crate) tasks: Tasks,
    pub(crate) stages: Arc<StagePool>,
    pub(crate) watchers: Watchers,
    /// Written into every frame.
    pub(crate) owner: u64,
    /// KiB of read buffers that may be alive at once.
    pub(crate) reading: Arc<Semaphore>,
    reading_kib: u32,
    pub(crate) spilling: Arc<Semaphore>,
    /// Values larger than a stage are encoded and compressed one at a time.
    pub(crate) large: Semaphore,
    /// Blobs are moved from tier to tier one write at a time.
    pub(crate) demoting: Semaphore,
    pub(crate) closed: AtomicBool,
    /// The spiller has ended: nobody makes room any more.
    pub(crate) ended: AtomicBool,
    /// Counts the times the spiller found that nothing more can leave memory.
    pub(crate) stuck: watch::Sender<u64>,
    /// Changes when a tier has more room or memory another limit: what can't be resident waits for that.
    pub(crate) room_news: watch::Sender<()>,
    pub(crate) pressure: watch::Sender<Pressure>,
    /// Whether that is anything but normal; spares its lock.
    pressed: AtomicBool,
    /// The slice of the memory limit that is kept for buffers.
    spill_buffers: u64,
    pub(crate) wake_spiller: Notify,
    pub(crate) wake_learner: Notify,
    last_stuck: Mutex<Option<Instant>>,
    /// Bytes of buffers in use by spills, restores and compactions.
    pub(crate) buffers: AtomicU64,
}

impl<K: Key, V: Send + Sync + 'static> Shared<K, V> {
    #[expect(clippy::too_many_arguments, reason = "the parts of a buffer, put together in one place only")]
    pub(crate) fn new(
        table: Table<K, V>,
        queue: Queue,
        memory: Arc<Memory>,
        tiers: Vec<Arc<Tier<K>>>,
        codec: Arc<dyn Codec<V>>,
        weigher: Arc<dyn Weigher<K, V>>,
        compressors: Arc<[Arc<dyn Compressor>]>,
        tasks: Tasks,
        watchers: Watchers,
        spill_buffers: u64,
    ) -> Arc<Self> {
        let stage = tiers.iter().map(|tier| tier.batch_bytes).max().unwrap_or_default();
        // What writing leaves of the slice is for reading, or half of that if blobs are moved between tiers.
        let demotes = tiers.iter().any(|tier| tier.demotes());
        let reading = (spill_buffers / if demotes { 4 } else { 2 }).max(LEAST_BUFFER);
        let reading_kib = u32::try_from(reading.div_ceil(1024)).unwrap_or(u32::MAX).min(u32::MAX >> 4);
        Arc::new(Self {
            owner: chance::random(),
            stages: StagePool::new(stage, SPILLS_AT_ONCE),
            reading: Arc::new(Semaphore::new(reading_kib as usize)),
            reading_kib,
            spilling: Arc::new(Semaphore::new(SPILLS_AT_ONCE)),
            large: Semaphore::new(1),
            demoting: Semaphore::new(1),
            closed: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            stuck: watch::channel(0).0,
            room_news: watch::channel(()).0,
            pressure: watch::channel(Pressure::Normal).0,
            pressed: AtomicBool::new(false),
            spill_buffers,
            wake_spiller: Notify::new(),
            wake_learner: Notify::new(),
            last_stuck: Mutex::default(),
            buffers: 0.into(),
            counters: Counters::default(),
            table,
            queue,
            memory,
            tiers,
            codec,
            weigher,
            compressors,
            tasks,
            watchers,
        })
    }

    /// Starts the tasks that live as long as the buffer.
    pub(crate) fn start(self: &Arc<Self>) {
        self.tasks.spawn(spiller::run(self.clone()));
        self.tasks.spawn(learner::run(self.clone()));
        for tier in &self.tiers {
            self.tasks.spawn(reclaimer::run(self.clone(), tier.clone()));
            self.tasks.spawn(compactor::run(self.clone(), tier.clone()));
            if tier.demotes() {
                self.tasks.spawn(demoter::run(self.clone(), tier.clone()));
            }
        }
    }

    pub(crate) fn check_open(&self, operation: &'static str) -> Result<(), Error> {
        if self.closed.load(Acquire) { Err(Error::Closed { operation }) } else { Ok(()) }
    }

    /// As [`check_open`](Self::check_open); also refuses when the tasks have ended with their runtime.
    pub(crate) fn check_running(&self, operation: &'static str) -> Result<(), Error> {
        self.check_open(operation)?;
        if self.ended.load(Acquire) { Err(Error::RuntimeGone { operation }) } else { Ok(()) }
    }

    /// Why a task of this buffer ended without an answer.
    pub(crate) fn gone(&self, operation: &'static str) -> Error {
        self.check_open(operation).err().unwrap_or(Error::RuntimeGone { operation })
    }

    /// Deals with what an entry left behind, and hands its value on.
    pub(crate) fn settle(&self, left: Leftovers<'_, V>) -> Option<Arc<V>> {
        if let Some(slot) = left.slot {
            self.queue.forget(slot, left.id);
        }
        if let Some(frame) = left.frame {
            self.bury(frame, left.weight);
        }
        if left.sparse {
            self.wake_learner.notify_one();
        }
        let freed = left.share.is_some();
        drop(left.share);
        if freed {
            self.room_in_memory();
        }
        left.value
    }

    /// A frame is garbage.
    pub(crate) fn bury(&self, at: Place, weight: u64) {
        let Some(tier) = self.tiers.get(at.tier()) else { return };
        let doomed = tier.bury(at, weight);
        if doomed {
            tier.wake_deleter.notify_one();
        } else {
            tier.wake_compactor.notify_one();
        }
        // Whoever waits for room may have it made of this.
        self.room_in_memory();
        if self.room_news.receiver_count() > 0 {
            self.room_news.send_replace(());
        }
    }

    /// Something came into memory: others may have to leave for it, or it for others.
    pub(crate) fn shrink(&self) {
        if self.memory.policy().spill_down_to(&self.memory.levels()).is_some() {
            self.wake_spiller.notify_one();
        } else {
            self.room_in_memory();
        }
    }

    /// Memory came free, something in it can be picked, or it may be by now, other than by a spill.
    pub(crate) fn room_in_memory(&self) {
        if self.memory.first_need().is_some() || self.pressed.load(Relaxed) {
            self.wake_spiller.notify_one();
        }
    }

    /// A tier has room again: what waits for it can be tried.
    pub(crate) fn room_in_tier(&self, tier: &Tier<K>) {
        self.queue.unpark(&self.table, tier.quota.levels().room());
        // Those in front of it may move something to it now, and it may have to.
        let demoting = self.tiers.iter().take(usize::from(tier.index) + 1).filter(|tier| tier.demotes());
        demoting.for_each(|tier| tier.wake_demoter.notify_one());
        self.room_news.send_replace(());
        self.wake_spiller.notify_one();
    }

    /// Nothing more can leave memory for now.
    pub(crate) fn report_stuck(&self) {
        self.set_pressure(Pressure::Paused);
        self.stuck.send_modify(|times| *times += 1);
        let now = Instant::now();
        let mut last = self.last_stuck.lock();
        if last.is_none_or(|last| now.duration_since(last) >= STUCK_EVERY) {
            *last = Some(now);
            drop(last);
            let levels = self.memory.levels();
            tracing::warn!(
                used = levels.used,
                limit = levels.limit,
                "memory is full and no tier takes anything"
            );
            self.watchers.tell(&Event::Stuck { used: levels.used, limit: levels.limit });
        }
    }

    pub(crate) fn set_pressure(&self, pressure: Pressure) {
        self.pressed.store(pressure != Pressure::Normal, Relaxed);
        self.pressure.send_if_modified(|now| std::mem::replace(now, pressure) != pressure);
    }

    /// Changes the memory limit: entries get it less the slice for buffers.
    pub(crate) fn set_memory_limit(&self, bytes: u64) {
        self.memory.set_limit(bytes.saturating_sub(self.spill_buffers));
        self.room_news.send_replace(());
        self.wake_spiller.notify_one();
    }

    /// Runs work on `bytes` bytes: on the spot up to `inline`, else on a blocking thread.
    pub(crate) async fn compute<R: Send + 'static>(
        &self,
        bytes: u64,
        inline: u64,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, Error> {
        if bytes <= inline {
            return Ok(work());
        }
        let done = self.tasks.runtime().spawn_blocking(work).await;
        done.map_err(|_| Error::RuntimeGone { operation: "encode or decode" })
    }

    /// The permits of [`reading`](Self::reading) for a buffer of this many bytes; at most all there are, so that
    /// a longer one can be read alone.
    pub(crate) fn read_permits(&self, bytes: u64) -> u32 {
        u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).clamp(1, self.reading_kib)
    }

    /// The most bytes that compacting reads at once with dead frames among them.
    pub(crate) fn compaction_step(&self) -> u64 {
        (u64::from(self.reading_kib) * 1024 / 4).min(compactor::LONGEST_STEP)
    }

    /// Counts buffer bytes until the guard is dropped.
    pub(crate) fn buffered(self: &Arc<Self>, bytes: u64) -> Buffered<K, V> {
        self.buffers.fetch_add(bytes, Relaxed);
        Buffered { shared: self.clone(), bytes }
    }
}

impl<K: Key, V> std::fmt::Debug for Shared<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpillBuffer")
            .field("entries", &self.table.len())
            .field("memory", &self.memory.levels())
            .field("tiers", &self.tiers.iter().map(|tier| &tier.name).collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

/// Bytes of buffers in use.
pub(crate) struct Buffered<K: Key, V> {
    shared: Arc<Shared<K, V>>,
    bytes: u64,
}

impl<K: Key, V> Drop for Buffered<K, V> {
    fn drop(&mut self) {
        self.shared.buffers.fetch_sub(self.bytes, Relaxed);
    }
}

/// Those who are told of events.
pub(crate) struct Watchers {
    observers: Vec<Arc<dyn Observer>>,
    stream: broadcast::Sender<Event>,
}

/// Events that a slow reader of the stream can be behind before it misses some.
const EVENTS_KEPT: usize = 256;

impl Watchers {
    pub(crate) fn new(observers: Vec<Arc<dyn Observer>>) -> Self {
        Self { observers, stream: broadcast::channel(EVENTS_KEPT).0 }
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.stream.subscribe()
    }

    pub(crate) fn tell(&self, event: &Event) {
        for observer in &self.observers {
            // A panic is its own affair: the task it was called from has entries in its hands.
            drop(guarded(|| observer.on_event(event)));
        }
        if self.stream.receiver_count() > 0 {
            // Fails only when the last receiver has just gone.
            drop(self.stream.send(event.clone()));
        }
    }
}

/// Runs foreign code; a panic is caught and becomes text.
pub(crate) fn guarded<R>(call: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        format!("panicked: {}", text.unwrap_or_else(|| "no message".into()))
    })
}
