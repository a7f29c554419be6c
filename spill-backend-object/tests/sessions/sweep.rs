//! Sweeping dead sessions: the dead go, the living stay, and nothing else is touched.

use std::{sync::Arc, time::Duration};

use object_store::{ObjectStoreExt, path::Path};
use spill_backend_object::{ObjectOptions, ObjectStoreBackend, SweepReport, sweep};
use spill_core::{BlobId, Store, StoreErrorKind};

use crate::{
    clocked::{Act, Bucket, Clocked},
    polls::{poll_at_most, settle},
};

/// Somewhere in 2023.
const NOW: u64 = 1_700_000_000;
const DAY: Duration = Duration::from_secs(24 * 3600);

fn open(bucket: &Arc<Clocked>, owner: &str) -> ObjectStoreBackend {
    let options = ObjectOptions::new(Arc::new(Bucket(bucket.clone())), "shared").owner(owner).sorted(true);
    options.open().unwrap()
}

/// `shared/<owner>/<session>` of a store.
fn place(store: &ObjectStoreBackend) -> String {
    store.info().name.strip_prefix("clocked:/").unwrap().to_owned()
}

async fn put(store: &ObjectStoreBackend, blobs: u64) {
    for number in 0..blobs {
        crate::put(store, number).await;
    }
}

/// A session that ended without being closed, with this many blobs. Where it was.
async fn dead(bucket: &Arc<Clocked>, owner: &str, blobs: u64) -> String {
    let store = open(bucket, owner);
    put(&store, blobs).await;
    place(&store)
}

/// The same without any waiting, for many of them.
async fn plant_dead(bucket: &Clocked, number: u64, blobs: u64) {
    bucket.plant(&format!("shared/app/{number:016x}/alive")).await;
    for blob in 0..blobs {
        bucket.plant(&format!("shared/app/{number:016x}/{blob:016x}")).await;
    }
}

async fn names_below(bucket: &Clocked, place: &str) -> usize {
    bucket.names().await.iter().filter(|name| name.starts_with(place)).count()
}

fn counts(report: SweepReport) -> [usize; 5] {
    [report.looked_at, report.living, report.removed, report.objects, report.failed]
}

#[tokio::test]
async fn s07_the_dead_are_swept_and_the_living_and_the_foreign_stay() {
    let bucket = Clocked::at(NOW);
    let crashed = dead(&bucket, "app", 3).await;
    let unused = dead(&bucket, "app", 0).await;
    let silent = dead(&bucket, "app", 2).await;
    let other = dead(&bucket, "other", 2).await;
    let living = open(&bucket, "app");
    put(&living, 3).await;
    let reading_only = open(&bucket, "app");
    put(&reading_only, 2).await;
    // No heartbeat of it ever arrived.
    Bucket(bucket.clone()).delete(&Path::from(format!("{silent}/alive"))).await.unwrap();
    let foreign = [
        "shared/app/notes.txt".to_owned(),
        "shared/app/backup/alive".to_owned(),
        "shared/app/00000000000000FF/alive".to_owned(),
        "shared/app/0000000000000001/notes.txt".to_owned(),
        "shared/alive".to_owned(),
        format!("{crashed}/notes.txt"),
        format!("{crashed}/0000000000000009/part"),
        format!("{crashed}/parts/0000000000000009"),
        format!("{crashed}/alive.bak"),
    ];
    for name in &foreign {
        bucket.plant(name).await;
    }
    bucket.pass(23);
    living.announce().await.unwrap();
    bucket.pass(2);
    reading_only.announce().await.unwrap();

    let sweeper = open(&bucket, "app");
    let report = sweeper.sweep().await.unwrap();
    // Three blobs and a heartbeat, two blobs without one, and no trace of the session that was not used.
    assert_eq!(counts(report), [5, 2, 2, 6, 0], "{report:?}");
    assert!(!report.unfinished);
    let names = bucket.names().await;
    for name in foreign {
        assert!(names.contains(&name), "{name} is gone");
    }
    assert_eq!(names_below(&bucket, &crashed).await, 4, "the foreign things");
    assert_eq!([names_below(&bucket, &silent).await, names_below(&bucket, &unused).await], [0, 0]);
    assert_eq!(names_below(&bucket, &other).await, 3, "another owner's");
    for store in [&living, &reading_only] {
        assert_eq!(store.get(BlobId::new(1), 0..10).await.unwrap(), vec![7; 10]);
    }
    let again = sweeper.sweep().await.unwrap();
    assert_eq!(counts(again), [4, 2, 0, 0, 0]);
}

