//! Inputs that broke other systems: stores that are slow, full or raced for. The cases 2, 3, 9, 11 and 20.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use spill_buffer::{
    ByteLength, BytesCodec, Error, Event, Location, OnFull, Pressure, StoreErrorKind, TierSpec,
    config::Config, policies::Lru,
};
use spill_conformance::Operation;
use tokio::time::{Instant, sleep};

use crate::harness::*;

const SECOND: Duration = Duration::from_secs(1);
/// Longer than the longest back-off.
const LONG: Duration = Duration::from_secs(61);

/// ray 25467: one slow write holds up no delete.
#[tokio::test(start_paused = true)]
async fn case_02_a_slow_write_does_not_hold_up_deleting() {
    const KEYS: u64 = 10_000;
    let scripted = Scripted::new();
    let buffer = exact(10_000_000).tier(TierSpec::new(scripted.store())).build().unwrap();
    for key in 0..KEYS {
        buffer.insert(key, noise(key, 100)).await.unwrap();
    }
    assert_eq!(buffer.reclaim(u64::MAX).await.unwrap(), KEYS * 100);
    assert_eq!(buffer.usage().total().stored, KEYS * frame(100));
    scripted.faults.delay(Operation::Put, 10 * SECOND);
    buffer.insert(KEYS, noise(KEYS, 100)).await.unwrap();
    let begun = Instant::now();
    let spill = tokio::spawn({
        let buffer = buffer.clone();
        async move { buffer.spill(&KEYS).await }
    });
    while buffer.usage().total().in_flight == 0 {
        tokio::task::yield_now().await;
    }
    for key in 0..=KEYS {
        assert!(buffer.remove(&key).unwrap());
    }
    sleep(SECOND).await;
    let total = buffer.usage().total();
    assert_eq!((total.stored, total.garbage, total.in_flight), (0, 0, frame(100)), "that one write");
    assert_eq!(scripted.blobs().await, []);
    spill.await.unwrap().unwrap();
    assert!(begun.elapsed() >= 10 * SECOND);
    swept(&buffer).await;
    finish(buffer).await;
}

/// Inserts without end, each waiting as long as the buffer lets it; how many were refused.
fn load(buffer: &Buffer, stop: &Arc<AtomicBool>) -> Vec<tokio::task::JoinHandle<(Vec<u64>, u64)>> {
    (0..8)
        .map(|writer| {
            let (buffer, stop) = (buffer.clone(), stop.clone());
            tokio::spawn(async move {
                let (mut taken, mut refused) = (Vec::new(), 0);
                for key in (writer..).step_by(8) {
                    if stop.load(SeqCst) {
                        break;
                    }
                    match buffer.insert(key, noise(key, 100)).await {
                        Ok(()) => taken.push(key),
                        Err(error) => {
                            assert!(matches!(error.error, Error::Full { .. }), "{error}");
                            refused += 1;
                        }
                    }
                    sleep(SECOND / 10).await;
                }
                (taken, refused)
            })
        })
        .collect()
}

/// ray 17017: no space for a minute, under load.
#[tokio::test(start_paused = true)]
async fn case_03_a_minute_without_space() {
    for on_full in [OnFull::Wait(2 * SECOND), OnFull::Wait(3600 * SECOND), OnFull::Reject] {
        let (log, _guard) = Log::start();
        let scripted = Scripted::new();
        let buffer = exact(2000).exact(on_full).tier(scripted.tier()).build().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let writers = load(&buffer, &stop);
        sleep(5 * SECOND).await;
        let spilled = buffer.usage().spilled.entries;
        assert!(spilled > 100, "{spilled}");
        scripted.faults.fail(Operation::Put, StoreErrorKind::NoSpace);
        let mut before = scripted.writes();
        for second in 0..60 {
            sleep(SECOND).await;
            let tries = scripted.writes() - before;
            before = scripted.writes();
            let most = if second < 10 { 16 } else { 4 };
            assert!(tries <= most, "{on_full}: {tries} tries in second {second}");
        }
        assert_eq!(*buffer.pressure().borrow(), Pressure::Paused);
        for text in ["a tier does not take what is spilled", "memory is full and no tier takes anything"] {
            let lines = log.lines(text);
            assert!((1..=7).contains(&lines), "{on_full}: {lines} lines {text:?} in a minute");
        }
        scripted.faults.heal();
        sleep(LONG).await;
        stop.store(true, SeqCst);
        let (mut taken, mut refused) = (Vec::new(), 0);
        for writer in writers {
            let (keys, times) = writer.await.unwrap();
            taken.extend(keys);
            refused += times;
        }
        assert_eq!(refused > 0, on_full != OnFull::Wait(3600 * SECOND), "{on_full}: {refused} refused");
        settled(&buffer).await;
        assert_eq!(*buffer.pressure().borrow(), Pressure::Normal);
        assert!(buffer.usage().spilled.entries > spilled, "it drains");
        assert_eq!(buffer.len(), taken.len() as u64);
        for key in taken {
            assert_eq!(get(&buffer, key).await.unwrap(), noise(key, 100));
        }
        finish(buffer).await;
    }
}

