//! How much memory the index of spilled entries takes, counted at the allocator.
//!
//! `cargo test --release --test index -- --nocapture` prints the figures that ARCHITECTURE.md quotes.

#![expect(clippy::unwrap_used, reason = "a test ends with a panic")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    ops::Range,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use async_trait::async_trait;
use bytes::Bytes;
use spill_buffer::{
    BlobId, BlobMeta, ByteLength, BytesCodec, Payload, SpillBuffer, Store, StoreError, StoreErrorKind,
    StoreInfo, Stored, TierSpec,
};

struct Counting;

static ALLOCATED: AtomicU64 = AtomicU64::new(0);

// SAFETY: hands every call on to the system's allocator unchanged, and counts beside it.
#[expect(unsafe_code, reason = "a global allocator can't be written without; tests only")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size() as u64, Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size() as u64, Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Takes blobs and forgets them: what is left is the index.
#[derive(Debug)]
struct Forgetful(StoreInfo);

#[async_trait]
impl Store for Forgetful {
    fn info(&self) -> &StoreInfo {
        &self.0
    }

    async fn put(&self, _id: BlobId, blob: Payload) -> Result<Stored, StoreError> {
        Ok(Stored { bytes: blob.len() as u64, allocated: 0 })
    }

    async fn get(&self, id: BlobId, _range: Range<u64>) -> Result<Bytes, StoreError> {
        Err(StoreError::new(StoreErrorKind::NotFound, "get", "forgetful").with_blob(id))
    }

    async fn delete(&self, _ids: &[BlobId]) -> Result<(), StoreError> {
        Ok(())
    }

    async fn list(&self, _after: Option<BlobId>, _limit: usize) -> Result<Vec<BlobMeta>, StoreError> {
        Ok(Vec::new())
    }

    async fn close(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

async fn bytes_per_key(keys: u64) -> f64 {
    let before = ALLOCATED.load(Relaxed);
    let buffer = SpillBuffer::<u64, Vec<u8>>::builder()
        .memory_limit(64 << 10)
        .codec(BytesCodec)
        .weigher(ByteLength)
        .tier(TierSpec::new(Forgetful(StoreInfo::new("forgetful"))))
        .build()
        .unwrap();
    // Buffers of the spill path are not the index.
    let fixed = 4 << 20;
    for key in 0..keys {
        buffer.insert(key, vec![0; 16]).await.unwrap();
    }
    buffer.reclaim(u64::MAX).await.unwrap();
    assert_eq!(buffer.usage().spilled.entries, keys);
    let after = ALLOCATED.load(Relaxed);
    buffer.close().await.unwrap();
    drop(buffer);
    (after - before).saturating_sub(fixed) as f64 / keys as f64
}

#[tokio::test]
async fn the_index_of_spilled_entries_is_small() {
    let mut most: f64 = 0.0;
    // A map doubles when it is seven eighths full, so sizes in between cost more and less per key.
    for keys in [500_000, 700_000, 1_000_000] {
        let bytes = bytes_per_key(keys).await;
        println!("{keys} spilled u64 keys: {bytes:.1} bytes of memory per key");
        most = most.max(bytes);
    }
    assert!(most <= 120.0, "{most} bytes per key");
}
