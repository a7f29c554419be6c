//! Rules B01 to B10: the memory budget, and what entries weigh.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::*},
    },
    time::Duration,
};

use spill_buffer::{
    ByteLength, BytesCodec, Error, Event, FixedBudget, MAX_WEIGHT, MemoryStore, OnFull, Policy, Share,
    SpillBuffer, TierSpec,
    policies::{Clock, Fifo, Lru, S3Fifo, Sieve},
};
use spill_conformance::{Faults, Operation};

use crate::support::{
    Lump, Lumps, Numbers, at_rest, blobs, count, ends_empty, exact, faulty_tier, fill, in_memory, kind,
    memory_tier, read, rests, until,
};

const WAIT: OnFull = OnFull::Wait(Duration::from_secs(30));

fn every_policy() -> Vec<Box<dyn Policy>> {
    vec![
        Box::new(Lru::default()),
        Box::new(Fifo::default()),
        Box::new(Clock::default()),
        Box::new(S3Fifo::default()),
        Box::new(Sieve::default()),
    ]
}

fn small(limit: u64) -> Lumps<char> {
    exact(limit, OnFull::Reject).tier(memory_tier()).build().unwrap()
}

#[tokio::test]
async fn b01_weight_is_asked_once_at_insert() {
    let (asked, answer) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(100)));
    let weigher = {
        let (asked, answer) = (asked.clone(), answer.clone());
        move |_: &char, _: &Lump| {
            asked.fetch_add(1, SeqCst);
            answer.load(SeqCst)
        }
    };
    let buffer = exact(300, OnFull::Reject).weigher(weigher).tier(memory_tier()).build().unwrap();
    buffer.insert('a', Lump::new('a', 100)).await.unwrap();
    assert_eq!(asked.load(SeqCst), 1);
    // From here on the weigher would say something else, if it were asked.
    answer.store(7, SeqCst);
    rests(&buffer, at_rest(100, 0, 0)).await;
    assert!(buffer.spill(&'a').await.unwrap());
    rests(&buffer, at_rest(0, 100, 192)).await;
    assert_eq!(read(&buffer, 'a').await, Lump::new('a', 100));
    rests(&buffer, at_rest(100, 0, 192)).await;
    assert!(buffer.spill(&'a').await.unwrap());
    rests(&buffer, at_rest(0, 100, 192)).await;
    assert_eq!(asked.load(SeqCst), 1);
    // Until the entry is replaced.
    buffer.insert('a', Lump::new('a', 100)).await.unwrap();
    rests(&buffer, at_rest(7, 0, 0)).await;
    assert_eq!(asked.load(SeqCst), 2);
    ends_empty(buffer).await;
}

#[tokio::test]
async fn b01_reweigh_is_explicit_and_exact() {
    let answer = Arc::new(AtomicU64::new(100));
    let weigher = {
        let answer = answer.clone();
        move |_: &char, _: &Lump| answer.load(SeqCst)
    };
    let buffer = exact(300, OnFull::Reject).weigher(weigher).tier(memory_tier()).build().unwrap();
    fill(&buffer, "abc", 100).await;
    buffer.spill(&'c').await.unwrap();
    read(&buffer, 'c').await;
    rests(&buffer, at_rest(300, 0, 192)).await;

    answer.store(60, SeqCst);
    assert_eq!(buffer.reweigh(&'a').unwrap(), Some(60));
    // A clean entry weighs the same in memory and in its tier.
    assert_eq!(buffer.reweigh(&'c').unwrap(), Some(60));
    rests(&buffer, at_rest(220, 0, 192)).await;
    assert_eq!(buffer.usage().tiers[0].weight, 60);

    // What is pinned is reported with what it weighs now.
    let pin = buffer.pin(&'a').await.unwrap().unwrap();
    answer.store(90, SeqCst);
    assert_eq!(buffer.reweigh(&'a').unwrap(), Some(90));
    assert_eq!(buffer.usage().memory.pinned.weight, 90);
    drop(pin);
    rests(&buffer, at_rest(250, 0, 192)).await;

    // More than memory holds: others leave for it, at once.
    answer.store(250, SeqCst);
    assert_eq!(buffer.reweigh(&'b').unwrap(), Some(250));
    until(&buffer, |usage| usage.memory.resident.weight <= 300).await;
    rests(&buffer, at_rest(60, 340, 3 * 192)).await;
    // Not in memory, or not there: not weighed.
    assert_eq!(buffer.reweigh(&'b').unwrap(), None);
    assert_eq!(buffer.reweigh(&'z').unwrap(), None);
    ends_empty(buffer).await;
}

