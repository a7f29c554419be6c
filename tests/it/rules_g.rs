//! Rules G: getting values. That a hit allocates nothing is in `tests/allocations.rs`.

use std::{
    pin::pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::*},
    },
    task::{Context, Poll, Waker},
};

use spill_buffer::{Error, Event, Location, MemoryStore, OnFull, StoreErrorKind, TierSpec};
use spill_conformance::{Calls, Operation};

use crate::harness::*;

#[tokio::test]
async fn g01_a_resident_value_is_the_same_arc() {
    let scripted = Scripted::new();
    let buffer = exact(1000).tier(scripted.tier()).build().unwrap();
    let value = Arc::new(noise(1, 100));
    buffer.insert(1, value.clone()).await.unwrap();
    for _ in 0..3 {
        assert!(Arc::ptr_eq(&buffer.get(&1).await.unwrap().unwrap(), &value));
        assert!(Arc::ptr_eq(&buffer.peek(&1).unwrap(), &value));
    }
    assert_eq!(Arc::strong_count(&value), 2, "the buffer's and ours");
    assert_eq!((scripted.reads(), buffer.stats().hits_resident), (0, 3));
    finish(buffer).await;
}

#[tokio::test]
async fn g02_a_spilled_value_comes_back_and_others_make_room() {
    let scripted = Scripted::new();
    let buffer = exact(300).tier(scripted.tier()).build().unwrap();
    for key in 0..4 {
        buffer.insert(key, noise(key, 100)).await.unwrap();
    }
    balanced(&buffer).await;
    assert_eq!(buffer.location(&0), Some(Location::Tier("memory:".into())));

    assert_eq!(get(&buffer, 0).await.unwrap(), noise(0, 100));
    balanced(&buffer).await;
    assert_eq!(buffer.location(&0), Some(Location::Both("memory:".into())));
    assert_eq!(buffer.location(&1), Some(Location::Tier("memory:".into())), "the coldest made room");
    let usage = buffer.usage();
    assert_eq!((usage.memory.resident.weight, usage.spilled.weight), (300, 100));
    assert_eq!((usage.tiers[0].entries, usage.tiers[0].stored), (2, 2 * frame(100)));
    finish(buffer).await;
}

/// While keys go back and forth, a thread that only looks never finds one missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn g02_at_no_instant_is_a_key_in_neither_place() {
    const KEYS: u64 = 6;
    let buffer = exact(300).tier(Scripted::new().tier()).build().unwrap();
    for key in 0..KEYS {
        buffer.insert(key, noise(key, 100)).await.unwrap();
    }
    let stop = Arc::new(AtomicBool::new(false));
    let watcher = tokio::task::spawn_blocking({
        let (buffer, stop) = (buffer.clone(), stop.clone());
        move || {
            let mut looks = 0;
            while !stop.load(Acquire) || looks == 0 {
                for key in 0..KEYS {
                    assert!(buffer.contains_key(&key) && buffer.location(&key).is_some(), "{key}");
                }
                assert_eq!(buffer.keys().len() as u64, KEYS);
                looks += 1;
            }
        }
    });
    let mut random = Random::new(2);
    for _ in 0..2000 {
        let key = random.below(KEYS);
        assert_eq!(get(&buffer, key).await, Some(noise(key, 100)));
    }
    stop.store(true, Release);
    watcher.await.unwrap();
    finish(buffer).await;
}

#[tokio::test]
async fn g03_a_heavy_value_is_returned_and_stays_spilled() {
    let scripted = Scripted::new();
    let buffer = exact(300).tier(scripted.tier()).build().unwrap();
    buffer.insert(1, noise(1, 100)).await.unwrap();
    buffer.insert(9, noise(9, 301)).await.unwrap();
    for reads in 1..=2 {
        assert_eq!(get(&buffer, 9).await.unwrap(), noise(9, 301));
        assert_eq!(buffer.location(&9), Some(Location::Tier("memory:".into())));
        assert_eq!(scripted.reads(), reads);
    }
    assert_eq!(buffer.location(&1), Some(Location::Memory), "nothing had to make room");
    assert_eq!((scripted.writes(), buffer.usage().memory.resident.weight), (1, 100));
    finish(buffer).await;
}

