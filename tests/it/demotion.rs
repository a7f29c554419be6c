//! A tier that runs short moves its coldest blobs to the next one that takes them.

use std::time::Duration;

use spill_buffer::{
    BuildError, Error, Event, Location, OnFull, Share, StoreErrorKind, TierSpec, compress::Lz4,
    compress::Zstd,
};
use spill_conformance::{Calls, Damage, Fault, Operation};
use tokio::time::{Instant, sleep};

use crate::harness::*;

const MOMENT: Duration = Duration::from_millis(10);
/// Longer than the longest back-off.
const LONG: Duration = Duration::from_secs(61);
const ONE: u64 = frame(100);
/// Sixteen frames. With three quarters to begin at, more than twelve are too many, and eleven are left.
const CAP: u64 = 16 * ONE;

fn share(thousandths: u16) -> Share {
    Share::thousandths(thousandths).unwrap()
}

fn two_tiers(near: &Scripted, far: &Scripted) -> Buffer {
    exact(100_000)
        .tier(near.tier().name("near").max_spill(CAP).demote_at(share(750)))
        .tier(far.tier().name("far"))
        .build()
        .unwrap()
}

fn counts(buffer: &Buffer) -> (u64, u64) {
    let usage = buffer.usage();
    (usage.tiers[0].entries, usage.tiers[1].entries)
}

fn tier_of(buffer: &Buffer, key: u64) -> String {
    match buffer.location(&key) {
        Some(Location::Tier(name)) => name,
        other => panic!("{other:?}"),
    }
}

