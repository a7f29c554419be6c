//! Inputs that broke other systems, with the outcome that is right. Those under load are in `cases_load`.

use std::{sync::Arc, time::Duration};

use spill_buffer::{
    Error, Event, Location, OnFull, Pressure, Resource, SpillBuffer, Store, StoreErrorKind, TierSpec,
};
use spill_conformance::{Calls, Damage, Fault, Operation};
use tokio::time::sleep;

use crate::harness::*;

/// ray 26395: of a batch only A fails, before or after it was stored, and is spilled again in another.
#[tokio::test(start_paused = true)]
async fn case_01_one_of_a_batch_fails_and_is_spilled_again() {
    const A: u64 = 1;
    for (position, lost_answer) in [(1, false), (1, true), (2, false), (2, true), (3, false), (3, true)] {
        let scripted = Scripted::new();
        let buffer = exact(10_000).tier(scripted.tier()).build().unwrap();
        let mut keys = vec![2, 3];
        keys.insert(position - 1, A);
        for key in &keys {
            buffer.insert(*key, noise(*key, 100)).await.unwrap();
        }
        let fault = Fault::new(StoreErrorKind::Transient);
        let fault = if lost_answer { fault.after_effect() } else { fault };
        scripted.faults.fail(Calls::of(Operation::Put).nth(position as u64), fault);
        buffer.reclaim(300).await.unwrap();
        assert_eq!(buffer.location(&A), Some(Location::Memory), "position {position}");

        sleep(Duration::from_secs(60)).await;
        buffer.insert(4, noise(4, 100)).await.unwrap();
        buffer.reclaim(u64::MAX).await.unwrap();
        assert_eq!(buffer.usage().spilled.entries, 4);
        for key in [2, 3, A] {
            assert_eq!(get(&buffer, key).await.unwrap(), noise(key, 100));
        }
        buffer.reclaim(u64::MAX).await.unwrap();
        assert!(buffer.remove(&A).unwrap());
        swept(&buffer).await;
        for key in [2, 3, 4] {
            assert_eq!(get(&buffer, key).await.unwrap(), noise(key, 100));
        }
        for key in [2, 3, 4] {
            buffer.remove(&key).unwrap();
        }
        swept(&buffer).await;
        assert_eq!(scripted.blobs().await, [], "position {position}, answer lost: {lost_answer}");
        finish(buffer).await;
    }
}

/// datafusion 24228: failed and refused writes take nothing from the cap for good.
#[tokio::test(start_paused = true)]
async fn case_04_failed_writes_give_their_room_back() {
    let scripted = Scripted::new();
    let buffer = exact(100_000).tier(scripted.tier().max_spill(1024)).build().unwrap();
    put_away(&buffer, 1, noise(1, 320)).await; // a frame of 384
    buffer.insert(2, noise(2, 512)).await.unwrap(); // of 576
    for _ in 0..2 {
        scripted.faults.fail(Calls::of(Operation::Put).next(1), StoreErrorKind::NoSpace);
        let error = buffer.spill(&2).await.unwrap_err();
        assert!(matches!(&error, Error::Full { source: Some(_), .. }), "{error}");
        sleep(Duration::from_secs(60)).await;
    }
    assert_eq!(scripted.faults.counts(Operation::Put).failed, 2);
    swept(&buffer).await;
    assert_eq!(buffer.usage().tiers[0].stored, 384);

    buffer.insert(3, noise(3, 640)).await.unwrap(); // of 704
    let writes = scripted.writes();
    let error = buffer.spill(&3).await.unwrap_err();
    assert!(matches!(error, Error::Full { need: 704, used: 384, limit: Some(1024), .. }), "{error:?}");
    assert_eq!(scripted.writes(), writes, "refused before anything is written");

    buffer.remove(&1).unwrap();
    swept(&buffer).await;
    assert_eq!(buffer.usage().tiers[0].stored, 0);
    put_away(&buffer, 4, noise(4, 832)).await; // of 896
    assert_eq!(buffer.usage().tiers[0].stored, 896);
    assert_eq!(get(&buffer, 2).await.unwrap(), noise(2, 512));
    finish(buffer).await;
}