#[tokio::test]
async fn g04_a_value_alive_elsewhere_costs_no_read() {
    let scripted = Scripted::new();
    let buffer = exact(300).tier(scripted.tier()).build().unwrap();
    let held = Arc::new(noise(1, 100));
    buffer.insert(1, held.clone()).await.unwrap();
    assert!(buffer.spill(&1).await.unwrap());
    assert_eq!(buffer.usage().alive_elsewhere, 1);
    assert!(Arc::ptr_eq(&buffer.get(&1).await.unwrap().unwrap(), &held));
    assert!(Arc::ptr_eq(&buffer.get_many(&[1]).await.remove(0).unwrap().unwrap(), &held));
    let stats = buffer.stats();
    assert_eq!((scripted.reads(), stats.hits_alive, stats.hits_restored, stats.hits_resident), (0, 2, 0, 0));

    drop(held);
    assert_eq!(buffer.usage().alive_elsewhere, 0);
    assert_eq!(get(&buffer, 1).await.unwrap(), noise(1, 100));
    assert_eq!((scripted.reads(), buffer.stats().hits_restored), (1, 1));

    // A heavy one, too, is lent again as long as its last reader holds it; and taking it costs nothing.
    buffer.insert(2, noise(2, 400)).await.unwrap();
    let read = buffer.get(&2).await.unwrap().unwrap();
    assert!(Arc::ptr_eq(&buffer.get(&2).await.unwrap().unwrap(), &read));
    assert!(Arc::ptr_eq(&buffer.take(&2).await.unwrap().unwrap(), &read));
    assert_eq!((scripted.reads(), buffer.stats().hits_alive), (2, 4));
    finish(buffer).await;
}

/// A new value under the key is the one that is lent, not what somebody still holds of the old one.
#[tokio::test]
async fn g04_what_was_replaced_is_not_lent_again() {
    let buffer = exact(300).tier(Scripted::new().tier()).build().unwrap();
    let old = Arc::new(noise(1, 100));
    buffer.insert(1, old.clone()).await.unwrap();
    assert!(buffer.spill(&1).await.unwrap());
    put_away(&buffer, 1, noise(2, 100)).await;
    assert_eq!(get(&buffer, 1).await.unwrap(), noise(2, 100));
    assert_eq!(buffer.usage().alive_elsewhere, 0);
    drop(old);
    finish(buffer).await;
}

#[tokio::test]
async fn g05_concurrent_gets_share_one_read_also_when_the_first_is_cancelled() {
    let scripted = Scripted::new();
    let buffer = exact(1000).tier(scripted.tier()).build().unwrap();
    put_away(&buffer, 1, noise(1, 100)).await;
    let gate = scripted.faults.hold(Operation::Get);
    let get = || {
        let buffer = buffer.clone();
        tokio::spawn(async move { buffer.get(&1).await })
    };
    let starter = get();
    gate.held(1).await;
    let others: Vec<_> = (0..31).map(|_| get()).collect();
    for _ in 0..100 {
        tokio::task::yield_now().await; // until all of them wait
    }
    starter.abort();
    assert!(starter.await.unwrap_err().is_cancelled());
    gate.release();
    let mut values = Vec::new();
    for other in others {
        values.push(other.await.unwrap().unwrap().unwrap());
    }
    assert!(values.iter().all(|value| Arc::ptr_eq(value, &values[0])));
    assert_eq!(*values[0], noise(1, 100));
    assert_eq!(scripted.reads(), 1);
    assert_eq!((buffer.stats().reads, buffer.stats().hits_restored), (1, 31));
    drop(values);
    finish(buffer).await;
}

/// All who wait get the error of the one read, and the next call reads again.
#[tokio::test]
async fn g05_a_failed_read_fails_all_who_wait_and_none_after() {
    let scripted = Scripted::new();
    let buffer = exact(1000).tier(scripted.tier()).build().unwrap();
    put_away(&buffer, 1, noise(1, 100)).await;
    let gate = scripted.faults.hold(Operation::Get);
    scripted.faults.fail(Calls::of(Operation::Get).next(1), StoreErrorKind::Transient);
    let gets: Vec<_> = (0..4)
        .map(|_| {
            let buffer = buffer.clone();
            tokio::spawn(async move { buffer.get(&1).await })
        })
        .collect();
    gate.held(1).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    gate.release();
    for get in gets {
        let error = get.await.unwrap().unwrap_err();
        assert_eq!(store_kind(&error), Some(StoreErrorKind::Transient));
        assert!(error.is_retryable(), "{error}");
    }
    assert_eq!(get(&buffer, 1).await.unwrap(), noise(1, 100));
    assert_eq!(scripted.reads(), 2);
    finish(buffer).await;
}

