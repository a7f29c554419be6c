//! Rules F01 to F06: tiers that are full, and what an insert gets then. Those that fail are in `rules_f2`.

use std::{sync::Arc, time::Duration};

use spill_buffer::{
    Error, Event, Location, OnFull, Pressure, Resource, Store, StoreError, StoreErrorKind, TierSpec,
};
use spill_conformance::{Calls, Fault, Operation};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

use crate::{harness::*, support};

const MOMENT: Duration = Duration::from_millis(10);
/// Longer than the longest back-off.
const LONG: Duration = Duration::from_secs(61);

/// What a refusal by the tiers says: needed, used, limit.
fn full(error: &Error) -> (u64, u64, Option<u64>) {
    match error {
        Error::Full { resource: Resource::Spill, need, used, limit, .. } => (*need, *used, *limit),
        other => panic!("{other:?}"),
    }
}

fn source(error: &Error) -> Option<&StoreError> {
    match error {
        Error::Full { source, .. } => source.as_deref(),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn f01_what_is_stored_dead_and_being_written_counts_before_anything_is_written() {
    const ONE: u64 = frame(100);
    let scripted = Scripted::new();
    let buffer = exact(10_000).tier(scripted.tier().max_spill(3 * ONE)).build().unwrap();
    put_away(&buffer, 1, noise(1, 100)).await;
    put_away(&buffer, 2, noise(2, 100)).await;
    let deletes = scripted.faults.hold(Operation::Delete);
    assert!(buffer.remove(&2).unwrap());
    deletes.held(1).await;
    let writes = scripted.faults.hold(Operation::Put);
    for (key, len) in [(3, 100), (4, 0), (5, 100), (6, 0)] {
        buffer.insert(key, noise(key, len)).await.unwrap();
    }
    let spill = tokio::spawn({
        let buffer = buffer.clone();
        async move { buffer.spill(&3).await }
    });
    writes.held(1).await;
    let tier = buffer.usage().tiers[0].clone();
    assert_eq!((tier.stored, tier.garbage, tier.in_flight), (ONE, ONE, ONE));

    // Not even the shortest frame fits, and nothing of it is begun.
    let begun = scripted.writes();
    assert_eq!(full(&buffer.spill(&4).await.unwrap_err()), (frame(0), 3 * ONE, Some(3 * ONE)));
    writes.release();
    assert!(spill.await.unwrap().unwrap());
    assert_eq!(full(&buffer.spill(&4).await.unwrap_err()), (frame(0), 3 * ONE, Some(3 * ONE)));
    deletes.release();
    swept(&buffer).await;
    // To the byte, and not a byte beyond.
    buffer.insert(7, noise(7, 129)).await.unwrap();
    assert_eq!(full(&buffer.spill(&7).await.unwrap_err()), (frame(129), 2 * ONE, Some(3 * ONE)));
    assert_eq!(scripted.writes(), begun);
    assert!(buffer.spill(&5).await.unwrap());
    assert_eq!(buffer.usage().tiers[0].stored, 3 * ONE);
    assert_eq!(full(&buffer.spill(&6).await.unwrap_err()), (frame(0), 3 * ONE, Some(3 * ONE)));
    assert_eq!(scripted.writes(), begun + 1);
    finish(buffer).await;
}

#[tokio::test(start_paused = true)]
async fn f01_with_a_cap_of_nothing_nothing_spills_and_without_a_cap_everything_may() {
    let (none, any) = (Scripted::new(), Scripted::new());
    let buffer = exact(300).tier(none.tier().max_spill(0)).build().unwrap();
    for key in 0..3 {
        buffer.insert(key, noise(key, 100)).await.unwrap();
    }
    buffer.spill(&0).await.unwrap_err();
    buffer.evict_one().await.unwrap_err();
    buffer.insert(3, noise(3, 100)).await.unwrap_err();
    buffer.insert(3, noise(3, 301)).await.unwrap_err();
    assert_eq!(buffer.reclaim(u64::MAX).await.unwrap(), 0);
    buffer.set_memory_limit(0);
    sleep(LONG).await;
    assert_eq!((none.writes(), buffer.usage().total().stored), (0, 0));
    assert_eq!(buffer.usage().memory.resident.weight, 300);
    finish(buffer).await;

    let buffer = exact(300).tier(any.tier()).build().unwrap();
    for key in 0..1000 {
        buffer.insert(key, noise(key, 100)).await.unwrap();
    }
    assert_eq!((buffer.usage().tiers[0].max_spill, buffer.usage().spilled.entries), (None, 997));
    finish(buffer).await;
}

/// A value in memory and one that waits to come in, both too large for the room that is left. Room comes free in
/// small steps, and each makes the buffer look again.
#[tokio::test(start_paused = true)]
async fn f02_what_is_too_big_for_the_room_left_is_not_encoded_before_that_much_is_free() {
    use support::Lump;
    let codec = support::LumpCodec::default();
    let (big, newcomer) = (Lump::new('x', 900), Lump::new('y', 2000).weighing(500));
    let small = Lump::new('a', 100);
    let cap = newcomer.stored() + small.stored() / 2;
    let buffer = support::exact::<char>(1000, OnFull::Wait(Duration::from_secs(3600)))
        .codec(codec.clone())
        .tier(support::memory_tier().max_spill(cap))
        .build()
        .unwrap();
    let smalls: Vec<char> = ('a'..).take((cap / small.stored()) as usize).collect();
    for key in &smalls {
        buffer.insert(*key, Lump::new(*key, 100)).await.unwrap();
        assert!(buffer.spill(key).await.unwrap());
    }
    buffer.insert('x', big).await.unwrap();
    let asked = codec.asked();
    let insert = tokio::spawn({
        let buffer = buffer.clone();
        async move { buffer.insert('y', newcomer).await }
    });
    sleep(LONG).await;
    // How long each is was not known before; one room was enough to try.
    let known = codec.asked();
    assert_eq!(known, asked + 2, "the one that is there, and the one that comes");
    for (freed, key) in (1..).zip(&smalls) {
        let room = cap - (smalls.len() as u64 - freed) * small.stored();
        assert!(buffer.remove(key).unwrap());
        if room >= big.stored() {
            break;
        }
        // Whatever makes it look again.
        assert_eq!(buffer.reclaim(1).await.unwrap(), 0);
        buffer.evict_one().await.unwrap_err();
        sleep(LONG).await;
        assert_eq!(codec.asked(), known, "{room} bytes are free");
        assert!(!insert.is_finished());
    }
    insert.await.unwrap().unwrap();
    assert_eq!(codec.asked(), known + 1, "the one that there is room for");
    assert_eq!(buffer.location(&'x'), Some(Location::Tier("memory:".into())));
    assert_eq!(buffer.location(&'y'), Some(Location::Memory));
    assert_eq!(support::read(&buffer, 'x').await, big);
    support::ends_empty(buffer).await;
}

/// Any way in which a write can fail, before or after its effect.
fn failures() -> Vec<Fault> {
    use StoreErrorKind::{Corrupt, Denied, NoSpace, NotFound, Other, Transient};
    let kinds = [NoSpace, Transient, Denied, Corrupt, NotFound, Other];
    kinds.into_iter().flat_map(|kind| [Fault::new(kind), Fault::new(kind).after_effect()]).collect()
}

#[tokio::test(start_paused = true)]
async fn f03_what_could_not_be_written_stays_in_memory_and_leaves_nothing_behind() {
    for fault in failures() {
        let scripted = Scripted::new();
        let buffer = exact(10_000).tier(scripted.tier().max_spill(1000)).build().unwrap();
        put_away(&buffer, 1, noise(1, 100)).await;
        let value = Arc::new(noise(2, 500));
        buffer.insert(2, value.clone()).await.unwrap();
        let mut events = buffer.events();
        let before = buffer.stats();
        scripted.faults.fail(Calls::of(Operation::Put).next(1), fault.clone());
        let error = buffer.spill(&2).await.unwrap_err();
        assert!(source(&error).is_some(), "{fault:?}: {error}");

        assert!(Arc::ptr_eq(&buffer.peek(&2).unwrap(), &value), "{fault:?}");
        assert_eq!(buffer.location(&2), Some(Location::Memory));
        swept(&buffer).await;
        let usage = buffer.usage();
        let tier = &usage.tiers[0];
        assert_eq!((usage.memory.resident.weight, tier.entries), (500, 1), "{fault:?}");
        assert_eq!((tier.stored, tier.in_flight, tier.blobs), (frame(100), 0, 1), "{fault:?}");
        assert_eq!((scripted.blobs().await.len(), scripted.faults.used()), (1, frame(100)), "{fault:?}");
        let after = buffer.stats();
        assert_eq!(after.write_failures, before.write_failures + 1);
        assert_eq!(
            (after.bytes_written, after.entries_spilled),
            (before.bytes_written, before.entries_spilled)
        );
        match events.try_next() {
            Some(Event::WriteFailed { tier, error: told, retry_in }) => {
                assert_eq!((&*tier, told.kind()), ("memory:", source(&error).unwrap().kind()));
                assert!(retry_in > Duration::ZERO && retry_in < Duration::from_secs(1), "{retry_in:?}");
            }
            other => panic!("{fault:?}: {other:?}"),
        }
        assert!(events.try_next().is_none());
        // The room was given back: it fits exactly as before.
        sleep(LONG).await;
        assert!(buffer.spill(&2).await.unwrap());
        assert_eq!(get(&buffer, 2).await.unwrap(), *value);
        finish(buffer).await;
    }
}

/// A log line at the first failure, and one in ten seconds from then on, however many there are.
#[tokio::test(start_paused = true)]
async fn f03_failing_writes_do_not_flood_the_log() {
    let (log, _guard) = Log::start();
    let scripted = Scripted::new();
    let buffer = exact(300).tier(scripted.tier()).build().unwrap();
    scripted.faults.fail(Operation::Put, StoreErrorKind::NoSpace);
    buffer.insert(0, noise(0, 100)).await.unwrap();
    for _ in 0..600 {
        buffer.spill(&0).await.unwrap_err();
        sleep(Duration::from_millis(100)).await;
    }
    let lines = log.lines("a tier does not take what is spilled");
    assert!(scripted.writes() >= 7, "{} tries in a minute", scripted.writes());
    // The waits between tries grow beyond ten seconds.
    assert!((3..=6).contains(&lines), "{lines} lines in a minute");
    finish(buffer).await;
}

/// The first tier's store breaks off in the middle of a value, or fails in any other way; a batch goes on as a whole.
#[tokio::test(start_paused = true)]
async fn f04_the_next_tier_has_the_whole_value_and_the_first_holds_and_counts_nothing() {
    let in_the_middle = |scripted: &Scripted| scripted.faults.set_space_left(Some(30_000));
    let scripts = failures().into_iter().map(Some).chain([None]);
    for fault in scripts {
        let (first, second) = (Scripted::new(), Scripted::new());
        let buffer = exact(200_000)
            .tier(TierSpec::new(first.store()).name("first").max_spill(100_000))
            .tier(TierSpec::new(second.store()).name("second"))
            .build()
            .unwrap();
        match &fault {
            Some(fault) => first.faults.fail(Calls::of(Operation::Put).next(1), fault.clone()),
            None => in_the_middle(&first),
        }
        for key in 0..3 {
            buffer.insert(key, noise(key, 20_000)).await.unwrap();
        }
        let mut events = buffer.events();
        assert_eq!(buffer.reclaim(u64::MAX).await.unwrap(), 60_000, "{fault:?}: in one go");
        swept(&buffer).await;
        let usage = buffer.usage();
        let [near, far] = [&usage.tiers[0], &usage.tiers[1]];
        let held = [near.entries, near.weight, near.encoded, near.stored, near.allocated, near.garbage];
        assert_eq!((held, near.in_flight, near.blobs), ([0; 6], 0, 0), "{fault:?}: {near:?}");
        assert_eq!((far.entries, far.stored, far.blobs), (3, 3 * frame(20_000), 1), "{fault:?}");
        assert_eq!((first.blobs().await.len(), first.faults.used()), (0, 0), "{fault:?}");
        assert_eq!((first.writes(), second.writes()), (1, 1), "{fault:?}");
        let told: Vec<_> = std::iter::from_fn(|| events.try_next()).collect();
        let is_failure =
            |event: &Event| matches!(event, Event::WriteFailed { tier, .. } if **tier == *"first");
        let is_spill =
            |event: &Event| matches!(event, Event::Spilled { tier, entries: 3, .. } if **tier == *"second");
        assert!(told.len() == 2 && is_failure(&told[0]) && is_spill(&told[1]), "{told:?}");
        for key in 0..3 {
            assert_eq!(buffer.location(&key), Some(Location::Tier("second".into())));
            assert_eq!(get(&buffer, key).await.unwrap(), noise(key, 20_000));
        }
        finish(buffer).await;
    }
}

fn insert(
    buffer: &Buffer,
    key: u64,
    len: usize,
) -> JoinHandle<Result<(), spill_buffer::InsertError<Vec<u8>>>> {
    let buffer = buffer.clone();
    tokio::spawn(async move { buffer.insert(key, noise(key, len)).await })
}

/// Those who wait, in the order in which they came: so many of them have come in by now.
async fn came_in<T>(waiting: &[JoinHandle<T>], expected: usize, why: &str) {
    sleep(MOMENT).await;
    let done: Vec<bool> = waiting.iter().map(JoinHandle::is_finished).collect();
    assert!(done.iter().enumerate().all(|(index, done)| *done == (index < expected)), "{why}: {done:?}");
}

#[tokio::test(start_paused = true)]
async fn f05_inserts_wait_in_line_until_there_is_room_or_their_time_is_over() {
    let wait = Duration::from_secs(600);
    let scripted = Scripted::new();
    let buffer = exact(300).exact(OnFull::Wait(wait)).tier(scripted.tier().max_spill(0)).build().unwrap();
    for key in 0..3 {
        buffer.insert(key, noise(key, 100)).await.unwrap();
    }
    let mut waiting = Vec::new();
    for (key, len) in [(10, 200), (11, 100), (12, 100), (13, 100), (14, 100)] {
        waiting.push(insert(&buffer, key, len));
        sleep(MOMENT).await;
    }
    came_in(&waiting, 0, "no room").await;
    assert!(buffer.remove(&0).unwrap());
    came_in(&waiting, 0, "enough for the second only, who does not jump the queue").await;
    assert!(buffer.remove(&1).unwrap());
    came_in(&waiting, 1, "room by removing").await;
    buffer.set_memory_limit(400);
    came_in(&waiting, 2, "a memory limit that was raised").await;
    assert!(buffer.set_max_spill(0, Some(2 * frame(100))));
    came_in(&waiting, 4, "a cap that was raised").await;
    scripted.faults.fail(Operation::Put, StoreErrorKind::Transient);
    assert!(buffer.set_max_spill(0, None));
    sleep(LONG).await;
    came_in(&waiting, 4, "a tier that fails").await;
    scripted.faults.heal();
    sleep(LONG).await;
    came_in(&waiting, 5, "a tier that heals").await;
    for task in waiting {
        task.await.unwrap().unwrap();
    }

    buffer.set_memory_limit(buffer.usage().memory.resident.weight);
    scripted.faults.fail(Operation::Put, StoreErrorKind::Transient);
    for len in [100, 401] {
        let (value, begun) = (Arc::new(noise(20, len)), Instant::now());
        let refused = buffer.insert(20, value.clone()).await.unwrap_err();
        assert!(Arc::ptr_eq(&refused.value, &value), "the value comes back");
        assert!(matches!(refused.error, Error::Full { .. }), "{refused}");
        assert_eq!(begun.elapsed().as_secs(), wait.as_secs());
        assert!(!buffer.contains_key(&20));
    }
    scripted.faults.heal();
    for key in [2, 10, 11, 12, 13, 14] {
        assert_eq!(get(&buffer, key).await.unwrap(), noise(key, if key == 10 { 200 } else { 100 }));
    }
    sleep(LONG).await;
    finish(buffer).await;
}

#[tokio::test(start_paused = true)]
async fn f06_with_reject_the_value_comes_back_at_once_with_what_to_do() {
    let begun = Instant::now();
    let tier = Scripted::new().tier().max_spill(frame(100) + 64);
    let buffer = exact(300).tier(tier).build().unwrap();
    for key in 0..4 {
        buffer.insert(key, noise(key, 100)).await.unwrap();
    }
    for (len, need) in [(100, frame(100)), (301, frame(301))] {
        let refused = buffer.insert(10, noise(10, len)).await.unwrap_err();
        assert_eq!(*refused.value, noise(10, len));
        assert_eq!(full(&refused.error), (need, frame(100), Some(frame(100) + 64)));
        assert!(refused.to_string().contains("raise `max_spill`"), "{refused}");
    }
    finish(buffer).await;

    let buffer = exact(300).build().unwrap();
    buffer.insert(0, noise(0, 250)).await.unwrap();
    let refused = buffer.insert(1, noise(1, 100)).await.unwrap_err();
    match &refused.error {
        Error::Full { resource: Resource::Memory, need, used, limit, .. } => {
            assert_eq!((*need, *used, *limit), (100, 250, Some(300)));
        }
        other => panic!("{other:?}"),
    }
    assert!(refused.to_string().contains("raise `memory.limit`"), "{refused}");
    let refused = buffer.insert(1, noise(1, 301)).await.unwrap_err();
    assert!(matches!(refused.error, Error::TooHeavy { weight: 301, limit: 300, .. }), "{refused}");
    finish(buffer).await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn f06_a_refusal_says_how_every_tier_stands_and_how_long_it_waited() {
    let (near, far) = (Scripted::new(), Scripted::new());
    let buffer = exact(300)
        .exact(OnFull::Wait(Duration::from_secs(90)))
        .tier(near.tier().name("near").max_spill(frame(100)))
        .tier(far.tier().name("far"))
        .build()
        .unwrap();
    put_away(&buffer, 0, noise(0, 100)).await;
    far.faults.fail(Operation::Put, StoreErrorKind::Denied);
    for key in 1..4 {
        buffer.insert(key, noise(key, 100)).await.unwrap();
    }
    let refused = buffer.insert(4, noise(4, 100)).await.unwrap_err();
    match &refused.error {
        Error::Full { tiers, waited, source: Some(source), .. } => {
            let stand: Vec<_> =
                tiers.iter().map(|tier| (tier.name.as_str(), tier.used, tier.limit, tier.failing)).collect();
            assert_eq!(stand, [("near", frame(100), Some(frame(100)), false), ("far", 0, None, true)]);
            assert_eq!((waited.as_secs(), source.kind()), (90, StoreErrorKind::Denied));
        }
        other => panic!("{other:?}"),
    }
    let text = refused.to_string();
    assert!(text.contains("no room in memory after 1m 30s"), "{text}");
    assert!(text.contains("(near: 192 B of 192 B used; far: 0 B used, failing)"), "{text}");
    far.faults.heal();
    sleep(LONG).await;
    finish(buffer).await;
}

/// Room returns by a cap that is raised, by a tier that heals, or by a limit that is raised.
#[tokio::test(start_paused = true)]
async fn f06_with_keep_it_stays_above_the_limit_and_drains_by_itself() {
    for way in 0..3 {
        let scripted = Scripted::new();
        let tier = scripted.tier().max_spill(if way == 1 { None } else { Some(0) });
        if way == 1 {
            scripted.faults.fail(Operation::Put, StoreErrorKind::NoSpace);
        }
        let buffer = exact(1000).exact(OnFull::Keep).tier(tier).build().unwrap();
        let pressure = buffer.pressure();
        for key in 0..30 {
            buffer.insert(key, noise(key, 100)).await.unwrap();
            let over = key >= 10;
            assert_eq!(*pressure.borrow() == Pressure::Paused, over, "after {key}");
        }
        assert_eq!(buffer.usage().memory.resident.weight, 3000);
        match way {
            0 => assert!(buffer.set_max_spill(0, None)),
            1 => scripted.faults.heal(),
            _ => buffer.set_memory_limit(3000),
        }
        sleep(LONG).await;
        let usage = buffer.usage();
        assert_eq!(usage.memory.resident.weight, if way == 2 { 3000 } else { 1000 }, "{way}");
        assert_eq!(*pressure.borrow(), Pressure::Normal, "{way}");
        for key in 0..30 {
            assert_eq!(get(&buffer, key).await.unwrap(), noise(key, 100));
        }
        swept(&buffer).await;
        assert_eq!(scripted.memory.list(None, 100).await.unwrap().len() as u64, buffer.usage().total().blobs);
        finish(buffer).await;
    }
}
