//! Two sessions of one place, and what is left after closing.

use std::sync::Arc;

use spill_core::Store;

use super::cases;
use crate::{
    runner::{Stop, Verdict, ensure_eq},
    store::{
        Case,
        place::{Place, expect, expect_all, expect_missing, id, ids, pattern, put, put_all, put_bytes},
    },
};

pub(super) const SESSIONS: &[Case] = cases!(Sessions:
    a_second_session_sees_nothing_of_the_first,
    one_id_in_two_sessions_is_two_blobs,
    deleting_in_one_leaves_the_other,
    closing_one_leaves_the_other,
    dropping_one_leaves_the_other,
    two_sessions_at_work_at_once,
    opening_again_after_close_works,
);

async fn two(place: &Place) -> Result<(Arc<dyn Store>, Arc<dyn Store>), Stop> {
    Ok((place.open().await?, place.open().await?))
}

async fn a_second_session_sees_nothing_of_the_first(place: &Place) -> Verdict {
    let first = place.open().await?;
    put(&*first, id(1), 100).await?;
    let second = place.open().await?;
    put(&*first, id(2), 100).await?;
    ensure_eq!(second.list(None, 10).await?, [], "listing of the second session");
    expect_missing(&*second, id(1)).await?;
    expect_missing(&*second, id(2)).await
}

async fn one_id_in_two_sessions_is_two_blobs(place: &Place) -> Verdict {
    let (first, second) = two(place).await?;
    put(&*first, id(1), 100).await?;
    let other = pattern(id(99), 70);
    put_bytes(&*second, id(1), &other).await?;
    expect(&*first, id(1), 100).await?;
    crate::store::place::expect_bytes(&*second, id(1), &other).await
}

async fn deleting_in_one_leaves_the_other(place: &Place) -> Verdict {
    let (first, second) = two(place).await?;
    put(&*first, id(1), 100).await?;
    second.delete(&[id(1), id(2)]).await?;
    expect(&*first, id(1), 100).await?;
    ensure_eq!(ids(&*first).await?, [id(1)], "listing of the first session");
    Ok(())
}

async fn closing_one_leaves_the_other(place: &Place) -> Verdict {
    let (first, second) = two(place).await?;
    put(&*first, id(1), 100).await?;
    put(&*second, id(2), 100).await?;
    place.close(second).await?;
    expect(&*first, id(1), 100).await?;
    put(&*first, id(3), 100).await?;
    expect(&*first, id(3), 100).await?;
    ensure_eq!(ids(&*first).await?, [id(1), id(3)], "listing of the first session");
    Ok(())
}

async fn dropping_one_leaves_the_other(place: &Place) -> Verdict {
    let (first, second) = two(place).await?;
    put(&*first, id(1), 100).await?;
    put(&*second, id(1), 50).await?;
    place.forget(&second);
    drop(second);
    // Opening may sweep what is dead, and nothing that lives.
    let third = place.open().await?;
    put(&*third, id(1), 20).await?;
    expect(&*first, id(1), 100).await?;
    ensure_eq!(ids(&*first).await?, [id(1)], "listing of the first session");
    Ok(())
}

async fn two_sessions_at_work_at_once(place: &Place) -> Verdict {
    let (first, second) = two(place).await?;
    let work = |store: Arc<dyn Store>, len: usize| async move {
        for number in 0..50 {
            put(&*store, id(number), len).await?;
            expect(&*store, id(number), len).await?;
            if number % 2 == 0 {
                store.delete(&[id(number)]).await?;
            }
            tokio::task::yield_now().await;
        }
        ensure_eq!(ids(&*store).await?.len(), 25, "blobs of a session of blobs of {len}");
        Ok::<(), Stop>(())
    };
    let (one, other) = (tokio::spawn(work(first, 500)), tokio::spawn(work(second, 700)));
    one.await.map_err(|error| error.to_string())??;
    other.await.map_err(|error| error.to_string())?
}

async fn opening_again_after_close_works(place: &Place) -> Verdict {
    for round in 0..3 {
        let store = place.open().await?;
        ensure_eq!(store.list(None, 10).await?, [], "listing of session {round}");
        put(&*store, id(1), 100 + round).await?;
        expect(&*store, id(1), 100 + round).await?;
        place.close(store).await?;
    }
    Ok(())
}

pub(super) const CLOSE: &[Case] = cases!(Close:
    closing_an_unused_store_is_fine,
    closing_with_blobs_is_fine,
    closing_leaves_nothing needs [Leftovers],
    closing_an_unused_store_leaves_nothing needs [Leftovers],
    deleting_all_leaves_no_blob needs [Leftovers],
);

async fn closing_an_unused_store_is_fine(place: &Place) -> Verdict {
    let store = place.open().await?;
    place.close(store).await
}

async fn closing_with_blobs_is_fine(place: &Place) -> Verdict {
    let store = place.open().await?;
    put_all(&*store, &(0..50).map(|number| (id(number), 1000)).collect::<Vec<_>>()).await?;
    place.close(store).await
}

async fn closing_leaves_nothing(place: &Place) -> Verdict {
    let store = place.open().await?;
    let blobs: Vec<_> = (0..50).map(|number| (id(number), 1000)).collect();
    put_all(&*store, &blobs).await?;
    expect_all(&*store, &blobs).await?;
    ensure_eq!(place.leftovers().await?.is_empty(), false, "whether nothing is there while blobs are kept");
    store.delete(&[id(3), id(4)]).await?;
    place.close(store).await?;
    ensure_eq!(place.leftovers().await?, Vec::<String>::new(), "left over after close");
    Ok(())
}

async fn closing_an_unused_store_leaves_nothing(place: &Place) -> Verdict {
    let store = place.open().await?;
    place.close(store).await?;
    ensure_eq!(place.leftovers().await?, Vec::<String>::new(), "left over after close");
    Ok(())
}

async fn deleting_all_leaves_no_blob(place: &Place) -> Verdict {
    let store = place.open().await?;
    let before = files(place).await?;
    let blobs: Vec<_> = (0..20).map(|number| (id(number), 10_000)).collect();
    put_all(&*store, &blobs).await?;
    store.delete(&blobs.iter().map(|(id, _)| *id).collect::<Vec<_>>()).await?;
    ensure_eq!(files(place).await?, before, "things there after all blobs were deleted, against before");
    Ok(())
}

/// What is there but directories, which a store may keep for later.
async fn files(place: &Place) -> Result<Vec<String>, Stop> {
    let mut files = place.leftovers().await?;
    files.retain(|name| !name.ends_with('/'));
    files.sort_unstable();
    Ok(files)
}
