//! Blobs that go up in parts.

use std::time::Duration;

use spill_core::{Layer, Payload, StoreErrorKind, layers::Retry};

use super::{
    id, once, s3,
    server::{Action, Reply, Request},
};

/// Three parts of 16 MiB at most.
fn large() -> Vec<u8> {
    (0..40 << 18).flat_map(|number: u32| number.to_le_bytes()).collect()
}

fn is_part(request: &Request, number: &str) -> bool {
    request.query("partNumber") == Some(number)
}

#[tokio::test]
async fn case_23_a_part_that_is_reset_once() {
    let fault = once(|request| is_part(request, "2"), Action::Reset);
    let (server, bucket, store) = s3(fault, |options| options).await;
    let store = Retry::new(3).waits(Duration::from_millis(1), Duration::from_secs(1)).layer(store);
    let blob = large();
    let stored = store.put(id(1), Payload::from(blob.clone())).await.unwrap();
    assert_eq!(stored.bytes, blob.len() as u64);
    assert_eq!(store.list(None, 9).await.unwrap()[0].stored.bytes, blob.len() as u64);
    assert!(store.get(id(1), 0..blob.len() as u64).await.unwrap() == blob, "the bytes differ");
    let objects = bucket.0.lock().unwrap();
    assert_eq!(objects.blobs().len(), 1);
    assert!(objects.uploads.is_empty(), "an upload is left over");
    let parts = server.take().iter().filter(|request| request.query("partNumber").is_some()).count();
    assert!((4..=6).contains(&parts), "{parts} parts were sent");
}

#[tokio::test]
async fn s07_an_error_in_the_body_of_a_complete_is_an_error() {
    let completes = |request: &Request| request.method == "POST" && request.query("uploadId").is_some();
    let fault = once(completes, Reply::xml_error(200, "InternalError"));
    let (server, bucket, store) = s3(fault, |options| options).await;
    let error = store.put(id(1), Payload::from(large())).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Transient, "{error}");
    assert!(bucket.0.lock().unwrap().uploads.is_empty(), "the upload was not aborted");
    assert_eq!(server.lines().last().unwrap().split_once('?').unwrap().1, "uploadId");
}

#[tokio::test]
async fn s07_an_upload_that_is_gone_is_started_anew() {
    let fault = once(|request| is_part(request, "1"), Reply::xml_error(404, "NoSuchUpload"));
    let (_server, bucket, store) = s3(fault, |options| options).await;
    let store = Retry::new(2).waits(Duration::from_millis(1), Duration::from_secs(1)).layer(store);
    store.put(id(1), Payload::from(large())).await.unwrap();
    assert_eq!(bucket.0.lock().unwrap().blobs()[0].len(), 40 << 20);
}
