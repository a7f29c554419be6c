//! One tier: its store, its quota, its health, and the books of its blobs.

mod compressing;
mod copies;

use std::{
    ops::Range,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::*},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

pub(crate) use self::compressing::Compressing;
use self::copies::Copies;
use crate::{
    BlobId, Payload, Share, Store, StoreError, StoreErrorKind, Stored,
    blobs::{Blob, Blobs, Doomed},
    chance::mix,
    ledger::Quota,
    table::Place,
};

/// The first wait after a failure; doubles with each further one.
const FIRST_BACK_OFF: Duration = Duration::from_millis(100);
/// The longest wait between two tries of a failing tier.
const LONGEST_BACK_OFF: Duration = Duration::from_secs(30);
/// At most one log line per tier and this long about failing writes.
const LOG_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Tier<K> {
    pub(crate) index: u8,
    pub(crate) name: Arc<str>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) compressing: Compressing,
    pub(crate) quota: Arc<Quota>,
    /// At most this many bytes of frames in one blob, unless one value alone has more.
    pub(crate) batch_bytes: usize,
    /// At most this many values in one blob.
    pub(crate) batch_entries: usize,
    blobs: Mutex<Blobs<K>>,
    health: Mutex<Health>,
    /// Frames that can be given up when room is short.
    pub(crate) copies: Copies<K>,
    next_blob: AtomicU64,
    /// The last try to delete blobs failed: they are tried again, but nobody waits for that.
    deletes_fail: AtomicBool,
    /// Wakes the task that deletes this tier's dead blobs.
    pub(crate) wake_deleter: Notify,
    /// Wakes the task that compacts this tier's worn blobs.
    pub(crate) wake_compactor: Notify,
    /// Wakes the task that moves this tier's oldest blobs on, if it has one.
    pub(crate) wake_demoter: Notify,
    /// The share of the cap above which it does.
    demote_at: Option<Share>,
    /// Held by whoever makes room here.
    pub(crate) making_room: tokio::sync::Mutex<()>,
    /// Room and garbage together when making room was last tried in vain; zero after it was not.
    in_vain: AtomicU64,
    /// How often worn blobs that were to be moved stayed: making room may not be in vain any more.
    stayed: AtomicU64,
    /// Spreads the tries of tiers that failed together.
    seed: u64,
}

#[derive(Debug, Default)]
struct Health {
    failures: u32,
    /// Not to be written to before.
    until: Option<Instant>,
    /// What the store said the last time.
    error: Option<StoreError>,
    logged: Option<Instant>,
}

/// What a tier does about a failed write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackOff {
    pub(crate) wait: Duration,
    pub(crate) log: bool,
}

/// What a tier keeps, for the usage report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holdings {
    pub(crate) entries: u64,
    pub(crate) weight: u64,
    pub(crate) encoded: u64,
    pub(crate) allocated: u64,
    pub(crate) blobs: u64,
    /// Bytes of blobs that were punched out: no longer stored, though the blobs keep their lengths.
    pub(crate) punched: u64,
}

impl<K> Tier<K> {
    pub(crate) fn new(
        index: u8,
        name: Arc<str>,
        store: Arc<dyn Store>,
        limits: TierLimits,
        compressing: Compressing,
    ) -> Self {
        let mut blobs = Blobs::default();
        if limits.demote_at.is_some() {
            blobs.keep_order();
        }
        Self {
            index,
            name,
            store,
            compressing,
            quota: Quota::new(limits.max_spill),
            batch_bytes: limits.batch_bytes,
            batch_entries: limits.batch_entries,
            blobs: Mutex::new(blobs),
            health: Mutex::default(),
            copies: Copies::default(),
            next_blob: 0.into(),
            deletes_fail: false.into(),
            wake_deleter: Notify::new(),
            wake_compactor: Notify::new(),
            wake_demoter: Notify::new(),
            demote_at: limits.demote_at,
            making_room: tokio::sync::Mutex::default(),
            in_vain: 0.into(),
            stayed: 0.into(),
            seed: limits.seed ^ u64::from(index).rotate_left(32),
        }
    }

    pub(crate) fn new_blob_id(&self) -> BlobId {
        BlobId::new(self.next_blob.fetch_add(1, Relaxed))
    }

    // ---- health

    /// Whether it may be written to; `Err` says when.
    pub(crate) fn available(&self, now: Instant) -> Result<(), Instant> {
        match self.health.lock().until {
            Some(until) if until > now => Err(until),
            _ => Ok(()),
        }
    }

    /// A write failed: it is left alone for a while, longer each time.
    pub(crate) fn failed(&self, now: Instant, error: &StoreError) -> BackOff {
        let mut health = self.health.lock();
        let asked = error.retry_after().unwrap_or_default().min(LONGEST_BACK_OFF);
        health.error = Some(error.clone());
        let wait = back_off(health.failures, self.seed).max(asked);
        health.failures = health.failures.saturating_add(1);
        health.until = Some(now + wait);
        let log = health.logged.is_none_or(|last| now.duration_since(last) >= LOG_EVERY);
        if log {
            health.logged = Some(now);
        }
        BackOff { wait, log }
    }

