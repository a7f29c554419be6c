//! Rules A: the numbers are what is there. A05, a million operations against a model, is elsewhere.

use std::{os::unix::fs::MetadataExt, path::Path, sync::Arc};

use spill_buffer::{
    ByteLength, BytesCodec, OnFull, SpillBuffer, Stats, Store, StoreErrorKind, TierSpec, Weigher,
    compress::{Lz4, Zstd},
};
use spill_conformance::{Calls, Operation};

use crate::harness::*;

#[tokio::test]
async fn a01_usage_names_every_number() {
    let scripted = Scripted::new();
    let buffer = exact(1000).tier(scripted.tier().max_spill(10_000)).build().unwrap();
    let held = Arc::new(noise(1, 100));
    buffer.insert(1, held.clone()).await.unwrap(); // spilled, alive elsewhere
    buffer.spill(&1).await.unwrap();
    put_away(&buffer, 2, noise(2, 200)).await; // spilled
    put_away(&buffer, 3, noise(3, 300)).await; // clean
    buffer.get(&3).await.unwrap();
    buffer.insert(4, noise(4, 50)).await.unwrap(); // pinned
    let pin = buffer.pin(&4).await.unwrap().unwrap();

    let usage = buffer.usage();
    assert_eq!((usage.entries, usage.alive_elsewhere), (4, 1));
    assert_eq!((usage.memory.limit, usage.managed()), (1000, 350));
    assert_eq!((usage.memory.resident.entries, usage.memory.resident.weight), (2, 350));
    assert_eq!((usage.memory.clean.entries, usage.memory.clean.weight), (1, 300));
    assert_eq!((usage.memory.pinned.entries, usage.memory.pinned.weight), (1, 50));
    assert_eq!((usage.spilled.entries, usage.spilled.weight), (2, 300));
    let [tier] = &usage.tiers[..] else { panic!("{usage:#?}") };
    assert_eq!((tier.entries, tier.weight, tier.encoded, tier.blobs), (3, 600, 600, 3));
    let stored = frame(100) + frame(200) + frame(300);
    assert_eq!((tier.stored, tier.allocated, tier.garbage, tier.in_flight), (stored, stored, 0, 0));
    assert_eq!((tier.max_spill, &*tier.name), (Some(10_000), "memory:"));
    assert_eq!((usage.total().stored, usage.total().entries), (stored, 3));

    // Garbage is counted until it is gone, and a write while it is under way.
    let (deletes, writes) = (scripted.faults.hold(Operation::Delete), scripted.faults.hold(Operation::Put));
    buffer.remove(&2).unwrap();
    deletes.held(1).await;
    let spill = tokio::spawn({
        let buffer = buffer.clone();
        async move {
            buffer.insert(5, noise(5, 60)).await.unwrap();
            buffer.spill(&5).await
        }
    });
    writes.held(1).await;
    let usage = buffer.usage();
    assert_eq!((usage.tiers[0].garbage, usage.tiers[0].in_flight), (frame(200), frame(60)));
    assert_eq!((usage.memory.spilling.entries, usage.memory.spilling.weight), (1, 60));
    assert!(usage.memory.buffers > 0);
    deletes.release();
    writes.release();
    assert!(spill.await.unwrap().unwrap());
    drop((pin, held));
    swept(&buffer).await;
    assert_eq!(buffer.usage().tiers[0].stored, frame(100) + frame(300) + frame(60));
    assert_eq!((buffer.usage().memory.pinned.entries, buffer.usage().alive_elsewhere), (0, 0));
    finish(buffer).await;
}

