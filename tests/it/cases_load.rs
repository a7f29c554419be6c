//! Inputs that broke other systems, those under load. Bounded: each runs for seconds at most.

use std::{sync::Arc, time::Duration};

use spill_buffer::{OnFull, TierSpec, compress::Lz4};

use crate::harness::*;

/// A value that says which key it is of, and can be checked whole.
fn checked(key: u64, version: u64, len: usize) -> Vec<u8> {
    let mut value = noise(key << 32 | version, len.max(48));
    value[..8].copy_from_slice(&key.to_le_bytes());
    let hash = blake3::hash(&value[40..]);
    value[8..40].copy_from_slice(hash.as_bytes());
    value
}

fn is_whole(key: u64, value: &[u8]) -> bool {
    value[..8] == key.to_le_bytes() && value[8..40] == *blake3::hash(&value[40..]).as_bytes()
}

/// One run of case 5: everyone has to come to an end, whatever futures are dropped on the way.
async fn writers_and_readers(seed: u64) {
    let waiting = OnFull::Wait(Duration::from_secs(600));
    let scripted = Scripted::new();
    let tier = TierSpec::new(scripted.store()).batch_entries(4);
    let buffer = exact(500).exact(waiting).tier(tier).build().unwrap();
    let tasks: Vec<_> = (0..16u64)
        .map(|task| {
            let (buffer, mut random) = (buffer.clone(), Random::new(seed << 8 | task));
            tokio::spawn(async move {
                for step in 0..20 {
                    let (key, patience) = (random.below(12), random.below(4));
                    let call = async {
                        if task < 8 {
                            let value = checked(key, step, 50 + 10 * key as usize);
                            buffer.insert(key, value).await.unwrap();
                        } else if let Some(value) = buffer.get(&key).await.unwrap() {
                            assert!(is_whole(key, &value), "seed {seed}");
                        }
                    };
                    match patience {
                        0 => drop(Polls::at_most(1 + random.below(3), call).await),
                        _ => call.await,
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        within(60, task).await.unwrap();
    }
    within(60, finish(buffer)).await;
    assert_eq!(scripted.blobs().await, [], "seed {seed}");
}

/// datafusion 23522: no wake-up is lost.
#[test]
fn case_05_everyone_finishes_whatever_is_dropped() {
    for (threads, seeds) in [(1, 0..150), (3, 1000..1150u64)] {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_time().build();
        runtime.unwrap().block_on(async {
            for seed in seeds {
                writers_and_readers(seed).await;
            }
        });
    }
}

/// vector 23068: a memory limit of 1 MiB and 64 writers.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn case_25_every_get_is_verified_under_load() {
    const WRITERS: u64 = 64;
    let root = tempfile::tempdir().unwrap();
    let tier = TierSpec::new(files(root.path()).await).compress(Lz4).batch_bytes(64 << 10);
    let waiting = OnFull::Wait(Duration::from_secs(600));
    let buffer = exact(1 << 20).exact(waiting).tier(tier).build().unwrap();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (buffer, mut random) = (buffer.clone(), Random::new(writer));
            tokio::spawn(async move {
                for version in 0..60 {
                    let key = writer * 8 + random.below(8);
                    let len = random.below(16 << 10) as usize;
                    buffer.insert(key, checked(key, version, len)).await.unwrap();
                    // One's own key has to be there, another's may be.
                    assert!(is_whole(key, &buffer.get(&key).await.unwrap().expect("just inserted")));
                    let other = random.below(WRITERS * 8);
                    if let Some(value) = buffer.get(&other).await.unwrap() {
                        assert!(is_whole(other, &value));
                    }
                }
            })
        })
        .collect();
    for writer in writers {
        within(120, writer).await.unwrap();
    }
    settled(&buffer).await;
    assert!(buffer.usage().memory.resident.weight <= 1 << 20);
    assert!(buffer.stats().entries_spilled > 0 && buffer.stats().hits_restored > 0);
    for key in buffer.keys() {
        assert!(is_whole(key, &buffer.get(&key).await.unwrap().unwrap()));
    }
    finish(buffer).await;
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}

/// userborn 2: many insert one key at once, with values of different lengths.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn case_28_the_last_of_many_inserts_is_there_whole() {
    for round in 0..40 {
        let scripted = Scripted::new();
        let waiting = OnFull::Wait(Duration::from_secs(600));
        let buffer = exact(1000).exact(waiting).tier(scripted.tier()).build().unwrap();
        let start = Arc::new(tokio::sync::Barrier::new(64));
        // From light ones to those that memory can't hold.
        let inserts: Vec<_> = (0..64u64)
            .map(|version| {
                let (buffer, start) = (buffer.clone(), start.clone());
                tokio::spawn(async move {
                    start.wait().await;
                    buffer.insert(7, checked(7, version, 48 + 20 * version as usize)).await.unwrap();
                })
            })
            .collect();
        for insert in inserts {
            within(60, insert).await.unwrap();
        }
        let value = buffer.get(&7).await.unwrap().unwrap();
        assert!((0..64).any(|version| *value == checked(7, version, 48 + 20 * version as usize)), "{round}");
        assert_eq!((buffer.len(), buffer.keys()), (1, vec![7]));
        drop(value);
        buffer.remove(&7).unwrap();
        swept(&buffer).await;
        assert_eq!(scripted.blobs().await, []);
        finish(buffer).await;
    }
}

/// zict: four threads get the same few spilled keys again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn case_31_a_cold_key_is_read_once_however_many_ask() {
    const KEYS: u64 = 5;
    let scripted = Scripted::new();
    let buffer = exact(10_000).tier(scripted.tier()).build().unwrap();
    let mut cold = 0;
    for round in 0..10 {
        for key in 0..KEYS {
            if round == 0 {
                buffer.insert(key, checked(key, 0, 100)).await.unwrap();
            }
            cold += u64::from(buffer.spill(&key).await.unwrap());
        }
        let readers: Vec<_> = (0..4)
            .map(|reader| {
                let buffer = buffer.clone();
                tokio::spawn(async move {
                    for step in 0..300u64 {
                        let key = (step + reader) % KEYS;
                        assert!(is_whole(key, &buffer.get(&key).await.unwrap().expect("never absent")));
                    }
                })
            })
            .collect();
        for reader in readers {
            within(60, reader).await.unwrap();
        }
        assert_eq!((buffer.stats().reads, scripted.reads()), (cold, cold), "round {round}");
    }
    assert_eq!(cold, 10 * KEYS);
    assert_eq!(scripted.writes(), KEYS, "clean copies are not written again");
    finish(buffer).await;
}
