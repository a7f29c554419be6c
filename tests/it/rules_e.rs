//! Rules E: moves that somebody asked for, and the end.

use std::{sync::Arc, time::Duration};

use spill_buffer::{
    Codec, CodecError, Error, Location, MemoryStore, Payload, Resource, StoreErrorKind, TierSpec, fs,
};
use spill_conformance::{Calls, Operation};

use crate::harness::*;

#[tokio::test]
async fn e01_evict_one_reports_what_moved() {
    let scripted = Scripted::new();
    let buffer = exact(1000).tier(scripted.tier()).build().unwrap();
    assert_eq!(buffer.evict_one().await.unwrap(), None, "nothing is there");
    for (key, len) in [(1, 100), (2, 250)] {
        buffer.insert(key, noise(key, len)).await.unwrap();
    }
    for (weight, stored) in [(100, frame(100)), (250, frame(250))] {
        let eviction = buffer.evict_one().await.unwrap().unwrap();
        assert_eq!((eviction.weight, eviction.stored), (weight, stored));
    }
    assert_eq!(buffer.evict_one().await.unwrap(), None, "nothing is in memory");
    assert_eq!(buffer.usage().tiers[0].stored, frame(100) + frame(250));
    finish(buffer).await;
}

/// Encodes nothing that begins with a zero.
struct Picky;

impl Codec<Vec<u8>> for Picky {
    fn encode(&self, value: &Vec<u8>) -> Result<Payload, CodecError> {
        match value.first() {
            Some(0) => Err(CodecError::new("begins with a zero")),
            _ => Ok(value.clone().into()),
        }
    }

    fn decode(&self, bytes: bytes::Bytes) -> Result<Vec<u8>, CodecError> {
        Ok(bytes.into())
    }
}

#[tokio::test]
async fn e01_evict_one_says_why_not() {
    let scripted = Scripted::new();
    let buffer = exact(1000).tier(scripted.tier().max_spill(150)).build().unwrap();
    buffer.insert(1, noise(1, 100)).await.unwrap();
    match buffer.evict_one().await.unwrap_err() {
        Error::Full { resource: Resource::Spill, need: 192, used: 0, limit: Some(150), .. } => {}
        other => panic!("{other:?}"),
    }
    assert!(buffer.set_max_spill(0, None));
    scripted.faults.fail(Operation::Put, StoreErrorKind::Denied);
    match buffer.evict_one().await.unwrap_err() {
        Error::Full { source: Some(source), .. } => assert_eq!(source.kind(), StoreErrorKind::Denied),
        other => panic!("{other:?}"),
    }
    assert_eq!(buffer.location(&1), Some(Location::Memory));
    scripted.faults.heal();
    finish(buffer).await;

    let buffer = exact(1000).codec(Picky).tier(Scripted::new().tier()).build().unwrap();
    buffer.insert(1, vec![0; 10]).await.unwrap();
    let error = buffer.evict_one().await.unwrap_err();
    assert!(matches!(&error, Error::Encode { source, .. } if source.to_string() == "begins with a zero"));
    assert_eq!(get(&buffer, 1).await.unwrap(), [0; 10]);
    finish(buffer).await;
}

#[tokio::test]
async fn e02_spill_moves_one_key_once() {
    let scripted = Scripted::new();
    let buffer = exact(1000).tier(scripted.tier()).build().unwrap();
    buffer.insert(1, noise(1, 100)).await.unwrap();
    buffer.insert(2, noise(2, 100)).await.unwrap();
    assert!(buffer.spill(&2).await.unwrap());
    assert!(!buffer.spill(&2).await.unwrap(), "it is spilled already");
    assert!(!buffer.spill(&3).await.unwrap(), "it is not there");
    assert_eq!(buffer.location(&1), Some(Location::Memory));
    assert_eq!(scripted.writes(), 1);
    finish(buffer).await;
}

#[tokio::test]
async fn e02_reclaim_frees_at_least_what_was_asked_if_it_can() {
    let buffer = exact(1000).tier(Scripted::new().tier()).build().unwrap();
    for key in 0..5 {
        buffer.insert(key, noise(key, 100)).await.unwrap();
    }
    assert_eq!(buffer.reclaim(0).await.unwrap(), 0);
    assert_eq!(buffer.reclaim(150).await.unwrap(), 200);
    assert_eq!(buffer.usage().memory.resident.weight, 300);
    assert_eq!(buffer.reclaim(1000).await.unwrap(), 300, "all there was");
    assert_eq!(buffer.reclaim(1).await.unwrap(), 0);
    // Clean ones count as well.
    assert_eq!(get(&buffer, 0).await.unwrap(), noise(0, 100));
    assert_eq!(buffer.reclaim(1).await.unwrap(), 100);
    finish(buffer).await;
}