/// 50 MiB of one letter are next to nothing on disk; memory falls by what they weighed all the same.
#[tokio::test]
async fn a02_managed_memory_falls_by_the_weight_not_by_what_is_stored() {
    const LEN: u64 = 50 << 20;
    for compressor in ["lz4", "zstd"] {
        let buffer = exact(64 << 20);
        let tier = TierSpec::new(Scripted::new().store());
        let tier = if compressor == "lz4" { tier.compress(Lz4) } else { tier.compress(Zstd::default()) };
        let buffer = buffer.tier(tier).build().unwrap();
        buffer.insert(1, vec![b'a'; 50 << 20]).await.unwrap();
        let before = buffer.usage();
        assert_eq!((before.managed(), before.spilled.weight), (LEN, 0));

        assert!(buffer.spill(&1).await.unwrap());
        let after = buffer.usage();
        assert_eq!((before.managed() - after.managed(), after.spilled.weight), (LEN, LEN));
        let tier = &after.tiers[0];
        assert_eq!((tier.weight, tier.encoded), (LEN, LEN));
        assert!(tier.stored < 300_000, "{compressor}: {} bytes stored", tier.stored);
        assert_eq!(buffer.usage().unmanaged(70 << 20), 70 << 20);

        let back = buffer.get(&1).await.unwrap().unwrap();
        assert!(back.len() as u64 == LEN && back.iter().all(|byte| *byte == b'a'));
        assert_eq!(buffer.usage().managed(), LEN);
        drop(back);
        finish(buffer).await;
    }
}

#[tokio::test]
async fn a03_unmanaged_is_what_the_process_has_beyond_the_weights() {
    let buffer = exact(1000).tier(Scripted::new().tier()).build().unwrap();
    for key in 0..3 {
        buffer.insert(key, noise(key, 100)).await.unwrap();
    }
    assert_eq!((buffer.usage().managed(), buffer.usage().unmanaged(1000)), (300, 700));
    // What is stored has no part in it, clean copies included.
    buffer.spill(&0).await.unwrap();
    buffer.spill(&1).await.unwrap();
    buffer.get(&1).await.unwrap();
    assert_eq!((buffer.usage().managed(), buffer.usage().unmanaged(1000)), (200, 800));
    assert_eq!(buffer.usage().total().stored, 2 * frame(100));
    // A process that says it has less than the weights (pages never touched, say) has none beyond them.
    assert_eq!(buffer.usage().unmanaged(199), 0);
    finish(buffer).await;
}

/// Bytes of files under a directory, and how much of the medium they take.
fn on_disk(directory: &Path) -> (u64, u64, u64) {
    let blobs = std::fs::read_dir(directory).unwrap().map(Result::unwrap);
    let blobs = blobs.filter(|file| file.path().extension().is_some_and(|name| name == "blob"));
    blobs.map(|file| file.metadata().unwrap()).fold((0, 0, 0), |(files, bytes, blocks), blob| {
        (files + 1, bytes + blob.len(), blocks + blob.blocks() * 512)
    })
}

#[tokio::test]
async fn a04_stored_and_allocated_are_what_the_file_system_has() {
    const BLOCK: u64 = 4096;
    for entries_per_blob in [1, 7] {
        let root = tempfile::tempdir().unwrap();
        let store = Arc::new(files(root.path()).await);
        let directory = store.directory().to_owned();
        let tier = TierSpec::from_arc(store.clone()).batch_entries(entries_per_blob).compress(Lz4);
        let buffer = exact(20_000).tier(tier).build().unwrap();
        let mut random = Random::new(4);
        for key in 0..120 {
            let len = random.below(9000) as usize;
            let value = if key % 2 == 0 { noise(key, len) } else { vec![b'x'; len] };
            buffer.insert(key, value).await.unwrap();
        }
        for key in (0..120).step_by(3) {
            buffer.remove(&key).unwrap();
        }
        balanced(&buffer).await;
        swept_or_worn(&buffer).await;

        let tier = buffer.usage().tiers.remove(0);
        let listed = store.list(None, usize::MAX).await.unwrap();
        let bytes: u64 = listed.iter().map(|blob| blob.stored.bytes).sum();
        assert_eq!((tier.blobs, tier.stored + tier.garbage), (listed.len() as u64, bytes));
        let (files, bytes_on_disk, blocks) = on_disk(&directory);
        assert_eq!((files, bytes_on_disk), (tier.blobs, bytes));
        let slack = tier.blobs * BLOCK;
        assert!(tier.allocated.abs_diff(blocks) <= slack, "{} booked, {blocks} on disk", tier.allocated);
        // Frame by frame: what is stored is the sum of the headers' and payloads' lengths.
        assert_eq!(live_frames(&*store, &buffer).await, tier.stored);
        finish(buffer).await;
    }
}