#[tokio::test]
async fn b02_nothing_leaves_at_the_limit() {
    let buffer = small(300);
    fill(&buffer, "abc", 100).await;
    rests(&buffer, at_rest(300, 0, 0)).await;
    buffer.insert('d', Lump::new('d', 1)).await.unwrap();
    rests(&buffer, at_rest(201, 100, 192)).await;
    // As few as possible: 299 in use, 1 more than fits needs 100 to leave.
    fill(&buffer, "e", 98).await;
    rests(&buffer, at_rest(299, 100, 192)).await;
    fill(&buffer, "f", 1).await;
    rests(&buffer, at_rest(300, 100, 192)).await;
    assert_eq!(in_memory(&buffer), "bcdef");
    ends_empty(buffer).await;
}

#[tokio::test]
async fn b02_above_the_high_watermark_entries_leave_down_to_the_low_one() {
    let share = |thousandths| Share::thousandths(thousandths).unwrap();
    let budget = FixedBudget::exact().watermarks(share(800), share(500)).when_full(OnFull::Reject);
    let buffer = exact(1000, OnFull::Reject).capacity(budget).tier(memory_tier()).build().unwrap();
    fill(&buffer, "abcdefgh", 100).await;
    rests(&buffer, at_rest(800, 0, 0)).await;
    fill(&buffer, "i", 100).await;
    rests(&buffer, at_rest(500, 400, 4 * 192)).await;
    assert_eq!(in_memory(&buffer), "efghi");
    ends_empty(buffer).await;
}

#[tokio::test]
async fn b03_overflow_spills_oldest() {
    let buffer = small(300);
    fill(&buffer, "abcd", 100).await;
    rests(&buffer, at_rest(300, 100, 192)).await;
    assert_eq!(in_memory(&buffer), "bcd");
    ends_empty(buffer).await;
}

#[tokio::test]
async fn b03_the_entry_just_inserted_is_the_last_candidate() {
    for policy in every_policy() {
        let name = policy.name();
        let buffer = exact(300, OnFull::Reject).boxed_policy(policy).tier(memory_tier()).build().unwrap();
        fill(&buffer, "abc", 100).await;
        for (newcomer, weight, resident) in [('d', 100, 300), ('e', 250, 250), ('f', 300, 300)] {
            buffer.insert(newcomer, Lump::new(newcomer, weight)).await.unwrap();
            until(&buffer, |usage| Numbers::of(usage).resident == resident).await;
            assert!(buffer.peek(&newcomer).is_some(), "{name}: {newcomer}");
            assert_eq!(buffer.usage().memory.resident.weight, resident, "{name}: {newcomer}");
        }
        ends_empty(buffer).await;
    }
}

#[tokio::test]
async fn b04_heavy_goes_straight_to_a_tier_and_moves_nothing() {
    let faults = Faults::new();
    let buffer = exact(300, OnFull::Reject).tier(faulty_tier(&faults)).build().unwrap();
    fill(&buffer, "abc", 100).await;
    let gate = faults.hold(Operation::Put);
    let inserting = tokio::spawn({
        let buffer = buffer.clone();
        async move { buffer.insert('h', Lump::new('h', 301)).await }
    });
    gate.held(1).await;
    // It is not there, and the insert has not returned, before it is stored.
    assert!(!inserting.is_finished() && !buffer.contains_key(&'h'));
    assert_eq!(in_memory(&buffer), "abc");
    gate.release();
    inserting.await.unwrap().unwrap();
    assert_eq!(in_memory(&buffer), "abc");
    assert_eq!(faults.counts(Operation::Put).done, 1);
    rests(&buffer, at_rest(300, 301, Lump::new('h', 301).stored())).await;
    ends_empty(buffer).await;
}