async fn all_there(buffer: &Buffer, keys: impl Iterator<Item = u64>) {
    for key in keys {
        assert_eq!(get(buffer, key).await.unwrap(), noise(key, 100), "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn demotion_moves_the_coldest_on_and_entries_follow() {
    let (near, far) = (Scripted::new(), Scripted::new());
    let buffer = two_tiers(&near, &far);
    let mut events = buffer.events();
    for key in 0..12 {
        put_away(&buffer, key, noise(key, 100)).await;
    }
    sleep(LONG).await;
    assert_eq!(counts(&buffer), (12, 0), "at the share nothing moves");
    put_away(&buffer, 12, noise(12, 100)).await;
    sleep(MOMENT).await;
    assert_eq!(counts(&buffer), (11, 2), "a little below it, moving ends");
    assert_eq!(
        (tier_of(&buffer, 0), tier_of(&buffer, 1), tier_of(&buffer, 2)),
        ("far".into(), "far".into(), "near".into())
    );
    let usage = buffer.usage();
    assert_eq!((usage.tiers[0].stored, usage.tiers[0].garbage), (11 * ONE, 0));
    assert_eq!(
        (usage.tiers[1].stored, usage.tiers[1].garbage, usage.tiers[1].blobs),
        (2 * ONE, 0, 1),
        "one write"
    );
    assert_eq!((usage.tiers[0].weight, usage.tiers[1].weight), (1100, 200));
    let demoted =
        std::iter::from_fn(|| events.try_next()).find(|event| matches!(event, Event::Demoted { .. }));
    match demoted.unwrap() {
        Event::Demoted { from, to, entries, bytes } => {
            assert_eq!((&*from, &*to, entries, bytes), ("near", "far", 2, 2 * ONE));
        }
        other => panic!("{other:?}"),
    }
    let stats = buffer.stats();
    assert_eq!((stats.entries_demoted, stats.bytes_demoted), (2, 2 * ONE));
    assert_eq!(stats.entries_spilled, 13, "it is no spill");

    // It goes on for ever, and what is new is always near.
    for key in 13..200 {
        put_away(&buffer, key, noise(key, 100)).await;
        assert_eq!(tier_of(&buffer, key), "near");
        sleep(MOMENT).await;
    }
    balanced(&buffer).await;
    all_there(&buffer, 0..200).await;
    for key in 0..200 {
        assert!(buffer.remove(&key).unwrap());
    }
    swept(&buffer).await;
    assert_eq!((near.blobs().await, far.blobs().await), (vec![], vec![]));
    finish(buffer).await;
}

/// What was read is in memory again; its copy is given up rather than moved, and is the youngest when it leaves.
#[tokio::test(start_paused = true)]
async fn demotion_gives_up_second_copies_and_leaves_what_is_hot() {
    let (near, far) = (Scripted::new(), Scripted::new());
    let buffer = two_tiers(&near, &far);
    for key in 0..12 {
        put_away(&buffer, key, noise(key, 100)).await;
    }
    assert_eq!(get(&buffer, 0).await.unwrap(), noise(0, 100));
    assert_eq!(buffer.location(&0), Some(Location::Both("near".into())));
    put_away(&buffer, 12, noise(12, 100)).await;
    sleep(MOMENT).await;
    assert_eq!(buffer.location(&0), Some(Location::Memory));
    assert_eq!((tier_of(&buffer, 1), counts(&buffer)), ("far".into(), (11, 1)));
    assert!(buffer.spill(&0).await.unwrap());
    assert_eq!(tier_of(&buffer, 0), "near");
    all_there(&buffer, 0..13).await;
    finish(buffer).await;
}

/// Off unless it is asked for: the first tier fills up, and what is new goes to the next.
#[tokio::test(start_paused = true)]
async fn demotion_is_off_by_default() {
    let (near, far) = (Scripted::new(), Scripted::new());
    let buffer = exact(100_000)
        .tier(near.tier().name("near").max_spill(CAP))
        .tier(far.tier().name("far"))
        .build()
        .unwrap();
    for key in 0..20 {
        put_away(&buffer, key, noise(key, 100)).await;
    }
    sleep(LONG).await;
    assert_eq!((counts(&buffer), buffer.stats().entries_demoted), ((16, 4), 0));
    finish(buffer).await;
}

#[tokio::test(start_paused = true)]
async fn demotion_to_a_tier_that_fails_waits_and_the_source_stays_full() {
    for fault in [Fault::new(StoreErrorKind::NoSpace), Fault::new(StoreErrorKind::Transient).after_effect()] {
        let (near, far) = (Scripted::new(), Scripted::new());
        let buffer = two_tiers(&near, &far);
        far.faults.fail(Operation::Put, fault);
        for key in 0..16 {
            put_away(&buffer, key, noise(key, 100)).await;
        }
        buffer.insert(16, noise(16, 100)).await.unwrap();
        assert!(matches!(buffer.spill(&16).await, Err(Error::Full { .. })), "both are full or failing");
        let before = far.writes();
        sleep(Duration::from_secs(600)).await;
        let tries = far.writes() - before;
        assert!((10..60).contains(&tries), "{tries} tries in ten minutes");
        assert_eq!(counts(&buffer), (16, 0));
        assert_eq!(buffer.usage().tiers[1].stored, 0);
        far.faults.heal();
        sleep(LONG).await;
        assert_eq!(counts(&buffer), (11, 5));
        swept(&buffer).await;
        assert_eq!(far.faults.used(), 5 * ONE, "nothing of the failed tries is left");
        assert!(buffer.spill(&16).await.unwrap());
        all_there(&buffer, 0..17).await;
        finish(buffer).await;
    }
}

/// The write to the target hangs: removing, reading and spilling go on, and each sees its own.
#[tokio::test(start_paused = true)]
async fn demotion_that_hangs_holds_up_nobody() {
    let (near, far) = (Scripted::new(), Scripted::new());
    let buffer = two_tiers(&near, &far);
    let gate = far.faults.hold(Operation::Put);
    for key in 0..13 {
        put_away(&buffer, key, noise(key, 100)).await;
    }
    gate.held(1).await;
    let begun = Instant::now();
    let usage = buffer.usage();
    assert_eq!(
        (usage.tiers[0].stored, usage.tiers[1].in_flight),
        (13 * ONE, 2 * ONE),
        "reserved, and still here"
    );
    // 0 and 1 are on their way.
    assert_eq!(get(&buffer, 1).await.unwrap(), noise(1, 100));
    assert!(buffer.remove(&0).unwrap());
    buffer.insert(0, noise(50, 100)).await.unwrap();
    assert!(buffer.spill(&0).await.unwrap());
    for key in 2..13 {
        assert_eq!(get(&buffer, key).await.unwrap(), noise(key, 100));
        assert!(buffer.spill(&key).await.unwrap());
    }
    assert!(buffer.remove(&12).unwrap());
    put_away(&buffer, 13, noise(13, 100)).await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
    gate.release();
    sleep(MOMENT).await;
    balanced(&buffer).await;
    assert_eq!(buffer.usage().total().garbage, ONE, "what was removed on its way, in a blob with another");
    assert_eq!(get(&buffer, 0).await.unwrap(), noise(50, 100));
    assert_eq!(get(&buffer, 12).await, None);
    all_there(&buffer, (1..12).chain([13])).await;
    finish(buffer).await;
}

/// A read that has begun when its blob moves on gets its bytes; one that begins after finds them in their new place.
#[tokio::test(start_paused = true)]
async fn demotion_of_what_is_being_read_waits_for_the_reader() {
    let (near, far) = (Scripted::new(), Scripted::new());
    let buffer = two_tiers(&near, &far);
    for key in 0..12 {
        put_away(&buffer, key, noise(key, 100)).await;
    }
    let gate = near.faults.hold(Operation::Get);
    let read = tokio::spawn({
        let buffer = buffer.clone();
        async move { get(&buffer, 0).await }
    });
    gate.held(1).await;
    put_away(&buffer, 12, noise(12, 100)).await;
    gate.held(2).await; // the demotion reads, too: 1 and 2, as 0 is in use
    gate.release();
    assert_eq!(read.await.unwrap().unwrap(), noise(0, 100));
    sleep(MOMENT).await;
    assert_eq!((tier_of(&buffer, 1), tier_of(&buffer, 2)), ("far".into(), "far".into()));
    assert_eq!(buffer.location(&0), Some(Location::Both("near".into())));
    balanced(&buffer).await;
    all_there(&buffer, 0..13).await;
    finish(buffer).await;
}

/// A damaged blob stays where it is, and is no reason not to move others.
#[tokio::test(start_paused = true)]
async fn demotion_leaves_what_is_damaged() {
    let (near, far) = (Scripted::new(), Scripted::new());
    let buffer = two_tiers(&near, &far);
    for key in 0..12 {
        put_away(&buffer, key, noise(key, 100)).await;
    }
    let first = near.blobs().await[0].id;
    near.memory.tamper(first, |mut bytes| {
        bytes[100] ^= 1;
        Some(bytes)
    });
    near.faults.damage(Calls::of(Operation::Get).blob(first), Damage::FlipBit(9));
    put_away(&buffer, 12, noise(12, 100)).await;
    sleep(LONG).await;
    assert_eq!((tier_of(&buffer, 0), tier_of(&buffer, 1)), ("near".into(), "far".into()));
    assert_eq!(counts(&buffer), (11, 2));
    assert!(matches!(buffer.get(&0).await, Err(Error::Corrupt { .. })));
    near.faults.heal();
    assert!(buffer.remove(&0).unwrap());
    all_there(&buffer, 1..13).await;
    finish(buffer).await;
}

/// Three tiers, each moving on to the next; frames keep the compressor they were written with.
#[tokio::test(start_paused = true)]
async fn demotion_goes_on_from_tier_to_tier() {
    let scripts = [Scripted::new(), Scripted::new(), Scripted::new()];
    let value = |key: u64| vec![u8::try_from(key % 256).unwrap(); 4000];
    let near = TierSpec::new(scripts[0].store()).batch_entries(2).compress(Lz4);
    let middle = TierSpec::new(scripts[1].store()).batch_entries(3).compress(Zstd::default());
    let buffer = exact(4000)
        .tier(near.name("near").max_spill(2000).demote_at(share(500)))
        .tier(middle.name("middle").max_spill(4000).demote_at(share(500)))
        .tier(TierSpec::new(scripts[2].store()).name("far"))
        .build()
        .unwrap();
    for key in 0..100 {
        buffer.insert(key, value(key)).await.unwrap();
        sleep(MOMENT).await;
    }
    settled(&buffer).await;
    let usage = buffer.usage();
    assert!(usage.tiers[0].stored <= 1000 && usage.tiers[1].stored <= 2000, "{usage:#?}");
    assert!(usage.tiers[2].entries > 50, "{usage:#?}");
    balanced(&buffer).await;
    for key in 0..100 {
        assert_eq!(get(&buffer, key).await.unwrap(), value(key));
    }
    finish(buffer).await;
}

/// Those who wait for room get what moving on makes.
#[tokio::test(start_paused = true)]
async fn demotion_makes_room_for_those_who_wait() {
    let (near, far) = (Scripted::new(), Scripted::new());
    let waiting = OnFull::Wait(Duration::from_secs(3600));
    let buffer = exact(300)
        .exact(waiting)
        .tier(near.tier().name("near").max_spill(CAP).demote_at(share(750)))
        .tier(far.tier().name("far").max_spill(4 * ONE))
        .build()
        .unwrap();
    let inserts: Vec<_> = (0..60)
        .map(|key| {
            let buffer = buffer.clone();
            tokio::spawn(async move { buffer.insert(key, noise(key, 100)).await })
        })
        .collect();
    sleep(LONG).await;
    assert_eq!(buffer.len(), 3 + 16 + 4, "all full");
    assert!(buffer.set_max_spill(1, None));
    for insert in inserts {
        insert.await.unwrap().unwrap();
    }
    sleep(LONG).await;
    let (near_entries, far_entries) = counts(&buffer);
    assert!(near_entries <= 12 && near_entries + far_entries == 57, "{near_entries} and {far_entries}");
    all_there(&buffer, 0..60).await;
    finish(buffer).await;
}

/// A tier that fails in everything, its deletes too, kept those behind it from being tried.
#[tokio::test(start_paused = true)]
async fn demotion_passes_a_tier_that_fails() {
    let (near, middle, far) = (Scripted::new(), Scripted::new(), Scripted::new());
    let buffer = exact(100_000)
        .tier(near.tier().name("near").max_spill(CAP).demote_at(share(750)))
        .tier(middle.tier().name("middle"))
        .tier(far.tier().name("far"))
        .build()
        .unwrap();
    middle.faults.fail(Operation::Put, StoreErrorKind::Transient);
    middle.faults.fail(Operation::Delete, StoreErrorKind::Transient);
    for key in 0..13 {
        put_away(&buffer, key, noise(key, 100)).await;
    }
    sleep(10 * LONG).await;
    assert_eq!((tier_of(&buffer, 0), tier_of(&buffer, 1), tier_of(&buffer, 2)), {
        ("far".into(), "far".into(), "near".into())
    });
    assert!(middle.writes() < 10, "{} writes in vain", middle.writes());
    middle.faults.heal();
    sleep(LONG).await;
    all_there(&buffer, 0..13).await;
    finish(buffer).await;
}

/// The oldest blob was longer than any tier behind may hold, and kept all others from being moved.
#[tokio::test(start_paused = true)]
async fn demotion_leaves_what_no_tier_can_ever_take() {
    let (near, far) = (Scripted::new(), Scripted::new());
    let buffer = exact(100_000)
        .tier(near.tier().name("near").max_spill(CAP).demote_at(share(750)))
        .tier(far.tier().name("far").max_spill(4 * ONE))
        .build()
        .unwrap();
    put_away(&buffer, 0, noise(0, 896)).await;
    assert_eq!(buffer.usage().tiers[0].stored, 5 * ONE);
    for key in 1..9 {
        put_away(&buffer, key, noise(key, 100)).await;
    }
    sleep(LONG).await;
    assert_eq!((tier_of(&buffer, 0), tier_of(&buffer, 1), tier_of(&buffer, 2)), {
        ("near".into(), "far".into(), "far".into())
    });
    // With a larger cap it is the oldest again.
    assert!(buffer.set_max_spill(1, Some(100 * ONE)));
    put_away(&buffer, 9, noise(9, 100)).await;
    put_away(&buffer, 10, noise(10, 100)).await;
    sleep(LONG).await;
    assert_eq!(tier_of(&buffer, 0), "far");
    finish(buffer).await;
}

/// A blob that was to be moved can't be compacted meanwhile; when it stayed, nobody tried again.
#[tokio::test(start_paused = true)]
async fn demotion_that_failed_leaves_blobs_to_be_compacted() {
    let (near, far) = (Scripted::new(), Scripted::new());
    let pairs = TierSpec::new(near.store()).batch_entries(2);
    let buffer = exact(100_000)
        .tier(pairs.name("near").max_spill(CAP).demote_at(share(750)))
        .tier(far.tier().name("far"))
        .build()
        .unwrap();
    let gate = far.faults.hold(Operation::Put);
    far.faults.fail(Operation::Put, StoreErrorKind::NoSpace);
    for pair in 0..7 {
        for key in [2 * pair, 2 * pair + 1] {
            buffer.insert(key, noise(key, 100)).await.unwrap();
        }
        assert_eq!(buffer.reclaim(200).await.unwrap(), 200);
    }
    gate.held(1).await;
    // Half of the oldest blob is garbage. With that room for three frames could be made, but not while it is moved.
    assert!(buffer.remove(&0).unwrap());
    buffer.insert(50, noise(50, 512)).await.unwrap();
    let spill = tokio::spawn({
        let buffer = buffer.clone();
        async move { buffer.spill(&50).await }
    });
    gate.held(2).await;
    gate.release();
    assert!(matches!(spill.await.unwrap(), Err(Error::Full { .. })));
    assert!(buffer.spill(&50).await.unwrap());
    assert_eq!(tier_of(&buffer, 50), "near");
    far.faults.heal();
    sleep(LONG).await;
    all_there(&buffer, 1..14).await;
    finish(buffer).await;
}

#[tokio::test]
async fn demotion_is_refused_where_it_makes_no_sense() {
    let near = || Scripted::new().tier().name("near");
    let far = || Scripted::new().tier().name("far");
    let last = exact(100).tier(near()).tier(far().max_spill(10).demote_at(share(900))).build();
    assert!(matches!(last.unwrap_err(), BuildError::Demotion { tier, .. } if tier == "far"));
    let no_cap = exact(100).tier(near().demote_at(share(900))).tier(far()).build().unwrap_err();
    assert_eq!(
        no_cap.to_string(),
        "tier \"near\" can't demote: it has no cap; set `max_spill`, or remove `demote_at`"
    );
}