#[tokio::test]
async fn g06_a_get_that_an_insert_overtakes_answers_old_or_new() {
    for fault in [None, Some(StoreErrorKind::Transient), Some(StoreErrorKind::NotFound)] {
        let scripted = Scripted::new();
        let buffer = exact(1000).tier(scripted.tier()).build().unwrap();
        put_away(&buffer, 1, noise(1, 100)).await;
        let gate = scripted.faults.hold(Operation::Get);
        if let Some(kind) = fault {
            scripted.faults.fail(Operation::Get, kind);
        }
        let reader = tokio::spawn({
            let buffer = buffer.clone();
            async move { buffer.get(&1).await }
        });
        gate.held(1).await;
        buffer.insert(1, noise(2, 50)).await.unwrap();
        gate.release();
        // What the read of the old value came to is nobody's business any more.
        let read = reader.await.unwrap().unwrap().expect("the key was there throughout");
        assert!(*read == noise(1, 100) || *read == noise(2, 50), "{fault:?}");
        assert_eq!(get(&buffer, 1).await.unwrap(), noise(2, 50));
        scripted.faults.heal();
        swept(&buffer).await;
        assert_eq!(scripted.blobs().await.len(), 0, "the old frame was given back");
        finish(buffer).await;
    }
}

#[tokio::test]
async fn g06_a_get_that_a_remove_overtakes_answers_the_value_or_nothing() {
    for fault in [None, Some(StoreErrorKind::Transient)] {
        let scripted = Scripted::new();
        let buffer = exact(1000).tier(scripted.tier()).build().unwrap();
        put_away(&buffer, 1, noise(1, 100)).await;
        let gate = scripted.faults.hold(Operation::Get);
        if let Some(kind) = fault {
            scripted.faults.fail(Operation::Get, kind);
        }
        let reader = tokio::spawn({
            let buffer = buffer.clone();
            async move { buffer.get(&1).await }
        });
        gate.held(1).await;
        assert!(buffer.remove(&1).unwrap());
        assert!(!buffer.contains_key(&1));
        gate.release();
        let read = reader.await.unwrap().unwrap();
        assert!(read.is_none_or(|value| *value == noise(1, 100)));
        scripted.faults.heal();
        swept(&buffer).await;
        assert_eq!(scripted.blobs().await.len(), 0, "read to its end, then given back");
        finish(buffer).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g06_never_absent_while_it_is_only_replaced() {
    let buffer = exact(250).tier(Scripted::new().tier()).build().unwrap();
    buffer.insert(1, noise(0, 100)).await.unwrap();
    let writer = tokio::spawn({
        let buffer = buffer.clone();
        async move {
            for round in 1..400 {
                // Light and heavy in turn, with others that push it out.
                let len = if round % 3 == 0 { 300 } else { 100 };
                buffer.insert(1, noise(round, len)).await.unwrap();
                buffer.insert(2 + round % 3, noise(round, 100)).await.unwrap();
            }
        }
    });
    let mut reads = 0;
    while !writer.is_finished() || reads == 0 {
        assert!(buffer.get(&1).await.unwrap().is_some());
        reads += 1;
        tokio::task::yield_now().await;
    }
    writer.await.unwrap();
    finish(buffer).await;
}

#[tokio::test]
async fn g07_evicting_a_clean_copy_writes_nothing() {
    let scripted = Scripted::new();
    let buffer = exact(300).tier(scripted.tier().max_spill(10_000)).build().unwrap();
    put_away(&buffer, 1, noise(1, 100)).await;
    for round in 0..3 {
        assert_eq!(get(&buffer, 1).await.unwrap(), noise(1, 100));
        let usage = buffer.usage();
        assert_eq!((usage.memory.clean.entries, usage.memory.clean.weight), (1, 100), "{round}");
        assert_eq!(usage.tiers[0].stored, frame(100), "a clean copy counts against the cap");
        let eviction = buffer.evict_one().await.unwrap().unwrap();
        assert_eq!((eviction.weight, eviction.stored), (100, 0));
        assert_eq!(buffer.location(&1), Some(Location::Tier("memory:".into())));
    }
    assert_eq!((scripted.writes(), buffer.stats().entries_spilled), (1, 1));

    // Replacing it makes its frame garbage, and the new value has to be written.
    buffer.insert(1, noise(2, 100)).await.unwrap();
    assert!(buffer.spill(&1).await.unwrap());
    assert_eq!(scripted.writes(), 2);
    assert_eq!(get(&buffer, 1).await.unwrap(), noise(2, 100));
    finish(buffer).await;
}

#[tokio::test]
async fn g07_clean_copies_are_the_first_to_go_when_a_tier_is_short() {
    let scripted = Scripted::new();
    let buffer = exact(300).tier(scripted.tier().max_spill(2 * frame(100) + 64)).build().unwrap();
    for key in 1..=2 {
        put_away(&buffer, key, noise(key, 100)).await;
    }
    assert_eq!(get(&buffer, 1).await.unwrap(), noise(1, 100)); // clean
    buffer.insert(3, noise(3, 100)).await.unwrap();
    assert!(buffer.spill(&3).await.unwrap(), "the copy of 1 makes room");
    balanced(&buffer).await;
    assert_eq!(buffer.location(&1), Some(Location::Memory));
    assert_eq!(buffer.usage().memory.clean.entries, 0);
    assert_eq!(buffer.usage().tiers[0].stored, 2 * frame(100));
    // Without a copy to give up it is refused, and nothing that is the only copy is touched.
    let error = buffer.spill(&1).await.unwrap_err();
    assert!(matches!(error, Error::Full { need, .. } if need == frame(100)), "{error}");
    for key in 1..=3 {
        assert_eq!(get(&buffer, key).await.unwrap(), noise(key, 100));
    }
    finish(buffer).await;
}

#[tokio::test]
async fn g08_one_failing_key_fails_only_itself() {
    let scripted = Scripted::new();
    let buffer = exact(10_000).tier(TierSpec::new(scripted.store())).build().unwrap();
    for key in 0..8 {
        buffer.insert(key, noise(key, 100)).await.unwrap();
    }
    assert_eq!(buffer.reclaim(u64::MAX).await.unwrap(), 800);
    let blobs = scripted.blobs().await;
    assert_eq!(blobs.len(), 1, "one batch, one blob");
    // A bit of the fifth frame's payload.
    scripted.memory.tamper(blobs[0].id, |mut blob| {
        blob[4 * 192 + 64] ^= 1;
        Some(blob)
    });
    let answers = buffer.get_many(&[7, 0, 4, 99, 0]).await;
    let shown: Vec<_> = answers.iter().map(|answer| answer.as_ref().map(Option::is_some)).collect();
    assert!(matches!(shown[..], [Ok(true), Ok(true), Err(_), Ok(false), Ok(true)]), "{shown:?}");
    assert_eq!(**answers[0].as_ref().unwrap().as_ref().unwrap(), noise(7, 100));
    assert_eq!(**answers[1].as_ref().unwrap().as_ref().unwrap(), noise(0, 100));
    let error = answers[2].as_ref().unwrap_err();
    assert!(matches!(error, Error::Corrupt { key, .. } if key == "4"), "{error}");
    assert!(buffer.remove(&4).unwrap());
    drop(answers);
    finish(buffer).await;
}

#[tokio::test]
async fn g08_keys_in_one_blob_are_read_together() {
    let scripted = Scripted::new();
    let buffer = exact(100_000).tier(TierSpec::new(scripted.store())).build().unwrap();
    let keys: Vec<u64> = (0..64).collect();
    for key in &keys {
        buffer.insert(*key, noise(*key, 100)).await.unwrap();
    }
    assert_eq!(buffer.reclaim(u64::MAX).await.unwrap(), 6400);
    let answers = buffer.get_many(&keys).await;
    for (key, answer) in keys.iter().zip(answers) {
        assert_eq!(*answer.unwrap().unwrap(), noise(*key, 100));
    }
    let stats = buffer.stats();
    assert_eq!((scripted.reads(), stats.reads, stats.hits_restored), (1, 1, 64));
    finish(buffer).await;
}

/// A run that can't be read as a whole is read one by one.
/// How far apart two of them may be depends on the store.
#[tokio::test]
async fn g08_neighbours_are_read_over_the_gaps_that_their_store_says() {
    const VALUE: usize = 100_000;
    for (read_gap, reads) in [(None, 2), (Some(0), 2), (Some(3 * VALUE as u64), 2), (Some(1 << 20), 1)] {
        let info = spill_buffer::StoreInfo::new("far");
        let info = read_gap.into_iter().fold(info, |info, bytes| info.read_gap(bytes));
        let store = spill_buffer::MemoryStore::with_info(info);
        let buffer = exact(4 << 20).tier(TierSpec::new(store)).build().unwrap();
        for key in 0..6 {
            buffer.insert(key, noise(key, VALUE)).await.unwrap();
        }
        buffer.reclaim(u64::MAX).await.unwrap();
        assert_eq!(buffer.usage().total().blobs, 1);
        let answers = buffer.get_many(&[0, 1, 5]).await;
        for (key, answer) in [0, 1, 5].into_iter().zip(answers) {
            assert!(*answer.unwrap().unwrap() == noise(key, VALUE));
        }
        assert_eq!(buffer.stats().reads, reads, "{read_gap:?}");
        finish(buffer).await;
    }
}

#[tokio::test]
async fn g08_a_store_error_fails_only_the_keys_it_meets() {
    let scripted = Scripted::new();
    let buffer = exact(100_000).tier(TierSpec::new(scripted.store())).build().unwrap();
    for key in 0..4 {
        buffer.insert(key, noise(key, 100)).await.unwrap();
    }
    buffer.reclaim(u64::MAX).await.unwrap();
    scripted.faults.fail(Calls::of(Operation::Get).next(2), StoreErrorKind::Transient);
    let answers = buffer.get_many(&[0, 1, 2, 3]).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_err()).count(), 1);
    drop(answers);
    for key in 0..4 {
        assert_eq!(get(&buffer, key).await.unwrap(), noise(key, 100));
    }
    finish(buffer).await;
}