#[tokio::test]
async fn e03_what_came_during_a_spill_wins() {
    for replace in [true, false] {
        let scripted = Scripted::new();
        let buffer = exact(1000).tier(scripted.tier()).build().unwrap();
        buffer.insert(1, noise(1, 100)).await.unwrap();
        let gate = scripted.faults.hold(Operation::Put);
        let spill = tokio::spawn({
            let buffer = buffer.clone();
            async move { buffer.spill(&1).await }
        });
        gate.held(1).await;
        if replace {
            buffer.insert(1, noise(2, 200)).await.unwrap();
        } else {
            assert!(buffer.remove(&1).unwrap());
        }
        gate.release();
        spill.await.unwrap().unwrap();
        let expected = replace.then(|| noise(2, 200));
        assert_eq!(get(&buffer, 1).await, expected);
        swept(&buffer).await;
        assert_eq!(scripted.blobs().await.len(), 0, "the frame that was written was given back");
        let usage = buffer.usage();
        assert_eq!((usage.total().stored, usage.memory.resident.weight), (0, if replace { 200 } else { 0 }));
        finish(buffer).await;
    }
}

/// An overwrite that finds no room beside the write of what it replaces waits for it, and lets others work:
/// on a single thread, the write itself.
#[tokio::test]
async fn e03_an_overwrite_waits_for_the_write_of_what_it_replaces() {
    let scripted = Scripted::new();
    let waiting = spill_buffer::OnFull::Wait(Duration::from_secs(600));
    let buffer = exact(100).exact(waiting).tier(scripted.tier()).build().unwrap();
    buffer.insert(1, noise(1, 100)).await.unwrap();
    let gate = scripted.faults.hold(Operation::Put);
    let spill = tokio::spawn({
        let buffer = buffer.clone();
        async move { buffer.spill(&1).await }
    });
    gate.held(1).await;
    let insert = tokio::spawn({
        let buffer = buffer.clone();
        async move { buffer.insert(1, noise(2, 100)).await }
    });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!insert.is_finished());
    gate.release();
    within(20, spill).await.unwrap().unwrap();
    within(20, insert).await.unwrap().unwrap();
    assert_eq!(get(&buffer, 1).await.unwrap(), noise(2, 100));
    finish(buffer).await;
}

/// The same when the write fails, or its answer is lost.
#[tokio::test(start_paused = true)]
async fn e03_what_came_during_a_failing_spill_wins() {
    for fault in [
        spill_conformance::Fault::new(StoreErrorKind::Transient),
        spill_conformance::Fault::new(StoreErrorKind::Transient).after_effect(),
    ] {
        let scripted = Scripted::new();
        let buffer = exact(1000).tier(scripted.tier()).build().unwrap();
        buffer.insert(1, noise(1, 100)).await.unwrap();
        let gate = scripted.faults.hold(Operation::Put);
        scripted.faults.fail(Calls::of(Operation::Put).next(1), fault);
        let spill = tokio::spawn({
            let buffer = buffer.clone();
            async move { buffer.spill(&1).await }
        });
        gate.held(1).await;
        buffer.insert(1, noise(2, 200)).await.unwrap();
        gate.release();
        spill.await.unwrap().unwrap_err();
        assert_eq!(get(&buffer, 1).await.unwrap(), noise(2, 200));
        swept(&buffer).await;
        assert_eq!(scripted.blobs().await.len(), 0);
        finish(buffer).await;
    }
}

/// A heavy value whose insert was given up never takes the place of what came after it.
#[tokio::test]
async fn e03_an_abandoned_heavy_insert_does_not_come_back() {
    for replace in [true, false] {
        let scripted = Scripted::new();
        let buffer = exact(300).tier(scripted.tier()).build().unwrap();
        let gate = scripted.faults.hold(Operation::Put);
        let insert = tokio::spawn({
            let buffer = buffer.clone();
            async move { buffer.insert(1, noise(1, 400)).await }
        });
        gate.held(1).await;
        insert.abort();
        assert!(insert.await.unwrap_err().is_cancelled());
        if replace {
            buffer.insert(1, noise(2, 100)).await.unwrap();
        } else {
            assert!(!buffer.remove(&1).unwrap());
        }
        gate.release();
        swept(&buffer).await;
        assert_eq!(get(&buffer, 1).await, replace.then(|| noise(2, 100)));
        balanced(&buffer).await;
        assert_eq!(scripted.blobs().await.len(), 0);
        finish(buffer).await;
    }
}

