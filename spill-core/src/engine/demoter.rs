//! Moves the coldest blobs of a tier that runs short to the next tier that takes them. Frames are copied as they
//! are, verified on the way; their entries follow. A target that fails is backed off like any other and the tier
//! simply stays as full as it is: nothing waits for a demotion.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

use super::{Shared, compactor, reclaimer, turns::Turns, written::Written};
use crate::{
    Event, Payload, StoreErrorKind,
    blobs::{FrameLen, Worn},
    ledger::Reservation,
    table::{Key, Place},
    tier::Tier,
};

/// How long a blob that could not be read is left alone, and a tier of which no blob can be moved.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// What moving some blobs came to.
enum Round {
    Moved,
    /// The target failed, and is left alone for a while: those behind it may take them.
    Refused,
    /// No tier behind takes anything: again at that time, or when one of them has room.
    Stuck(Option<Instant>),
    /// There is no blob that can be moved.
    Nothing,
}

/// Keeps one tier below the share at which it demotes, as long as the buffer lives.
pub(crate) async fn run<K: Key, V: Send + Sync + 'static>(shared: Arc<Shared<K, V>>, tier: Arc<Tier<K>>) {
    loop {
        let mut retry_at = None;
        let mut going = false;
        while let Some(bytes) = tier.to_demote(going) {
            going = true;
            match demote(&shared, &tier, bytes).await {
                Some(Round::Moved | Round::Refused) => {}
                Some(Round::Stuck(at)) => {
                    retry_at = at;
                    break;
                }
                Some(Round::Nothing) => {
                    retry_at = Some(Instant::now() + LOOK_AGAIN);
                    break;
                }
                None => return,
            }
        }
        let far = Instant::now() + Duration::from_secs(3600);
        tokio::select! {
            () = tier.wake_demoter.notified() => {}
            () = tokio::time::sleep_until(retry_at.unwrap_or(far)) => {}
        }
    }
}

/// Blobs being moved; each can be deleted, if nothing in it is alive any more, when this is dropped.
struct Moving<'a, K: Key, V: Send + Sync + 'static> {
    shared: &'a Shared<K, V>,
    tier: &'a Tier<K>,
    blobs: Vec<Worn<K>>,
}

impl<K: Key, V: Send + Sync + 'static> Drop for Moving<'_, K, V> {
    fn drop(&mut self) {
        let stayed = self.blobs.iter().filter(|blob| self.tier.stop_moving(blob.blob)).count();
        if stayed > 0 {
            // Whoever found no room may have it made of what could not be compacted meanwhile.
            self.shared.room_news.send_replace(());
            self.shared.wake_spiller.notify_one();
        }
    }
}

/// A frame on its way to another tier.
struct Frame<K> {
    key: K,
    from: Place,
    len: FrameLen,
    bytes: Bytes,
}

/// Moves blobs of about so many bytes, as far as one write takes them. `None`: the runtime is going.
async fn demote<K: Key, V: Send + Sync + 'static>(
    shared: &Arc<Shared<K, V>>,
    tier: &Arc<Tier<K>>,
    bytes: u64,
) -> Option<Round> {
    // One at a time: all demotions share one part of the slice for buffers.
    let _one_at_a_time = shared.demoting.acquire().await.ok()?;
    let (targets, retry_at) = targets(shared, tier);
    if targets.is_empty() {
        return Some(Round::Stuck(retry_at));
    }
    let longest = targets.iter().map(|target| longest_blob(target)).max().unwrap_or_default();
    let most = bytes.min(shared.demotion_bytes()).min(longest);
    let mut moving =
        Moving { shared, tier, blobs: tier.with_blobs(|blobs| blobs.take_oldest(most, longest)) };
    if moving.blobs.is_empty() {
        return Some(Round::Nothing);
    }
    give_up_copies(shared, tier, &mut moving.blobs).await;
    let alive: u64 = moving.blobs.iter().map(|blob| blob.live_bytes).sum();
    if alive == 0 {
        return Some(Round::Moved);
    }
    let Some(target) = place_for(shared, &targets, &moving.blobs).await else {
        return Some(Round::Stuck(retry_at));
    };
    let _buffered = shared.buffered(alive);
    let mut frames = Vec::new();
    for blob in &moving.blobs {
        // No gaps are read: they would not fit in what demoting has of the slice.
        match compactor::read_live(tier, blob, 0).await {
            Ok(read) => frames.extend(frames_of(tier, blob, read)),
            Err(StoreErrorKind::Transient) => {}
            // Its good frames can still be read where they are, and the others say what is wrong with them.
            Err(_) => tier.with_blobs(|blobs| blobs.mark_damaged(blob.blob)),
        }
    }
    if frames.is_empty() {
        return Some(Round::Nothing);
    }
    Some(write(shared, tier, target, frames).await)
}