#[tokio::test]
async fn g09_take_returns_the_value_and_removes_it() {
    let scripted = Scripted::new();
    let buffer = exact(300).tier(scripted.tier()).build().unwrap();
    let value = Arc::new(noise(1, 100));
    buffer.insert(1, value.clone()).await.unwrap();
    assert!(Arc::ptr_eq(&buffer.take(&1).await.unwrap().unwrap(), &value));
    assert_eq!(scripted.reads() + scripted.writes(), 0);

    put_away(&buffer, 2, noise(2, 100)).await;
    // Until the value is there, the key is, and its blob.
    let gate = scripted.faults.hold_after_effect(Operation::Get);
    let taker = tokio::spawn({
        let buffer = buffer.clone();
        async move { buffer.take(&2).await }
    });
    gate.held(1).await;
    assert!(buffer.contains_key(&2));
    assert_eq!(scripted.blobs().await.len(), 1);
    gate.release();
    assert_eq!(*taker.await.unwrap().unwrap().unwrap(), noise(2, 100));
    assert!(!buffer.contains_key(&2));
    assert_eq!(buffer.take(&2).await.unwrap(), None);
    swept(&buffer).await;
    assert_eq!(scripted.blobs().await.len(), 0);
    assert_eq!(buffer.usage().entries, 0);
    finish(buffer).await;
}