/// duckdb 25672: a tier that may hold nothing.
#[tokio::test(start_paused = true)]
async fn case_06_nothing_can_be_spilled() {
    let wait = Duration::from_secs(5);
    for on_full in [OnFull::Reject, OnFull::Keep, OnFull::Wait(wait)] {
        let root = tempfile::tempdir().unwrap();
        let store = Arc::new(files(root.path()).await);
        let tier = TierSpec::from_arc(store.clone()).max_spill(0);
        let buffer = exact(300).exact(on_full).tier(tier).build().unwrap();
        for key in 0..3 {
            buffer.insert(key, noise(key, 100)).await.unwrap();
        }
        for (key, len) in [(3, 100), (4, 301)] {
            let begin = tokio::time::Instant::now();
            let answer = buffer.insert(key, noise(key, len)).await;
            match (on_full, answer) {
                (OnFull::Keep, answer) => answer.unwrap(),
                (_, Ok(())) => panic!("{on_full} took {len} bytes"),
                (_, Err(refused)) => {
                    assert!(matches!(refused.error, Error::Full { .. }), "{on_full}: {refused}");
                    assert_eq!(*refused.value, noise(key, len));
                    let waited = if on_full == OnFull::Reject { Duration::ZERO } else { wait };
                    assert_eq!(begin.elapsed().as_secs(), waited.as_secs(), "{on_full}");
                }
            }
        }
        settled(&buffer).await;
        let total = buffer.usage().total();
        let spilled = [total.entries, total.stored, total.allocated, total.garbage, total.in_flight];
        assert_eq!((spilled, total.blobs), ([0; 5], 0));
        assert_eq!(store.list(None, 9).await.unwrap(), []);
        assert_eq!(buffer.stats().blobs_written + buffer.stats().write_failures, 0);
        for key in 0..buffer.len() {
            assert!(get(&buffer, key).await.is_some());
        }
        finish(buffer).await;
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }
}

/// clickhouse 105638, tidb 45161: a tiny cap refuses every path that writes, in the same way.
#[tokio::test]
async fn case_10_every_write_path_is_refused_the_same_way() {
    // Some room is left, so that the values are encoded, and what they need is known.
    const USED: u64 = 2 * frame(100);
    const Q: u64 = USED + 64;
    let near = Scripted::new();
    let far = Scripted::new();
    for scripted in [&near, &far] {
        // What the buffer lets through beyond its cap would fail here, and be seen.
        scripted.faults.set_quota(Some(Q));
    }
    let buffer = exact(1000)
        .tier(near.tier().max_spill(Q).name("near"))
        .tier(far.tier().max_spill(Q).name("far"))
        .build()
        .unwrap();
    for key in 0..4 {
        put_away(&buffer, key, noise(key, 100)).await;
    }
    assert_eq!((buffer.usage().tiers[0].stored, buffer.usage().tiers[1].stored), (USED, USED), "failover");
    let refused = |error: &Error, need: u64| match error {
        Error::Full { resource: Resource::Spill, need: asked, used, limit, source: None, .. } => {
            assert_eq!((*asked, *used, *limit), (need, USED, Some(Q)), "{error}");
        }
        other => panic!("{other:?}"),
    };
    for key in 10..14 {
        buffer.insert(key, noise(key, 250)).await.unwrap();
    }
    refused(&buffer.spill(&10).await.unwrap_err(), frame(250));
    refused(&buffer.evict_one().await.unwrap_err(), frame(250));
    assert_eq!(buffer.reclaim(1000).await.unwrap(), 0);
    let errors = buffer.insert_many((20..23).map(|key| (key, noise(key, 250)))).await;
    assert_eq!(errors.len(), 3);
    errors.iter().for_each(|(_, error)| refused(&error.error, frame(250)));
    refused(&buffer.insert(30, noise(30, 1001)).await.unwrap_err().error, frame(1001));
    buffer.set_memory_limit(500);
    settled(&buffer).await;
    assert_eq!(buffer.usage().memory.resident.weight, 1000, "nothing could leave");
    buffer.set_memory_limit(1000);

    // Compaction copies only where there is room for the copy.
    assert!(buffer.remove(&0).unwrap());
    swept(&buffer).await;
    match buffer.spill(&11).await.unwrap_err() {
        Error::Full { need, limit, .. } => assert_eq!((need, limit), (frame(250), Some(Q))),
        other => panic!("{other:?}"),
    }
    for scripted in [&near, &far] {
        assert_eq!(scripted.faults.counts(Operation::Put).failed, 0, "nothing went beyond the cap");
    }
    for key in (1..4).chain(10..14) {
        assert!(get(&buffer, key).await.is_some(), "{key}");
    }
    finish(buffer).await;
}