#[tokio::test]
async fn e04_a_pin_keeps_an_entry_in_memory() {
    let buffer = exact(300).tier(Scripted::new().tier()).build().unwrap();
    assert!(buffer.pin(&1).await.unwrap().is_none());
    for key in 1..=3 {
        buffer.insert(key, noise(key, 100)).await.unwrap();
    }
    let pin = buffer.pin(&1).await.unwrap().unwrap();
    assert_eq!(*pin, noise(1, 100));
    let pinned = |entries, weight| {
        let usage = buffer.usage().memory.pinned;
        assert_eq!((usage.entries, usage.weight), (entries, weight));
    };
    pinned(1, 100);
    let again = buffer.pin(&1).await.unwrap().unwrap();
    pinned(1, 100);
    assert!(!buffer.spill(&1).await.unwrap());
    assert_eq!(buffer.reclaim(u64::MAX).await.unwrap(), 200);
    assert_eq!(buffer.evict_one().await.unwrap(), None);
    buffer.insert(4, noise(4, 200)).await.unwrap();
    assert_eq!(buffer.location(&1), Some(Location::Memory));

    drop(pin);
    assert!(!buffer.spill(&1).await.unwrap(), "the other pin still holds it");
    drop(again);
    pinned(0, 0);
    assert!(buffer.spill(&1).await.unwrap());

    // A spilled one is brought back first, and stays.
    let pin = buffer.pin(&1).await.unwrap().unwrap();
    assert_eq!(buffer.location(&1), Some(Location::Both("memory:".into())));
    assert_eq!(*pin, noise(1, 100));
    drop(pin);
    finish(buffer).await;
}

#[tokio::test]
async fn e04_removing_or_replacing_ends_a_pin() {
    let buffer = exact(300).tier(Scripted::new().tier()).build().unwrap();
    for replace in [true, false] {
        buffer.insert(1, noise(1, 100)).await.unwrap();
        let pin = buffer.pin(&1).await.unwrap().unwrap();
        if replace {
            buffer.insert(1, noise(2, 50)).await.unwrap();
            assert!(buffer.spill(&1).await.unwrap(), "the new value is not pinned");
        } else {
            assert!(buffer.remove(&1).unwrap());
        }
        assert_eq!(*pin, noise(1, 100), "the guard still has the value");
        let pinned = buffer.usage().memory.pinned;
        assert_eq!((pinned.entries, pinned.weight), (0, 0));
        drop(pin);
        assert_eq!(buffer.usage().memory.pinned.entries, 0);
    }
    finish(buffer).await;
}

#[tokio::test]
async fn e04_a_heavy_value_cannot_be_pinned() {
    let buffer = exact(300).tier(Scripted::new().tier()).build().unwrap();
    buffer.insert(1, noise(1, 301)).await.unwrap();
    let error = buffer.pin(&1).await.unwrap_err();
    assert!(matches!(error, Error::TooHeavy { weight: 301, limit: 300, .. }), "{error}");
    assert_eq!(get(&buffer, 1).await.unwrap(), noise(1, 301));
    finish(buffer).await;
}

#[tokio::test]
async fn e05_close_waits_then_removes_everything() {
    let root = tempfile::tempdir().unwrap();
    let buffer = exact(300).tier(TierSpec::new(files(root.path()).await)).build().unwrap();
    for key in 0..20 {
        buffer.insert(key, noise(key, 100)).await.unwrap();
    }
    assert!(std::fs::read_dir(root.path()).unwrap().count() > 0);
    let other = buffer.clone();
    buffer.close().await.unwrap();
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    assert!(buffer.usage().is_empty() && buffer.is_empty(), "{:#?}", buffer.usage());

    assert!(is_closed(&other.get(&1).await.unwrap_err()));
    assert!(is_closed(&other.take(&1).await.unwrap_err()));
    let refused = other.insert(1, vec![7; 10]).await.unwrap_err();
    assert!(is_closed(&refused.error) && *refused.value == [7; 10]);
    assert!(is_closed(&other.insert_many([(1, vec![7])]).await[0].1.error));
    assert!(is_closed(&other.remove(&1).unwrap_err()));
    assert!(is_closed(&other.clear().unwrap_err()));
    assert!(is_closed(&other.spill(&1).await.unwrap_err()));
    assert!(is_closed(&other.evict_one().await.unwrap_err()));
    assert!(is_closed(&other.reclaim(1).await.unwrap_err()));
    assert!(is_closed(&other.pin(&1).await.unwrap_err()));
    assert!(is_closed(&other.prefetch(&[1]).unwrap_err()));
    assert!(is_closed(&other.reweigh(&1).unwrap_err()));
    assert!(is_closed(&other.close().await.unwrap_err()));
    assert!(other.get_many(&[1]).await.iter().all(|answer| is_closed(answer.as_ref().unwrap_err())));
}

