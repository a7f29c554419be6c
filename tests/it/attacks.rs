//! Attacks: futures dropped at every await, calls that race on one key, ends in the middle of everything,
//! foreign code that panics.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::*},
    },
    time::Duration,
};

use spill_buffer::{
    ByteLength, BytesCodec, Codec, CodecError, Error, MemoryStore, OnFull, Payload, SpillBuffer, TierSpec,
    blocking,
};
use spill_conformance::Operation;
use tokio::runtime::{Builder as RuntimeBuilder, Runtime};

use crate::harness::*;

// ---- dropped futures

/// A call on a buffer that holds keys 1 (spilled), 2 and 3 (resident) and has room for one more.
type Call = fn(Buffer) -> Pin<Box<dyn Future<Output = ()> + Send>>;

const CALLS: [(&str, Call); 15] = [
    ("insert", |b| Box::pin(async move { b.insert(4, noise(4, 100)).await.unwrap() })),
    ("insert, others make room", |b| Box::pin(async move { b.insert(4, noise(4, 250)).await.unwrap() })),
    ("insert, heavy", |b| Box::pin(async move { b.insert(4, noise(4, 400)).await.unwrap() })),
    ("overwrite, heavy", |b| Box::pin(async move { b.insert(2, noise(22, 400)).await.unwrap() })),
    ("overwrite, spilled", |b| Box::pin(async move { b.insert(1, noise(11, 200)).await.unwrap() })),
    ("insert_many", |b| {
        Box::pin(async move {
            let refused = b.insert_many((4..8).map(|key| (key, noise(key, 100)))).await;
            assert!(refused.is_empty());
        })
    }),
    ("get", |b| Box::pin(async move { assert_eq!(*b.get(&1).await.unwrap().unwrap(), noise(1, 100)) })),
    ("get_many", |b| {
        Box::pin(async move {
            let answers = b.get_many(&[1, 2, 3]).await;
            assert!(answers.into_iter().all(|answer| answer.unwrap().is_some()));
        })
    }),
    ("take, spilled", |b| Box::pin(async move { drop(b.take(&1).await.unwrap()) })),
    ("take, resident", |b| Box::pin(async move { drop(b.take(&2).await.unwrap()) })),
    ("spill", |b| Box::pin(async move { assert!(b.spill(&2).await.is_ok()) })),
    ("evict_one", |b| Box::pin(async move { assert!(b.evict_one().await.is_ok()) })),
    ("reclaim", |b| Box::pin(async move { assert!(b.reclaim(150).await.is_ok()) })),
    ("pin", |b| Box::pin(async move { drop(b.pin(&1).await.unwrap().unwrap()) })),
    ("audit", |b| Box::pin(async move { drop(b.audit().await.unwrap()) })),
];

/// lance 7743: every public future, dropped after every number of polls. The key is absent or whole, the
/// books balance, nothing is left over, and the same call works again.
#[tokio::test(start_paused = true)]
async fn case_18_any_future_can_be_dropped_at_any_await() {
    for (name, call) in CALLS {
        for waits in [false, true] {
            let mut polls = 0;
            while !dropped_after(polls, name, call, waits).await {
                polls += 1;
                assert!(polls < 100, "{name} never ends");
            }
            assert!(polls > 0, "{name} was never dropped unfinished");
        }
    }
}