#[tokio::test]
async fn g09_a_take_that_fails_leaves_the_entry() {
    let scripted = Scripted::new();
    let buffer = exact(300).tier(scripted.tier()).build().unwrap();
    put_away(&buffer, 1, noise(1, 100)).await;
    scripted.faults.fail(Calls::of(Operation::Get).next(1), StoreErrorKind::Transient);
    let error = buffer.take(&1).await.unwrap_err();
    assert_eq!(store_kind(&error), Some(StoreErrorKind::Transient));
    assert_eq!(*buffer.take(&1).await.unwrap().unwrap(), noise(1, 100));
    finish(buffer).await;
}

/// Of several who take one key, exactly one has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g09_only_one_of_many_takes_it() {
    let buffer = exact(300).tier(Scripted::new().tier()).build().unwrap();
    for round in 0..50 {
        put_away(&buffer, 1, noise(round, 100)).await;
        let takers: Vec<_> = (0..4)
            .map(|_| {
                let buffer = buffer.clone();
                tokio::spawn(async move { buffer.take(&1).await.unwrap() })
            })
            .collect();
        let mut taken = Vec::new();
        for taker in takers {
            taken.extend(taker.await.unwrap());
        }
        assert_eq!(taken.len(), 1, "round {round}");
        assert_eq!(*taken[0], noise(round, 100));
    }
    finish(buffer).await;
}