#[tokio::test]
async fn s07_only_the_clock_of_the_service_counts() {
    for start in [1, NOW, 4_000_000_000] {
        let bucket = Clocked::at(start);
        let old = dead(&bucket, "app", 2).await;
        bucket.pass(1);
        let younger = dead(&bucket, "app", 2).await;
        bucket.pass(23);
        let report = open(&bucket, "app").sweep().await.unwrap();
        assert_eq!(counts(report), [2, 1, 1, 3, 0], "{start}");
        assert_eq!([names_below(&bucket, &old).await, names_below(&bucket, &younger).await], [0, 3]);
    }
}

#[tokio::test]
async fn a_session_from_the_future_is_alive() {
    let bucket = Clocked::at(NOW);
    bucket.pass(1000);
    dead(&bucket, "app", 1).await;
    bucket.set(NOW);
    let report = open(&bucket, "app").sweep().await.unwrap();
    assert_eq!(counts(report), [1, 1, 0, 0, 0]);
}

#[tokio::test]
async fn a_young_blob_keeps_a_session_whose_heartbeat_is_old() {
    let bucket = Clocked::at(NOW);
    let place = dead(&bucket, "app", 2).await;
    bucket.pass(25);
    bucket.plant(&format!("{place}/0000000000000007")).await;
    let report = open(&bucket, "app").sweep().await.unwrap();
    assert_eq!(counts(report), [1, 1, 0, 0, 0]);
    assert_eq!(names_below(&bucket, &place).await, 4);
}

#[tokio::test]
async fn the_last_of_many_blobs_is_looked_at_before_the_first_is_deleted() {
    let bucket = Clocked::at(NOW);
    plant_dead(&bucket, 7, 1500).await;
    bucket.pass(25);
    bucket.plant("shared/app/0000000000000007/ffffffffffffffff").await;
    let report = open(&bucket, "app").sweep().await.unwrap();
    assert_eq!(counts(report), [1, 1, 0, 0, 0]);
}

/// Each call of a sweep in turn finds the session writing its heartbeat right before it.
#[tokio::test]
async fn a_session_that_comes_back_to_life_between_the_looks_is_left() {
    let mut deleted_at = None;
    for call in 0..30 {
        let bucket = Clocked::at(NOW);
        let place = dead(&bucket, "app", 3).await;
        bucket.pass(25);
        let sweeper = open(&bucket, "app");
        let (mut made, heartbeat) = (0, Path::from(format!("{place}/alive")));
        bucket.script(move |_, _| {
            made += 1;
            if made == call + 1 { Act::After(heartbeat.clone()) } else { Act::Go }
        });
        bucket.take_calls();
        let report = sweeper.sweep().await.unwrap();
        let calls = bucket.take_calls();
        let begin = calls.iter().position(|(operation, _)| *operation == "delete");
        match begin {
            None => assert_eq!((report.living, names_below(&bucket, &place).await), (1, 4), "at call {call}"),
            // What happens after the last look is not seen any more.
            Some(begin) if call >= begin => {
                deleted_at = Some(begin);
                break;
            }
            Some(_) => panic!("at call {call}: it was alive, and deleted: {calls:?}"),
        }
    }
    assert!(deleted_at.is_some_and(|calls| calls > 8), "too few looks: {deleted_at:?}");
}