/// Drops a call after so many polls; `true` if it was done by then. `waits`: the store answers late, after
/// the call was dropped.
async fn dropped_after(polls: u64, name: &str, call: Call, waits: bool) -> bool {
    let scripted = Scripted::new();
    let buffer = exact(300).tier(scripted.tier()).build().unwrap();
    put_away(&buffer, 1, noise(1, 100)).await;
    for key in [2, 3] {
        buffer.insert(key, noise(key, 100)).await.unwrap();
    }
    settled(&buffer).await;
    if waits {
        for operation in Operation::ALL {
            scripted.faults.delay(operation, Duration::from_millis(3));
        }
    }
    let done = Polls::at_most(polls, call(buffer.clone())).await.is_some();
    settled(&buffer).await;
    for key in buffer.keys() {
        let value = get(&buffer, key).await.expect("it is listed");
        let whole = [key, 11 * key].into_iter().any(|seed| value == noise(seed, value.len()));
        assert!(whole, "{name} after {polls} polls: key {key}");
    }
    balanced(&buffer).await;
    assert_eq!(buffer.usage().memory.pinned.entries, 0, "{name} after {polls} polls");

    // What a dropped take has taken is gone with its future; the others have to be there for another call.
    for key in 1..=3 {
        if !buffer.contains_key(&key) {
            assert!(name.starts_with("take"), "{name} after {polls} polls lost {key}");
            buffer.insert(key, noise(key, 100)).await.unwrap();
        }
    }
    if name.ends_with("spilled") {
        buffer.spill(&1).await.unwrap();
    }
    if name != "get" && name != "overwrite, spilled" || get(&buffer, 1).await.unwrap() == noise(1, 100) {
        call(buffer.clone()).await;
    }
    balanced(&buffer).await;
    buffer.clear().unwrap();
    swept(&buffer).await;
    assert_eq!(scripted.blobs().await, [], "{name} after {polls} polls");
    finish(buffer).await;
    done
}

/// The same for closing: it goes on without its future.
#[tokio::test(start_paused = true)]
async fn case_18_closing_goes_on_when_its_future_is_dropped() {
    for polls in 0..5 {
        let scripted = Scripted::new();
        let buffer = exact(300).tier(scripted.tier()).build().unwrap();
        put_away(&buffer, 1, noise(1, 100)).await;
        scripted.faults.delay(Operation::Close, Duration::from_millis(3));
        let done = Polls::at_most(polls, buffer.close()).await;
        if polls == 0 {
            assert_eq!(get(&buffer, 1).await.unwrap(), noise(1, 100), "never begun");
            finish(buffer).await;
            continue;
        }
        assert!(done.is_none_or(|done| done.is_ok()));
        settled_with(&buffer, |buffer| buffer.usage().is_empty()).await;
        assert_eq!(scripted.blobs().await, []);
        assert!(is_closed(&buffer.get(&1).await.unwrap_err()));
    }
}

// ---- races

