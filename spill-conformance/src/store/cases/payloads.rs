//! Payloads in many pieces, and sizes that are told as they are.

use bytes::Bytes;
use spill_core::Payload;

use super::cases;
use crate::{
    runner::{Verdict, ensure, ensure_eq},
    store::{
        Case,
        place::{Place, expect_bytes, id, list_all, nth, pattern, put, put_all},
    },
};

pub(super) const PAYLOADS: &[Case] = cases!(Payloads:
    two_chunks,
    a_thousand_uneven_chunks,
    more_chunks_than_one_call_takes,
    empty_chunks,
    windows_into_a_larger_buffer,
    large_and_tiny_chunks,
    one_payload_under_two_ids,
);

async fn round_trip(place: &Place, payload: Payload) -> Verdict {
    let store = place.open().await?;
    let wanted = payload.to_bytes();
    let stored = store.put(id(1), payload).await?;
    ensure_eq!(stored.bytes, wanted.len() as u64, "Stored.bytes");
    expect_bytes(&*store, id(1), &wanted).await
}

/// The pattern cut into pieces of these lengths, again and again.
fn pieces(len: usize, lengths: &[usize]) -> Payload {
    let mut rest = pattern(id(1), len);
    let mut payload = Payload::new();
    for length in lengths.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        payload.push(rest.split_to((*length).min(rest.len())));
    }
    payload
}

async fn two_chunks(place: &Place) -> Verdict {
    round_trip(place, pieces(5000, &[4097, 5000])).await
}

async fn a_thousand_uneven_chunks(place: &Place) -> Verdict {
    round_trip(place, pieces(1_000_000, &[1, 3000, 7, 992])).await
}

async fn more_chunks_than_one_call_takes(place: &Place) -> Verdict {
    // The most that one vectored write takes is 1024 on Linux.
    round_trip(place, pieces(2049, &[1])).await
}

async fn empty_chunks(place: &Place) -> Verdict {
    let chunks = [&b""[..], b"a", b"", b"", b"bc", b""];
    round_trip(place, chunks.into_iter().map(Bytes::from_static).collect()).await
}

async fn windows_into_a_larger_buffer(place: &Place) -> Verdict {
    let buffer = pattern(id(9), 100_000);
    round_trip(
        place,
        [50..60, 10..4106, 99_999..100_000].map(|range| buffer.slice(range)).into_iter().collect(),
    )
    .await
}

async fn large_and_tiny_chunks(place: &Place) -> Verdict {
    round_trip(place, pieces(3_000_010, &[1, 1_000_000, 2, 2_000_000])).await
}

async fn one_payload_under_two_ids(place: &Place) -> Verdict {
    let store = place.open().await?;
    let payload = pieces(10_000, &[999]);
    let wanted = payload.to_bytes();
    store.put(id(1), payload.clone()).await?;
    store.put(id(2), payload).await?;
    store.delete(&[id(1)]).await?;
    expect_bytes(&*store, id(2), &wanted).await
}

pub(super) const USAGE: &[Case] = cases!(Usage:
    put_says_the_size_of_the_payload,
    the_listing_says_the_size_of_the_payload,
    put_and_listing_agree_after_changes,
    an_empty_blob_has_no_bytes,
    allocation_is_plausible,
);

const SIZES: [usize; 8] = [0, 1, 511, 4096, 4097, 65_535, 100_000, 1_500_000];

async fn put_says_the_size_of_the_payload(place: &Place) -> Verdict {
    let store = place.open().await?;
    for (number, len) in SIZES.into_iter().enumerate() {
        let id = nth(number);
        let stored = store.put(id, pattern(id, len).into()).await?;
        ensure_eq!(stored.bytes, len as u64, "Stored.bytes of a put");
    }
    Ok(())
}

async fn the_listing_says_the_size_of_the_payload(place: &Place) -> Verdict {
    let store = place.open().await?;
    let blobs: Vec<_> = SIZES.into_iter().enumerate().map(|(number, len)| (nth(number), len)).collect();
    put_all(&*store, &blobs).await?;
    let listed = list_all(&*store, 3).await?;
    for (id, len) in blobs {
        let found = listed.iter().find(|meta| meta.id == id).map(|meta| meta.stored.bytes);
        ensure_eq!(found, Some(len as u64), "listed size of blob {id}");
    }
    Ok(())
}

async fn put_and_listing_agree_after_changes(place: &Place) -> Verdict {
    let store = place.open().await?;
    let mut kept = Vec::new();
    for number in 0..60 {
        let len = number * number * 37 % 9000;
        let told = store.put(nth(number), pattern(nth(number), len).into()).await?.bytes;
        kept.push((nth(number), told));
        if number % 3 == 2 {
            let (gone, _) = kept.swap_remove(number * 31 % kept.len());
            store.delete(&[gone]).await?;
        }
    }
    let told: u64 = kept.iter().map(|(_, bytes)| bytes).sum();
    let listed: u64 = list_all(&*store, 7).await?.iter().map(|meta| meta.stored.bytes).sum();
    ensure_eq!(listed, told, "bytes listed in all, against what puts said");
    Ok(())
}

async fn an_empty_blob_has_no_bytes(place: &Place) -> Verdict {
    let store = place.open().await?;
    let stored = store.put(id(1), Payload::new()).await?;
    ensure_eq!(stored.bytes, 0, "Stored.bytes of an empty blob");
    let listed: Vec<_> =
        list_all(&*store, 10).await?.iter().map(|meta| (meta.id, meta.stored.bytes)).collect();
    ensure_eq!(listed, [(id(1), 0)], "listing");
    Ok(())
}

async fn allocation_is_plausible(place: &Place) -> Verdict {
    let store = place.open().await?;
    let len = 1_000_000;
    put(&*store, id(1), len).await?;
    let stored = store.put(id(2), pattern(id(2), len).into()).await?;
    // Media compress and round up, but not without bound: a number beyond this is in another unit.
    let most = 2 * len as u64 + (1 << 20);
    ensure!(stored.allocated <= most, "a put of {len} bytes says it allocated {}", stored.allocated);
    for meta in list_all(&*store, 10).await? {
        ensure!(
            meta.stored.allocated <= most,
            "a blob of {len} bytes is listed as {} allocated",
            meta.stored.allocated
        );
    }
    Ok(())
}
