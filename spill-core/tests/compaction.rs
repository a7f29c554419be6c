//! What overwriting for long leaves behind: dead frames beside live ones stay a bounded share of what is alive,
//! also when the store is slow, when its cap is nearly reached, and while blobs can't be deleted.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]
#![allow(clippy::cast_precision_loss, clippy::cast_sign_loss, reason = "tests")]

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::*},
    },
    time::Duration,
};

use bytes::Bytes;
use spill_core::{
    BlobId, BlobMeta, ByteLength, BytesCodec, MemoryStore, Payload, SpillBuffer, Store, StoreError,
    StoreErrorKind, StoreInfo, Stored, TierSpec, policies::Lru,
};
use tokio::time::sleep;

type Buffer = SpillBuffer<u64, Vec<u8>>;

const KEYS: u64 = 1024;
const LENGTH: usize = 1000;
const BATCH: u64 = 32 << 10;
/// A quarter of what the values weigh.
const MEMORY: u64 = KEYS * LENGTH as u64 / 4;

/// Takes a millisecond per call, in the time of the test; deletes nothing while it is told so.
#[derive(Clone, Debug, Default)]
struct Slow {
    inner: MemoryStore,
    keeps: Arc<AtomicBool>,
}

#[async_trait::async_trait]
impl Store for Slow {
    fn info(&self) -> &StoreInfo {
        self.inner.info()
    }

    async fn put(&self, id: BlobId, blob: Payload) -> Result<Stored, StoreError> {
        sleep(Duration::from_millis(1)).await;
        self.inner.put(id, blob).await
    }

    async fn get(&self, id: BlobId, range: Range<u64>) -> Result<Bytes, StoreError> {
        sleep(Duration::from_millis(1)).await;
        self.inner.get(id, range).await
    }

    async fn delete(&self, ids: &[BlobId]) -> Result<(), StoreError> {
        sleep(Duration::from_millis(1)).await;
        if self.keeps.load(SeqCst) {
            return Err(StoreError::new(StoreErrorKind::Other, "delete", "slow"));
        }
        self.inner.delete(ids).await
    }

    async fn list(&self, after: Option<BlobId>, limit: usize) -> Result<Vec<BlobMeta>, StoreError> {
        self.inner.list(after, limit).await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.inner.close().await
    }
}

/// Numbers that look random and are the same in every run (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// The value of a key in a version.
fn value(key: u64, version: u64) -> Vec<u8> {
    let mut random = Random(version << 32 | key);
    (0..LENGTH.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).take(LENGTH).collect()
}

async fn get(buffer: &Buffer, key: u64) -> Option<Vec<u8>> {
    buffer.get(&key).await.unwrap().map(|value| value.to_vec())
}

/// Waits until nothing is under way; then the books have to balance, and after closing nothing may be left.
async fn finish(buffer: Buffer) {
    sleep(Duration::from_secs(600)).await;
    assert_eq!(buffer.audit().await.unwrap(), Vec::<String>::new());
    buffer.close().await.unwrap();
    assert!(buffer.usage().is_empty(), "{:#?}", buffer.usage());
}

fn buffer_over(tier: TierSpec) -> Buffer {
    let builder = SpillBuffer::builder().memory_limit(MEMORY).tier(tier.batch_bytes(BATCH));
    builder.policy(Lru::default()).codec(BytesCodec).weigher(ByteLength).build().unwrap()
}

/// Few keys come often, many rarely: the chance of a key falls with its number.
fn zipf(random: &mut Random) -> u64 {
    let share = random.below(1 << 32) as f64 / f64::from(u32::MAX);
    ((KEYS as f64).powf(share) as u64 - 1).min(KEYS - 1)
}

/// How far garbage was beyond half of what is stored, at most.
fn beyond(buffer: &Buffer) -> u64 {
    let tier = buffer.usage().tiers.remove(0);
    tier.garbage.saturating_sub(tier.stored / 2)
}

/// Overwrites for `rounds`, with `reads` of a hundred calls reading, and says how far garbage was beyond half of
/// what is stored, at most.
async fn overwrite(buffer: &Buffer, rounds: u64, reads: u64) -> u64 {
    let (mut random, mut versions, mut most) = (Random(rounds ^ reads), vec![0; KEYS as usize], 0);
    for key in 0..KEYS {
        buffer.insert(key, value(key, 0)).await.unwrap();
    }
    for _ in 0..rounds {
        let key = zipf(&mut random);
        let version = &mut versions[key as usize];
        if random.below(100) < reads {
            let read = get(buffer, key).await;
            assert!(read == Some(value(key, *version)), "{key} in version {version}");
        } else {
            *version += 1;
            buffer.insert(key, value(key, *version)).await.unwrap();
        }
        most = most.max(beyond(buffer));
    }
    for (key, version) in (0..).zip(versions) {
        assert!(get(buffer, key).await == Some(value(key, version)), "{key}");
    }
    most
}

/// Whoever made garbage faster than one blob after the other was copied could make as much as it liked.
#[tokio::test(start_paused = true)]
async fn garbage_stays_below_half_of_what_is_stored() {
    for reads in [0, 50] {
        let buffer = buffer_over(TierSpec::new(Slow::default()));
        let most = overwrite(&buffer, 20_000, reads).await;
        let stats = buffer.stats();
        assert!(
            most <= 2 * BATCH,
            "{reads} % reads: {most} bytes more than half of what is stored; {stats:?}"
        );
        assert!(
            stats.bytes_compacted < 4 * stats.bytes_written,
            "{reads} % reads: what is copied is in proportion to what is written; {stats:?}"
        );
        finish(buffer).await;
    }
}

/// With hardly more room than what is alive, too, everything gets its turn.
#[tokio::test(start_paused = true)]
async fn a_cap_that_is_nearly_reached_stops_nobody() {
    let cap = KEYS * 1088 * 21 / 20;
    let buffer = buffer_over(TierSpec::new(Slow::default()).max_spill(cap));
    let most = overwrite(&buffer, 5000, 50).await;
    assert!(most <= 2 * BATCH, "{most}");
    finish(buffer).await;
}

/// Garbage that can't be deleted is counted, and nobody waits for it.
#[tokio::test(start_paused = true)]
async fn f09_what_is_not_deleted_stops_nobody() {
    let store = Slow::default();
    let buffer = buffer_over(TierSpec::new(store.clone()));
    store.keeps.store(true, SeqCst);
    assert!(overwrite(&buffer, 5000, 0).await > 0);
    assert!(buffer.usage().total().garbage > buffer.usage().total().stored / 2);
    store.keeps.store(false, SeqCst);
    sleep(Duration::from_secs(600)).await;
    assert!(beyond(&buffer) <= 2 * BATCH);
    finish(buffer).await;
}

/// A few KiB of garbage are not worth copying for.
#[tokio::test(start_paused = true)]
async fn little_garbage_is_left_alone() {
    let buffer = buffer_over(TierSpec::new(Slow::default()));
    for key in 0..MEMORY / 1000 + 20 {
        buffer.insert(key, value(key, 0)).await.unwrap();
    }
    sleep(Duration::from_secs(1)).await;
    let spilled: Vec<u64> = buffer.keys().into_iter().filter(|key| buffer.peek(key).is_none()).collect();
    for key in spilled.into_iter().skip(1).step_by(2).take(28) {
        assert!(buffer.remove(&key).unwrap());
    }
    sleep(Duration::from_secs(1)).await;
    assert_eq!(buffer.stats().bytes_compacted, 0);
    assert!(buffer.usage().total().garbage > 0);
    finish(buffer).await;
}
