//! What was put comes back, at every size; what was not is missing; an id is put once.

use bytes::Bytes;
use spill_core::{BlobId, StoreErrorKind};

use super::cases;
use crate::{
    runner::{Stop, Verdict, ensure, ensure_eq},
    store::{
        Case,
        place::{
            Place, expect, expect_all, expect_bytes, expect_kind, expect_missing, id, ids, nth, pattern, put,
            put_all, put_bytes,
        },
    },
};

/// A store with a limit beyond this is not filled up to it.
const MOST_BYTES: u64 = 64 << 20;

pub(super) const BASICS: &[Case] = cases!(Basics:
    a_new_store_is_empty,
    what_was_put_comes_back,
    reading_changes_nothing,
    missing_is_not_found,
    missing_is_not_found_for_any_range,
    deleted_is_not_found,
    blobs_do_not_mix,
    any_bytes_are_kept,
    extreme_ids_work,
    info_is_constant,
    errors_say_what_and_where,
    too_large_is_refused_and_leaves_nothing,
);

async fn a_new_store_is_empty(place: &Place) -> Verdict {
    let store = place.open().await?;
    ensure_eq!(store.list(None, 10).await?, [], "listing of a new store");
    Ok(())
}

async fn what_was_put_comes_back(place: &Place) -> Verdict {
    let store = place.open().await?;
    put(&*store, id(1), 1000).await?;
    expect(&*store, id(1), 1000).await
}

async fn reading_changes_nothing(place: &Place) -> Verdict {
    let store = place.open().await?;
    put(&*store, id(1), 5000).await?;
    let before = store.list(None, 10).await?;
    for _ in 0..5 {
        expect(&*store, id(1), 5000).await?;
    }
    ensure_eq!(store.list(None, 10).await?, before, "listing after reads");
    Ok(())
}

async fn missing_is_not_found(place: &Place) -> Verdict {
    let store = place.open().await?;
    expect_missing(&*store, id(1)).await?;
    put(&*store, id(1), 10).await?;
    expect_missing(&*store, id(2)).await?;
    expect_missing(&*store, id(0)).await
}

async fn missing_is_not_found_for_any_range(place: &Place) -> Verdict {
    let store = place.open().await?;
    for range in [0..0, 5..5, 0..1 << 40, (1 << 40)..(1 << 40) + 1] {
        let what = format!("get of {range:?} of a missing blob");
        expect_kind(store.get(id(7), range).await, StoreErrorKind::NotFound, &what)?;
    }
    Ok(())
}

async fn deleted_is_not_found(place: &Place) -> Verdict {
    let store = place.open().await?;
    put(&*store, id(1), 100).await?;
    store.delete(&[id(1)]).await?;
    expect_missing(&*store, id(1)).await
}

async fn blobs_do_not_mix(place: &Place) -> Verdict {
    let store = place.open().await?;
    let blobs: Vec<_> = (0..40).map(|number| (nth(number * 7), 100 + 13 * number % 50)).collect();
    for (id, len) in &blobs {
        put(&*store, *id, *len).await?;
    }
    for (id, len) in blobs.iter().rev() {
        expect(&*store, *id, *len).await?;
    }
    Ok(())
}

async fn any_bytes_are_kept(place: &Place) -> Verdict {
    let store = place.open().await?;
    let kinds = [
        (0..=255).collect::<Vec<u8>>(),
        vec![0; 10_000],
        vec![0xFF; 10_000],
        b"\r\n.\r\n\0\x1a%00%2F../..".to_vec(),
        b"\n".repeat(4096),
        "<?xml version=\"1.0\"?><Error><Code>InternalError</Code></Error>".into(),
    ];
    for (number, bytes) in kinds.into_iter().enumerate() {
        let (id, bytes) = (nth(number), Bytes::from(bytes));
        put_bytes(&*store, id, &bytes).await?;
        expect_bytes(&*store, id, &bytes).await?;
    }
    Ok(())
}

async fn extreme_ids_work(place: &Place) -> Verdict {
    let store = place.open().await?;
    let extreme = [0, 1, 0xFF, 1 << 32, (1 << 63) - 1, 1 << 63, 0xDEAD_BEEF_0000_0001, u64::MAX].map(id);
    for id in extreme {
        put(&*store, id, 50).await?;
    }
    for id in extreme {
        expect(&*store, id, 50).await?;
    }
    ensure_eq!(ids(&*store).await?, extreme, "listing of extreme ids");
    store.delete(&extreme).await?;
    ensure_eq!(ids(&*store).await?, [], "listing after extreme ids were deleted");
    Ok(())
}