#[tokio::test]
async fn a_large_session_that_comes_back_to_life_in_the_middle_keeps_the_rest() {
    let bucket = Clocked::at(NOW);
    plant_dead(&bucket, 7, 2300).await;
    bucket.pass(25);
    let sweeper = open(&bucket, "app");
    let mut deleted = 0;
    bucket.script(move |operation, _| {
        deleted += usize::from(operation == "delete");
        if operation == "delete" && deleted == 500 {
            Act::After(Path::from("shared/app/0000000000000007/alive"))
        } else {
            Act::Go
        }
    });
    let report = sweeper.sweep().await.unwrap();
    assert_eq!(counts(report), [1, 1, 0, 1000, 0]);
    assert_eq!(names_below(&bucket, "shared/app/0000000000000007/").await, 1301);
    bucket.no_script();
    bucket.pass(25);
    let rest = sweeper.sweep().await.unwrap();
    assert_eq!(counts(rest), [1, 0, 1, 1301, 0]);
}

#[tokio::test]
async fn a_sweep_is_bounded_and_the_next_goes_on() {
    let bucket = Clocked::at(NOW);
    for number in 0..1003 {
        plant_dead(&bucket, number << 54, 1).await;
    }
    let sweeper = open(&bucket, "app");
    let fresh = sweeper.sweep().await.unwrap();
    assert_eq!(counts(fresh), [1000, 1000, 0, 0, 0]);
    assert!(fresh.unfinished);

    bucket.pass(25);
    let mut sweeps = 0;
    loop {
        sweeps += 1;
        bucket.take_calls();
        let report = sweeper.sweep().await.unwrap();
        let calls = bucket.take_calls();
        let requests = calls.len() - calls.iter().filter(|(operation, _)| *operation == "delete").count();
        assert!(requests <= 5010, "{requests} requests besides those that delete");
        assert_eq!(report.failed, 0);
        if !report.unfinished {
            break;
        }
        assert!(report.removed > 300, "{report:?}");
    }
    assert_eq!(bucket.names().await.len(), 1, "only the heartbeat of the sweeper");
    assert!((2..=4).contains(&sweeps), "{sweeps} sweeps");
}

#[tokio::test]
async fn sweeps_at_once_harm_nobody() {
    let bucket = Clocked::at(NOW);
    for _ in 0..5 {
        dead(&bucket, "app", 3).await;
    }
    let living = open(&bucket, "app");
    put(&living, 3).await;
    bucket.pass(25);
    living.announce().await.unwrap();
    let sweepers: Vec<_> = (0..4).map(|_| open(&bucket, "app")).collect();
    let reports = futures_util::future::join_all(sweepers.iter().map(ObjectStoreBackend::sweep)).await;
    assert!(reports.iter().all(|report| report.as_ref().unwrap().failed == 0), "{reports:?}");
    for store in &sweepers {
        store.close().await.unwrap();
    }
    assert_eq!(names_below(&bucket, &place(&living)).await, 4);
    assert_eq!(bucket.names().await.len(), 4);
}

#[tokio::test]
async fn a_sweep_dropped_at_any_poll_is_taken_up_by_the_next() {
    let mut dropped = 0;
    loop {
        let bucket = Clocked::at(NOW);
        let (first, second) = (dead(&bucket, "app", 2).await, dead(&bucket, "app", 2).await);
        let living = open(&bucket, "app");
        put(&living, 1).await;
        bucket.pass(25);
        living.announce().await.unwrap();
        let sweeper = open(&bucket, "app");
        let done = poll_at_most(sweeper.sweep(), dropped).await;
        for place in [&first, &second] {
            let left = names_below(&bucket, place).await;
            let heartbeat = bucket.names().await.contains(&format!("{place}/alive"));
            assert!(left == 0 || heartbeat, "{dropped} polls: the heartbeat went before the blobs");
        }
        sweeper.sweep().await.unwrap();
        sweeper.close().await.unwrap();
        assert_eq!(bucket.names().await.len(), 2, "{dropped} polls: {:?}", bucket.names().await);
        if done.is_some() {
            break;
        }
        dropped += 1;
    }
    assert!(dropped > 20, "{dropped}");
}

