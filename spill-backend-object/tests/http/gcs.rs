//! Google Cloud Storage. There is no emulator of its XML interface, so these answers are all there is.

use std::sync::Arc;

use spill_backend_object::GcsFactory;
use spill_core::{Options, Payload, Store, StoreErrorKind, StoreFactory};

use super::{
    SECRET, always,
    bucket::Bucket,
    id, once, puts, reads,
    server::{Action, Reply, Request, Server},
};

use StoreErrorKind::{Corrupt, Denied, NotFound, Other, Transient};

async fn gcs(
    fault: impl FnMut(&Request) -> Option<Action> + Send + 'static,
) -> (Server, Bucket, Arc<dyn Store>) {
    let (server, bucket) = Bucket::serve(fault).await;
    let store = open(options(&server).with("bearer_token", SECRET)).await.unwrap();
    server.take();
    (server, bucket, store)
}

fn options(server: &Server) -> Options {
    Options::new().with("endpoint", &server.url).with("allow_http", "true")
}

async fn open(options: Options) -> Result<Arc<dyn Store>, spill_core::StoreError> {
    let environment: [(&str, &str); 0] = [];
    GcsFactory::new()
        .with_environment(environment)
        .open(&"gs://bucket/prefix".parse().unwrap(), options)
        .await
}

#[tokio::test]
async fn a_blob_makes_its_way_there_and_back() {
    let (server, bucket, store) = gcs(|_| None).await;
    assert!(store.info().name.starts_with("gs://bucket/prefix/"));
    store.put(id(1), b"payload".to_vec().into()).await.unwrap();
    assert_eq!(store.get(id(1), 3..7).await.unwrap(), "load");
    assert_eq!(store.list(None, 10).await.unwrap().len(), 1);
    assert_eq!(store.get(id(1), 7..8).await.unwrap_err().kind(), Corrupt);
    store.delete(&[id(1), id(2)]).await.unwrap();
    store.close().await.unwrap();
    assert!(bucket.0.lock().unwrap().kept.is_empty());
    let bearer = format!("Bearer {SECRET}");
    assert!(server.take().iter().all(|request| request.header("authorization") == Some(&bearer)));
}

#[tokio::test]
async fn a_large_blob_goes_up_in_parts() {
    let fault =
        once(|request| request.query("partNumber") == Some("2"), Reply::xml_error(503, "ServiceUnavailable"));
    let (_server, bucket, store) = gcs(fault).await;
    let blob: Vec<u8> = (0..20 << 18).flat_map(|number: u32| number.to_le_bytes()).collect();
    assert_eq!(store.put(id(1), Payload::from(blob.clone())).await.unwrap_err().kind(), Transient);
    assert!(bucket.0.lock().unwrap().uploads.is_empty(), "the upload was not aborted");
    store.put(id(1), Payload::from(blob.clone())).await.unwrap();
    assert!(bucket.0.lock().unwrap().blobs() == [&blob], "the bytes differ");
}

#[tokio::test]
async fn s07_its_answers_are_told_apart() {
    for (status, code, kind) in [
        (403, "AccessDenied", Denied),
        (404, "NoSuchBucket", Other),
        (408, "", Transient),
        (429, "", Transient),
        (500, "InternalError", Transient),
        (503, "ServiceUnavailable", Transient),
    ] {
        let reply = Reply::xml_error(status, code);
        let (server, _, store) = gcs(always(|request| puts(request) || reads(request), reply)).await;
        let put = store.put(id(1), b"x".to_vec().into()).await.unwrap_err();
        let get = store.get(id(1), 0..1).await.unwrap_err();
        assert_eq!((put.kind(), get.kind()), (kind, kind), "{status}: {put}, {get}");
        assert!(!format!("{put:?}{get:?}").contains(SECRET));
        assert_eq!(server.take().len(), if kind == Other { 3 } else { 2 }, "{status}");
    }
    let (_server, _, store) = gcs(|_| None).await;
    assert_eq!(store.get(id(1), 0..1).await.unwrap_err().kind(), NotFound);
}

#[tokio::test]
async fn s07_what_would_fail_for_good_fails_when_opening() {
    for (reply, kind, says) in [
        (Reply::xml_error(404, "NoSuchBucket"), Other, "create the bucket"),
        (
            Reply::new(401, r#"{"error":{"code":401,"message":"Invalid Credentials"}}"#),
            Denied,
            "401: Invalid Credentials",
        ),
    ] {
        let (server, _) = Bucket::serve(always(|_| true, reply)).await;
        let error = open(options(&server).with("skip_signature", "true")).await.unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[tokio::test]
async fn a_service_account_without_oauth_is_taken() {
    let (server, _) = Bucket::serve(|_| None).await;
    let key = r#"{"private_key":"none","private_key_id":"none","client_email":"me","disable_oauth":true}"#;
    open(options(&server).with("service_account_key", key)).await.unwrap();
    assert_eq!(server.take().len(), 1);
}