#[tokio::test]
async fn b04_a_weight_of_exactly_the_limit_is_light() {
    let buffer = small(300);
    fill(&buffer, "abc", 100).await;
    fill(&buffer, "m", 300).await;
    rests(&buffer, at_rest(300, 300, 3 * 192)).await;
    assert_eq!(in_memory(&buffer), "m");
    ends_empty(buffer).await;
}

#[tokio::test]
async fn b04_without_tiers_a_heavy_value_comes_back() {
    let buffer = exact(300, WAIT).build().unwrap();
    fill(&buffer, "a", 300).await;
    let refused = buffer.insert('h', Lump::new('h', 301)).await.unwrap_err();
    assert!(matches!(refused.error, Error::TooHeavy { weight: 301, limit: 300, .. }), "{refused}");
    assert_eq!(*refused.value, Lump::new('h', 301));
    rests(&buffer, at_rest(300, 0, 0)).await;
    ends_empty(buffer).await;
}

#[tokio::test]
async fn b05_with_a_limit_of_zero_everything_that_weighs_is_heavy() {
    let buffer = small(0);
    buffer.insert('n', Lump::new('n', 16).weighing(0)).await.unwrap();
    rests(&buffer, at_rest(0, 0, 0)).await;
    assert_eq!(in_memory(&buffer), "n");
    buffer.insert('o', Lump::new('o', 16).weighing(1)).await.unwrap();
    rests(&buffer, at_rest(0, 1, 128)).await;
    assert_eq!(in_memory(&buffer), "n");
    assert_eq!(read(&buffer, 'o').await.weight, 1);
    rests(&buffer, at_rest(0, 1, 128)).await;
    ends_empty(buffer).await;
}

#[tokio::test]
async fn b05_weight_zero_and_length_zero_are_values() {
    let store = MemoryStore::new();
    let buffer = SpillBuffer::<char, Vec<u8>>::builder()
        .memory_limit(100)
        .exact(OnFull::Reject)
        .policy(Lru::default())
        .codec(BytesCodec)
        .weigher(ByteLength)
        .tier(TierSpec::new(store.clone()).batch_entries(1))
        .build()
        .unwrap();
    buffer.insert('e', Vec::new()).await.unwrap();
    assert_eq!(buffer.get(&'e').await.unwrap().as_deref(), Some(&Vec::new()));
    assert!(buffer.spill(&'e').await.unwrap());
    // A frame of a header alone.
    rests(&buffer, at_rest(0, 0, 64)).await;
    assert_eq!((buffer.len(), buffer.usage().spilled.entries, blobs(&store).await), (1, 1, 1));
    assert_eq!(buffer.get(&'e').await.unwrap().as_deref(), Some(&Vec::new()));
    assert_eq!(buffer.usage().memory.clean.entries, 1);
    // Overwritten by what has bytes, and back.
    buffer.insert('e', vec![1; 100]).await.unwrap();
    buffer.insert('e', Vec::new()).await.unwrap();
    rests(&buffer, at_rest(0, 0, 0)).await;
    assert_eq!(buffer.take(&'e').await.unwrap().as_deref(), Some(&Vec::new()));
    assert_eq!(buffer.get(&'e').await.unwrap(), None);
    ends_empty(buffer).await;
}

#[tokio::test]
async fn b06_a_lower_limit_spills_down_to_it_and_a_higher_one_restores_nothing() {
    let buffer = small(500);
    fill(&buffer, "abcde", 100).await;
    let clone = buffer.clone();
    clone.set_memory_limit(250);
    assert_eq!(buffer.usage().memory.limit, 250);
    rests(&buffer, at_rest(200, 300, 3 * 192)).await;
    assert_eq!(in_memory(&buffer), "de");
    clone.set_memory_limit(0);
    rests(&buffer, at_rest(0, 500, 5 * 192)).await;
    // Above zero is heavy now, for every handle.
    fill(&buffer, "f", 1).await;
    rests(&buffer, at_rest(0, 501, 5 * 192 + 128)).await;

    buffer.set_memory_limit(500);
    assert_eq!(clone.usage().memory.limit, 500);
    rests(&buffer, at_rest(0, 501, 5 * 192 + 128)).await;
    // And now it is light, at once.
    fill(&clone, "f", 400).await;
    rests(&buffer, at_rest(400, 500, 5 * 192)).await;
    read(&buffer, 'a').await;
    rests(&buffer, at_rest(500, 400, 5 * 192)).await;
    ends_empty(buffer).await;
}

