//! Reads of parts of blobs, and space given back from within them.

use std::ops::Range;

use futures_util::{StreamExt, TryStreamExt, stream};
use spill_core::{Store, StoreErrorKind};

use super::cases;
use crate::{
    runner::{Verdict, ensure, ensure_eq},
    store::{
        Case,
        place::{Place, expect, expect_kind, id, list_all, pattern, put, same_bytes},
    },
};

const LARGE: usize = (2 << 20) + 17;

pub(super) const RANGES: &[Case] = cases!(Ranges:
    every_range_of_a_small_blob,
    ranges_around_boundaries,
    an_empty_range_is_empty,
    one_byte_past_the_end_is_corrupt,
    far_past_the_end_is_corrupt,
    a_backward_range_is_an_error,
    the_same_range_again_is_the_same,
    many_ranges_at_once,
);

/// Reads a range of a pattern and checks it.
async fn expect_range(store: &dyn Store, len: usize, range: Range<usize>) -> Verdict {
    let found = store.get(id(1), range.start as u64..range.end as u64).await?;
    same_bytes(&found, &pattern(id(1), len)[range.clone()], &format!("bytes {range:?}"))
}

async fn every_range_of_a_small_blob(place: &Place) -> Verdict {
    let store = place.open().await?;
    put(&*store, id(1), 13).await?;
    for start in 0..=13 {
        for end in start..=13 {
            expect_range(&*store, 13, start..end).await?;
        }
    }
    Ok(())
}

fn boundary_ranges() -> impl Iterator<Item = Range<usize>> {
    [1, 512, 4096, 65_536, 1 << 20, LARGE - 1]
        .into_iter()
        .flat_map(|edge| [edge - 1..edge, edge..edge + 1, edge - 1..edge + 1, 0..edge, edge..LARGE])
}

async fn ranges_around_boundaries(place: &Place) -> Verdict {
    let store = place.open().await?;
    put(&*store, id(1), LARGE).await?;
    for range in boundary_ranges() {
        expect_range(&*store, LARGE, range).await?;
        tokio::task::yield_now().await;
    }
    Ok(())
}

async fn an_empty_range_is_empty(place: &Place) -> Verdict {
    let store = place.open().await?;
    put(&*store, id(1), 100).await?;
    store.put(id(2), spill_core::Payload::new()).await?;
    for at in [0, 1, 50, 99, 100] {
        ensure_eq!(store.get(id(1), at..at).await?.len(), 0, "bytes of the empty range at {at}");
    }
    ensure_eq!(store.get(id(2), 0..0).await?.len(), 0, "bytes of the empty blob");
    Ok(())
}

async fn one_byte_past_the_end_is_corrupt(place: &Place) -> Verdict {
    let store = place.open().await?;
    put(&*store, id(1), 100).await?;
    store.put(id(2), spill_core::Payload::new()).await?;
    for range in [0..101, 99..101, 100..101] {
        let what = format!("get of {range:?} of a blob of 100 bytes");
        expect_kind(store.get(id(1), range).await, StoreErrorKind::Corrupt, &what)?;
    }
    expect_kind(store.get(id(2), 0..1).await, StoreErrorKind::Corrupt, "get of 0..1 of an empty blob")
}

async fn far_past_the_end_is_corrupt(place: &Place) -> Verdict {
    let store = place.open().await?;
    put(&*store, id(1), 100).await?;
    for range in [101..102, 5000..6000, 0..1 << 20, (1 << 32)..(1 << 32) + 5, u64::MAX - 1..u64::MAX] {
        let what = format!("get of {range:?} of a blob of 100 bytes");
        expect_kind(store.get(id(1), range).await, StoreErrorKind::Corrupt, &what)?;
    }
    expect(&*store, id(1), 100).await
}

async fn a_backward_range_is_an_error(place: &Place) -> Verdict {
    let store = place.open().await?;
    put(&*store, id(1), 100).await?;
    let backward = Range { start: 50, end: 40 };
    ensure!(store.get(id(1), backward).await.is_err(), "get of 50..40 is Ok");
    expect(&*store, id(1), 100).await
}

async fn the_same_range_again_is_the_same(place: &Place) -> Verdict {
    let store = place.open().await?;
    put(&*store, id(1), 9000).await?;
    for _ in 0..20 {
        expect_range(&*store, 9000, 4000..4200).await?;
    }
    Ok(())
}

async fn many_ranges_at_once(place: &Place) -> Verdict {
    let store = place.open().await?;
    let (len, store) = (100_000, &*store);
    put(store, id(1), len).await?;
    stream::iter(0..200)
        .map(|number| {
            let start = number * 487 % (len - 1000);
            expect_range(store, len, start..start + number)
        })
        .buffer_unordered(32)
        .try_collect::<()>()
        .await
}

pub(super) const PUNCH: &[Case] = cases!(Punch:
    punching_keeps_length_and_the_rest,
    punching_says_no_more_than_was_asked,
    punching_nothing_gives_nothing,
);

/// What lies between them is in `punching_keeps_length_and_the_rest`.
const HOLES: [Range<u64>; 3] = [4096..8192, 70_001..140_003, 1 << 20..3 << 19];

async fn punching_keeps_length_and_the_rest(place: &Place) -> Verdict {
    let store = place.open().await?;
    put(&*store, id(1), LARGE).await?;
    store.punch(id(1), &HOLES).await?;
    for range in [0..4096, 8192..70_001, 140_003..1 << 20, 3 << 19..LARGE] {
        expect_range(&*store, LARGE, range).await?;
    }
    ensure_eq!(store.get(id(1), 0..LARGE as u64).await?.len(), LARGE, "bytes read of a punched blob");
    let listed: Vec<u64> = list_all(&*store, 10).await?.iter().map(|meta| meta.stored.bytes).collect();
    ensure_eq!(listed, [LARGE as u64], "length listed of a punched blob");
    Ok(())
}

async fn punching_says_no_more_than_was_asked(place: &Place) -> Verdict {
    let store = place.open().await?;
    put(&*store, id(1), LARGE).await?;
    let asked: u64 = HOLES.iter().map(|hole| hole.end - hole.start).sum();
    let given = store.punch(id(1), &HOLES).await?;
    ensure!(given <= asked, "punch says it gave {given} bytes back, only {asked} were asked for");
    let can = store.info().can_punch;
    ensure!(can || given == 0, "punch says it gave {given} bytes back, but info().can_punch is false");
    ensure!(!can || given > 0, "info().can_punch is true, but punch of {asked} bytes gave none back");
    Ok(())
}

async fn punching_nothing_gives_nothing(place: &Place) -> Verdict {
    let store = place.open().await?;
    put(&*store, id(1), 10_000).await?;
    ensure_eq!(store.punch(id(1), &[]).await?, 0, "bytes given back by a punch of no range");
    let empty: [Range<u64>; 2] = [0..0, 5000..5000];
    ensure_eq!(store.punch(id(1), &empty).await?, 0, "bytes given back by a punch of empty ranges");
    expect(&*store, id(1), 10_000).await
}
