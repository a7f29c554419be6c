//! What a configuration puts around stores that are not on a file system: retries, a bound on calls at once, a
//! time-out, in this order from the outside.

use std::{sync::Arc, time::Duration};

use spill_buffer::{
    ByteLength, BytesCodec, MemoryStore, OnFull, Options, Registry, Store, StoreError, StoreErrorKind,
    StoreFactory, config::Config, policies::Lru,
};
use spill_conformance::{Calls, Fault, FaultStore, Faults, Operation};
use tokio::time::Instant;

use crate::harness::*;

/// Opens stores in memory behind one script.
#[derive(Debug)]
struct Behind(Faults);

#[async_trait::async_trait]
impl StoreFactory for Behind {
    async fn open(&self, _: &url::Url, options: Options) -> Result<Arc<dyn Store>, StoreError> {
        options.finish("open", "scripted:")?;
        Ok(Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), self.0.clone())))
    }
}

/// Ten spilled values, in a blob each, in a tier with these settings.
async fn ten_spilled(settings: &str, faults: &Faults) -> Buffer {
    let text =
        format!("[memory]\nlimit = 10000\n[[tier]]\nstore = \"scripted:\"\nbatch_entries = 1\n{settings}");
    let config = Config::from_toml(&text, "spill.toml").unwrap();
    let registry = Registry::new().with_store("scripted", Arc::new(Behind(faults.clone())));
    let builder = config.builder::<u64, Vec<u8>>(&registry, None).await.unwrap();
    let builder = builder.exact(OnFull::Reject).policy(Lru::default());
    let buffer = builder.codec(BytesCodec).weigher(ByteLength).build().unwrap();
    for key in 0..10 {
        put_away(&buffer, key, noise(key, 100)).await;
    }
    buffer
}

/// Reads take a second each, and three at once are allowed. Those that wait for their turn do not run out of time.
#[tokio::test(start_paused = true)]
async fn a_place_in_the_queue_counts_against_no_time_limit() {
    let faults = Faults::new();
    let buffer = ten_spilled("concurrency = 3\nretries = 0\ntimeout = \"1500ms\"", &faults).await;
    faults.delay(Operation::Get, Duration::from_secs(1));
    let begun = Instant::now();
    let keys: Vec<u64> = (0..10).collect();
    for (key, answer) in (0..).zip(buffer.get_many(&keys).await) {
        assert_eq!(*answer.unwrap().unwrap(), noise(key, 100));
    }
    assert_eq!(begun.elapsed().as_secs(), 4, "ten in rounds of three");
    finish(buffer).await;
}

/// What takes too long is dropped and tried again.
#[tokio::test(start_paused = true)]
async fn each_try_has_a_time_limit_of_its_own() {
    let faults = Faults::new();
    let buffer = ten_spilled("retries = 1\ntimeout = \"1500ms\"", &faults).await;
    faults.delay(Calls::of(Operation::Get).next(1), Duration::from_secs(3600));
    faults.fail(Calls::of(Operation::Get).nth(2), StoreErrorKind::NotFound);
    let begun = Instant::now();
    let error = buffer.get(&0).await.unwrap_err();
    assert_eq!(store_kind(&error), Some(StoreErrorKind::NotFound), "the second try's answer: {error}");
    assert!((1500..1800).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
    assert_eq!(faults.counts(Operation::Get).cancelled, 1);
    assert_eq!(get(&buffer, 0).await.unwrap(), noise(0, 100));
    finish(buffer).await;
}

/// How many whole seconds it takes to read all ten at once, each read taking one.
async fn seconds_to_read_all(buffer: &Buffer, faults: &Faults) -> u64 {
    faults.delay(Operation::Get, Duration::from_secs(1));
    let begun = Instant::now();
    let keys: Vec<u64> = (0..10).collect();
    for (key, answer) in (0..).zip(buffer.get_many(&keys).await) {
        assert_eq!(*answer.unwrap().unwrap(), noise(key, 100));
    }
    faults.heal();
    for key in keys {
        assert!(buffer.spill(&key).await.unwrap());
    }
    begun.elapsed().as_secs()
}

/// A service with too much to do gets fewer calls at once, of the kind that it refused. Nothing is lost, and spills
/// go on.
#[tokio::test(start_paused = true)]
async fn a_throttled_answer_halves_the_calls_at_once() {
    let faults = Faults::new();
    faults.fail(Calls::of(Operation::Put).next(3), Fault::throttled());
    let buffer = ten_spilled("concurrency = 8\nretries = 3", &faults).await;
    let puts = faults.counts(Operation::Put);
    assert_eq!((puts.done, puts.failed), (10, 3));
    assert_eq!(seconds_to_read_all(&buffer, &faults).await, 2, "eight and two: refused writes slow no reads");

    for key in 0..2 {
        faults.fail(Calls::of(Operation::Get).next(1), Fault::throttled());
        assert_eq!(get(&buffer, key).await.unwrap(), noise(key, 100));
        assert!(buffer.spill(&key).await.unwrap());
    }
    assert_eq!(faults.counts(Operation::Get).failed, 2);
    assert_eq!(seconds_to_read_all(&buffer, &faults).await, 4, "two, three, four and one");
    finish(buffer).await;
}