#[tokio::test(start_paused = true)]
async fn b06_a_higher_limit_lets_those_in_who_wait() {
    let buffer = exact(300, WAIT).tier(memory_tier().max_spill(0)).build().unwrap();
    fill(&buffer, "a", 300).await;
    let clone = buffer.clone();
    let light = tokio::spawn(async move { clone.insert('b', Lump::new('b', 100)).await });
    let clone = buffer.clone();
    let heavy = tokio::spawn(async move { clone.insert('h', Lump::new('h', 500)).await });
    rests(&buffer, at_rest(300, 0, 0)).await;
    let started = tokio::time::Instant::now();
    buffer.set_memory_limit(900);
    light.await.unwrap().unwrap();
    // What was heavy is light now.
    heavy.await.unwrap().unwrap();
    assert_eq!(started.elapsed(), Duration::ZERO, "at once");
    rests(&buffer, at_rest(900, 0, 0)).await;
    ends_empty(buffer).await;
}

#[tokio::test(start_paused = true)]
async fn b06_a_lower_limit_makes_heavy_what_waits_for_room() {
    let faults = Faults::new();
    let buffer = exact(300, WAIT).tier(faulty_tier(&faults)).build().unwrap();
    fill(&buffer, "a", 300).await;
    let gate = faults.hold(Operation::Put);
    // b waits until a has left, and c waits behind it.
    let waiting = ['b', 'c'].map(|key| {
        let buffer = buffer.clone();
        tokio::spawn(async move { buffer.insert(key, Lump::new(key, 200)).await })
    });
    gate.held(1).await;
    let started = tokio::time::Instant::now();
    buffer.set_memory_limit(100);
    gate.release();
    for insert in waiting {
        insert.await.unwrap().unwrap();
    }
    assert_eq!(started.elapsed(), Duration::ZERO, "nobody waits for what can't come");
    rests(&buffer, at_rest(0, 700, 384 + 2 * 320)).await;
    fill(&buffer, "d", 100).await;
    rests(&buffer, at_rest(100, 700, 384 + 2 * 320)).await;
    ends_empty(buffer).await;
}

#[tokio::test(start_paused = true)]
async fn b06_a_lower_limit_does_not_strand_a_read_that_waits_for_room() {
    let faults = Faults::new();
    let buffer = exact(300, WAIT).tier(faulty_tier(&faults)).build().unwrap();
    fill(&buffer, "r", 200).await;
    fill(&buffer, "a", 300).await;
    rests(&buffer, at_rest(300, 200, 320)).await;
    let gate = faults.hold(Operation::Put);
    let reading = tokio::spawn({
        let buffer = buffer.clone();
        async move { read(&buffer, 'r').await }
    });
    gate.held(1).await;
    buffer.set_memory_limit(100);
    gate.release();
    let value = tokio::time::timeout(Duration::from_secs(60), reading).await;
    assert_eq!(value.expect("it must not wait for ever").unwrap(), Lump::new('r', 200));
    rests(&buffer, at_rest(0, 500, 320 + 384)).await;
    ends_empty(buffer).await;
}

/// Weighs by what the lump says, and misbehaves for two of them.
fn moody(_: &char, lump: &Lump) -> u64 {
    match lump.letter {
        b'!' => panic!("the weigher does not like this lump"),
        _ => lump.weight,
    }
}

