//! Copies what is alive out of blobs that are partly dead, so that they can be deleted; punches large dead
//! ranges where the store can. For small values copying is 10 to 30 times cheaper than punching (measured:
//! 190 µs for a hole, 7 to 25 µs for copying 4 KiB), so holes are made only where they are large.
//!
//! How much garbage a tier may hold is decided here as well: above [`START_ABOVE`] the tier's task copies, above
//! [`HARD_ABOVE`] whoever writes to the tier does it first ([`keep_up`]). Deleting is next door, in `reclaimer`.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;

use super::{Shared, reclaimer, turns::Turns, written::Written};
use crate::{
    Event, StoreErrorKind,
    blobs::{Bite, FrameLen, Worn},
    frame,
    table::{Key, Place},
    tier::Tier,
};

/// Garbage beyond this share of what is alive is worth copying for, in thousandths. What is copied for a byte that
/// comes free grows as this falls: four bytes at most here, if all blobs are worn alike.
const START_ABOVE: u64 = 250;
/// With garbage beyond this share, writing waits for copying. Half is what is promised; what is between is for
/// what dies while one blob is copied, and for what an overwrite makes of copies of values in memory.
const HARD_ABOVE: u64 = 400;
/// Only blobs of which less than this is alive are copied, in thousandths: there is always one while all garbage
/// is beyond [`START_ABOVE`], unless the worst ones can't be read, or are being moved.
const ALIVE_BELOW: u64 = 900;
/// With room short, any blob with something dead in it is.
const ALIVE_BELOW_WHEN_SHORT: u64 = 1000;
/// Dead ranges at least this long are punched.
const PUNCH_FROM: u64 = 256 << 10;
/// Copies that one blob being written waits for, at most: each frees a tenth of a blob at least, and about a quarter
/// when garbage is as much as it may be.
const COPIES_PER_WRITE: usize = 32;
/// Dead frames are read along with live ones up to this length of both, because one large read costs less than
/// several small ones.
pub(crate) const LONGEST_STEP: u64 = 1 << 20;
/// A gap longer than this is not read.
const LONGEST_GAP: u64 = 128 << 10;

/// Why a blob is compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The tier holds much garbage.
    Worn,
    /// Something does not fit otherwise.
    NeedsRoom,
}

/// What compacting came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gain {
    /// Something is free that was not.
    Some,
    /// There is nothing to be had.
    Nothing,
    /// It failed, and may not the next time.
    Failed,
}

/// Compacts one tier's blobs when they are worn, as long as the buffer lives.
pub(crate) async fn run<K: Key, V: Send + Sync + 'static>(shared: Arc<Shared<K, V>>, tier: Arc<Tier<K>>) {
    loop {
        tier.wake_compactor.notified().await;
        while is_worn(&tier) {
            let _one_at_a_time = tier.making_room.lock().await;
            // What is dead as a whole costs no copy, and what was copied must not be there twice for long.
            let deleted = reclaimer::delete_doomed(&shared, &tier).await;
            if !deleted || (is_worn(&tier) && compact(&shared, &tier, Why::Worn).await != Gain::Some) {
                break;
            }
        }
    }
}

/// Whether there is much to be had by copying.
fn is_worn<K>(tier: &Tier<K>) -> bool {
    let garbage = tier.with_blobs(|blobs| blobs.worn_garbage());
    is_beyond(garbage, START_ABOVE, tier)
}

/// Less garbage than one batch is left to wait, whatever its share: it may die whole by itself.
fn is_beyond<K>(garbage: u64, share: u64, tier: &Tier<K>) -> bool {
    garbage >= tier.batch_bytes as u64 && garbage > tier.quota.levels().stored / 1000 * share
}

/// Before a tier is written to: as long as too much of it is garbage, or garbage takes the room that copying needs,
/// that is cleared away, so that garbage is not made faster than it goes.
///
/// Ends after a bounded number of copies, and at once when there is nothing to be had, or nothing works. Done by
/// the one who writes, under the lock of making room, so that it waits for nobody who waits for it.
pub(crate) async fn keep_up<K: Key, V: Send + Sync + 'static>(
    shared: &Arc<Shared<K, V>>,
    tier: &Arc<Tier<K>>,
) {
    if due(tier).is_none() {
        return;
    }
    let _one_at_a_time = tier.making_room.lock().await;
    for _ in 0..COPIES_PER_WRITE {
        if due(tier).is_none() || !reclaimer::delete_doomed(shared, tier).await {
            return;
        }
        let Some(why) = due(tier) else { return };
        // The rest may be what others are deleting.
        let is_worn = why == Why::NeedsRoom || is_worn(tier);
        if !is_worn || compact(shared, tier, why).await != Gain::Some {
            return;
        }
    }
    reclaimer::delete_doomed(shared, tier).await;
}