/// systing 241: the cap by TOML and by environment; by builder and by setter it is in `cases_insert`.
#[tokio::test]
async fn case_09_the_cap_that_was_configured_is_the_cap_in_effect() {
    for cap in [0, 191, 192, 575, 576, 577] {
        let text = |cap: u64| {
            format!(
                "[memory]\nlimit = 300\n[[tier]]\nstore = \"memory:\"\nbatch_entries = 1\nmax_spill = {cap}"
            )
        };
        let by_file = Config::from_toml(&text(cap), "spill.toml").unwrap();
        let variable = ("SPILL_TIER_0_MAX_SPILL".to_owned(), cap.to_string());
        let by_environment = Config::from_toml(&text(1 << 30), "spill.toml").unwrap().with_env([variable]);
        let mut by_code = Config::from_toml(&text(1 << 30), "spill.toml").unwrap();
        by_code.tiers[0].max_spill = Some(cap);
        for (way, config) in [("file", by_file), ("environment", by_environment.unwrap()), ("code", by_code)]
        {
            let builder = spill_buffer::open::<u64, Vec<u8>>(&config).await.unwrap();
            let builder = builder.exact(OnFull::Reject).policy(Lru::default());
            let buffer = builder.codec(BytesCodec).weigher(ByteLength).build().unwrap();
            assert_eq!(buffer.usage().tiers[0].max_spill, Some(cap), "{way}");
            let mut taken = 0;
            while buffer.insert(taken, noise(taken, 100)).await.is_ok() {
                taken += 1;
            }
            assert_eq!(taken, 3 + cap / 192, "{way} of {cap}");
            assert_eq!(buffer.usage().total().stored, cap / 192 * 192, "{way} of {cap}");
            finish(buffer).await;
        }
    }
}

/// starrocks 79458, celeborn 3469: a store that runs out of space in the middle of a value. The same with real
/// files is in `processes`.
#[tokio::test(start_paused = true)]
async fn case_11_what_breaks_off_in_the_first_tier_is_whole_in_the_second() {
    const VALUE: usize = 4 << 20;
    let (first, second) = (Scripted::new(), Scripted::new());
    let buffer = exact(16 << 20)
        .tier(first.tier().name("first").max_spill(64 << 20))
        .tier(second.tier().name("second"))
        .build()
        .unwrap();
    first.faults.set_space_left(Some(3_000_000));
    let mut events = buffer.events();
    put_away(&buffer, 1, noise(1, VALUE)).await;
    swept(&buffer).await;
    let usage = buffer.usage();
    let near = &usage.tiers[0];
    let held =
        [near.entries, near.weight, near.encoded, near.stored, near.allocated, near.garbage, near.blobs];
    assert_eq!((held, near.in_flight), ([0; 7], 0), "{near:?}");
    assert_eq!((first.blobs().await.len(), first.faults.used()), (0, 0));
    assert_eq!(usage.tiers[1].stored, frame(VALUE as u64));
    assert!(
        matches!(events.try_next(), Some(Event::WriteFailed { error, .. }) if error.kind() == StoreErrorKind::NoSpace)
    );
    assert_eq!(buffer.location(&1), Some(Location::Tier("second".into())));
    assert!(get(&buffer, 1).await.unwrap() == noise(1, VALUE));
    finish(buffer).await;
}

/// databend: many spills at once never take more than the cap, at any moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn case_20_many_spills_at_once_stay_within_the_cap() {
    const SPILLS: u64 = 64;
    const Q: u64 = 20 * frame(1000) + 100;
    for round in 0..10 {
        let scripted = Scripted::new();
        if round % 2 == 0 {
            scripted.faults.delay(Operation::Put, Duration::from_millis(2));
        }
        // What is beyond the cap would fail here.
        scripted.faults.set_quota(Some(Q));
        let buffer = exact(1 << 20).tier(scripted.tier().max_spill(Q)).build().unwrap();
        for key in 0..SPILLS {
            buffer.insert(key, noise(key, 1000)).await.unwrap();
        }
        let done = Arc::new(AtomicBool::new(false));
        let sampler = tokio::spawn({
            let (buffer, done, faults) = (buffer.clone(), done.clone(), scripted.faults.clone());
            async move {
                let mut samples = 0u64;
                while !done.load(SeqCst) || samples < 100 {
                    let total = buffer.usage().total();
                    let sum = total.stored + total.garbage + total.in_flight;
                    assert!(sum <= Q, "{sum} of {Q}: {total:?}");
                    assert!(faults.used() <= Q);
                    samples += 1;
                    tokio::task::yield_now().await;
                }
            }
        });
        let start = Arc::new(tokio::sync::Barrier::new(SPILLS as usize));
        let spills: Vec<_> = (0..SPILLS)
            .map(|key| {
                let (buffer, start) = (buffer.clone(), start.clone());
                tokio::spawn(async move {
                    start.wait().await;
                    let moved = buffer.spill(&key).await;
                    // Some go again, so that there is garbage among it all.
                    if moved.is_ok() && key % 5 == 0 {
                        buffer.remove(&key).unwrap();
                    }
                    moved.is_ok()
                })
            })
            .collect();
        let mut moved = 0;
        for spill in spills {
            moved += u64::from(within(60, spill).await.unwrap());
        }
        done.store(true, SeqCst);
        within(60, sampler).await.unwrap();
        assert!((20..SPILLS).contains(&moved), "{moved}");
        assert_eq!(scripted.faults.counts(Operation::Put).failed, 0, "nothing went beyond the cap");
        for key in buffer.keys() {
            assert_eq!(get(&buffer, key).await.unwrap(), noise(key, 1000));
        }
        buffer.clear().unwrap();
        swept(&buffer).await;
        finish(buffer).await;
        assert_eq!(scripted.blobs().await, []);
    }
}