    /// Why it is left alone.
    pub(crate) fn last_error(&self) -> Option<StoreError> {
        self.health.lock().error.clone()
    }

    /// A write succeeded: `true` if the tier had failed before.
    pub(crate) fn healed(&self) -> bool {
        let mut health = self.health.lock();
        let failed = health.failures > 0;
        *health = Health { logged: health.logged, ..Health::default() };
        failed
    }

    // ---- demotion

    /// Whether it moves its oldest blobs on when it runs short.
    pub(crate) fn demotes(&self) -> bool {
        self.demote_at.is_some()
    }

    /// Bytes to be moved on: none up to the share at which that starts; once it is `going`, down to a sixteenth
    /// of the cap below, so that blobs are moved together. Garbage goes by itself and does not count.
    pub(crate) fn to_demote(&self, going: bool) -> Option<u64> {
        let (share, levels) = (self.demote_at?, self.quota.levels());
        let cap = levels.limit?;
        let start = share.of(cap);
        let goal = start.saturating_sub(cap / 16);
        let held = levels.stored + levels.in_flight;
        if held <= if going { goal } else { start } {
            return None;
        }
        // What is in flight can't be moved yet.
        Some((held - goal).min(levels.stored)).filter(|movable| *movable > 0)
    }

    // ---- blobs

    /// Enters a blob whose frames are all live. `None`: the books are full.
    pub(crate) fn enter(&self, blob: Blob<K>) -> Option<u32> {
        self.blobs.lock().enter(blob)
    }

    pub(crate) fn location(&self, blob: u32, frame: usize) -> Option<Place> {
        u16::try_from(frame).ok().map(|frame| Place::new(self.index, blob, frame))
    }

    /// A frame is garbage now. `true`: so is its whole blob, which can be deleted.
    pub(crate) fn bury(&self, at: Place, weight: u64) -> bool {
        let mut blobs = self.blobs.lock();
        let (bytes, doomed) = blobs.bury(at.blob(), at.frame(), weight);
        // Under the lock: a doomed blob may be deleted, and its garbage taken off, as soon as it is seen.
        self.quota.bury(bytes);
        doomed
    }

    /// Where the bytes of a frame are. Its blob is not deleted before the reader is dropped.
    pub(crate) fn reader(self: &Arc<Self>, at: Place) -> Option<Reader<K>> {
        let (id, range, encoded) = self.blobs.lock().open(at.blob(), at.frame())?;
        Some(Reader { tier: self.clone(), blob: at.blob(), id, range, encoded })
    }

    /// A reader of a blob is done. If the blob's last entry went meanwhile, it can be deleted now.
    pub(crate) fn close_reader(&self, blob: u32) {
        if self.blobs.lock().close(blob) {
            self.wake_deleter.notify_one();
        }
    }

    /// Blobs without a live frame or a reader, up to `limit`. They stay counted until [`deleted`](Self::deleted).
    pub(crate) fn doomed(&self, limit: usize) -> Vec<Doomed> {
        self.blobs.lock().take_doomed(limit)
    }

    /// A doomed blob is gone.
    pub(crate) fn deleted(&self, doomed: Doomed) {
        let garbage = self.blobs.lock().forget(doomed.blob);
        self.quota.reclaim(garbage);
    }

    /// Deleting failed: to be tried again.
    pub(crate) fn not_deleted(&self, doomed: Doomed) {
        self.blobs.lock().doom(doomed);
        // Whoever was to delete it may have looked meanwhile and found nothing.
        self.wake_deleter.notify_one();
    }

    /// Notes whether blobs could be deleted; says what it was before.
    pub(crate) fn set_deletes_fail(&self, fail: bool) -> bool {
        self.deletes_fail.swap(fail, Relaxed)
    }

    /// Whether what is dead as a whole stays for now.
    pub(crate) fn deletes_fail(&self) -> bool {
        self.deletes_fail.load(Relaxed)
    }

    /// A blob that may be in the store although it is not entered: it has to be deleted like a dead one.
    pub(crate) fn stray(&self, id: BlobId, stored: Stored) {
        self.blobs.lock().enter_dead(id, stored);
        self.wake_deleter.notify_one();
    }

    pub(crate) fn with_blobs<R>(&self, look: impl FnOnce(&mut Blobs<K>) -> R) -> R {
        look(&mut self.blobs.lock())
    }

    /// Puts a blob; a store that panics has failed like any other.
    pub(crate) async fn write(&self, id: BlobId, blob: Payload) -> Result<Stored, StoreError> {
        let put = AssertUnwindSafe(self.store.put(id, blob)).catch_unwind().await;
        // The entries of the blob are in the hands of the task that waits here: it must go on.
        put.unwrap_or_else(|_| {
            let error = StoreError::new(StoreErrorKind::Other, "put", self.store.info().name.clone());
            Err(error.with_blob(id).with_source("the store panicked"))
        })
    }