/// `LMCache` 207: what the caller does with its buffer after the insert changes nothing.
#[tokio::test]
async fn case_12_the_callers_buffer_is_used_again() {
    let buffer = SpillBuffer::<u64, bytes::Bytes>::builder()
        .memory_limit(1000)
        .exact(OnFull::Reject)
        .codec(spill_buffer::BytesCodec)
        .weigher(spill_buffer::ByteLength)
        .tier(Scripted::new().tier())
        .build()
        .unwrap();
    let mut reused = bytes::BytesMut::with_capacity(400);
    for key in 0..4 {
        reused.reserve(100);
        reused.extend_from_slice(&noise(key, 100));
        buffer.insert(key, reused.split().freeze()).await.unwrap();
    }
    reused.reserve(100);
    reused.extend_from_slice(&[0xff; 100]);
    buffer.reclaim(u64::MAX).await.unwrap();
    reused.fill(0xee);
    for key in 0..4 {
        assert_eq!(buffer.get(&key).await.unwrap().unwrap()[..], noise(key, 100));
    }
    buffer.close().await.unwrap();

    let vectors = exact(1000).tier(Scripted::new().tier()).build().unwrap();
    let mut value = Arc::new(noise(1, 100));
    vectors.insert(1, value.clone()).await.unwrap();
    Arc::make_mut(&mut value).fill(0xff);
    assert!(vectors.spill(&1).await.unwrap());
    assert_eq!(get(&vectors, 1).await.unwrap(), noise(1, 100));
    finish(vectors).await;
}

/// `LMCache` 1981: a blob is unlinked behind our back.
#[tokio::test]
async fn case_13_a_blob_that_vanished_costs_only_its_keys() {
    let root = tempfile::tempdir().unwrap();
    let store = files(root.path()).await;
    let directory = store.directory().to_owned();
    let buffer = exact(10_000).tier(TierSpec::new(store).batch_entries(2)).build().unwrap();
    for key in 0..6 {
        buffer.insert(key, noise(key, 100)).await.unwrap();
    }
    buffer.reclaim(u64::MAX).await.unwrap();
    let blobs = |directory: &std::path::Path| {
        let files = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
        let mut blobs: Vec<_> =
            files.filter(|path| path.extension().is_some_and(|name| name == "blob")).collect();
        blobs.sort();
        blobs
    };
    assert_eq!(blobs(&directory).len(), 3);
    std::fs::remove_file(&blobs(&directory)[1]).unwrap(); // keys 2 and 3
    for round in 0..2 {
        for key in 0..6 {
            match buffer.get(&key).await {
                Err(error) if key / 2 == 1 => {
                    assert_eq!(store_kind(&error), Some(StoreErrorKind::NotFound), "{error}");
                }
                answer => assert_eq!(*answer.unwrap().unwrap(), noise(key, 100), "{key} in {round}"),
            }
        }
    }
    assert!(buffer.contains_key(&2));
    assert!(buffer.remove(&2).unwrap());
    // Overwriting is the other way out.
    put_away(&buffer, 3, noise(33, 100)).await;
    assert_eq!(get(&buffer, 3).await.unwrap(), noise(33, 100));
    swept(&buffer).await;
    finish(buffer).await;
}

/// celeborn 1249: a store that fails for a second, then heals.
#[tokio::test(start_paused = true)]
async fn case_16_a_store_that_heals_drains_with_the_same_workers() {
    let scripted = Scripted::new();
    let waiting = OnFull::Wait(Duration::from_secs(3600));
    let buffer = exact(1000).exact(waiting).tier(scripted.tier()).build().unwrap();
    settled(&buffer).await;
    sleep(Duration::from_secs(1)).await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    scripted.faults.fail(Operation::Put, StoreErrorKind::Transient);
    let inserts: Vec<_> = (0..50)
        .map(|key| {
            let buffer = buffer.clone();
            tokio::spawn(async move { buffer.insert(key, noise(key, 100)).await })
        })
        .collect();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(buffer.usage().memory.resident.weight, 1000);
    assert!(scripted.writes() < 60, "{} tries in a second", scripted.writes());
    scripted.faults.heal();
    for insert in inserts {
        insert.await.unwrap().unwrap();
    }
    settled(&buffer).await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(tasks(), before);
    assert_eq!(*buffer.pressure().borrow(), Pressure::Normal);
    for key in 0..50 {
        assert_eq!(get(&buffer, key).await.unwrap(), noise(key, 100));
    }
    finish(buffer).await;
}

/// A way to change a blob of three frames of 192 bytes.
type Change = fn(&mut Vec<u8>);