#[tokio::test]
async fn b07_a_weigher_that_fails_fails_its_insert_only() {
    let buffer = exact(300, OnFull::Reject).weigher(moody).tier(memory_tier()).build().unwrap();
    fill(&buffer, "abc", 100).await;
    let bad = [
        Lump::new('!', 100),
        Lump::new('u', 16).weighing(u64::MAX),
        Lump::new('u', 16).weighing(MAX_WEIGHT + 1),
    ];
    for (key, lump) in bad.into_iter().flat_map(|lump| [('a', lump), ('z', lump)]) {
        let refused = buffer.insert(key, lump).await.unwrap_err();
        assert_eq!((kind(&refused).as_str(), *refused.value), ("Weigh", lump), "{refused}");
        assert!(refused.to_string().contains(&format!("{key:?}")), "{refused}");
    }
    rests(&buffer, at_rest(300, 0, 0)).await;
    assert!(!buffer.contains_key(&'z'));
    assert_eq!(*buffer.peek(&'a').unwrap(), Lump::new('a', 100));
    // The buffer works on.
    fill(&buffer, "d", 100).await;
    rests(&buffer, at_rest(300, 100, 192)).await;
    ends_empty(buffer).await;
}

#[tokio::test]
async fn b07_the_greatest_weight_is_a_weight_like_any_other() {
    let buffer = small(300);
    fill(&buffer, "abc", 100).await;
    let greatest = Lump::new('g', 16).weighing(MAX_WEIGHT);
    for key in ['x', 'y', 'z'] {
        buffer.insert(key, greatest).await.unwrap();
    }
    rests(&buffer, at_rest(300, 3 * MAX_WEIGHT, 3 * 128)).await;
    // In memory as well, if the limit says so.
    buffer.set_memory_limit(u64::MAX);
    assert_eq!(read(&buffer, 'x').await, greatest);
    buffer.insert('y', greatest).await.unwrap();
    rests(&buffer, at_rest(300 + 2 * MAX_WEIGHT, MAX_WEIGHT, 2 * 128)).await;
    buffer.set_memory_limit(MAX_WEIGHT);
    rests(&buffer, at_rest(MAX_WEIGHT, 2 * MAX_WEIGHT + 300, 2 * 128 + 3 * 192)).await;
    ends_empty(buffer).await;
}

#[tokio::test]
async fn b07_sums_of_weights_never_overflow() {
    let buffer = exact::<u32>(u64::MAX, OnFull::Reject).tier(memory_tier()).build().unwrap();
    let greatest = Arc::new(Lump::new('g', 16).weighing(MAX_WEIGHT));
    let (mut taken, mut refused) = (0, 0);
    // One more than the sum of 64 bits can hold.
    for key in 0..=1 << 16 {
        match buffer.insert(key, greatest.clone()).await {
            Ok(()) => taken += 1,
            Err(error) => {
                assert_eq!(kind(&error), "Weigh", "{error}");
                refused += 1;
            }
        }
    }
    assert!(taken >= 1 << 14 && refused >= 1, "{taken} taken, {refused} refused");
    let usage = buffer.usage();
    assert_eq!(u128::from(usage.memory.resident.weight), taken * u128::from(MAX_WEIGHT));
    assert_eq!(buffer.audit().await.unwrap(), Vec::<String>::new());
    // What weighs little is still taken.
    buffer.insert(1 << 20, Lump::new('a', 100)).await.unwrap();
    ends_empty(buffer).await;
}

#[tokio::test]
async fn b08_lru_order_is_of_inserts_and_reads() {
    let buffer = small(400);
    fill(&buffer, "abcd", 100).await;
    read(&buffer, 'a').await;
    buffer.insert('b', Lump::new('b', 100)).await.unwrap();
    // Now c, d, a, b.
    for (newcomer, left) in [('1', 'c'), ('2', 'd'), ('3', 'a'), ('4', 'b')] {
        fill(&buffer, &newcomer.to_string(), 100).await;
        assert!(buffer.peek(&left).is_none(), "{newcomer} pushes {left} out");
    }
    rests(&buffer, at_rest(400, 400, 4 * 192)).await;
    // A restore is a read: b is now the youngest.
    read(&buffer, 'b').await;
    for left in ['2', '3', '4', 'b'] {
        assert!(buffer.evict_one().await.unwrap().is_some());
        assert!(buffer.peek(&left).is_none(), "{left}");
    }
    rests(&buffer, at_rest(0, 800, 8 * 192)).await;
    ends_empty(buffer).await;
}