async fn info_is_constant(place: &Place) -> Verdict {
    let store = place.open().await?;
    let info = store.info().clone();
    ensure!(!info.name.is_empty(), "info().name is empty: messages need it");
    ensure!(info.max_blob > 0, "info().max_blob is zero: nothing could ever be put");
    ensure!(
        (1..=info.max_blob).contains(&info.preferred_blob),
        "info().preferred_blob is {}, it has to be between 1 and max_blob, {}",
        info.preferred_blob,
        info.max_blob
    );
    put(&*store, id(1), 10).await?;
    ensure_eq!(format!("{:?}", store.info()), format!("{info:?}"), "info() after a put");
    Ok(())
}

async fn errors_say_what_and_where(place: &Place) -> Verdict {
    let store = place.open().await?;
    let Err(error) = store.get(id(3), 0..1).await else { return Err("get of a missing blob is Ok".into()) };
    ensure_eq!(error.operation(), "get", "operation of the error");
    ensure_eq!(error.blob(), Some(id(3)), "blob of the error");
    ensure!(!error.target().is_empty(), "the error's target is empty: it has to name the path or URL");
    Ok(())
}

async fn too_large_is_refused_and_leaves_nothing(place: &Place) -> Verdict {
    let store = place.open().await?;
    let most = store.info().max_blob;
    let len = match usize::try_from(most) {
        Ok(len) if most < MOST_BYTES => len,
        _ => return Err(Stop::NotApplicable(format!("max_blob is {most}, too large to try"))),
    };
    put(&*store, id(1), len).await?;
    ensure!(
        store.put(id(2), pattern(id(2), len + 1).into()).await.is_err(),
        "a put of one byte more than max_blob is Ok"
    );
    ensure_eq!(ids(&*store).await?, [id(1)], "listing after a put that was too large");
    expect(&*store, id(1), len).await
}

pub(super) const SIZES: &[Case] = cases!(Sizes:
    empty,
    one_byte,
    page_less_one,
    page,
    page_and_one,
    segment_less_one,
    segment,
    segment_and_one,
    large_less_one,
    large,
    large_and_one,
    every_small_size,
);

/// Defines a case for a size.
macro_rules! sizes {
    ($($name:ident: $bytes:expr;)*) => {
        $(async fn $name(place: &Place) -> Verdict {
            round_trip(place, $bytes).await
        })*
    };
}

sizes! {
    empty: 0;
    one_byte: 1;
    page_less_one: 4095;
    page: 4096;
    page_and_one: 4097;
    segment_less_one: (64 << 10) - 1;
    segment: 64 << 10;
    segment_and_one: (64 << 10) + 1;
    large_less_one: (8 << 20) - 1;
    large: 8 << 20;
    large_and_one: (8 << 20) + 1;
}

async fn round_trip(place: &Place, len: usize) -> Verdict {
    let store = place.open().await?;
    let bytes = len as u64;
    if bytes > store.info().max_blob {
        return Err(Stop::NotApplicable(format!("max_blob is {}", store.info().max_blob)));
    }
    let wanted = pattern(id(1), len);
    store.put(id(1), wanted.clone().into()).await?;
    expect_bytes(&*store, id(1), &wanted).await?;
    ensure_eq!(ids(&*store).await?, [id(1)], "listing");
    store.delete(&[id(1)]).await?;
    ensure_eq!(ids(&*store).await?, [], "listing after the delete");
    Ok(())
}

async fn every_small_size(place: &Place) -> Verdict {
    let store = place.open().await?;
    let blobs: Vec<(BlobId, usize)> = (0..130).map(|len| (nth(len), len)).collect();
    put_all(&*store, &blobs).await?;
    expect_all(&*store, &blobs).await
}

pub(super) const IDS: &[Case] = cases!(Ids:
    a_second_put_is_refused,
    a_refused_put_leaves_the_first,
);

async fn a_second_put_is_refused(place: &Place) -> Verdict {
    let store = place.open().await?;
    put(&*store, id(1), 100).await?;
    let again = store.put(id(1), pattern(id(2), 50).into()).await;
    ensure!(again.is_err(), "a second put of one id is Ok: ids are never used twice");
    Ok(())
}

async fn a_refused_put_leaves_the_first(place: &Place) -> Verdict {
    let store = place.open().await?;
    put(&*store, id(1), 100).await?;
    if store.put(id(1), pattern(id(2), 50).into()).await.is_err() {
        expect(&*store, id(1), 100).await?;
    }
    ensure_eq!(ids(&*store).await?, [id(1)], "listing after an id was put twice");
    Ok(())
}