/// reddb 219: damage at rest.
#[tokio::test]
async fn case_17_damage_at_rest_is_detected() {
    let changes: [(&str, Change); 6] = [
        ("two bytes swapped", |blob| blob.swap(192 + 70, 192 + 71)),
        ("a bit flipped", |blob| blob[192 + 100] ^= 4),
        ("a byte cut in the middle", |blob| blob.copy_within(192 + 91.., 192 + 90)),
        ("a byte cut off the end", |blob| blob.truncate(3 * 192 - 1)),
        ("a byte put in between", |blob| blob.insert(192, 0)),
        ("two frames swapped", |blob| (0..192).for_each(|at| blob.swap(at, 192 + at))),
    ];
    for (what, change) in changes {
        let scripted = Scripted::new();
        let buffer = exact(10_000).tier(TierSpec::new(scripted.store())).build().unwrap();
        for key in 0..3 {
            buffer.insert(key, noise(key, 100)).await.unwrap();
        }
        buffer.reclaim(u64::MAX).await.unwrap();
        let blob = scripted.blobs().await[0];
        assert_eq!(blob.stored.bytes, 3 * 192);
        scripted.memory.tamper(blob.id, |mut bytes| {
            change(&mut bytes);
            Some(bytes)
        });
        let mut damaged = 0;
        for key in 0..3 {
            match buffer.get(&key).await {
                Ok(value) => assert_eq!(*value.unwrap(), noise(key, 100), "{what}"),
                Err(Error::Corrupt { key: named, .. }) if named == key.to_string() => damaged += 1,
                Err(other) => panic!("{what}: {other:?}"),
            }
        }
        assert!((1..3).contains(&damaged), "{what}: {damaged} found, only those it is about");
        buffer.clear().unwrap();
        swept(&buffer).await;
        finish(buffer).await;
    }
}

/// The same on the way: a store that answers a read with other bytes than it holds.
#[tokio::test]
async fn case_17_damage_on_the_way_is_detected() {
    for damage in [
        Damage::Swap(70, 71),
        Damage::FlipBit(8 * 100),
        Damage::Truncate(1),
        Damage::Truncate(100),
        Damage::Append(1),
        Damage::Append(64),
    ] {
        let scripted = Scripted::new();
        let buffer = exact(10_000).tier(scripted.tier()).build().unwrap();
        put_away(&buffer, 1, noise(1, 100)).await;
        scripted.faults.damage(Calls::of(Operation::Get).next(1), damage);
        let error = buffer.get(&1).await.expect_err(&format!("{damage:?}"));
        assert!(matches!(error, Error::Corrupt { .. }), "{damage:?}: {error}");
        assert_eq!(get(&buffer, 1).await.unwrap(), noise(1, 100), "read again, it is whole");
        finish(buffer).await;
    }
}

/// A frame of another entry, or of another buffer, whole and right in itself, is not this one's.
#[tokio::test]
async fn case_17_a_whole_frame_from_elsewhere_is_detected() {
    let (one, other) = (Scripted::new(), Scripted::new());
    let buffers = [&one, &other].map(|scripted| exact(10_000).tier(scripted.tier()).build().unwrap());
    for buffer in &buffers {
        put_away(buffer, 1, noise(1, 100)).await;
        put_away(buffer, 2, noise(1, 100)).await;
    }
    let blobs = one.blobs().await;
    let second = one.memory.get(blobs[1].id, 0..192).await.unwrap();
    let foreign = other.memory.get(other.blobs().await[0].id, 0..192).await.unwrap();
    for frame in [second, foreign] {
        one.memory.tamper(blobs[0].id, |_| Some(frame.to_vec()));
        let error = buffers[0].get(&1).await.unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    }
    for buffer in buffers {
        finish(buffer).await;
    }
}

/// ray 29014: of a hundred deletes one finds nothing and one fails.
#[tokio::test(start_paused = true)]
async fn case_24_a_delete_that_fails_is_named_and_holds_up_nobody() {
    let scripted = Scripted::new();
    let buffer = exact(100_000).tier(scripted.tier()).build().unwrap();
    for key in 0..100 {
        buffer.insert(key, noise(key, 100)).await.unwrap();
    }
    assert_eq!(buffer.reclaim(u64::MAX).await.unwrap(), 10_000);
    let blobs = scripted.blobs().await;
    let (missing, failing) = (blobs[17].id, blobs[42].id);
    scripted.memory.tamper(missing, |_| None);
    scripted.faults.fail(Calls::of(Operation::Delete).blob(failing), StoreErrorKind::Other);
    let mut events = buffer.events();
    buffer.clear().unwrap();
    settled_with(&buffer, |buffer| buffer.usage().total().garbage == frame(100)).await;
    assert_eq!(scripted.blobs().await.iter().map(|blob| blob.id).collect::<Vec<_>>(), [failing]);
    assert_eq!((buffer.usage().total().blobs, buffer.len()), (1, 0));
    match events.next().await.unwrap() {
        Event::DeleteFailed { blobs, .. } => assert_eq!(blobs, [failing]),
        other => panic!("{other:?}"),
    }
    // It neither blocks what comes nor comes back, and is tried again until it is gone.
    put_away(&buffer, 42, noise(43, 100)).await;
    assert_eq!(get(&buffer, 42).await.unwrap(), noise(43, 100));
    scripted.faults.heal();
    swept(&buffer).await;
    assert_eq!(buffer.usage().total().blobs, 1);
    finish(buffer).await;
}

