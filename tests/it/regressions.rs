//! What once went wrong, each case as small as it gets. Found by the model test.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use spill_buffer::{
    Builder, ByteLength, BytesCodec, Codec, CodecError, Error, FixedBudget, MemoryStore, OnFull, Payload,
    SpillBuffer, Store, StoreErrorKind, StoreInfo, Tally, TierSpec, policies::Fifo,
};
use spill_conformance::{Calls, FaultStore, Faults, Operation};
use tokio::time::{Instant, sleep, timeout};

type Buffer = SpillBuffer<u64, Vec<u8>>;

const MOMENT: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(600);

fn exact(memory: u64, on_full: OnFull) -> Builder<u64, Vec<u8>> {
    Buffer::builder()
        .memory_limit(memory)
        .exact(on_full)
        .policy(Fifo::default())
        .codec(BytesCodec)
        .weigher(ByteLength)
}

fn faulty() -> (Faults, TierSpec) {
    let faults = Faults::new();
    (faults.clone(), TierSpec::new(FaultStore::new(Arc::new(MemoryStore::new()), faults)))
}

async fn close(buffer: Buffer) {
    sleep(LONG).await;
    assert_eq!(buffer.audit().await.unwrap(), Vec::<String>::new());
    buffer.close().await.unwrap();
    assert!(buffer.usage().is_empty(), "{:#?}", buffer.usage());
}

/// A batch of entries without weight freed nothing, and that was taken for the end.
#[tokio::test(start_paused = true)]
async fn reclaim_goes_on_behind_entries_that_weigh_nothing() {
    let buffer =
        exact(100, OnFull::Reject).tier(TierSpec::new(MemoryStore::new()).batch_entries(1)).build().unwrap();
    buffer.insert(0, vec![]).await.unwrap();
    buffer.insert(1, vec![1; 10]).await.unwrap();
    assert_eq!(buffer.reclaim(1).await.unwrap(), 10);
    close(buffer).await;
}

/// The pin of a replaced entry went on to be counted.
#[tokio::test(start_paused = true)]
async fn replacing_or_removing_an_entry_ends_its_pin() {
    let buffer = exact(100, OnFull::Reject).tier(TierSpec::new(MemoryStore::new())).build().unwrap();
    buffer.insert(0, vec![0; 10]).await.unwrap();
    let first = buffer.pin(&0).await.unwrap();
    assert_eq!(buffer.usage().memory.pinned, Tally { entries: 1, weight: 10 });
    buffer.insert(0, vec![0; 20]).await.unwrap();
    assert_eq!(buffer.usage().memory.pinned, Tally::default());
    let second = buffer.pin(&0).await.unwrap();
    assert!(buffer.remove(&0).unwrap());
    assert_eq!(buffer.usage().memory.pinned, Tally::default());
    drop((first, second));
    close(buffer).await;
}

