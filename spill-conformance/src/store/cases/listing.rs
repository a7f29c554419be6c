//! Listings: pages, order, and what they leave out, also while things change.

use std::collections::BTreeSet;

use futures_util::future::try_join;
use spill_core::{BlobId, Store};

use super::cases;
use crate::{
    runner::{Stop, Verdict, ensure, ensure_eq, shown},
    store::{
        Case,
        place::{Place, expect_all, id, ids, list_all, put, put_all},
    },
};

pub(super) const LISTING: &[Case] = cases!(Listing:
    listing_is_ordered,
    pages_join_to_the_whole,
    pages_are_full_until_the_last,
    never_more_than_the_limit,
    a_page_starts_after_the_given_id,
    a_page_starts_after_an_id_that_is_gone,
    after_the_last_there_is_nothing,
    deleted_are_not_listed,
    nothing_is_listed_twice,
    more_than_a_thousand,
    what_stays_is_listed_once_under_change,
    foreign_things_are_ignored needs [Foreign],
);

/// Puts a few small blobs in no order; the ids, sorted.
async fn scattered(store: &dyn Store, count: u64) -> Result<Vec<BlobId>, Stop> {
    // Odd times anything is a permutation of the numbers modulo a power of two.
    let blobs: Vec<_> = (0..count).map(|number| (id(number * 0x9E37_79B1 % (1 << 32)), 10)).collect();
    for (id, len) in blobs.iter().rev() {
        put(store, *id, *len).await?;
    }
    Ok(blobs.into_iter().map(|(id, _)| id).collect::<BTreeSet<_>>().into_iter().collect())
}

async fn listed(store: &dyn Store, after: Option<BlobId>, limit: usize) -> Result<Vec<BlobId>, Stop> {
    Ok(store.list(after, limit).await?.iter().map(|meta| meta.id).collect())
}

async fn listing_is_ordered(place: &Place) -> Verdict {
    let store = place.open().await?;
    let wanted = scattered(&*store, 30).await?;
    let found = listed(&*store, None, 1000).await?;
    ensure!(found.is_sorted(), "the listing is not in the order of ids: {}", shown(&found));
    let missing: Vec<_> = wanted.iter().filter(|id| !found.contains(id)).collect();
    ensure!(missing.is_empty(), "the listing lacks {}", shown(&missing));
    Ok(())
}

async fn pages_join_to_the_whole(place: &Place) -> Verdict {
    let store = place.open().await?;
    let wanted = scattered(&*store, 24).await?;
    for page in [1, 2, 5, 23, 24, 25, 10_000] {
        let found: Vec<_> = list_all(&*store, page).await?.iter().map(|meta| meta.id).collect();
        ensure_eq!(found, wanted, "listing in pages of {page}");
    }
    Ok(())
}

async fn pages_are_full_until_the_last(place: &Place) -> Verdict {
    let store = place.open().await?;
    let wanted = scattered(&*store, 10).await?;
    for (page, after) in [(4, None), (4, Some(wanted[3])), (2, Some(wanted[7])), (1, Some(wanted[8]))] {
        let found = store.list(after, page).await?.len();
        ensure_eq!(found, page, "blobs in a page after {after:?} that is not the last");
    }
    Ok(())
}

async fn never_more_than_the_limit(place: &Place) -> Verdict {
    let store = place.open().await?;
    scattered(&*store, 10).await?;
    for limit in [0, 1, 3, 9, 10] {
        let found = store.list(None, limit).await?.len();
        ensure!(found <= limit, "a page of at most {limit} has {found} blobs");
    }
    Ok(())
}

async fn a_page_starts_after_the_given_id(place: &Place) -> Verdict {
    let store = place.open().await?;
    let wanted = scattered(&*store, 12).await?;
    for (index, after) in wanted.iter().enumerate() {
        let found = listed(&*store, Some(*after), 100).await?;
        ensure_eq!(found, wanted[index + 1..], "listing after {after}");
    }
    Ok(())
}

async fn a_page_starts_after_an_id_that_is_gone(place: &Place) -> Verdict {
    let store = place.open().await?;
    put_all(&*store, &[10, 20, 30].map(|number| (id(number), 5))).await?;
    store.delete(&[id(20)]).await?;
    for (after, wanted) in [(0, vec![10, 30]), (15, vec![30]), (20, vec![30]), (29, vec![30])] {
        let wanted: Vec<_> = wanted.into_iter().map(id).collect();
        ensure_eq!(
            listed(&*store, Some(id(after)), 100).await?,
            wanted,
            "listing after {after}, which is not there"
        );
    }
    Ok(())
}