#[tokio::test]
async fn g09_remove_and_clear_read_nothing() {
    let scripted = Scripted::new();
    let buffer = exact(1000).tier(scripted.tier()).build().unwrap();
    for key in 0..6 {
        buffer.insert(key, noise(key, 100)).await.unwrap();
        if key % 2 == 0 {
            buffer.spill(&key).await.unwrap();
        }
    }
    // Removing works also when the tier can't be read at all.
    scripted.faults.fail(Operation::Get, StoreErrorKind::Denied);
    assert!(buffer.remove(&0).unwrap() && buffer.remove(&1).unwrap());
    assert!(!buffer.remove(&0).unwrap());
    assert_eq!(buffer.len(), 4);
    buffer.clear().unwrap();
    assert!(buffer.is_empty() && buffer.keys().is_empty());
    swept(&buffer).await;
    assert_eq!(scripted.reads(), 0);
    assert_eq!(scripted.blobs().await.len(), 0);
    finish(buffer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g10_each_key_appears_exactly_once_while_entries_move() {
    const KEYS: u64 = 200;
    let buffer = exact(5000).tier(TierSpec::new(Scripted::new().store())).build().unwrap();
    for key in 0..KEYS {
        buffer.insert(key, noise(key, 100)).await.unwrap();
    }
    let mover = tokio::spawn({
        let buffer = buffer.clone();
        async move {
            let mut random = Random::new(10);
            for round in 0..3000 {
                let key = random.below(KEYS);
                match round % 4 {
                    0 => buffer.insert(key, noise(key, 100)).await.unwrap(),
                    1 => drop(buffer.spill(&key).await.unwrap()),
                    _ => drop(buffer.get(&key).await.unwrap().unwrap()),
                }
                // Others come and go beside them.
                buffer.insert(KEYS + round, vec![1; 10]).await.unwrap();
                buffer.remove(&(KEYS + round)).unwrap();
            }
        }
    });
    let mut looks = 0;
    while !mover.is_finished() || looks == 0 {
        let mut keys: Vec<u64> = buffer.keys().into_iter().filter(|key| *key < KEYS).collect();
        keys.sort_unstable();
        assert!(keys.into_iter().eq(0..KEYS));
        looks += 1;
        tokio::task::yield_now().await;
    }
    mover.await.unwrap();
    finish(buffer).await;
}

/// A get never waits for room that nobody can make: the value is handed out and stays where it is.
#[tokio::test]
async fn g02_a_get_succeeds_when_nothing_can_make_room() {
    let scripted = Scripted::new();
    let tier = scripted.tier().max_spill(frame(100));
    let buffer = exact(300).exact(OnFull::Reject).tier(tier).build().unwrap();
    put_away(&buffer, 0, noise(0, 100)).await;
    for key in 1..=3 {
        buffer.insert(key, noise(key, 100)).await.unwrap();
    }
    let read = buffer.get(&0).await.unwrap().unwrap();
    assert_eq!(*read, noise(0, 100));
    assert_eq!(buffer.usage().memory.resident.weight, 300);
    drop(read);
    finish(buffer).await;
}

fn first_poll<T>(future: impl Future<Output = T>) -> Poll<T> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Reads the next key whenever one was restored.
#[derive(Default)]
struct Reader {
    buffer: OnceLock<Buffer>,
    next: AtomicU64,
    depth: AtomicU64,
    deepest: AtomicU64,
}

impl Reader {
    fn told(&self, event: &Event) {
        let (Event::Restored { .. }, Some(buffer)) = (event, self.buffer.get()) else { return };
        self.deepest.fetch_max(self.depth.fetch_add(1, Relaxed) + 1, Relaxed);
        drop(first_poll(buffer.get(&self.next.fetch_add(1, Relaxed))));
        self.depth.fetch_sub(1, Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn g05_a_small_value_at_hand_is_there_at_the_first_poll_and_an_observer_that_reads_goes_no_deeper() {
    let reader = Arc::new(Reader::default());
    let tier = TierSpec::new(MemoryStore::new());
    let told = reader.clone();
    let buffer = exact(1000).tier(tier).observer(move |event: &Event| told.told(event)).build().unwrap();
    for key in 0..102 {
        buffer.insert(key, noise(key, 100)).await.unwrap();
    }
    buffer.reclaim(u64::MAX).await.unwrap();
    assert!(
        matches!(first_poll(buffer.get(&100)), Poll::Ready(Ok(Some(value))) if *value == noise(100, 100))
    );

    assert!(reader.buffer.set(buffer.clone()).is_ok());
    assert!(first_poll(buffer.get(&101)).is_ready());
    settled_with(&buffer, |_| reader.next.load(Relaxed) >= 100).await;
    // From a job of the buffer one read begins on the spot, and what is asked for within that is another job.
    assert!(reader.deepest.load(Relaxed) <= 2, "{} deep", reader.deepest.load(Relaxed));
    for key in 0..102 {
        assert_eq!(*buffer.get(&key).await.unwrap().unwrap(), noise(key, 100));
    }
}
