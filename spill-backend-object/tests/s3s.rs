//! Blobs in parts over real HTTP: to an S3 server in this process, whose directory shows what is left.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::{fs, path::Path};

use spill_backend_object::{ObjectOptions, ObjectStoreBackend};
use spill_core::{BlobId, Payload, Store, StoreErrorKind};

#[path = "support/polls.rs"]
mod polls;
#[path = "support/s3.rs"]
mod s3;

use polls::{poll_at_most, settle};

/// Three parts, the last of them a single byte.
const LENGTH: usize = (32 << 20) + 1;

fn open(server: &s3::Server) -> ObjectStoreBackend {
    ObjectOptions::new(server.bucket().client().unwrap(), "prefix").owner("app").sorted(true).open().unwrap()
}

/// In chunks that end where no part does.
fn payload() -> (Vec<u8>, Payload) {
    let bytes: Vec<u8> = (0..=250).cycle().take(LENGTH).collect();
    let payload = bytes.chunks(5 << 20).map(bytes::Bytes::copy_from_slice).collect();
    (bytes, payload)
}

/// Every object, and every unfinished upload.
///
/// Left out is what this server itself forgets: notes about objects that were deleted, the half of a body that a
/// client stopped sending, and the parts of an upload whose client hung up while it was being completed. It
/// removes `.upload-ID.json` first of all then, and stops in the middle.
fn files(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy();
        let forgotten = name.starts_with(".bucket-") && !name.contains(".upload-")
            || name.starts_with(".tmp.")
            || name.starts_with(".upload_id-");
        if path.is_dir() {
            found.extend(files(&path));
        } else if !forgotten {
            found.push(name.into_owned());
        }
    }
    found
}

#[tokio::test]
async fn a_blob_in_parts_comes_back() {
    let server = s3::Server::start().unwrap();
    let store = open(&server);
    let (bytes, payload) = payload();
    let stored = store.put(BlobId::new(1), payload).await.unwrap();
    assert_eq!(stored.bytes, LENGTH as u64);
    for range in [0..1, (16 << 20) - 1..(16 << 20) + 1, (32 << 20)..LENGTH, 0..LENGTH] {
        let read = store.get(BlobId::new(1), range.start as u64..range.end as u64).await.unwrap();
        assert!(read == bytes[range.clone()], "bytes {range:?}");
    }
    let past = store.get(BlobId::new(1), 5..LENGTH as u64 + 1).await.unwrap_err();
    assert_eq!(past.kind(), StoreErrorKind::Corrupt, "{past}");
    assert_eq!(store.list(None, 9).await.unwrap()[0].stored, stored);
    store.close().await.unwrap();
    assert_eq!(files(server.root()), Vec::<String>::new());
}

#[tokio::test]
async fn s07_uploads_in_parts_are_aborted_when_their_put_is_dropped() {
    let server = s3::Server::start().unwrap();
    let (bytes, payload) = payload();
    let (mut polls, mut number, mut dropped) = (1, 0, 0);
    loop {
        let store = open(&server);
        let id = BlobId::new(number);
        let done = poll_at_most(store.put(id, payload.clone()), polls).await;
        settle().await;
        match store.get(id, 0..LENGTH as u64).await {
            Ok(read) => assert!(read == bytes, "{polls} polls"),
            Err(error) => {
                assert_eq!(error.kind(), StoreErrorKind::NotFound, "{polls} polls: {error}");
                assert!(done.is_none());
            }
        }
        store.close().await.unwrap();
        assert_eq!(files(server.root()), Vec::<String>::new(), "{polls} polls");
        if let Some(put) = done {
            put.unwrap();
            break;
        }
        dropped += 1;
        (polls, number) = (polls * 3, number + 1);
    }
    assert!(dropped > 3, "{dropped} puts were dropped");
}

#[tokio::test]
async fn s07_a_wrong_key_is_denied() {
    let server = s3::Server::start().unwrap();
    let wrong = s3::Bucket { secret: "wrong".to_owned(), ..server.bucket() }.client().unwrap();
    let store = ObjectStoreBackend::new(wrong, "prefix").unwrap();
    let put = store.put(BlobId::new(1), vec![1].into()).await.unwrap_err();
    assert_eq!((put.kind(), put.operation()), (StoreErrorKind::Denied, "put"), "{put}");
    assert_eq!(store.announce().await.unwrap_err().kind(), StoreErrorKind::Denied);
    assert_eq!(files(server.root()), Vec::<String>::new());
}
