//! Thousands of entries that move together do not keep others of the thread from running: whoever looks in between
//! sees few of them move at a time.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::*},
    },
};

use spill_core::{ByteLength, BytesCodec, MemoryStore, SpillBuffer, TierSpec};

type Buffer = SpillBuffer<u64, Vec<u8>>;

const KEYS: u64 = 8000;
const LENGTH: usize = 1000;

/// A few tasks that move 128 entries each may run one after the other.
const FEW: u64 = 8 * 128;

/// All values in memory, which fit into one batch.
async fn filled() -> Buffer {
    let tier = TierSpec::new(MemoryStore::new()).batch_bytes(16 << 20);
    let builder = SpillBuffer::builder().memory_limit(64 << 20).tier(tier);
    let buffer: Buffer = builder.codec(BytesCodec).weigher(ByteLength).build().unwrap();
    for key in 0..KEYS {
        buffer.insert(key, vec![7; LENGTH]).await.unwrap();
    }
    buffer
}

/// Runs `work` to its end. By how much `count` changed, at most, from one turn of a bystander to its next.
async fn most_at_once(buffer: &Buffer, work: impl Future, count: fn(&Buffer) -> u64) -> u64 {
    let most = Arc::new(AtomicU64::new(0));
    let bystander = tokio::spawn({
        let (buffer, most) = (buffer.clone(), most.clone());
        async move {
            let mut last = count(&buffer);
            loop {
                tokio::task::yield_now().await;
                let now = count(&buffer);
                most.fetch_max(now.abs_diff(last), Relaxed);
                last = now;
            }
        }
    });
    tokio::task::yield_now().await;
    work.await;
    // Once more, for what moved last.
    tokio::task::yield_now().await;
    bystander.abort();
    most.load(Relaxed)
}

async fn reclaim_all(buffer: &Buffer) {
    let freed = buffer.reclaim(u64::MAX).await.unwrap();
    assert_eq!(freed, KEYS * LENGTH as u64);
}

#[tokio::test]
async fn picking_victims_lets_others_run() {
    let buffer = filled().await;
    let resident = |buffer: &Buffer| buffer.usage().memory.resident.entries;
    let most = most_at_once(&buffer, reclaim_all(&buffer), resident).await;
    assert!((1..=FEW).contains(&most), "{most}");
}

#[tokio::test]
async fn entries_that_have_left_let_others_run() {
    let buffer = filled().await;
    let spilling = |buffer: &Buffer| buffer.usage().memory.spilling.entries;
    let most = most_at_once(&buffer, reclaim_all(&buffer), spilling).await;
    assert!((1..=FEW).contains(&most), "{most}");
    assert_eq!(buffer.stats().entries_spilled, KEYS);
}

#[tokio::test]
async fn closing_lets_others_run() {
    let buffer = filled().await;
    reclaim_all(&buffer).await;
    let all = |buffer: &Buffer| buffer.len();
    let most = most_at_once(&buffer, async { buffer.close().await.unwrap() }, all).await;
    assert!((1..=FEW).contains(&most), "{most}");
    assert!(buffer.usage().is_empty());
}