#[tokio::test]
async fn e05_close_waits_for_a_write_and_a_read_under_way() {
    let scripted = Scripted::new();
    let buffer = exact(1000).tier(scripted.tier()).build().unwrap();
    put_away(&buffer, 1, noise(1, 100)).await;
    buffer.insert(2, noise(2, 100)).await.unwrap();
    let (reads, writes) = (scripted.faults.hold(Operation::Get), scripted.faults.hold(Operation::Put));
    let spawn_get = tokio::spawn({
        let buffer = buffer.clone();
        async move { buffer.get(&1).await }
    });
    let spawn_spill = tokio::spawn({
        let buffer = buffer.clone();
        async move { buffer.spill(&2).await }
    });
    reads.held(1).await;
    writes.held(1).await;
    let closing = tokio::spawn({
        let buffer = buffer.clone();
        async move { buffer.close().await }
    });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!closing.is_finished());
    reads.release();
    writes.release();
    assert_eq!(*spawn_get.await.unwrap().unwrap().unwrap(), noise(1, 100));
    assert!(spawn_spill.await.unwrap().unwrap());
    closing.await.unwrap().unwrap();
    assert!(buffer.usage().is_empty(), "{:#?}", buffer.usage());
    assert_eq!(scripted.blobs().await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn e05_close_ends_at_its_deadline() {
    let scripted = Scripted::new();
    let buffer = exact(1000).tier(scripted.tier()).build().unwrap();
    buffer.insert(1, noise(1, 100)).await.unwrap();
    let gate = scripted.faults.hold(Operation::Put);
    let spill = tokio::spawn({
        let buffer = buffer.clone();
        async move { buffer.spill(&1).await }
    });
    gate.held(1).await;
    let error = buffer.close_within(Duration::from_secs(5)).await.unwrap_err();
    assert!(matches!(error, Error::CloseTimeout { deadline } if deadline.as_secs() == 5), "{error}");
    gate.release();
    spill.await.unwrap().unwrap();
}

/// An insert that waits for room is told that there will be none.
#[tokio::test(start_paused = true)]
async fn e05_close_wakes_those_who_wait_for_room() {
    let waiting = spill_buffer::OnFull::Wait(Duration::from_secs(3600));
    let buffer = exact(100).exact(waiting).tier(Scripted::new().tier().max_spill(0)).build().unwrap();
    buffer.insert(1, noise(1, 100)).await.unwrap();
    let inserts: Vec<_> = [(2, 100), (3, 500)]
        .map(|(key, len)| {
            let buffer = buffer.clone();
            tokio::spawn(async move { buffer.insert(key, noise(key, len)).await })
        })
        .into();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let begin = tokio::time::Instant::now();
    buffer.close().await.unwrap();
    for insert in inserts {
        assert!(is_closed(&insert.await.unwrap().unwrap_err().error));
    }
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    assert!(buffer.usage().is_empty());
}

/// Dropped without closing: what is left is a dead session, which the next to open the directory sweeps.
#[tokio::test]
async fn e05_a_dropped_buffer_leaves_only_what_a_sweep_removes() {
    let root = tempfile::tempdir().unwrap();
    let store = Arc::new(files(root.path()).await);
    let watch = Arc::downgrade(&store);
    let buffer = exact(300).tier(TierSpec::from_arc(store)).build().unwrap();
    for key in 0..20 {
        buffer.insert(key, noise(key, 100)).await.unwrap();
    }
    drop(buffer);
    for _ in 0..10_000 {
        if watch.strong_count() == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(watch.strong_count(), 0, "nothing of the buffer is left running");
    let report = fs::sweep(root.path()).unwrap();
    assert_eq!(report.living, 0);
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}

/// The event stream ends with the buffer.
#[tokio::test]
async fn e05_the_event_stream_ends_with_the_last_handle() {
    let buffer = exact(300).tier(TierSpec::new(MemoryStore::new())).build().unwrap();
    let mut events = buffer.events();
    put_away(&buffer, 1, noise(1, 100)).await;
    let other = buffer.clone();
    drop(buffer);
    put_away(&other, 2, noise(2, 100)).await;
    drop(other);
    let mut spilled = 0;
    while let Some(event) = within(20, events.next()).await {
        spilled += u64::from(matches!(event, spill_buffer::Event::Spilled { .. }));
    }
    assert_eq!((spilled, events.missed()), (2, 0));
}