/// dask 7449, zict 16: a scan that only reads writes nothing a second time.
#[tokio::test]
async fn case_30_a_cyclic_scan_writes_each_value_once() {
    const VALUE: usize = 60_000;
    for policy in ["lru", "fifo", "clock", "s3-fifo", "sieve"] {
        let scripted = Scripted::new();
        let policy_of = spill_buffer::policies::by_name(policy).unwrap();
        let tier = TierSpec::new(scripted.store());
        let buffer = exact(3_000_000).boxed_policy(policy_of).tier(tier).build().unwrap();
        for key in 0..100 {
            buffer.insert(key, noise(key, VALUE)).await.unwrap();
        }
        for _ in 0..3 {
            for key in 0..100 {
                assert!(get(&buffer, key).await.unwrap() == noise(key, VALUE));
            }
        }
        settled(&buffer).await;
        let stats = buffer.stats();
        assert!(stats.hits_restored > 100, "{policy}: the scan did not fit in memory");
        assert!(stats.entries_spilled <= 100, "{policy}: {} writes", stats.entries_spilled);
        let usage = buffer.usage();
        assert_eq!(usage.total().entries, stats.entries_spilled, "{policy}: every frame is alive");
        assert!(usage.memory.resident.weight <= 3_000_000);
        finish(buffer).await;
    }
}

/// dask 5364: the disk is smaller than the data.
#[tokio::test(start_paused = true)]
async fn case_32_with_keep_nothing_is_lost_and_pressure_rises() {
    const M: u64 = 10_000;
    let tier = Scripted::new().tier().max_spill(M);
    let buffer = exact(M).exact(OnFull::Keep).tier(tier).build().unwrap();
    for key in 0..400 {
        buffer.insert(key, noise(key, 100)).await.unwrap();
    }
    settled(&buffer).await;
    let usage = buffer.usage();
    assert_eq!((usage.entries, usage.memory.resident.weight + usage.spilled.weight), (400, 4 * M));
    assert!(usage.total().stored > M - frame(100) && usage.total().stored <= M);
    assert_eq!(*buffer.pressure().borrow(), Pressure::Paused);
    for key in 0..400 {
        assert_eq!(get(&buffer, key).await.unwrap(), noise(key, 100));
    }
    // When room returns, what is above the limit drains by itself.
    assert!(buffer.set_max_spill(0, None));
    settled_with(&buffer, |buffer| buffer.usage().memory.resident.weight <= M).await;
    assert_eq!(*buffer.pressure().borrow(), Pressure::Normal);
    for key in 0..400 {
        assert_eq!(get(&buffer, key).await.unwrap(), noise(key, 100));
    }
    finish(buffer).await;
}

#[tokio::test(start_paused = true)]
async fn case_32_with_wait_inserters_wait_and_nothing_is_lost() {
    const M: u64 = 10_000;
    let waiting = OnFull::Wait(Duration::from_secs(600));
    let buffer = exact(M).exact(waiting).tier(Scripted::new().tier().max_spill(M)).build().unwrap();
    let inserts: Vec<_> = (0..400)
        .map(|key| {
            let buffer = buffer.clone();
            tokio::spawn(async move { buffer.insert(key, noise(key, 100)).await })
        })
        .collect();
    sleep(Duration::from_secs(60)).await;
    let waiting = inserts.iter().filter(|insert| !insert.is_finished()).count() as u64;
    assert_eq!(waiting + buffer.len(), 400);
    assert!(waiting > 200 && buffer.usage().memory.resident.weight == M, "{waiting}");
    assert!(buffer.usage().total().stored <= M);
    // Whoever makes room lets them in, until all have been there.
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 400 {
        for key in buffer.keys() {
            assert_eq!(*buffer.take(&key).await.unwrap().unwrap(), noise(key, 100));
            assert!(seen.insert(key), "{key} came twice");
        }
        sleep(Duration::from_millis(10)).await;
    }
    for insert in inserts {
        insert.await.unwrap().unwrap();
    }
    swept(&buffer).await;
    finish(buffer).await;
}