/// Whether something has to be cleared away before more is written, and why.
fn due<K>(tier: &Tier<K>) -> Option<Why> {
    let (levels, batch) = (tier.quota.levels(), tier.batch_bytes as u64);
    if levels.garbage < batch || tier.deletes_fail() {
        return None;
    }
    // One batch is to be written, one is for the next copy: without it nothing could be copied ever again.
    if levels.room() < 2 * batch && tier.with_blobs(|blobs| blobs.worn_garbage()) >= batch {
        return Some(Why::NeedsRoom);
    }
    is_beyond(levels.garbage, HARD_ABOVE, tier).then_some(Why::Worn)
}

/// Compacts or punches the blobs that gain most.
pub(crate) async fn compact<K: Key, V: Send + Sync + 'static>(
    shared: &Arc<Shared<K, V>>,
    tier: &Arc<Tier<K>>,
    why: Why,
) -> Gain {
    if tier.available(tokio::time::Instant::now()).is_err() {
        return Gain::Failed;
    }
    let (batch, room) = (tier.batch_bytes as u64, tier.quota.levels().room());
    let needs_room = why == Why::NeedsRoom;
    let bite = Bite {
        alive_below: if needs_room { ALIVE_BELOW_WHEN_SHORT } else { ALIVE_BELOW },
        longest: room.min(batch * 2),
        // The rest of the room is for others.
        together: if needs_room { 0 } else { batch.min(room / 2) },
        frames: tier.batch_entries,
    };
    let worn = tier.with_blobs(|blobs| blobs.take_worn(&bite));
    if worn.is_empty() {
        return punch(shared, tier).await;
    }
    let opened: Vec<Opened<'_, K>> = worn.iter().map(|worn| Opened { tier, blob: worn.blob }).collect();
    let done = copy(shared, tier, &worn).await;
    drop(opened);
    if done == Some(true) { Gain::Some } else { Gain::Failed }
}

/// A blob being compacted or punched; deleted, when nothing in it is alive any more, after this is dropped.
struct Opened<'a, K> {
    tier: &'a Tier<K>,
    blob: u32,
}

impl<K> Drop for Opened<'_, K> {
    fn drop(&mut self) {
        self.tier.close_reader(self.blob);
    }
}

/// Writes the live frames of blobs, as they are, to a new one. `None`: the runtime is going.
async fn copy<K: Key, V: Send + Sync + 'static>(
    shared: &Arc<Shared<K, V>>,
    tier: &Arc<Tier<K>>,
    worn: &[Worn<K>],
) -> Option<bool> {
    let live: u64 = worn.iter().map(|blob| blob.live_bytes).sum();
    let Some(reservation) = tier.quota.reserve(live) else { return Some(false) };
    let step = shared.compaction_step();
    let _reading = shared.reading.acquire_many(shared.read_permits(live + step)).await.ok()?;
    let _buffered = shared.buffered(live + step);
    let mut frames = Vec::new();
    for blob in worn {
        match read_live(tier, blob, step).await {
            Ok(read) => frames.extend(read),
            Err(kind) => {
                if kind != StoreErrorKind::Transient {
                    // Left as it is, so that others get their turn: its good frames can still be read, and the
                    // others say what is wrong with them.
                    tier.with_blobs(|blobs| blobs.mark_damaged(blob.blob));
                }
                return Some(false);
            }
        }
    }
    let Ok(written) = shared.write(tier, frames.into_iter().collect(), reservation).await else {
        return Some(false);
    };
    Some(follow(shared, tier, worn, written).await)
}

/// The live frames, in order, verified. Gaps between them are read along as long as a read has at most `step` bytes.
pub(crate) async fn read_live<K>(
    tier: &Tier<K>,
    worn: &Worn<K>,
    step: u64,
) -> Result<Vec<Bytes>, StoreErrorKind> {
    let mut frames = Vec::with_capacity(worn.live.len());
    for step in steps(&worn.live, step) {
        let bytes = tier.read(worn.id, step.clone()).await.map_err(|error| error.kind())?;
        let live = worn.live[frames.len()..].iter().take_while(|(_, range, _)| range.end <= step.end);
        let inside: Vec<_> =
            live.map(|(_, range, _)| range.start - step.start..range.end - step.start).collect();
        let packed = pack(&bytes, &inside).ok_or(StoreErrorKind::Corrupt)?;
        if packed.iter().any(|frame| frame::verify(frame).is_err()) {
            return Err(StoreErrorKind::Corrupt);
        }
        frames.extend(packed);
    }
    Ok(frames)
}

