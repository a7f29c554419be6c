//! Removal: idempotent, in batches, and of nothing else.

use futures_util::future::try_join;
use spill_core::StoreErrorKind;

use super::cases;
use crate::{
    runner::{Stop, Verdict, ensure_eq},
    store::{
        Case,
        place::{Place, expect, expect_all, expect_missing, id, ids, pattern, put, put_all, same_bytes},
    },
};

pub(super) const DELETE: &[Case] = cases!(Delete:
    deleting_again_is_fine,
    deleting_what_never_was_is_fine,
    an_empty_batch_is_fine,
    a_batch_of_a_thousand,
    a_batch_beyond_a_thousand,
    a_batch_with_missing_ones_removes_the_others,
    one_id_twice_in_a_batch_is_fine,
    others_stay,
    a_reader_sees_all_or_nothing,
);

async fn deleting_again_is_fine(place: &Place) -> Verdict {
    let store = place.open().await?;
    put(&*store, id(1), 10).await?;
    for _ in 0..3 {
        store.delete(&[id(1)]).await?;
        expect_missing(&*store, id(1)).await?;
    }
    Ok(())
}

async fn deleting_what_never_was_is_fine(place: &Place) -> Verdict {
    let store = place.open().await?;
    store.delete(&[id(1)]).await?;
    store.delete(&[id(2), id(3), id(u64::MAX)]).await?;
    ensure_eq!(ids(&*store).await?, [], "listing");
    Ok(())
}

async fn an_empty_batch_is_fine(place: &Place) -> Verdict {
    let store = place.open().await?;
    store.delete(&[]).await?;
    put(&*store, id(1), 10).await?;
    store.delete(&[]).await?;
    expect(&*store, id(1), 10).await
}

async fn batch_of(place: &Place, count: u64) -> Verdict {
    let store = place.open().await?;
    let blobs: Vec<_> = (1..=count).map(|number| (id(number), 3)).collect();
    put_all(&*store, &blobs).await?;
    put(&*store, id(0), 10).await?;
    let batch: Vec<_> = blobs.iter().map(|(id, _)| *id).collect();
    store.delete(&batch).await?;
    ensure_eq!(ids(&*store).await?, [id(0)], "listing after a batch of {count} was deleted");
    expect(&*store, id(0), 10).await
}

async fn a_batch_of_a_thousand(place: &Place) -> Verdict {
    batch_of(place, 1000).await
}

async fn a_batch_beyond_a_thousand(place: &Place) -> Verdict {
    batch_of(place, 1001).await
}

async fn a_batch_with_missing_ones_removes_the_others(place: &Place) -> Verdict {
    let store = place.open().await?;
    let present: Vec<_> = (0..30).map(|number| (id(number * 2 + 1), 8)).collect();
    put_all(&*store, &present).await?;
    let batch: Vec<_> = (0..61).map(id).collect();
    store.delete(&batch).await?;
    ensure_eq!(ids(&*store).await?, [], "listing after a batch in which every other one was missing");
    Ok(())
}

async fn one_id_twice_in_a_batch_is_fine(place: &Place) -> Verdict {
    let store = place.open().await?;
    put_all(&*store, &[(id(1), 5), (id(2), 5), (id(3), 5)]).await?;
    store.delete(&[id(1), id(2), id(1), id(2)]).await?;
    ensure_eq!(ids(&*store).await?, [id(3)], "listing");
    Ok(())
}

async fn others_stay(place: &Place) -> Verdict {
    let store = place.open().await?;
    // Names that share digits, at either end.
    let staying = [0x1, 0x10, 0x11, 0x100, 0x111, 0x1010, 0x1101, 0xF_0101, 0x1_0000_0000, 1 << 60]
        .map(|n| (id(n), 77));
    put_all(&*store, &staying).await?;
    put_all(&*store, &[(id(0x101), 5), (id(0x110), 5)]).await?;
    store.delete(&[id(0x101), id(0x110), id(0)]).await?;
    ensure_eq!(ids(&*store).await?, staying.map(|(id, _)| id), "listing");
    expect_all(&*store, &staying).await
}

async fn a_reader_sees_all_or_nothing(place: &Place) -> Verdict {
    let store = place.open().await?;
    let (store, len) = (&*store, 200_000);
    for number in 0..20 {
        let (id, wanted) = (id(number), pattern(id(number), len));
        store.put(id, wanted.clone().into()).await?;
        let read = async {
            for _ in 0..4 {
                match store.get(id, 0..len as u64).await {
                    Ok(found) => same_bytes(&found, &wanted, "a blob read while it is deleted")?,
                    Err(error) if error.kind() == StoreErrorKind::NotFound => {}
                    Err(error) => return Err(Stop::from(error)),
                }
                tokio::task::yield_now().await;
            }
            Ok(())
        };
        let delete = async {
            for _ in 0..number % 4 {
                tokio::task::yield_now().await;
            }
            Ok(store.delete(&[id]).await?)
        };
        try_join(read, delete).await?;
        expect_missing(store, id).await?;
    }
    Ok(())
}
