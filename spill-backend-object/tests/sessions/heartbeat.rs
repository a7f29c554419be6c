//! Heartbeats, the task that writes them, and listings in order.

use std::{
    fmt,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use spill_backend_object::{ObjectOptions, ObjectStoreBackend};
use spill_core::{BlobId, Store, StoreErrorKind};
use tokio::{runtime::Runtime, time::advance};

use crate::{
    clocked::{Act, Bucket, Clocked},
    ids,
    polls::{poll_at_most, settle},
    put,
};

const MINUTE: Duration = Duration::from_secs(60);

fn options(bucket: &Arc<Clocked>) -> ObjectOptions {
    ObjectOptions::new(Arc::new(Bucket(bucket.clone())), "shared").owner("app")
}

fn open(bucket: &Arc<Clocked>) -> ObjectStoreBackend {
    options(bucket).open().unwrap()
}

fn heartbeats(bucket: &Clocked) -> usize {
    bucket.count("put", "/alive")
}

#[tokio::test(start_paused = true)]
async fn the_heartbeat_comes_before_the_first_blob_and_every_minute() {
    let bucket = Clocked::at(1);
    let store = open(&bucket);
    ids(&store, None, 10).await;
    store.get(BlobId::new(1), 0..1).await.unwrap_err();
    settle().await;
    assert_eq!(heartbeats(&bucket), 0, "an unused session needs none");

    bucket.take_calls();
    futures_util::future::join3(put(&store, 1), put(&store, 2), put(&store, 3)).await;
    let calls = bucket.take_calls();
    assert!(calls[0].1.ends_with("/alive"), "{calls:?}");
    assert_eq!(calls.len(), 4, "one heartbeat, three blobs: {calls:?}");
    assert_eq!(ids(&store, None, 10).await, [1, 2, 3]);
    for beats in 0..5 {
        assert_eq!(heartbeats(&bucket), beats);
        advance(MINUTE - Duration::from_millis(10)).await;
        settle().await;
        assert_eq!(heartbeats(&bucket), beats, "too early");
        advance(Duration::from_millis(10)).await;
        settle().await;
    }
    store.close().await.unwrap();
    assert!(bucket.names().await.is_empty());
    advance(MINUTE * 5).await;
    settle().await;
    assert!(bucket.names().await.is_empty(), "a heartbeat after the end");
}

#[tokio::test(start_paused = true)]
async fn closing_waits_for_the_heartbeat_that_is_being_written() {
    let bucket = Clocked::at(1);
    let store = open(&bucket);
    put(&store, 1).await;
    bucket.lingering.store(true, Ordering::Relaxed);
    advance(MINUTE).await;
    while heartbeats(&bucket) < 2 {
        tokio::task::yield_now().await;
    }
    store.close().await.unwrap();
    settle().await;
    assert!(bucket.names().await.is_empty(), "{:?}", bucket.names().await);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_store_writes_no_more_heartbeats() {
    let bucket = Clocked::at(1);
    let store = open(&bucket);
    put(&store, 1).await;
    drop(store);
    advance(MINUTE * 5).await;
    settle().await;
    assert_eq!(heartbeats(&bucket), 1);
    assert_eq!(bucket.names().await.len(), 2, "what a sweep removes");
}

#[tokio::test(start_paused = true)]
async fn failing_heartbeats_fail_no_call_and_are_tried_again() {
    let bucket = Clocked::at(1);
    let store = open(&bucket);
    bucket.script(|operation, path| match operation == "put" && path.as_ref().ends_with("/alive") {
        true => Act::Fail,
        false => Act::Go,
    });
    put(&store, 1).await;
    assert_eq!(store.get(BlobId::new(1), 0..10).await.unwrap(), vec![7; 10]);
    let error = store.announce().await.unwrap_err();
    assert_eq!((error.kind(), error.operation()), (StoreErrorKind::Transient, "open"));
    bucket.no_script();
    advance(MINUTE).await;
    settle().await;
    assert!(bucket.names().await.iter().any(|name| name.ends_with("/alive")));
    store.close().await.unwrap();
    assert!(bucket.names().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_that_hangs_holds_up_the_first_put_for_seconds_only() {
    let bucket = Clocked::at(1);
    let store = open(&bucket);
    bucket.script(|operation, path| match operation == "put" && path.as_ref().ends_with("/alive") {
        true => Act::Hang,
        false => Act::Go,
    });
    let begin = tokio::time::Instant::now();
    put(&store, 1).await;
    assert!(begin.elapsed() <= Duration::from_secs(11), "{:?}", begin.elapsed());
    let error = store.announce().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Transient, "{error}");
    assert!(error.to_string().ends_with("the heartbeat was not answered within 60s"), "{error}");
    // It is given up when the next is due.
    bucket.no_script();
    advance(MINUTE).await;
    settle().await;
    advance(MINUTE).await;
    settle().await;
    assert!(bucket.names().await.iter().any(|name| name.ends_with("/alive")));
    store.close().await.unwrap();
    assert!(bucket.names().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn long_silence_is_warned_about_before_a_sweep_can_take_it_for_death() {
    let bucket = Clocked::at(1);
    let store = options(&bucket).dead_after(Some(MINUTE * 60)).open().unwrap();
    let heard = Heard::about(&store);
    put(&store, 1).await;
    bucket.script(|_, path| if path.as_ref().ends_with("/alive") { Act::Fail } else { Act::Go });
    for _ in 0..29 {
        advance(MINUTE).await;
        settle().await;
    }
    assert!((3..=4).contains(&heard.count("could not be written; it is tried again")), "{LOG:?}");
    assert_eq!(heard.count("take this session for dead"), 0);
    for _ in 0..2 {
        advance(MINUTE).await;
        settle().await;
    }
    assert_eq!(heard.count("take this session for dead"), 1, "{LOG:?}");
    bucket.no_script();
    advance(MINUTE).await;
    settle().await;
    assert_eq!(heard.count("being written again"), 1, "{LOG:?}");
}

/// What all tests of this binary log. `tracing` forgets subscribers of one thread when others log for the first
/// time, so there is one for all.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// What is logged about one session.
#[derive(Debug)]
struct Heard(String);

impl Heard {
    fn about(store: &ObjectStoreBackend) -> Self {
        // Another test may have been first.
        let _ = tracing::subscriber::set_global_default(Logging);
        Self(store.info().name.strip_prefix("clocked:/").unwrap().to_owned())
    }

    fn count(&self, part: &str) -> usize {
        let is_it = |line: &&String| line.contains(part) && line.contains(&self.0);
        LOG.lock().unwrap().iter().filter(is_it).count()
    }
}

struct Logging;

impl tracing::Subscriber for Logging {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Line(String);
        impl tracing::field::Visit for Line {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
                self.0 += &format!("{field}={value:?} ");
            }
        }
        let mut line = Line(String::new());
        event.record(&mut line);
        LOG.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

fn runtime(paused: bool) -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(paused).build().unwrap()
}

#[test]
fn s04_heartbeats_go_on_when_their_runtime_ended() {
    let bucket = Clocked::at(1);
    let store = open(&bucket);
    runtime(true).block_on(put(&store, 1));
    assert_eq!(heartbeats(&bucket), 1);
    let second = runtime(true);
    second.block_on(async {
        // Any call will do.
        store.get(BlobId::new(1), 0..10).await.unwrap();
        advance(MINUTE).await;
        settle().await;
    });
    assert_eq!(heartbeats(&bucket), 2);
    drop(second);
    runtime(false).block_on(store.close()).unwrap();
    assert!(runtime(false).block_on(bucket.names()).is_empty());
    // And outside of any runtime.
    drop(store);
}

#[test]
fn s04_heartbeats_go_on_when_their_runtime_stands_still() {
    let bucket = Clocked::at(1);
    let store = open(&bucket);
    let still = runtime(true);
    still.block_on(put(&store, 1));
    runtime(true).block_on(async {
        advance(MINUTE * 2 - Duration::from_millis(100)).await;
        store.list(None, 1).await.unwrap();
        settle().await;
        assert_eq!(heartbeats(&bucket), 1, "it may be driven again");
        advance(Duration::from_secs(5)).await;
        store.list(None, 1).await.unwrap();
        settle().await;
        assert_eq!(heartbeats(&bucket), 2);
        store.close().await.unwrap();
        assert!(bucket.names().await.is_empty());
    });
    drop(still);
}

#[test]
fn s04_a_store_in_use_is_dropped_outside_of_a_runtime() {
    let bucket = Clocked::at(1);
    let store = open(&bucket);
    let runtime = runtime(false);
    runtime.block_on(put(&store, 1));
    store.spawn_upkeep();
    drop(store);
    drop(runtime);
    assert_eq!(heartbeats(&bucket), 1);
}

#[tokio::test(start_paused = true)]
async fn s01_first_puts_announcements_and_closings_can_be_dropped_at_any_poll() {
    for call in ["put", "announce", "close"] {
        for polls in 0.. {
            assert!(polls < 100, "{call} never ends");
            let bucket = Clocked::at(1);
            let store = open(&bucket);
            let done = match call {
                "put" => poll_at_most(store.put(BlobId::new(1), vec![7; 10].into()), polls).await.is_some(),
                "announce" => poll_at_most(store.announce(), polls).await.is_some(),
                _ => {
                    put(&store, 1).await;
                    put(&store, 2).await;
                    poll_at_most(store.close(), polls).await.is_some()
                }
            };
            if call != "close" {
                put(&store, 3).await;
                assert_eq!(heartbeats(&bucket), 1 + usize::from(call == "announce" && !done && polls > 1));
            }
            store.close().await.unwrap();
            settle().await;
            assert!(bucket.names().await.is_empty(), "{call}, {polls} polls: {:?}", bucket.names().await);
            if done {
                assert!(polls > 1, "no await was met");
                break;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn s03_a_page_of_a_sorted_listing_ends_with_its_last_name() {
    let bucket = Clocked::at(1);
    for (sorted, read) in [(true, 10), (false, 60)] {
        let store = options(&bucket).sorted(sorted).open().unwrap();
        for number in 0..60 {
            put(&store, number * 5).await;
        }
        let read_before = bucket.listed.load(Ordering::Relaxed);
        assert_eq!(ids(&store, None, 10).await, (0..10).map(|number| number * 5).collect::<Vec<_>>());
        // The heartbeat is among the names of the unsorted one.
        let names = bucket.listed.load(Ordering::Relaxed) - read_before;
        assert!((read..=read + 1).contains(&names), "{names} names read, sorted: {sorted}");
        assert_eq!(ids(&store, Some(272), 10).await, [275, 280, 285, 290, 295]);
        store.close().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn s03_a_listing_that_is_seen_to_be_out_of_order_is_read_to_the_end() {
    let bucket = Clocked::at(1);
    bucket.backwards.store(true, Ordering::Relaxed);
    let store = options(&bucket).sorted(true).open().unwrap();
    for number in 0..20 {
        put(&store, number).await;
    }
    assert_eq!(ids(&store, None, 5).await, [0, 1, 2, 3, 4]);
    assert_eq!(ids(&store, Some(4), 5).await, [5, 6, 7, 8, 9]);
}