/// What is read at once: ranges that lie one behind the other, and with a gap between them while both are short.
fn steps(live: &[(usize, Range<u64>, u64)], longest: u64) -> Vec<Range<u64>> {
    let (mut runs, mut steps): (Vec<Range<u64>>, Vec<Range<u64>>) = (Vec::new(), Vec::new());
    for (_, range, _) in live {
        match runs.last_mut() {
            Some(run) if run.end == range.start => run.end = range.end,
            _ => runs.push(range.clone()),
        }
    }
    for run in runs {
        match steps.last_mut() {
            Some(step) if run.start - step.end <= LONGEST_GAP && run.end - step.start <= longest => {
                step.end = run.end;
            }
            _ => steps.push(run),
        }
    }
    steps
}

/// Slices for these ranges. With gaps between them of a copy without, so that these take no memory.
fn pack(bytes: &Bytes, ranges: &[Range<u64>]) -> Option<Vec<Bytes>> {
    let ranges = ranges.iter().map(|range| {
        let range = usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?;
        (range.end <= bytes.len()).then_some(range)
    });
    let ranges: Vec<Range<usize>> = ranges.collect::<Option<_>>()?;
    let live: usize = ranges.iter().map(Range::len).sum();
    if live == bytes.len() {
        return Some(ranges.into_iter().map(|range| bytes.slice(range)).collect());
    }
    let mut packed = Vec::with_capacity(live);
    ranges.iter().for_each(|range| packed.extend_from_slice(&bytes[range.clone()]));
    let (packed, mut at) = (Bytes::from(packed), 0);
    let frames = ranges.iter().map(|range| {
        at += range.len();
        packed.slice(at - range.len()..at)
    });
    Some(frames.collect())
}

/// The copy is down: entries that are still where they were follow their frames.
async fn follow<K: Key, V: Send + Sync + 'static>(
    shared: &Arc<Shared<K, V>>,
    tier: &Arc<Tier<K>>,
    worn: &[Worn<K>],
    written: Written,
) -> bool {
    let live = || worn.iter().flat_map(|blob| blob.live.iter().map(move |live| (blob, live)));
    let keys: Vec<K> = live().map(|(blob, (frame, ..))| blob.keys[*frame].clone()).collect();
    let lens = live()
        .map(|(_, (_, range, encoded))| FrameLen { stored: range.end - range.start, encoded: *encoded });
    let copied = written.stored.bytes;
    // Their weight comes with the entries that follow.
    let Some(to) = written.enter(tier, keys, &lens.collect::<Vec<_>>(), 0, worn.first()) else {
        return false;
    };
    let (mut number, mut turns) = (0, Turns::default());
    for blob in worn {
        for (frame, ..) in &blob.live {
            turns.next().await;
            let places = (tier.location(blob.blob, *frame), tier.location(to, number));
            number += 1;
            let (Some(from), Some(to)) = places else { continue };
            relocate(shared, &blob.keys[*frame], from, to);
        }
    }
    let freed = worn.iter().map(|blob| blob.total).sum::<u64>().saturating_sub(copied);
    shared.counters.reclaimed(freed, copied);
    shared.watchers.tell(&Event::Reclaimed { tier: tier.name.clone(), freed, copied });
    true
}

/// A frame was copied: its entry follows it, or the copy is garbage. `true`: it followed.
pub(crate) fn relocate<K: Key, V: Send + Sync + 'static>(
    shared: &Shared<K, V>,
    key: &K,
    from: Place,
    to: Place,
) -> bool {
    let Some(moved) = shared.table.relocate(key, from, to) else {
        shared.bury(to, 0);
        return false;
    };
    if let Some(tier) = shared.tiers.get(to.tier()) {
        tier.with_blobs(|blobs| blobs.add_weight(moved.weight));
    }
    shared.bury(from, moved.weight);
    if moved.clean {
        shared.note_clean(key.clone(), to);
    }
    true
}

/// Gives large dead ranges of one blob back.
async fn punch<K: Key, V: Send + Sync + 'static>(shared: &Arc<Shared<K, V>>, tier: &Arc<Tier<K>>) -> Gain {
    if !tier.store.info().can_punch {
        return Gain::Nothing;
    }
    let Some((blob, id, ranges)) = tier.with_blobs(|blobs| blobs.dead_runs(PUNCH_FROM)) else {
        return Gain::Nothing;
    };
    let _opened = Opened { tier, blob };
    let freed = tier.store.punch(id, &ranges).await.unwrap_or_default();
    let freed = tier.with_blobs(|blobs| blobs.punched(blob, freed));
    if freed == 0 {
        tier.with_blobs(|blobs| blobs.punch_no_more(blob));
        return Gain::Failed;
    }
    tier.quota.reclaim(freed);
    shared.room_in_tier(tier);
    shared.counters.reclaimed(freed, 0);
    shared.watchers.tell(&Event::Reclaimed { tier: tier.name.clone(), freed, copied: 0 });
    Gain::Some
}