/// Waits until nothing is left to delete; blobs with something alive in them may keep garbage.
async fn swept_or_worn(buffer: &Buffer) {
    let mut before = u64::MAX;
    for _ in 0..1000 {
        settled(buffer).await;
        let garbage = buffer.usage().total().garbage;
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        if garbage == before {
            return;
        }
        before = garbage;
    }
    panic!("garbage keeps changing");
}

/// Bytes of the frames in the store whose entries are alive: those that can be read back, by removing one
/// key after the other and watching `stored` fall.
async fn live_frames(store: &dyn Store, buffer: &Buffer) -> u64 {
    let mut lengths = Vec::new();
    for blob in store.list(None, usize::MAX).await.unwrap() {
        let bytes = store.get(blob.id, 0..blob.stored.bytes).await.unwrap();
        let mut at = 0;
        while at < bytes.len() {
            assert_eq!(&bytes[at..at + 4], b"SPIL");
            let payload = u64::from_le_bytes(bytes[at + 32..at + 40].try_into().unwrap());
            lengths.push(frame(payload));
            at += usize::try_from(frame(payload)).unwrap();
        }
    }
    let mut sum = 0;
    let spilled = buffer.keys().into_iter().filter(|key| buffer.peek(key).is_none());
    for key in spilled.collect::<Vec<_>>() {
        let before = buffer.usage().total().stored;
        buffer.remove(&key).unwrap();
        let length = before - buffer.usage().total().stored;
        let place = lengths.iter().position(|other| *other == length);
        lengths.swap_remove(place.unwrap_or_else(|| panic!("no frame of {length} bytes")));
        sum += length;
    }
    sum
}

fn grows(before: &Stats, after: &Stats) {
    let numbers = |stats: &Stats| {
        [
            stats.hits_resident,
            stats.hits_clean,
            stats.hits_alive,
            stats.hits_restored,
            stats.misses,
            stats.entries_spilled,
            stats.blobs_written,
            stats.bytes_written,
            stats.reads,
            stats.bytes_read,
            stats.write_failures,
            stats.restore_failures,
            stats.bytes_reclaimed,
            stats.bytes_compacted,
        ]
    };
    let times = |stats: &Stats| {
        [stats.encode, stats.compress, stats.write, stats.read, stats.decompress, stats.decode]
    };
    let all = numbers(before).into_iter().zip(numbers(after)).all(|(before, after)| before <= after);
    let all = all && times(before).into_iter().zip(times(after)).all(|(before, after)| before <= after);
    assert!(all, "{before:?} -> {after:?}");
}

#[tokio::test]
async fn a06_counters_only_grow_and_looking_counts_nothing() {
    let scripted = Scripted::new();
    let tier = scripted.tier().compress(Lz4);
    let buffer = exact(2000).tier(tier).build().unwrap();
    let (mut random, mut before) = (Random::new(6), buffer.stats());
    for round in 0..500u64 {
        let key = random.below(8);
        match random.below(6) {
            0 => drop(buffer.insert(key, vec![b'y'; random.below(900) as usize]).await),
            1 => drop(buffer.get(&key).await.unwrap()),
            2 => drop(buffer.spill(&key).await.unwrap()),
            3 => drop(buffer.take(&key).await.unwrap()),
            4 => drop(buffer.remove(&key).unwrap()),
            _ => drop(buffer.evict_one().await.unwrap()),
        }
        let after = buffer.stats();
        grows(&before, &after);
        settled(&buffer).await;
        before = buffer.stats();
        let _ = (buffer.len(), buffer.keys(), buffer.contains_key(&key), buffer.peek(&key), buffer.usage());
        let _ = (buffer.location(&key), buffer.is_empty());
        assert_eq!(buffer.stats(), before, "round {round}: looking counts nothing");
    }
    let stats = buffer.stats();
    assert!(stats.hits_restored > 0 && stats.hits_clean > 0 && stats.misses > 0, "{stats:?}");
    assert!(
        [stats.encode, stats.compress, stats.write, stats.read, stats.decompress, stats.decode]
            .iter()
            .all(|time| !time.is_zero())
    );
    finish(buffer).await;
}