/// Everything at once on one key, from many tasks: each answer is one that could be, and the books balance.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn races_on_one_key_keep_it_whole_and_the_books_balanced() {
    for seed in 0..12u64 {
        let scripted = Scripted::new();
        let waiting = OnFull::Wait(Duration::from_secs(600));
        let buffer = exact(300).exact(waiting).tier(scripted.tier().max_spill(4000)).build().unwrap();
        let tasks: Vec<_> = (0..8u64)
            .map(|task| {
                let (buffer, mut random) = (buffer.clone(), Random::new(seed << 8 | task));
                tokio::spawn(async move {
                    for _ in 0..250 {
                        one_move(&buffer, &mut random).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            within(60, task).await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
        balanced(&buffer).await;
        buffer.clear().unwrap();
        swept(&buffer).await;
        assert_eq!(scripted.blobs().await, [], "seed {seed}");
        finish(buffer).await;
    }
}

/// Bytes that all are the same and say how many they are.
fn sized(len: u64) -> Vec<u8> {
    vec![len as u8; len as usize]
}

async fn one_move(buffer: &Buffer, random: &mut Random) {
    const KEY: u64 = 1;
    let whole = |value: Option<Arc<Vec<u8>>>| {
        if let Some(value) = value {
            assert_eq!(*value, sized(value.len() as u64));
        }
    };
    match random.below(12) {
        0..3 => buffer.insert(KEY, sized(1 + random.below(200))).await.unwrap(),
        3 => buffer.insert(KEY, sized(301 + random.below(20))).await.unwrap(),
        4..7 => whole(buffer.get(&KEY).await.unwrap()),
        7 => whole(buffer.take(&KEY).await.unwrap()),
        8 => {
            buffer.remove(&KEY).unwrap();
        }
        9 | 10 => {
            let spill = random.below(2) == 0;
            let answer =
                if spill { buffer.spill(&KEY).await.map(drop) } else { buffer.evict_one().await.map(drop) };
            match answer {
                // Garbage that is being deleted fills the tier; or the entry is on its way in or out at this
                // moment and there is no candidate.
                Ok(()) | Err(Error::Full { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        // A heavy one can't be pinned, and one that is evicted again and again can't either.
        _ => drop(buffer.pin(&KEY).await),
    }
}

/// Values that outlive many blobs: compaction moves what is read, replaced, removed at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn races_with_compaction_lose_nothing() {
    for seed in 0..4u64 {
        let scripted = Scripted::new();
        let tier = TierSpec::new(scripted.store()).batch_bytes(4096).max_spill(60_000);
        let buffer = exact(2000).exact(OnFull::Keep).tier(tier).build().unwrap();
        let tasks: Vec<_> = (0..4u64)
            .map(|task| {
                let (buffer, mut random) = (buffer.clone(), Random::new(seed << 8 | task));
                tokio::spawn(async move {
                    // Each task has keys of its own, so that it knows what is there.
                    let mut there = std::collections::BTreeMap::new();
                    for _ in 0..1500 {
                        let key = task * 100 + random.below(40);
                        let len = 1 + random.below(250);
                        match random.below(4) {
                            0 | 1 => {
                                buffer.insert(key, sized(len)).await.unwrap();
                                there.insert(key, len);
                            }
                            2 => {
                                let removed = buffer.remove(&key).unwrap();
                                assert_eq!(removed, there.remove(&key).is_some());
                            }
                            _ => {
                                let read = get(&buffer, key).await;
                                assert_eq!(read, there.get(&key).map(|len| sized(*len)));
                            }
                        }
                    }
                    there
                })
            })
            .collect();
        let mut there = std::collections::BTreeMap::new();
        for task in tasks {
            there.extend(within(60, task).await.unwrap());
        }
        balanced(&buffer).await;
        assert_eq!(buffer.len(), there.len() as u64);
        for (key, len) in there {
            assert_eq!(get(&buffer, key).await, Some(sized(len)), "seed {seed}: key {key}");
        }
        assert!(buffer.stats().bytes_compacted > 0, "nothing was compacted");
        finish(buffer).await;
    }
}

/// Closed while everything is in flight: each call ends, with what it should or `Closed`, and nothing is
/// left of any of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn close_in_the_middle_of_everything() {
    for seed in 0..150u64 {
        let scripted = Scripted::new();
        let waiting = OnFull::Wait(Duration::from_secs(600));
        let buffer = exact(300).exact(waiting).tier(scripted.tier()).build().unwrap();
        buffer.insert(1000, sized(100)).await.unwrap();
        let tasks: Vec<_> = (0..6u64)
            .map(|task| {
                let (buffer, mut random) = (buffer.clone(), Random::new(seed << 8 | task));
                tokio::spawn(async move {
                    loop {
                        // Nobody removes it: until the end it is there.
                        match buffer.get(&1000).await {
                            Ok(value) => assert_eq!(*value.expect("present until closed"), sized(100)),
                            Err(error) => break assert!(is_closed(&error), "{error}"),
                        }
                        let key = random.below(4);
                        let answer = match random.below(6) {
                            0 | 1 => {
                                buffer.insert(key, sized(1 + random.below(200))).await.map_err(Error::from)
                            }
                            2 => buffer.insert(key, sized(301)).await.map_err(Error::from),
                            3 => buffer.spill(&key).await.map(drop),
                            4 => buffer.take(&key).await.map(drop),
                            _ => buffer.reclaim(100).await.map(drop),
                        };
                        if let Err(error) = answer {
                            break assert!(is_closed(&error), "{error}");
                        }
                    }
                })
            })
            .collect();
        for _ in 0..seed % 40 {
            tokio::task::yield_now().await;
        }
        within(60, buffer.close()).await.unwrap();
        // All is gone but for bytes granted to an insert whose future has not been polled since.
        let (usage, tiers) = (buffer.usage(), buffer.usage().total());
        assert_eq!((usage.entries, usage.memory.resident.weight), (0, 0), "seed {seed}: {usage:#?}");
        assert_eq!(
            (tiers.blobs, tiers.stored + tiers.garbage + tiers.in_flight),
            (0, 0),
            "seed {seed}: {usage:#?}"
        );
        for task in tasks {
            within(60, task).await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
        assert!(buffer.usage().is_empty() && buffer.is_empty(), "seed {seed}: {:#?}", buffer.usage());
        assert_eq!(scripted.blobs().await, [], "seed {seed}");
    }
}

/// The last handle goes while writes and reads are under way: the tasks end, and the store is let go of.
#[tokio::test]
async fn the_last_handle_goes_in_the_middle_of_everything() {
    for operation in [Operation::Put, Operation::Get, Operation::Delete] {
        let scripted = Scripted::new();
        let store = Arc::new(scripted.store());
        let watch = Arc::downgrade(&store);
        let buffer = exact(1000).tier(TierSpec::from_arc(store).batch_entries(1)).build().unwrap();
        for key in 1..=2 {
            put_away(&buffer, key, noise(key, 100)).await;
        }
        buffer.insert(3, noise(3, 100)).await.unwrap();
        let gate = scripted.faults.hold(operation);
        let calls = [
            tokio::spawn({
                let buffer = buffer.clone();
                async move { drop(buffer.get(&1).await) }
            }),
            tokio::spawn({
                let buffer = buffer.clone();
                async move { drop(buffer.spill(&3).await) }
            }),
        ];
        buffer.remove(&2).unwrap();
        within(20, gate.held(1)).await;
        for call in calls {
            call.abort();
            drop(call.await);
        }
        drop(buffer);
        for _ in 0..10_000 {
            if watch.strong_count() == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(watch.strong_count(), 0, "{operation:?}: something of the buffer still runs");
        drop(gate);
    }
}

// ---- runtimes

fn runtime() -> Runtime {
    RuntimeBuilder::new_multi_thread().worker_threads(1).enable_time().build().unwrap()
}

#[test]
fn two_runtimes_use_one_buffer() {
    let (one, two) = (runtime(), runtime());
    let tier = Scripted::new().tier();
    let waiting = OnFull::Wait(Duration::from_secs(600));
    let buffer = exact(500).exact(waiting).tier(tier).runtime(one.handle().clone()).build().unwrap();
    let tasks: Vec<_> = [&one, &two, &one, &two]
        .into_iter()
        .zip(0u64..)
        .map(|(runtime, task)| {
            let (buffer, mut random) = (buffer.clone(), Random::new(task));
            runtime.spawn(async move {
                for _ in 0..300 {
                    let key = random.below(20);
                    buffer.insert(key, noise(key, 100)).await.unwrap();
                    let key = random.below(20);
                    assert!(buffer.get(&key).await.unwrap().is_none_or(|value| *value == noise(key, 100)));
                }
            })
        })
        .collect();
    for task in tasks {
        two.block_on(within(60, task)).unwrap();
    }
    // The one that only used it goes; the other carries on.
    drop(two);
    one.block_on(finish(buffer));
}

type Start = fn(Buffer) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// The runtime that carries the buffer's work goes while work is under way.
#[test]
fn a_runtime_shut_down_ends_calls_with_an_error_and_keeps_what_is_resident() {
    let caller = runtime();
    for on_full in [OnFull::Reject, OnFull::Keep, OnFull::Wait(Duration::from_secs(600))] {
        let carrier = runtime();
        let scripted = Scripted::new();
        let tier = scripted.tier();
        let buffer = exact(300).exact(on_full).tier(tier).runtime(carrier.handle().clone()).build().unwrap();
        caller.block_on(async {
            put_away(&buffer, 1, noise(1, 100)).await;
            for key in 2..=4 {
                buffer.insert(key, noise(key, 100)).await.unwrap();
            }
        });
        let (puts, _gets) = (scripted.faults.hold(Operation::Put), scripted.faults.hold(Operation::Get));
        let calls: [(&str, Start); 4] = [
            ("get", |b| Box::pin(async move { b.get(&1).await.map(drop) })),
            ("spill", |b| Box::pin(async move { b.spill(&2).await.map(drop) })),
            ("insert", |b| Box::pin(async move { Ok(b.insert(5, noise(5, 300)).await?) })),
            ("heavy", |b| Box::pin(async move { Ok(b.insert(6, noise(6, 301)).await?) })),
        ];
        let calls = calls.map(|(name, call)| (name, caller.spawn(call(buffer.clone()))));
        caller.block_on(within(20, puts.held(2)));
        carrier.shutdown_background();
        for (name, call) in calls {
            let answer = caller.block_on(within(20, call)).unwrap();
            // Another call may have begun to move key 2 before: then there was nothing to do. And the end of
            // the writes may have made the room that the light value needs.
            let moved_already = matches!(name, "spill" | "insert") && answer.is_ok();
            // An insert may come in with the room of a write that was given up.
            let came_in = name == "insert" && answer.is_ok() && buffer.peek(&5).is_some();
            let gone = matches!(answer, Err(Error::RuntimeGone { .. }));
            assert!(gone || moved_already || came_in, "{on_full}, {name}: {answer:?}");
        }
        caller.block_on(within(20, async {
            // Whatever was in memory still is, also what was on its way out.
            for key in 2..=4 {
                assert_eq!(get(&buffer, key).await.unwrap(), noise(key, 100), "{on_full}");
            }
            for _ in 0..2 {
                let gone = |error: &Error| matches!(error, Error::RuntimeGone { .. });
                assert!(gone(&buffer.get(&1).await.unwrap_err()));
                assert!(gone(&buffer.take(&1).await.unwrap_err()));
                assert!(gone(&buffer.get_many(&[1]).await.remove(0).unwrap_err()));
                assert!(gone(&buffer.insert(7, noise(7, 301)).await.unwrap_err().error));
                assert!(buffer.contains_key(&1));
            }
            assert!(buffer.remove(&1).unwrap());
            assert!(matches!(buffer.close().await.unwrap_err(), Error::RuntimeGone { .. }));
        }));
    }
}

/// The last handle may be dropped anywhere: outside of any runtime, and after its runtime.
#[test]
fn handles_are_dropped_outside_and_after_their_runtime() {
    for after in [false, true] {
        let runtime = runtime();
        let root = tempfile::tempdir().unwrap();
        let buffer = runtime.block_on(async {
            let buffer = exact(300).tier(TierSpec::new(files(root.path()).await)).build().unwrap();
            for key in 0..10 {
                buffer.insert(key, noise(key, 100)).await.unwrap();
            }
            buffer
        });
        if after {
            drop(runtime);
            drop(buffer);
        } else {
            drop(buffer);
            drop(runtime);
        }
        spill_buffer::fs::sweep(root.path()).unwrap();
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }
}

#[test]
fn the_blocking_facade_is_the_same_buffer() {
    let buffer = blocking::SpillBuffer::<u64, Vec<u8>>::start(|| exact(300).tier(Scripted::new().tier()));
    let buffer = buffer.unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let buffer = &buffer;
            scope.spawn(move || {
                for key in thread * 10..thread * 10 + 10 {
                    buffer.insert(key, noise(key, 100)).unwrap();
                }
                for key in thread * 10..thread * 10 + 10 {
                    assert_eq!(*buffer.get(&key).unwrap().unwrap(), noise(key, 100));
                }
            });
        }
    });
    assert_eq!(buffer.inner().len(), 40);
    assert_eq!(buffer.take(&0).unwrap().as_deref(), Some(&noise(0, 100)));
    buffer.close().unwrap();
    assert!(buffer.inner().usage().is_empty());
    assert!(is_closed(&buffer.get(&1).unwrap_err()));
}

// ---- foreign code that panics

#[tokio::test]
async fn observers_that_panic_are_their_own_affair() {
    let told = Arc::new(AtomicU64::new(0));
    let count = told.clone();
    let buffer = exact(300)
        .observer(|_: &spill_buffer::Event| panic!("an observer that panics"))
        .observer(move |_: &spill_buffer::Event| {
            count.fetch_add(1, SeqCst);
        })
        .tier(Scripted::new().tier())
        .build()
        .unwrap();
    for key in 0..10 {
        buffer.insert(key, noise(key, 100)).await.unwrap();
    }
    for key in 0..10 {
        assert_eq!(get(&buffer, key).await.unwrap(), noise(key, 100));
    }
    assert!(told.load(SeqCst) >= 14, "the other one is told of all");
    finish(buffer).await;
}

/// Panics for values that begin with 1 when they are encoded, with 2 when they are decoded.
struct Panicking;

impl Codec<Vec<u8>> for Panicking {
    fn encode(&self, value: &Vec<u8>) -> Result<Payload, CodecError> {
        assert_ne!(value[0], 1, "a codec that panics");
        Ok(value.clone().into())
    }

    fn decode(&self, bytes: bytes::Bytes) -> Result<Vec<u8>, CodecError> {
        assert_ne!(bytes[0], 2, "a codec that panics");
        Ok(bytes.into())
    }
}

#[tokio::test]
async fn a_codec_that_panics_fails_one_value() {
    // Small ones are dealt with on the spot, large ones on a blocking thread.
    for len in [100, 100_000] {
        let tier = TierSpec::new(MemoryStore::new());
        let buffer = exact(10 << 20).codec(Panicking).tier(tier).build().unwrap();
        for key in 0..6u64 {
            buffer.insert(key, vec![key as u8 % 3; len]).await.unwrap();
        }
        buffer.reclaim(u64::MAX).await.unwrap();
        settled(&buffer).await;
        assert_eq!(buffer.usage().memory.resident.entries, 2, "those that can't be encoded");
        for key in 0..6u64 {
            match (key % 3, buffer.get(&key).await) {
                (2, answer) => {
                    let error = answer.unwrap_err();
                    assert!(matches!(&error, Error::Decode { key: of, .. } if *of == key.to_string()));
                    assert!(error.to_string().contains("panicked"), "{error}");
                }
                (_, answer) => assert_eq!(*answer.unwrap().unwrap(), vec![key as u8 % 3; len]),
            }
        }
        assert_eq!(buffer.stats().restore_failures, 2);
        assert!(buffer.take(&2).await.is_err() && buffer.contains_key(&2), "it is still there");
        assert!(buffer.remove(&2).unwrap());
        finish(buffer).await;
    }
}

#[tokio::test]
async fn a_weigher_that_panics_fails_one_insert() {
    let buffer = SpillBuffer::<u64, Vec<u8>>::builder()
        .memory_limit(1000)
        .exact(OnFull::Reject)
        .codec(BytesCodec)
        .weigher(|key: &u64, value: &Vec<u8>| {
            assert_ne!(*key, 1, "a weigher that panics");
            spill_buffer::Weigher::weigh(&ByteLength, key, value)
        })
        .tier(Scripted::new().tier())
        .build()
        .unwrap();
    buffer.insert(0, noise(0, 100)).await.unwrap();
    let refused = buffer.insert(1, noise(1, 100)).await.unwrap_err();
    assert!(matches!(refused.error, Error::Weigh { .. }), "{refused}");
    assert_eq!(*refused.value, noise(1, 100));
    assert_eq!(buffer.len(), 1);
    finish(buffer).await;
}