async fn after_the_last_there_is_nothing(place: &Place) -> Verdict {
    let store = place.open().await?;
    put_all(&*store, &[(id(1), 5), (id(u64::MAX), 5)]).await?;
    ensure_eq!(listed(&*store, Some(id(u64::MAX)), 10).await?, [], "listing after the largest id");
    ensure_eq!(
        listed(&*store, Some(id(u64::MAX - 1)), 10).await?,
        [id(u64::MAX)],
        "listing after the one before"
    );
    Ok(())
}

async fn deleted_are_not_listed(place: &Place) -> Verdict {
    let store = place.open().await?;
    let all = scattered(&*store, 20).await?;
    let (gone, kept): (Vec<BlobId>, Vec<BlobId>) = all.iter().partition(|id| id.get() % 2 == 0);
    store.delete(&gone).await?;
    ensure_eq!(ids(&*store).await?, kept, "listing after a delete");
    store.delete(&kept).await?;
    ensure_eq!(ids(&*store).await?, [], "listing after all were deleted");
    Ok(())
}

async fn nothing_is_listed_twice(place: &Place) -> Verdict {
    let store = place.open().await?;
    scattered(&*store, 50).await?;
    for page in [3, 7, 100] {
        let found: Vec<_> = list_all(&*store, page).await?.iter().map(|meta| meta.id).collect();
        let once: BTreeSet<_> = found.iter().collect();
        ensure_eq!(found.len(), once.len(), "blobs listed in pages of {page}, and different ones");
    }
    Ok(())
}

async fn more_than_a_thousand(place: &Place) -> Verdict {
    let store = place.open().await?;
    // Above a page of S3, and not a multiple of anything.
    let blobs: Vec<_> = (0..1103).map(|number| (id(number * 3), 4)).collect();
    put_all(&*store, &blobs).await?;
    let wanted: Vec<_> = blobs.iter().map(|(id, _)| *id).collect();
    for page in [500, 2000] {
        let found: Vec<_> = list_all(&*store, page).await?.iter().map(|meta| meta.id).collect();
        ensure!(
            found == wanted,
            "{} of {} blobs listed in pages of {page}, or others",
            found.len(),
            wanted.len()
        );
    }
    Ok(())
}

async fn what_stays_is_listed_once_under_change(place: &Place) -> Verdict {
    let store = place.open().await?;
    let store = &*store;
    let staying: Vec<_> = (0..40).map(|number| (id(number * 10), 5)).collect();
    put_all(store, &staying).await?;
    let change = async {
        for number in 0..200 {
            // After and between those that stay, so that pages shift under the reader.
            let passing = id(1001 + number);
            let near = id((number % 40) * 10 + 1 + number / 40);
            put(store, passing, 5).await?;
            put(store, near, 5).await?;
            store.delete(&[passing, near]).await?;
            tokio::task::yield_now().await;
        }
        Ok::<(), Stop>(())
    };
    let read = async {
        for round in 0..20 {
            let mut found = Vec::new();
            loop {
                let page = listed(store, found.last().copied(), 3).await?;
                found.extend_from_slice(&page);
                if page.len() < 3 {
                    break;
                }
                ensure!(found.len() < 10_000, "the listing does not end");
                tokio::task::yield_now().await;
            }
            let stayed: Vec<_> =
                found.iter().filter(|id| staying.iter().any(|(other, _)| other == *id)).collect();
            let wanted: Vec<_> = staying.iter().map(|(id, _)| id).collect();
            ensure_eq!(stayed, wanted, "those that stay, listed under change in round {round}");
        }
        Ok(())
    };
    try_join(change, read).await.map(|_| ())
}

async fn foreign_things_are_ignored(place: &Place) -> Verdict {
    let store = place.open().await?;
    let blobs = [(id(1), 10), (id(0xABC), 20)];
    put_all(&*store, &blobs).await?;
    place.plant_foreign().await?;
    let wanted = blobs.map(|(id, _)| id);
    ensure_eq!(ids(&*store).await?, wanted, "listing with foreign things around");
    expect_all(&*store, &blobs).await?;
    store.delete(&wanted).await?;
    ensure_eq!(ids(&*store).await?, [], "listing of foreign things alone");
    Ok(())
}