#[tokio::test(start_paused = true)]
async fn a06_each_read_counts_once_by_its_kind_and_a_failed_write_counts_no_bytes() {
    let scripted = Scripted::new();
    let buffer = exact(1000).tier(scripted.tier()).build().unwrap();
    let kinds = || {
        let stats = buffer.stats();
        [stats.hits_resident, stats.hits_clean, stats.hits_alive, stats.hits_restored, stats.misses]
    };
    let held = Arc::new(noise(1, 100));
    buffer.get(&1).await.unwrap();
    assert_eq!(kinds(), [0, 0, 0, 0, 1]);
    buffer.insert(1, held.clone()).await.unwrap();
    buffer.get(&1).await.unwrap();
    assert_eq!(kinds(), [1, 0, 0, 0, 1]);
    buffer.spill(&1).await.unwrap();
    buffer.get(&1).await.unwrap();
    assert_eq!(kinds(), [1, 0, 1, 0, 1]);
    drop(held);
    buffer.get(&1).await.unwrap();
    assert_eq!(kinds(), [1, 0, 1, 1, 1]);
    buffer.get(&1).await.unwrap();
    assert_eq!(kinds(), [1, 1, 1, 1, 1]);

    let written = buffer.stats();
    assert_eq!((written.entries_spilled, written.blobs_written), (1, 1));
    assert_eq!((written.bytes_written, written.bytes_read), (frame(100), frame(100)));
    buffer.insert(2, noise(2, 100)).await.unwrap();
    scripted.faults.fail(Calls::of(Operation::Put).next(1), StoreErrorKind::NoSpace);
    buffer.spill(&2).await.unwrap_err();
    let failed = buffer.stats();
    assert_eq!((failed.write_failures, failed.entries_spilled), (1, 1));
    assert_eq!((failed.blobs_written, failed.bytes_written), (1, frame(100)));
    finish(buffer).await;
}

#[tokio::test]
async fn a07_without_spilling_no_io_is_counted() {
    let scripted = Scripted::new();
    let buffer = exact(1000).tier(scripted.tier()).build().unwrap();
    for key in 0..5 {
        buffer.insert(key, noise(key, 100)).await.unwrap();
        buffer.insert(key, noise(key, 200)).await.unwrap();
    }
    for key in 0..5 {
        buffer.remove(&key).unwrap();
    }
    settled(&buffer).await;
    assert_eq!(buffer.stats(), Stats::default());
    assert_eq!(scripted.faults.calls(), Vec::new());
    finish(buffer).await;
}

/// A slice weighs what it shows, and one that was restored keeps nothing else alive.
#[tokio::test]
async fn a08_a_slice_does_not_weigh_what_its_parent_does() {
    type Slices = SpillBuffer<u64, bytes::Bytes>;
    let parent = bytes::Bytes::from(noise(8, 100_000));
    let slice = parent.slice(5000..6000);
    assert_eq!(ByteLength.weigh(&1u64, &slice), 1000);
    let scripted = Scripted::new();
    let buffer: Slices = SpillBuffer::builder()
        .memory_limit(10_000)
        .exact(OnFull::Reject)
        .codec(BytesCodec)
        .weigher(ByteLength)
        .tier(scripted.tier())
        .build()
        .unwrap();
    buffer.insert(1, slice).await.unwrap();
    assert_eq!(buffer.usage().managed(), 1000);
    assert!(buffer.spill(&1).await.unwrap());
    let usage = buffer.usage();
    assert_eq!((usage.managed(), usage.spilled.weight, usage.total().stored), (0, 1000, frame(1000)));
    assert!(parent.is_unique(), "nothing of the parent is held any more");
    let restored = buffer.get(&1).await.unwrap().unwrap();
    assert_eq!(restored[..], parent[5000..6000]);
    drop(restored);
    assert_eq!(buffer.usage().managed(), 1000);
    buffer.close().await.unwrap();
    assert!(buffer.usage().is_empty());
}
