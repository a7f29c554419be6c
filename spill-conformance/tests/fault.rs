//! What a [`FaultStore`] does to the store it wraps.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "these are tests")]

use std::{sync::Arc, time::Duration};

use spill_conformance::{Calls, Damage, Fault, FaultStore, Faults, Operation, Outcome};
use spill_core::{BlobId, Layer, MemoryStore, Payload, Store, StoreErrorKind};

fn wrapped() -> (Arc<FaultStore>, Faults, MemoryStore) {
    let (memory, faults) = (MemoryStore::new(), Faults::new());
    (Arc::new(FaultStore::new(Arc::new(memory.clone()), faults.clone())), faults, memory)
}

fn id(number: u64) -> BlobId {
    BlobId::new(number)
}

fn blob(text: &str) -> Payload {
    text.as_bytes().to_vec().into()
}

async fn kept(store: &dyn Store) -> Vec<u64> {
    store.list(None, 1000).await.unwrap().iter().map(|meta| meta.id.get()).collect()
}

#[tokio::test]
async fn picks_the_calls_it_was_told_to() {
    let (store, faults, memory) = wrapped();
    faults.fail(Calls::of(Operation::Put).nth(2), StoreErrorKind::Transient);
    faults.fail(Calls::of(Operation::Put).skip(3).next(2), StoreErrorKind::NoSpace);
    let mut kinds = Vec::new();
    for number in 1..=6 {
        kinds.push(store.put(id(number), blob("x")).await.err().map(|error| error.kind()));
    }
    use StoreErrorKind::{NoSpace, Transient};
    assert_eq!(kinds, [None, Some(Transient), None, Some(NoSpace), Some(NoSpace), None]);
    assert_eq!(kept(&memory).await, [1, 3, 6]);
}

#[tokio::test]
async fn fails_until_healed() {
    let (store, faults, _) = wrapped();
    faults.fail(Operation::Get, StoreErrorKind::Transient);
    store.put(id(1), blob("x")).await.unwrap();
    for _ in 0..3 {
        assert_eq!(store.get(id(1), 0..1).await.unwrap_err().kind(), StoreErrorKind::Transient);
    }
    faults.heal_operation(Operation::Put);
    assert!(store.get(id(1), 0..1).await.is_err());
    faults.heal_operation(Operation::Get);
    assert_eq!(store.get(id(1), 0..1).await.unwrap(), "x");
}

#[tokio::test]
async fn a_lost_acknowledgement_leaves_the_effect() {
    let (store, faults, memory) = wrapped();
    let wait = Duration::from_secs(7);
    faults.fail(Operation::Put, Fault::new(StoreErrorKind::Transient).after_effect().retry_after(wait));
    let error = store.put(id(1), blob("x")).await.unwrap_err();
    assert_eq!((error.retry_after(), error.blob()), (Some(wait), Some(id(1))));
    assert_eq!(kept(&memory).await, [1]);
    assert_eq!(faults.used(), 1);
}

#[tokio::test]
async fn a_batch_of_deletes_fails_in_part_or_as_a_whole() {
    let (store, faults, memory) = wrapped();
    for number in 1..=4 {
        store.put(id(number), blob("x")).await.unwrap();
    }
    let ids = [1, 2, 3, 9].map(id);
    faults.fail(Calls::of(Operation::Delete).next(1), StoreErrorKind::Transient);
    assert!(store.delete(&ids).await.unwrap_err().failed().is_empty());
    assert_eq!(kept(&memory).await, [1, 2, 3, 4]);

    faults.fail(Calls::of(Operation::Delete).blob(id(2)), StoreErrorKind::Denied);
    assert_eq!(store.delete(&ids).await.unwrap_err().failed(), [id(2)]);
    assert_eq!(kept(&memory).await, [2, 4]);
    assert_eq!(faults.used(), 2);
    store.delete(&[id(4)]).await.unwrap();
}

#[tokio::test]
async fn damages_what_is_read() {
    let (store, faults, _) = wrapped();
    store.put(id(1), blob("abcd")).await.unwrap();
    for (damage, read) in [
        (Damage::FlipBit(8), "accd"),
        (Damage::Truncate(1), "abc"),
        (Damage::Truncate(9), ""),
        (Damage::Swap(0, 3), "dbca"),
        (Damage::Append(1), "abcd\0"),
    ] {
        faults.damage(Calls::of(Operation::Get).next(1), damage);
        assert_eq!(store.get(id(1), 0..4).await.unwrap(), read, "{damage:?}");
    }
    assert_eq!(store.get(id(1), 0..4).await.unwrap(), "abcd");
}