/// Tiers behind this one that are not failing, and when the first of the others is to be tried again.
fn targets<'a, K: Key, V: Send + Sync + 'static>(
    shared: &'a Shared<K, V>,
    tier: &Tier<K>,
) -> (Vec<&'a Arc<Tier<K>>>, Option<Instant>) {
    let now = Instant::now();
    let behind = shared.tiers.iter().skip(usize::from(tier.index) + 1);
    let (open, failing): (Vec<_>, Vec<_>) = behind.partition(|target| target.available(now).is_ok());
    (open, failing.iter().filter_map(|target| target.available(now).err()).min())
}

/// Bytes of the longest blob that this tier can ever take, as its limits are now.
fn longest_blob<K>(target: &Tier<K>) -> u64 {
    let limit = target.quota.levels().limit.unwrap_or(u64::MAX);
    target.store.info().max_blob.min(limit)
}

/// Second copies are given up rather than moved: when their entries leave memory again they are the youngest here.
async fn give_up_copies<K: Key, V: Send + Sync + 'static>(
    shared: &Shared<K, V>,
    tier: &Tier<K>,
    moving: &mut [Worn<K>],
) {
    let mut turns = Turns::default();
    for blob in moving {
        for (frame, ..) in &blob.live {
            turns.next().await;
            let Some(at) = tier.location(blob.blob, *frame) else { continue };
            if let Some(weight) = shared.table.drop_copy(&blob.keys[*frame], at) {
                shared.bury(at, weight);
            }
        }
        tier.with_blobs(|blobs| blobs.look_again(blob));
    }
}

/// The first tier that has room, or can make it, and takes blobs of that length.
async fn place_for<'a, K: Key, V: Send + Sync + 'static>(
    shared: &Arc<Shared<K, V>>,
    targets: &[&'a Arc<Tier<K>>],
    moving: &[Worn<K>],
) -> Option<(&'a Arc<Tier<K>>, Reservation)> {
    let bytes: u64 = moving.iter().map(|blob| blob.live_bytes).sum();
    for target in targets {
        if bytes > longest_blob(target) {
            continue;
        }
        if let Some(reservation) = target.quota.reserve(bytes) {
            return Some((target, reservation));
        }
        if reclaimer::make_room(shared, target, bytes).await
            && let Some(reservation) = target.quota.reserve(bytes)
        {
            return Some((target, reservation));
        }
    }
    None
}

fn frames_of<K: Key>(tier: &Tier<K>, blob: &Worn<K>, read: Vec<Bytes>) -> Vec<Frame<K>> {
    let frames = blob.live.iter().zip(read).filter_map(|((frame, range, encoded), bytes)| {
        let len = FrameLen { stored: range.end - range.start, encoded: *encoded };
        let from = tier.location(blob.blob, *frame)?;
        Some(Frame { key: blob.keys[*frame].clone(), from, len, bytes })
    });
    frames.collect()
}

/// Writes frames to one blob of the target. Bytes that were reserved for others go back.
async fn write<K: Key, V: Send + Sync + 'static>(
    shared: &Arc<Shared<K, V>>,
    tier: &Arc<Tier<K>>,
    (target, mut reservation): (&Arc<Tier<K>>, Reservation),
    mut frames: Vec<Frame<K>>,
) -> Round {
    let payload: Payload = frames.iter_mut().map(|frame| std::mem::take(&mut frame.bytes)).collect();
    reservation.shrink_to(payload.len() as u64);
    let Ok(written) = shared.write(target, payload, reservation).await else { return Round::Refused };
    shared.took(target);
    if follow(shared, tier, target, &frames, written).await { Round::Moved } else { Round::Stuck(None) }
}

/// The blob is down: entries that are still where they were follow their frames.
async fn follow<K: Key, V: Send + Sync + 'static>(
    shared: &Arc<Shared<K, V>>,
    tier: &Arc<Tier<K>>,
    target: &Arc<Tier<K>>,
    frames: &[Frame<K>],
    written: Written,
) -> bool {
    let keys = frames.iter().map(|frame| frame.key.clone()).collect();
    let lens: Vec<FrameLen> = frames.iter().map(|frame| frame.len).collect();
    // Their weight comes with the entries that follow.
    let Some(blob) = written.enter(target, keys, &lens, 0, None) else { return false };
    let (mut entries, mut bytes, mut turns) = (0, 0, Turns::default());
    for (number, frame) in frames.iter().enumerate() {
        turns.next().await;
        let Some(to) = target.location(blob, number) else { continue };
        if compactor::relocate(shared, &frame.key, frame.from, to) {
            entries += 1;
            bytes += frame.len.stored;
        }
    }
    shared.counters.demoted(entries, bytes);
    shared.watchers.tell(&Event::Demoted {
        from: tier.name.clone(),
        to: target.name.clone(),
        entries,
        bytes,
    });
    target.wake_demoter.notify_one();
    true
}

impl<K: Key, V: Send + Sync + 'static> Shared<K, V> {
    /// Bytes that one demotion moves at most, unless one blob alone has more: the part of the slice for buffers
    /// that is left to it.
    fn demotion_bytes(&self) -> u64 {
        // Offsets in a blob of many frames have 32 bits.
        (self.spill_buffers / 4).clamp(super::LEAST_BUFFER, u64::from(u32::MAX / 2))
    }
}
