//! Rules F07 to F10: tiers that fail, and what must not come of it. Those that are full are in `rules_f`.

use std::{collections::BTreeSet, time::Duration};

use spill_buffer::{
    Error, Event, Location, OnFull, Pressure, Share, StoreErrorKind, TierSpec,
    fs::{FsOptions, FsStore},
};
use spill_conformance::{Fault, Operation};
use tokio::time::{Instant, sleep};

use crate::harness::*;

const SECOND: Duration = Duration::from_secs(1);
/// Longer than the longest back-off.
const LONG: Duration = Duration::from_secs(61);

#[tokio::test(start_paused = true)]
async fn f07_tries_are_bounded_and_everything_drains_when_the_tier_heals() {
    let scripted = Scripted::new();
    let waiting = OnFull::Wait(Duration::from_secs(3600));
    let buffer = exact(1000).exact(waiting).tier(scripted.tier()).build().unwrap();
    let mut events = buffer.events();
    scripted.faults.fail(Operation::Put, StoreErrorKind::Transient);
    // Light ones, which wait for memory, and heavy ones, which wait for the tier.
    let inserts: Vec<_> = (0..100)
        .map(|key| {
            let buffer = buffer.clone();
            tokio::spawn(async move {
                buffer.insert(key, noise(key, if key % 10 == 9 { 2000 } else { 100 })).await
            })
        })
        .collect();
    let mut before = 0;
    for second in 0..600 {
        // Whoever calls is no reason to try more often.
        let _ = buffer.evict_one().await;
        let _ = buffer.reclaim(1).await;
        sleep(SECOND).await;
        let tries = scripted.writes() - before;
        before = scripted.writes();
        // Some at the beginning, from everybody who could not know yet.
        let most = match second {
            0 => 40,
            1..10 => 12,
            _ => 4,
        };
        assert!(tries <= most, "{tries} tries in second {second}");
    }
    assert!(before >= 20, "{before}: it is tried again and again");
    let waits: Vec<Duration> = std::iter::from_fn(|| events.try_next())
        .filter_map(|event| match event {
            Event::WriteFailed { retry_in, .. } => Some(retry_in),
            _ => None,
        })
        .collect();
    let longest: Vec<_> = waits.iter().rev().take(10).collect();
    let spread: BTreeSet<_> = longest.iter().collect();
    assert!(longest.iter().all(|wait| **wait <= 30 * SECOND && **wait >= 22 * SECOND), "{longest:?}");
    assert!(spread.len() >= 9, "left to chance: {longest:?}");
    assert_eq!(*buffer.pressure().borrow(), Pressure::Paused);

    scripted.faults.heal();
    for insert in inserts {
        insert.await.unwrap().unwrap();
    }
    settled(&buffer).await;
    assert_eq!(*buffer.pressure().borrow(), Pressure::Normal);
    assert!(buffer.usage().memory.resident.weight <= 1000);
    let healed =
        std::iter::from_fn(|| events.try_next()).filter(|event| matches!(event, Event::TierHealed { .. }));
    assert_eq!(healed.count(), 1);
    for key in 0..100 {
        assert_eq!(get(&buffer, key).await.unwrap(), noise(key, if key % 10 == 9 { 2000 } else { 100 }));
    }
    finish(buffer).await;
}

/// Two buffers whose tiers failed at the same moment do not try again at the same moments.
#[tokio::test(start_paused = true)]
async fn f07_two_buffers_that_failed_together_do_not_try_together() {
    let mut waits = Vec::new();
    for _ in 0..2 {
        let scripted = Scripted::new();
        let buffer = exact(300).tier(scripted.tier()).build().unwrap();
        let mut events = buffer.events();
        scripted.faults.fail(Operation::Put, StoreErrorKind::Transient);
        buffer.insert(0, noise(0, 100)).await.unwrap();
        let mut of_this = Vec::new();
        for _ in 0..8 {
            sleep(LONG).await;
            buffer.spill(&0).await.unwrap_err();
            match events.try_next() {
                Some(Event::WriteFailed { retry_in, .. }) => of_this.push(retry_in),
                other => panic!("{other:?}"),
            }
        }
        waits.push(of_this);
        scripted.faults.heal();
        finish(buffer).await;
    }
    let same = waits[0].iter().zip(&waits[1]).filter(|(one, other)| one == other).count();
    assert!(same <= 2, "{waits:?}");
}