#[tokio::test]
async fn a_quota_gives_back_what_was_deleted_and_what_failed() {
    let (store, faults, _) = wrapped();
    faults.set_quota(Some(10));
    store.put(id(1), blob("123456")).await.unwrap();
    faults.fail(Calls::of(Operation::Put).next(1), StoreErrorKind::Other);
    store.put(id(2), blob("1234")).await.unwrap_err();
    store.put(id(2), blob("1234")).await.unwrap();
    let error = store.put(id(3), blob("1")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NoSpace);
    store.delete(&[id(1), id(1)]).await.unwrap();
    assert_eq!(faults.used(), 4);
    store.put(id(3), blob("123456")).await.unwrap();
    store.close().await.unwrap();
    assert_eq!(faults.used(), 0);
}

#[tokio::test]
async fn space_that_was_used_up_stays_used_up() {
    let (store, faults, _) = wrapped();
    faults.set_space_left(Some(10));
    store.put(id(1), blob("12345678")).await.unwrap();
    assert_eq!(store.put(id(2), blob("123")).await.unwrap_err().kind(), StoreErrorKind::NoSpace);
    assert_eq!(store.put(id(2), blob("1")).await.unwrap_err().kind(), StoreErrorKind::NoSpace);
    faults.heal();
    store.put(id(2), blob("123")).await.unwrap();
}

#[tokio::test]
async fn a_gate_holds_before_the_effect() {
    let (store, faults, memory) = wrapped();
    let gate = faults.hold(Calls::of(Operation::Put).next(2));
    let puts: Vec<_> = (1..=3)
        .map(|number| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.put(id(number), blob("x")).await })
        })
        .collect();
    gate.held(2).await;
    assert_eq!(gate.holding(), 2);
    tokio::task::yield_now().await;
    assert_eq!(kept(&memory).await, [3], "the third is not held");
    gate.release_one();
    gate.release();
    for put in puts {
        put.await.unwrap().unwrap();
    }
    assert_eq!(kept(&memory).await, [1, 2, 3]);
}

#[tokio::test]
async fn a_cancelled_call_is_recorded_and_gives_its_quota_back() {
    let (store, faults, memory) = wrapped();
    let gate = faults.hold_after_effect(Operation::Put);
    let task = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.put(id(1), blob("xyz")).await }
    });
    gate.held(1).await;
    assert_eq!(kept(&memory).await, [1]);
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert_eq!(gate.holding(), 0);
    let counts = faults.counts(Operation::Put);
    assert_eq!((counts.started, counts.cancelled, counts.pending()), (1, 1, 0));
    assert_eq!(faults.calls()[0].outcome, Outcome::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn delays_follow_the_clock_of_the_runtime() {
    let (store, faults, _) = wrapped();
    faults.delay(Operation::List, Duration::from_secs(600));
    let begin = tokio::time::Instant::now();
    store.list(None, 1).await.unwrap();
    assert_eq!(begin.elapsed().as_secs(), 600);
}

#[tokio::test]
async fn records_every_call() {
    let (_, faults, memory) = wrapped();
    let store = faults.layer(Arc::new(memory));
    store.put(id(1), blob("abc")).await.unwrap();
    store.get(id(1), 1..3).await.unwrap();
    store.get(id(2), 0..1).await.unwrap_err();
    store.punch(id(1), &[]).await.unwrap();
    store.list(Some(id(1)), 5).await.unwrap();
    store.delete(&[id(1), id(2)]).await.unwrap();
    store.close().await.unwrap();
    let shown: Vec<_> = faults
        .calls()
        .into_iter()
        .map(|call| (call.operation.name(), call.ids.len(), call.bytes, call.outcome))
        .collect();
    use Outcome::{Done, Failed};
    assert_eq!(
        shown,
        [
            ("put", 1, 3, Done),
            ("get", 1, 2, Done),
            ("get", 1, 1, Failed(StoreErrorKind::NotFound)),
            ("punch", 1, 0, Done),
            ("list", 1, 0, Done),
            ("delete", 2, 0, Done),
            ("close", 0, 0, Done),
        ]
    );
    assert_eq!(faults.counts(Operation::Get).bytes, 2);
    faults.clear_calls();
    assert!(faults.calls().is_empty());
}