/// The weight of a pin stayed what it was.
#[tokio::test(start_paused = true)]
async fn a_pinned_entry_that_is_weighed_again_is_counted_so() {
    let factor = Arc::new(std::sync::atomic::AtomicU64::new(1));
    let factor_now = factor.clone();
    let buffer = exact(100, OnFull::Reject)
        .weigher(move |_: &u64, value: &Vec<u8>| {
            value.len() as u64 * factor_now.load(std::sync::atomic::Ordering::Relaxed)
        })
        .build()
        .unwrap();
    buffer.insert(0, vec![0; 10]).await.unwrap();
    let pin = buffer.pin(&0).await.unwrap();
    factor.store(2, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(buffer.reweigh(&0).unwrap(), Some(20));
    assert_eq!(buffer.usage().memory.pinned, Tally { entries: 1, weight: 20 });
    drop(pin);
    close(buffer).await;
}

/// Whoever read a blob last did not say that it can be deleted.
#[tokio::test(start_paused = true)]
async fn what_is_removed_while_it_is_read_is_deleted() {
    let (faults, tier) = faulty();
    let buffer = exact(0, OnFull::Reject).tier(tier).build().unwrap();
    buffer.insert(0, vec![7; 10]).await.unwrap();
    let gate = faults.hold(Operation::Get);
    let reader = buffer.clone();
    let read = tokio::spawn(async move { reader.get(&0).await });
    gate.held(1).await;
    assert!(buffer.remove(&0).unwrap());
    gate.release();
    assert_eq!(read.await.unwrap().unwrap().as_deref(), Some(&vec![7; 10]));
    sleep(MOMENT).await;
    assert_eq!(buffer.usage().total().garbage, 0);
    assert_eq!(faults.used(), 0);
    close(buffer).await;
}

/// Values that were read back could stay above the high watermark.
#[tokio::test(start_paused = true)]
async fn b02_reading_back_above_the_high_watermark_spills() {
    let buffer = exact(1000, OnFull::Reject)
        .capacity(FixedBudget::default())
        .tier(TierSpec::new(MemoryStore::new()))
        .build()
        .unwrap();
    for key in 0..9 {
        buffer.insert(key, vec![1; 100]).await.unwrap();
        buffer.spill(&key).await.unwrap();
    }
    for key in 0..9 {
        buffer.get(&key).await.unwrap();
    }
    sleep(MOMENT).await;
    assert!(buffer.usage().memory.resident.weight <= 750, "{:#?}", buffer.usage());
    close(buffer).await;
}

/// It was evicted again before it could be pinned, three times, once reading back made others leave.
#[tokio::test(start_paused = true)]
async fn e04_an_entry_between_the_watermark_and_the_limit_can_be_pinned() {
    let buffer = exact(100, OnFull::Reject)
        .capacity(FixedBudget::default())
        .tier(TierSpec::new(MemoryStore::new()))
        .build()
        .unwrap();
    buffer.insert(0, vec![1; 90]).await.unwrap();
    sleep(MOMENT).await;
    assert!(buffer.peek(&0).is_none(), "it was spilled at once");
    let pin = buffer.pin(&0).await.unwrap().unwrap();
    sleep(MOMENT).await;
    assert!(buffer.peek(&0).is_some());
    drop(pin);
    close(buffer).await;
}

/// Can't encode what begins with a one.
struct NoOnes;

impl Codec<Vec<u8>> for NoOnes {
    fn encode(&self, value: &Vec<u8>) -> Result<Payload, CodecError> {
        if value.first() == Some(&1) { Err(CodecError::new("a one")) } else { BytesCodec.encode(value) }
    }

    fn decode(&self, bytes: bytes::Bytes) -> Result<Vec<u8>, CodecError> {
        BytesCodec.decode(bytes)
    }
}

/// A clean one that is pinned stood for one that is not.
#[tokio::test(start_paused = true)]
async fn e01_pinned_clean_entries_do_not_hide_that_others_can_not_leave() {
    let buffer =
        exact(100, OnFull::Reject).codec(NoOnes).tier(TierSpec::new(MemoryStore::new())).build().unwrap();
    buffer.insert(0, vec![0; 10]).await.unwrap();
    buffer.spill(&0).await.unwrap();
    let pin = buffer.pin(&0).await.unwrap();
    buffer.insert(1, vec![1; 90]).await.unwrap();
    assert!(matches!(buffer.evict_one().await, Err(Error::Encode { .. })));
    // It is no candidate any more, but it is there.
    assert!(matches!(buffer.evict_one().await, Err(Error::Full { .. })));
    drop(pin);
    close(buffer).await;
}

/// The insert spun without ever letting the write go on: what is being written was to pay for its successor.
#[tokio::test(start_paused = true)]
async fn i01_an_entry_is_replaced_while_it_is_written_and_memory_is_full() {
    let (faults, tier) = faulty();
    let buffer = exact(100, OnFull::Wait(LONG)).tier(tier.batch_entries(1)).build().unwrap();
    buffer.insert(0, vec![0; 60]).await.unwrap();
    buffer.insert(1, vec![1; 30]).await.unwrap();
    let gate = faults.hold(Operation::Put);
    let spiller = buffer.clone();
    let spilled = tokio::spawn(async move { spiller.spill(&0).await });
    gate.held(1).await;
    let writer = buffer.clone();
    let insert = tokio::spawn(async move { writer.insert(0, vec![2; 65]).await });
    sleep(MOMENT).await;
    gate.release();
    insert.await.unwrap().unwrap();
    spilled.await.unwrap().unwrap();
    assert_eq!(buffer.get(&0).await.unwrap().as_deref(), Some(&vec![2; 65]));
    close(buffer).await;
}

/// What a spill in need of room could not delete was left to nobody.
#[tokio::test(start_paused = true)]
async fn f09_a_delete_that_fails_while_room_is_made_is_tried_again() {
    let (faults, tier) = faulty();
    let buffer = exact(0, OnFull::Reject).tier(tier.max_spill(128)).build().unwrap();
    buffer.insert(0, vec![7; 10]).await.unwrap();
    // The first is the tier's own task's, which then waits and looks again while the second is on its way.
    faults.fail(Calls::of(Operation::Delete).next(3), StoreErrorKind::Other);
    faults.delay(Calls::of(Operation::Delete).nth(2), Duration::from_millis(300));
    assert!(buffer.remove(&0).unwrap());
    sleep(MOMENT).await;
    let refused = buffer.insert(1, vec![7; 10]).await.unwrap_err();
    assert!(matches!(refused.error, Error::Full { .. }));
    sleep(LONG).await;
    assert_eq!(buffer.usage().total().garbage, 0, "{:#?}", buffer.usage());
    close(buffer).await;
}

/// It was encoded again and again, at once, while another tier was left alone.
#[tokio::test(start_paused = true)]
async fn f02_a_heavy_value_waits_for_a_tier_that_fails_and_is_not_tried_where_it_does_not_fit() {
    let (faults, first) = faulty();
    let small = TierSpec::new(MemoryStore::new()).name("small").max_spill(150);
    let buffer = exact(100, OnFull::Wait(LONG)).tier(first.name("first")).tier(small).build().unwrap();
    // Memory that can't shrink says so after every try.
    buffer.insert(0, vec![1; 60]).await.unwrap();
    let pin = buffer.pin(&0).await.unwrap();
    buffer.set_memory_limit(10);
    faults.fail(Calls::of(Operation::Put).next(3), StoreErrorKind::Transient);
    timeout(LONG, buffer.insert(2, vec![2; 200])).await.expect("time goes on").unwrap();
    assert_eq!(buffer.get(&2).await.unwrap().as_deref(), Some(&vec![2; 200]));
    drop(pin);
    close(buffer).await;
}

/// Only memory's own troubles woke it.
#[tokio::test(start_paused = true)]
async fn f05_a_heavy_value_comes_in_as_soon_as_its_tier_has_room() {
    let buffer = exact(10, OnFull::Wait(LONG))
        .tier(TierSpec::new(MemoryStore::new()).max_spill(1000))
        .build()
        .unwrap();
    buffer.insert(0, vec![1; 800]).await.unwrap();
    let (writer, started) = (buffer.clone(), Instant::now());
    let insert = tokio::spawn(async move { writer.insert(1, vec![2; 800]).await });
    sleep(MOMENT).await;
    assert!(!insert.is_finished());
    assert!(buffer.remove(&0).unwrap());
    insert.await.unwrap().unwrap();
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    close(buffer).await;
}

/// They waited for ever, and all behind them as well.
#[tokio::test(start_paused = true)]
async fn b06_a_limit_that_is_lowered_below_what_waits_sends_it_to_a_tier() {
    let (faults, tier) = faulty();
    let buffer = exact(100, OnFull::Reject).tier(tier).build().unwrap();
    buffer.insert(0, vec![0; 60]).await.unwrap();
    buffer.spill(&0).await.unwrap();
    buffer.insert(1, vec![1; 90]).await.unwrap();
    let gate = faults.hold(Operation::Put);
    let (reader, writer) = (buffer.clone(), buffer.clone());
    let read = tokio::spawn(async move { reader.get(&0).await });
    let insert = tokio::spawn(async move { writer.insert(2, vec![2; 80]).await });
    gate.held(1).await;
    buffer.set_memory_limit(50);
    gate.release();
    assert_eq!(timeout(LONG, read).await.unwrap().unwrap().unwrap().as_deref(), Some(&vec![0; 60]));
    timeout(LONG, insert).await.unwrap().unwrap().unwrap();
    assert!(buffer.peek(&2).is_none());
    close(buffer).await;
}

/// What no tier took once was only offered again when memory was full.
#[tokio::test(start_paused = true)]
async fn f07_evict_one_and_reclaim_try_again_what_failed_before() {
    let (faults, tier) = faulty();
    let buffer = exact(100, OnFull::Reject).tier(tier).build().unwrap();
    buffer.insert(0, vec![0; 10]).await.unwrap();
    buffer.insert(1, vec![0; 10]).await.unwrap();
    faults.fail(Calls::of(Operation::Put).next(1), StoreErrorKind::Transient);
    assert!(matches!(buffer.spill(&0).await, Err(Error::Full { .. })));
    sleep(MOMENT).await;
    // The tier is left alone now.
    for key in 0..2 {
        assert!(matches!(buffer.spill(&key).await, Err(Error::Full { .. })));
    }
    sleep(LONG).await;
    assert!(buffer.evict_one().await.unwrap().is_some());
    assert_eq!(buffer.reclaim(10).await.unwrap(), 10);
    close(buffer).await;
}

/// Room that only compaction makes was never tried for by those who waited already.
#[tokio::test(start_paused = true)]
async fn f05_an_insert_waits_no_longer_than_until_its_room_can_be_made_of_garbage() {
    let buffer =
        exact(0, OnFull::Wait(LONG)).tier(TierSpec::new(MemoryStore::new()).max_spill(1536)).build().unwrap();
    buffer.set_memory_limit(700);
    for key in 0..7 {
        buffer.insert(key, vec![1; 100]).await.unwrap();
    }
    // One blob of seven frames.
    buffer.set_memory_limit(0);
    sleep(MOMENT).await;
    let (blobs, stored) = (buffer.usage().total().blobs, buffer.usage().total().stored);
    assert_eq!((blobs, stored), (1, 7 * 192));
    let (writer, started) = (buffer.clone(), Instant::now());
    let insert = tokio::spawn(async move { writer.insert(7, vec![2; 448]).await });
    sleep(MOMENT).await;
    assert!(!insert.is_finished());
    for key in 0..6 {
        assert!(buffer.remove(&key).unwrap());
    }
    insert.await.unwrap().unwrap();
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    close(buffer).await;
}

/// Reads that failed together waited for permits that they held themselves, and all reading stopped.
#[tokio::test(start_paused = true)]
async fn g08_neighbours_whose_read_fails_are_read_one_by_one() {
    let (faults, tier) = faulty();
    let buffer = exact(200_000, OnFull::Reject).tier(tier).build().unwrap();
    for key in 0..4 {
        buffer.insert(key, vec![7; 20_000]).await.unwrap();
    }
    buffer.reclaim(80_000).await.unwrap();
    assert_eq!(buffer.usage().total().blobs, 1);
    faults.fail(Calls::of(Operation::Get).next(1), StoreErrorKind::Transient);
    let answers = timeout(LONG, buffer.get_many(&[0, 1, 2, 3])).await.expect("nobody waits for itself");
    for answer in answers {
        assert_eq!(answer.unwrap().as_deref(), Some(&vec![7; 20_000]));
    }
    close(buffer).await;
}

/// A frame longer than any blob was offered to its tier again and again.
#[tokio::test(start_paused = true)]
async fn f02_a_value_too_long_for_any_blob_is_encoded_once_and_does_not_hold_up_others() {
    let store = MemoryStore::with_info(StoreInfo::new("small blobs").max_blob(1024));
    let encoded = Arc::new(AtomicU64::new(0));
    let buffer = exact(5000, OnFull::Reject)
        .codec(Counting(encoded.clone()))
        .tier(TierSpec::new(store).batch_bytes(1024))
        .build()
        .unwrap();
    buffer.insert(0, vec![1; 4000]).await.unwrap();
    for key in 1..20 {
        buffer.insert(key, vec![2; 500]).await.unwrap();
    }
    sleep(LONG).await;
    // Once for the long one, and once for each that left.
    assert_eq!(encoded.load(Relaxed), 1 + buffer.usage().spilled.entries);
    assert!(buffer.peek(&0).is_some());
    let refused = buffer.insert(20, vec![3; 5001]).await.unwrap_err();
    assert!(matches!(refused.error, Error::Full { limit: Some(1024), .. }), "{}", refused.error);
    close(buffer).await;
}

/// Counts what it encodes.
struct Counting(Arc<AtomicU64>);

impl Codec<Vec<u8>> for Counting {
    fn encode(&self, value: &Vec<u8>) -> Result<Payload, CodecError> {
        self.0.fetch_add(1, Relaxed);
        BytesCodec.encode(value)
    }

    fn decode(&self, bytes: bytes::Bytes) -> Result<Vec<u8>, CodecError> {
        BytesCodec.decode(bytes)
    }
}

/// A tier that could not be closed kept the others from it; and a deadline beyond all clocks was a panic.
#[tokio::test(start_paused = true)]
async fn e05_a_tier_that_can_not_be_closed_does_not_keep_the_others_from_it() {
    let (faults, first) = faulty();
    let second = MemoryStore::new();
    let buffer = exact(0, OnFull::Wait(Duration::MAX))
        .tier(first.name("first").max_spill(128))
        .tier(TierSpec::new(second.clone()).name("second"))
        .build()
        .unwrap();
    for key in 0..3 {
        buffer.insert(key, vec![7; 10]).await.unwrap();
    }
    assert_eq!(second.list(None, 10).await.unwrap().len(), 2);
    faults.fail(Calls::of(Operation::Close), StoreErrorKind::Other);
    let error = buffer.close_within(Duration::MAX).await.unwrap_err();
    assert!(matches!(error, Error::Store { operation: "close", .. }), "{error}");
    assert_eq!(second.list(None, 10).await.unwrap().len(), 0);
}