#[tokio::test(start_paused = true)]
async fn f08_a_get_never_fails_because_another_key_can_not_leave() {
    use StoreErrorKind::{Corrupt, Denied, NoSpace, Other, Transient};
    for on_full in [OnFull::Reject, OnFull::Keep, OnFull::Wait(Duration::from_secs(600))] {
        for kind in [NoSpace, Transient, Denied, Corrupt, Other] {
            let scripted = Scripted::new();
            let buffer = exact(300).exact(on_full).tier(scripted.tier()).build().unwrap();
            for key in 0..6 {
                buffer.insert(key, noise(key, 100)).await.unwrap();
            }
            settled(&buffer).await;
            scripted.faults.fail(Operation::Put, kind);
            let begun = Instant::now();
            for _ in 0..2 {
                for key in 0..6 {
                    assert_eq!(get(&buffer, key).await.unwrap(), noise(key, 100), "{on_full}, {kind}");
                }
                let keys: Vec<u64> = (0..6).collect();
                for (key, answer) in (0..).zip(buffer.get_many(&keys).await) {
                    assert_eq!(*answer.unwrap().unwrap(), noise(key, 100), "{on_full}, {kind}");
                }
            }
            assert!(begun.elapsed() < SECOND, "nobody waits for a tier that fails: {:?}", begun.elapsed());
            assert!(buffer.usage().memory.resident.weight <= 300);
            assert_eq!(*buffer.take(&0).await.unwrap().unwrap(), noise(0, 100));
            scripted.faults.heal();
            sleep(LONG).await;
            finish(buffer).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn f09_what_can_not_be_deleted_is_counted_and_tried_again_and_harms_nobody() {
    for fault in [
        Fault::new(StoreErrorKind::Other),
        Fault::new(StoreErrorKind::Denied),
        Fault::new(StoreErrorKind::Transient).after_effect(),
    ] {
        let scripted = Scripted::new();
        let buffer = exact(1000).tier(scripted.tier().max_spill(10 * frame(100))).build().unwrap();
        for key in 0..6 {
            put_away(&buffer, key, noise(key, 100)).await;
        }
        scripted.faults.fail(Operation::Delete, fault.clone());
        let mut events = buffer.events();
        assert!(buffer.remove(&0).unwrap());
        buffer.insert(1, noise(11, 100)).await.unwrap();
        assert_eq!(*buffer.take(&2).await.unwrap().unwrap(), noise(2, 100));
        sleep(SECOND).await;
        let garbage = |buffer: &Buffer| buffer.usage().tiers[0].garbage;
        assert_eq!((garbage(&buffer), buffer.usage().tiers[0].stored), (3 * frame(100), 3 * frame(100)));
        let told = std::iter::from_fn(|| events.try_next());
        assert!(told.filter(|event| matches!(event, Event::DeleteFailed { .. })).count() >= 1);

        // It takes room, and nothing else: what there is room for goes out and comes back.
        for key in 20..23 {
            put_away(&buffer, key, noise(key, 100)).await;
        }
        assert!(buffer.spill(&1).await.unwrap());
        buffer.insert(30, noise(30, 100)).await.unwrap();
        assert!(matches!(buffer.spill(&30).await, Err(Error::Full { .. })), "garbage counts");
        for (key, seed) in [(1, 11), (3, 3), (4, 4), (5, 5), (20, 20), (21, 21), (22, 22), (30, 30)] {
            assert_eq!(get(&buffer, key).await.unwrap(), noise(seed, 100), "{fault:?}");
        }
        for gone in [0, 2] {
            assert!(!buffer.contains_key(&gone) && get(&buffer, gone).await.is_none(), "{fault:?}");
        }
        let before = scripted.faults.counts(Operation::Delete).started;
        sleep(600 * SECOND).await;
        let tries = scripted.faults.counts(Operation::Delete).started - before;
        assert!((15..=60).contains(&tries), "{tries} tries in ten minutes");
        assert_eq!(garbage(&buffer), 3 * frame(100), "counted all the time");

        scripted.faults.heal();
        sleep(LONG).await;
        assert_eq!(garbage(&buffer), 0);
        assert!(buffer.spill(&30).await.unwrap());
        assert_eq!(scripted.blobs().await.len() as u64, buffer.usage().tiers[0].blobs);
        for gone in [0, 2] {
            assert!(get(&buffer, gone).await.is_none());
        }
        finish(buffer).await;
    }
}

/// A delete that hangs: nobody waits for it.
#[tokio::test(start_paused = true)]
async fn f09_nothing_waits_for_a_delete_that_hangs() {
    let scripted = Scripted::new();
    let buffer = exact(1000).tier(scripted.tier()).build().unwrap();
    put_away(&buffer, 0, noise(0, 100)).await;
    put_away(&buffer, 1, noise(1, 100)).await;
    let gate = scripted.faults.hold(Operation::Delete);
    assert!(buffer.remove(&0).unwrap());
    gate.held(1).await;
    let begun = Instant::now();
    assert_eq!(get(&buffer, 1).await.unwrap(), noise(1, 100));
    put_away(&buffer, 0, noise(2, 100)).await;
    assert_eq!(get(&buffer, 0).await.unwrap(), noise(2, 100));
    assert!(buffer.remove(&1).unwrap());
    assert_eq!(begun.elapsed(), Duration::ZERO);
    gate.release();
    swept(&buffer).await;
    assert_eq!(get(&buffer, 0).await.unwrap(), noise(2, 100));
    finish(buffer).await;
}

/// A file system can't be asked to keep all of itself free: so every blob is refused, however large the cap.
#[tokio::test]
async fn f10_a_tier_refuses_what_would_take_the_file_systems_reserve() {
    let root = tempfile::tempdir().unwrap();
    let far = Scripted::new();
    let options = FsOptions::new(root.path()).allow_tmpfs(true).reserve_free(Share::WHOLE);
    let near = FsStore::open(options).await.unwrap();
    let directory = near.directory().to_owned();
    let buffer = exact(300)
        .tier(TierSpec::new(near).name("near").max_spill(1 << 40))
        .tier(far.tier().name("far"))
        .build()
        .unwrap();
    let mut events = buffer.events();
    for key in 0..6 {
        buffer.insert(key, noise(key, 100)).await.unwrap();
    }
    swept(&buffer).await;
    match events.next().await.unwrap() {
        Event::WriteFailed { tier, error, .. } => {
            assert_eq!((&*tier, error.kind()), ("near", StoreErrorKind::NoSpace));
            assert!(error.to_string().contains("`reserve_free` = 100%"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(buffer.location(&0), Some(Location::Tier("far".into())));
    let near = buffer.usage().tiers[0].clone();
    assert_eq!((near.entries, near.stored, near.allocated, near.garbage, near.blobs), (0, 0, 0, 0, 0));
    let files = |directory: &std::path::Path| {
        let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name != "lock").count()
    };
    assert_eq!(files(&directory), 0);
    finish(buffer).await;
}

/// With nowhere else to go it stays in memory; where the reserve is not touched, it goes.
#[tokio::test]
async fn f10_what_is_refused_for_the_reserve_stays_in_memory() {
    for (reserve, taken) in [(Share::WHOLE, false), (Share::thousandths(0).unwrap(), true)] {
        let root = tempfile::tempdir().unwrap();
        let options = FsOptions::new(root.path()).allow_tmpfs(true).reserve_free(reserve);
        let tier = TierSpec::new(FsStore::open(options).await.unwrap());
        let buffer = exact(300).tier(tier).build().unwrap();
        buffer.insert(0, noise(0, 100)).await.unwrap();
        match buffer.spill(&0).await {
            Ok(moved) => assert!(taken && moved),
            Err(Error::Full { source: Some(source), .. }) => {
                assert!(!taken && source.kind() == StoreErrorKind::NoSpace, "{source}");
            }
            Err(other) => panic!("{other:?}"),
        }
        assert_eq!(buffer.peek(&0).is_some(), !taken);
        assert_eq!(get(&buffer, 0).await.unwrap(), noise(0, 100));
        finish(buffer).await;
    }
}