#[tokio::test]
async fn b08_looking_moves_nothing_and_reads_nothing() {
    let faults = Faults::new();
    let buffer = exact(300, OnFull::Reject).tier(faulty_tier(&faults)).build().unwrap();
    fill(&buffer, "abcd", 100).await;
    let (stats, pressure) = (buffer.stats(), buffer.pressure());
    for key in ['a', 'b', 'z'] {
        let there = key != 'z';
        assert_eq!(buffer.contains_key(&key), there);
        assert_eq!(buffer.location(&key).is_some(), there);
        assert_eq!(buffer.peek(&key).is_some(), key == 'b');
    }
    let mut keys = buffer.keys();
    keys.sort_unstable();
    assert_eq!((keys, buffer.len(), buffer.is_empty()), (vec!['a', 'b', 'c', 'd'], 4, false));
    rests(&buffer, at_rest(300, 100, 192)).await;
    assert_eq!((buffer.stats(), faults.counts(Operation::Get).started), (stats, 0));
    assert!(!pressure.has_changed().unwrap());
    // b was looked at and is the oldest all the same.
    fill(&buffer, "e", 100).await;
    assert_eq!(in_memory(&buffer), "cde");
    ends_empty(buffer).await;
}

#[tokio::test]
async fn b09_every_policy_offers_each_entry_in_the_end_and_skips_what_can_not_leave() {
    for policy in every_policy() {
        let name = policy.name();
        let buffer = exact(1000, OnFull::Reject).boxed_policy(policy).tier(memory_tier()).build().unwrap();
        let mut events = buffer.events();
        buffer.insert('x', Lump::new('x', 100).unencodable()).await.unwrap();
        fill(&buffer, "pabcdefgh", 100).await;
        let pin = buffer.pin(&'p').await.unwrap().unwrap();
        for key in ['x', 'a', 'a', 'd'] {
            buffer.get(&key).await.unwrap().unwrap();
        }
        assert_eq!(buffer.reclaim(u64::MAX).await.unwrap(), 800, "{name}");
        rests(&buffer, at_rest(200, 800, 8 * 192)).await;
        assert_eq!(in_memory(&buffer), "px", "{name}");
        assert_eq!(count(&mut events, |event| matches!(event, Event::EncodeFailed { .. })), 1, "{name}");
        // Nothing more can leave: that is said, not searched for without end.
        assert_eq!(buffer.reclaim(u64::MAX).await.unwrap(), 0, "{name}");
        assert!(matches!(buffer.evict_one().await, Err(Error::Full { .. })), "{name}");
        drop(pin);
        assert_eq!(buffer.reclaim(u64::MAX).await.unwrap(), 100, "{name}");
        assert_eq!(in_memory(&buffer), "x", "{name}");
        buffer.insert('x', Lump::new('x', 100)).await.unwrap();
        assert_eq!(buffer.evict_one().await.unwrap().unwrap().weight, 100, "{name}");
        assert_eq!(buffer.evict_one().await.unwrap(), None, "{name}");
        ends_empty(buffer).await;
    }
}

/// What is too heavy for memory waits for room in a tier, not for room in memory.
#[tokio::test(start_paused = true)]
async fn b04_a_heavy_value_that_waits_hears_of_room_in_a_tier() {
    let tier = memory_tier().max_spill(Lump::new('h', 400).stored());
    let buffer = exact(300, WAIT).tier(tier).build().unwrap();
    fill(&buffer, "a", 400).await;
    rests(&buffer, at_rest(0, 400, 512)).await;
    let waiting = tokio::spawn({
        let buffer = buffer.clone();
        async move { buffer.insert('h', Lump::new('h', 400)).await }
    });
    rests(&buffer, at_rest(0, 400, 512)).await;
    let started = tokio::time::Instant::now();
    assert!(buffer.remove(&'a').unwrap());
    waiting.await.unwrap().unwrap();
    assert_eq!(started.elapsed(), Duration::ZERO, "at once");
    assert!(buffer.set_max_spill(0, Some(1024)));
    fill(&buffer, "b", 400).await;
    rests(&buffer, at_rest(0, 800, 1024)).await;
    ends_empty(buffer).await;
}
