//! Futures dropped after every number of polls.

use std::sync::{Arc, mpsc};

use spill_core::{BlobId, Store};

use super::cases;
use crate::{
    runner::{Stop, Verdict, ensure_eq},
    store::{
        Case,
        place::{
            self, Place, cancelled_after, expect, expect_all, expect_missing, id, ids, pattern, polls, put,
            put_all, same_bytes,
        },
    },
};

pub(super) const CANCEL: &[Case] = cases!(Cancel:
    put_at_every_poll,
    put_of_a_large_blob_at_every_poll,
    get_at_every_poll,
    delete_at_every_poll,
    list_at_every_poll,
    puts_dropped_with_their_runtime,
    cancelled_puts_leave_nothing_after_close needs [Leftovers],
);

/// Checks that a blob is whole or missing after its put was cancelled.
async fn whole_or_missing(store: &dyn Store, id: BlobId, len: usize) -> Verdict {
    place::whole_or_missing(store, id, &pattern(id, len), "whose put was cancelled").await
}

/// Cancels puts of fresh blobs after ever more polls until one is done. The ids that were used.
async fn cancelled_puts(store: &dyn Store, len: usize) -> Result<Vec<BlobId>, Stop> {
    let mut used = Vec::new();
    for polls in polls() {
        let id = id(u64::from(polls));
        used.push(id);
        let answer = cancelled_after(polls, store.put(id, pattern(id, len).into())).await;
        whole_or_missing(store, id, len).await?;
        if let Some(answer) = answer {
            answer?;
            expect(store, id, len).await?;
            return Ok(used);
        }
    }
    Err("the put is not done after two thousand polls".into())
}

async fn put_sweep(place: &Place, len: usize) -> Verdict {
    let store = place.open().await?;
    let store = &*store;
    let used = cancelled_puts(store, len).await?;
    // What is whole by now is a blob like any other; what comes soon after can be deleted too.
    place
        .soon(|| async {
            for id in &used {
                whole_or_missing(store, *id, len).await?;
            }
            store.delete(&used).await?;
            ensure_eq!(ids(store).await?, [], "listing after cancelled puts were deleted");
            Ok(())
        })
        .await?;
    put(store, id(100_000), len).await?;
    expect(store, id(100_000), len).await
}

async fn put_at_every_poll(place: &Place) -> Verdict {
    put_sweep(place, 5000).await
}

async fn put_of_a_large_blob_at_every_poll(place: &Place) -> Verdict {
    put_sweep(place, (2 << 20) + 1).await
}

async fn get_at_every_poll(place: &Place) -> Verdict {
    let store = place.open().await?;
    put(&*store, id(1), 300_000).await?;
    for polls in polls() {
        let answer = cancelled_after(polls, store.get(id(1), 10..290_000)).await;
        if let Some(answer) = answer {
            same_bytes(&answer?, &pattern(id(1), 300_000)[10..290_000], "the read that was not cancelled")?;
            break;
        }
        expect(&*store, id(1), 300_000).await?;
    }
    ensure_eq!(ids(&*store).await?, [id(1)], "listing after cancelled reads");
    Ok(())
}

async fn delete_at_every_poll(place: &Place) -> Verdict {
    let store = place.open().await?;
    for polls in polls() {
        let first = u64::from(polls) * 10;
        let blobs: Vec<_> = (first..first + 5).map(|number| (id(number), 100)).collect();
        let batch: Vec<_> = blobs.iter().map(|(id, _)| *id).collect();
        put_all(&*store, &blobs).await?;
        let answer = cancelled_after(polls, store.delete(&batch)).await;
        for id in &batch {
            whole_or_missing(&*store, *id, 100).await?;
        }
        let done = answer.transpose()?.is_some();
        if !done {
            store.delete(&batch).await?;
        }
        for id in &batch {
            expect_missing(&*store, *id).await?;
        }
        if done {
            break;
        }
    }
    ensure_eq!(ids(&*store).await?, [], "listing after cancelled deletes were repeated");
    Ok(())
}

async fn list_at_every_poll(place: &Place) -> Verdict {
    let store = place.open().await?;
    let blobs: Vec<_> = (0..30).map(|number| (id(number), 10)).collect();
    put_all(&*store, &blobs).await?;
    for polls in polls() {
        let answer = cancelled_after(polls, store.list(None, 100)).await;
        ensure_eq!(ids(&*store).await?.len(), 30, "blobs listed after a listing was cancelled");
        if let Some(answer) = answer {
            ensure_eq!(answer?.len(), 30, "blobs of the listing that was not cancelled");
            break;
        }
    }
    expect_all(&*store, &blobs).await
}

async fn puts_dropped_with_their_runtime(place: &Place) -> Verdict {
    let store = place.open().await?;
    let len = 1 << 20;
    let other = Arc::clone(&store);
    let work = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.map_err(|error| format!("no second runtime: {error}"))?;
        let (begun, begins) = mpsc::channel();
        for number in 0..8 {
            let (store, begun) = (Arc::clone(&other), begun.clone());
            runtime.spawn(async move {
                // Nobody listens only when the case has failed.
                let _ = begun.send(());
                store.put(id(number), pattern(id(number), len).into()).await
            });
        }
        begins.iter().take(8).for_each(drop);
        // Dropping it ends the polls under way and cancels what is left.
        drop(runtime);
        Ok::<(), Stop>(())
    });
    work.await.map_err(|error| error.to_string())??;
    for number in 0..8 {
        whole_or_missing(&*store, id(number), len).await?;
    }
    put(&*store, id(100), len).await?;
    expect(&*store, id(100), len).await
}

async fn cancelled_puts_leave_nothing_after_close(place: &Place) -> Verdict {
    let store = place.open().await?;
    cancelled_puts(&*store, 100_000).await?;
    place.close(store).await?;
    place
        .soon(|| async {
            ensure_eq!(
                place.leftovers().await?,
                Vec::<String>::new(),
                "left over after cancelled puts and close"
            );
            Ok(())
        })
        .await
}
