//! Many calls at once, and a store that is used from more than one runtime.

use std::{sync::Arc, thread};

use futures_util::future::{try_join, try_join_all};
use spill_core::{Store, StoreErrorKind};

use super::cases;
use crate::{
    runner::{Stop, Verdict, ensure_eq},
    store::{
        Case,
        place::{Place, expect, expect_all, expect_missing, id, ids, nth, pattern, put, put_all, same_bytes},
    },
};

pub(super) const CONCURRENCY: &[Case] = cases!(Concurrency:
    many_puts_at_once,
    many_gets_of_one_blob_at_once,
    many_deletes_of_one_blob_at_once,
    loops_of_put_get_delete_at_once,
    a_put_is_seen_whole_or_not_at_all,
    many_large_puts_at_once,
    works_from_a_second_runtime,
    works_after_the_runtime_it_was_opened_on_is_gone,
    can_be_dropped_outside_a_runtime,
);

/// Runs tasks at once, on all threads of the runtime, and waits for them.
async fn at_once<F>(count: usize, task: impl Fn(usize) -> F) -> Verdict
where
    F: Future<Output = Verdict> + Send + 'static,
{
    let tasks: Vec<_> = (0..count).map(|number| tokio::spawn(task(number))).collect();
    for task in tasks {
        task.await.map_err(|error| format!("a task ended early: {error}"))??;
    }
    Ok(())
}

async fn many_puts_at_once(place: &Place) -> Verdict {
    let store = place.open().await?;
    at_once(64, |number| {
        let store = Arc::clone(&store);
        async move { put(&*store, nth(number), 1000 + number).await }
    })
    .await?;
    let blobs: Vec<_> = (0..64).map(|number| (nth(number), 1000 + number)).collect();
    expect_all(&*store, &blobs).await?;
    ensure_eq!(ids(&*store).await?.len(), 64, "blobs listed");
    Ok(())
}

async fn many_gets_of_one_blob_at_once(place: &Place) -> Verdict {
    let store = place.open().await?;
    put(&*store, id(1), 50_000).await?;
    at_once(64, |_| {
        let store = Arc::clone(&store);
        async move { expect(&*store, id(1), 50_000).await }
    })
    .await
}

async fn many_deletes_of_one_blob_at_once(place: &Place) -> Verdict {
    let store = place.open().await?;
    put_all(&*store, &[(id(1), 100), (id(2), 100), (id(3), 100)]).await?;
    at_once(32, |number| {
        let store = Arc::clone(&store);
        async move { Ok(store.delete(&[id(1), nth(1 + number % 2)]).await?) }
    })
    .await?;
    ensure_eq!(ids(&*store).await?, [id(3)], "listing");
    expect(&*store, id(3), 100).await
}

async fn loops_of_put_get_delete_at_once(place: &Place) -> Verdict {
    let store = place.open().await?;
    at_once(16, |task| {
        let store = Arc::clone(&store);
        async move {
            for round in 0..25 {
                let id = nth(task * 1000 + round);
                put(&*store, id, 300).await?;
                expect(&*store, id, 300).await?;
                store.delete(&[id]).await?;
                expect_missing(&*store, id).await?;
                tokio::task::yield_now().await;
            }
            Ok(())
        }
    })
    .await?;
    ensure_eq!(ids(&*store).await?, [], "listing after all loops deleted what they put");
    Ok(())
}

async fn a_put_is_seen_whole_or_not_at_all(place: &Place) -> Verdict {
    let store = place.open().await?;
    let (store, len) = (&*store, 1 << 20);
    for number in 0..4 {
        let (id, wanted) = (id(number), pattern(id(number), len));
        let write = async { Ok(store.put(id, wanted.clone().into()).await?) };
        let watch = async {
            for _ in 0..30 {
                match store.get(id, 0..len as u64).await {
                    Ok(found) => same_bytes(&found, &wanted, "a blob read while it is put")?,
                    Err(error) if error.kind() == StoreErrorKind::NotFound => {}
                    Err(error) => return Err(Stop::from(format!("a blob can be seen half: {error}"))),
                }
                for meta in store.list(None, 100).await? {
                    ensure_eq!(meta.stored.bytes, len as u64, "listed size of a blob while it is put");
                }
                tokio::task::yield_now().await;
            }
            Ok(())
        };
        try_join(write, watch).await?;
    }
    Ok(())
}

async fn many_large_puts_at_once(place: &Place) -> Verdict {
    let store = place.open().await?;
    let len = usize::try_from(store.info().max_blob.min(3_000_001)).map_err(|error| error.to_string())?;
    at_once(8, |number| {
        let store = Arc::clone(&store);
        async move {
            put(&*store, nth(number), len).await?;
            expect(&*store, nth(number), len).await
        }
    })
    .await
}

/// Uses a store on a runtime of its own, in a thread of its own.
fn elsewhere(store: Arc<dyn Store>, first: u64) -> thread::JoinHandle<Verdict> {
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("no second runtime: {error}"))?;
        runtime.block_on(async {
            for number in first..first + 20 {
                put(&*store, id(number), 2000).await?;
                expect(&*store, id(number), 2000).await?;
            }
            Ok(())
        })
    })
}

/// Waits for a thread without blocking the runtime.
async fn joined<T: Send + 'static>(thread: thread::JoinHandle<T>) -> Result<T, Stop> {
    let joined = tokio::task::spawn_blocking(move || thread.join()).await;
    joined.map_err(|error| error.to_string())?.map_err(|_| "a thread of the case panicked".into())
}

async fn works_from_a_second_runtime(place: &Place) -> Verdict {
    let store = place.open().await?;
    let other = elsewhere(Arc::clone(&store), 1000);
    let here = async {
        for number in 0..20 {
            put(&*store, id(number), 2000).await?;
            expect(&*store, id(number), 2000).await?;
        }
        Ok(())
    };
    let (other, ()) = try_join(joined(other), here).await?;
    other?;
    ensure_eq!(ids(&*store).await?.len(), 40, "blobs listed");
    try_join_all([expect(&*store, id(0), 2000), expect(&*store, id(1000), 2000)]).await.map(|_| ())
}

async fn works_after_the_runtime_it_was_opened_on_is_gone(place: &Place) -> Verdict {
    // The place can't leave this task: the store is opened by a future that the other runtime drives.
    let opening = place.opening();
    let thread = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("no second runtime: {error}"))?;
        runtime.block_on(async move {
            let store = opening.await?;
            put(&*store, id(1), 2000).await?;
            Ok::<_, Stop>(store)
        })
    });
    let store = joined(thread).await??;
    place.adopt(&store);
    expect(&*store, id(1), 2000).await?;
    put(&*store, id(2), 2000).await?;
    ensure_eq!(ids(&*store).await?, [id(1), id(2)], "listing");
    place.close(store).await
}

async fn can_be_dropped_outside_a_runtime(place: &Place) -> Verdict {
    let store = place.open().await?;
    put(&*store, id(1), 2000).await?;
    place.forget(&store);
    joined(thread::spawn(move || drop(store))).await
}