    /// Reads a range of a blob: exactly that many bytes, or an error.
    pub(crate) async fn read(&self, id: BlobId, range: Range<u64>) -> Result<Bytes, StoreError> {
        let want = range.end - range.start;
        let read = self.store.get(id, range).await?;
        if read.len() as u64 == want {
            return Ok(read);
        }
        let source = format!("the store gave {} bytes where {want} were asked for", read.len());
        let error = StoreError::new(StoreErrorKind::Corrupt, "get", self.store.info().name.clone());
        Err(error.with_blob(id).with_source(source))
    }

    // ---- room

    /// Bytes that there is room for, or that there may be once garbage was cleared away: it is counted as long
    /// as nobody tried in vain with as much.
    pub(crate) fn room_to_be_had(&self) -> u64 {
        let levels = self.quota.levels();
        let with_garbage = levels.room_without(levels.garbage);
        if with_garbage > self.in_vain.load(Relaxed) { with_garbage } else { levels.room() }
    }

    /// Whether there may be room to be made.
    pub(crate) fn has_slack(&self) -> bool {
        self.room_to_be_had() > self.quota.levels().room() || !self.copies.is_empty()
    }

    /// Making room has ended. In vain, it is not tried again before more has become garbage, or a blob with some
    /// has stayed that was to be moved: `stayed` says how often that had happened when it began.
    pub(crate) fn tried_to_make_room(&self, in_vain: bool, stayed: u64) {
        let levels = self.quota.levels();
        let tried = if in_vain { levels.room_without(levels.garbage) } else { 0 };
        self.in_vain.store(tried, SeqCst);
        if self.stayed() != stayed {
            self.in_vain.store(0, SeqCst);
        }
    }

    pub(crate) fn stayed(&self) -> u64 {
        self.stayed.load(SeqCst)
    }

    /// A blob is not being moved any more. `true`: it stayed, and room may be made of what is dead in it.
    pub(crate) fn stop_moving(&self, blob: u32) -> bool {
        let worn = self.blobs.lock().stop_moving(blob);
        if worn {
            // In this order, so that whoever makes room meanwhile sees one of the two.
            self.stayed.fetch_add(1, SeqCst);
            self.in_vain.store(0, SeqCst);
            self.wake_compactor.notify_one();
        }
        self.close_reader(blob);
        worn
    }

    pub(crate) fn holdings(&self) -> Holdings {
        self.blobs.lock().holdings()
    }
}

/// The bounds of a tier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TierLimits {
    pub(crate) max_spill: Option<u64>,
    pub(crate) batch_bytes: usize,
    pub(crate) batch_entries: usize,
    pub(crate) demote_at: Option<Share>,
    /// Of chance: see [`Tier::failed`].
    pub(crate) seed: u64,
}

/// A frame being read.
#[derive(Debug)]
pub(crate) struct Reader<K> {
    pub(crate) tier: Arc<Tier<K>>,
    blob: u32,
    pub(crate) id: BlobId,
    pub(crate) range: Range<u64>,
    pub(crate) encoded: u64,
}

impl<K> Drop for Reader<K> {
    fn drop(&mut self) {
        self.tier.close_reader(self.blob);
    }
}

/// Doubles with each failure, up to the longest, and is spread by up to a quarter so that tiers and
/// processes that failed together do not come back together. A function of its arguments alone.
fn back_off(failures: u32, seed: u64) -> Duration {
    let wait = FIRST_BACK_OFF.saturating_mul(1 << failures.min(9)).min(LONGEST_BACK_OFF);
    let thousandths = u16::try_from(mix(seed ^ u64::from(failures)) % 1001).unwrap_or_default();
    let spread = Share::thousandths(thousandths).unwrap_or(Share::WHOLE);
    let quarter = u64::try_from((wait / 4).as_nanos()).unwrap_or(u64::MAX);
    wait - Duration::from_nanos(spread.of(quarter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f07_tries_of_a_failing_tier_are_bounded() {
        let waits: Vec<Duration> = (0..20).map(|failures| back_off(failures, 0)).collect();
        assert!(waits[0] >= Duration::from_millis(75) && waits[0] <= FIRST_BACK_OFF, "{waits:?}");
        assert!(waits[9..].iter().all(|wait| *wait >= LONGEST_BACK_OFF * 3 / 4), "{waits:?}");
        assert!(waits.iter().all(|wait| *wait <= LONGEST_BACK_OFF), "{waits:?}");
        assert_ne!(back_off(9, 0), back_off(9, 1), "spread");
        assert_ne!(back_off(10, 0), back_off(11, 0), "spread");
        assert!(waits.windows(2).take(8).all(|pair| pair[1] > pair[0]), "{waits:?}");
    }
}