#[tokio::test]
async fn trouble_with_one_session_is_counted_and_with_many_ends_the_sweep() {
    let bucket = Clocked::at(NOW);
    for number in 0..9 {
        plant_dead(&bucket, number << 60, 1).await;
    }
    bucket.pass(25);
    let sweeper = open(&bucket, "app");
    bucket.script(|operation, path| {
        let it = path.as_ref() == "shared/app/4000000000000000/0000000000000000";
        if operation == "delete" && it { Act::Fail } else { Act::Go }
    });
    let report = sweeper.sweep().await.unwrap();
    assert_eq!(counts(report), [9, 0, 8, 16, 1]);
    assert_eq!(names_below(&bucket, "shared/app/4000000000000000").await, 2, "its heartbeat goes last");

    for number in 0..9 {
        plant_dead(&bucket, number << 60, 1).await;
    }
    bucket.pass(25);
    bucket.script(|operation, _| if operation == "list" { Act::Fail } else { Act::Go });
    let report = sweeper.sweep().await.unwrap();
    assert_eq!(counts(report), [3, 0, 0, 0, 3]);
    assert!(report.unfinished);

    bucket.script(|operation, _| if operation == "list_sessions" { Act::Fail } else { Act::Go });
    let error = sweeper.sweep().await.unwrap_err();
    assert_eq!((error.kind(), error.operation()), (StoreErrorKind::Transient, "sweep"));
}

#[tokio::test]
async fn a_sweep_from_a_command_line_leaves_nothing_of_its_own() {
    let bucket = Clocked::at(NOW);
    dead(&bucket, "app", 3).await;
    let living = open(&bucket, "app");
    bucket.pass(25);
    put(&living, 1).await;
    let inner = Arc::new(Bucket(bucket.clone()));
    let report = sweep(inner.clone(), "shared", "app", DAY).await.unwrap();
    assert_eq!(counts(report), [2, 1, 1, 4, 0]);
    assert_eq!(names_below(&bucket, &place(&living)).await, bucket.names().await.len());

    let soon = sweep(inner.clone(), "shared", "app", Duration::from_secs(599)).await.unwrap_err();
    assert!(soon.to_string().contains("raise it to 600s at least"), "{soon}");
    bucket.script(|operation, _| if operation == "list_sessions" { Act::Fail } else { Act::Go });
    sweep(inner, "shared", "app", DAY).await.unwrap_err();
    bucket.no_script();
    assert_eq!(names_below(&bucket, &place(&living)).await, bucket.names().await.len());
}

#[tokio::test(start_paused = true)]
async fn upkeep_sweeps_at_once_and_then_every_dead_after() {
    let bucket = Clocked::at(NOW);
    plant_dead(&bucket, 1, 2).await;
    bucket.pass(25);
    let store = open(&bucket, "app");
    put(&store, 1).await;
    settle().await;
    assert_eq!(bucket.count("list_sessions", ""), 0, "nobody asked for it");
    store.spawn_upkeep();
    settle().await;
    assert_eq!(bucket.names().await.len(), 2, "the store's own blob and heartbeat");

    plant_dead(&bucket, 2, 2).await;
    bucket.pass(25);
    tokio::time::advance(DAY - Duration::from_secs(1)).await;
    settle().await;
    assert_eq!(bucket.count("list_sessions", ""), 1);
    tokio::time::advance(Duration::from_secs(1)).await;
    settle().await;
    assert_eq!(bucket.count("list_sessions", ""), 2);
    assert_eq!(bucket.names().await.len(), 2);
    store.close().await.unwrap();
    assert!(bucket.names().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn without_an_age_nothing_is_swept() {
    let bucket = Clocked::at(NOW);
    plant_dead(&bucket, 1, 2).await;
    bucket.pass(1_000_000);
    let options = ObjectOptions::new(Arc::new(Bucket(bucket.clone())), "shared").owner("app");
    let store = options.dead_after(None).open().unwrap();
    store.spawn_upkeep();
    settle().await;
    assert_eq!(store.sweep().await.unwrap(), SweepReport::default());
    assert_eq!((bucket.count("list_sessions", ""), bucket.count("delete", "")), (0, 0));
    assert_eq!(bucket.count("put", "/alive"), 1, "the heartbeat goes on");
}
