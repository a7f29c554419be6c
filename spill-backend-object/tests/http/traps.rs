//! What goes wrong on the way, or is said to be wrong.

use std::{sync::Arc, time::Duration};

use spill_core::{Layer, StoreErrorKind, layers::Retry};

use super::{
    always, id, once, puts, reads, s3,
    server::{Action, Reply, Way},
};

use StoreErrorKind::{Corrupt, Denied, NoSpace, NotFound, Other, Transient};

/// Ten bytes, as an answer to a read of all of them.
fn ten() -> Reply {
    Reply::new(206, "0123456789").with("etag", "\"e\"").with("content-range", "bytes 0-9/10")
}

#[tokio::test]
async fn a_blob_makes_its_way_there_and_back() {
    let (server, bucket, store) = s3(|_| None, |options| options).await;
    assert!(store.info().name.starts_with("s3://bucket/some/prefix/"), "{}", store.info().name);
    store.put(id(1), b"payload".to_vec().into()).await.unwrap();
    assert_eq!(store.get(id(1), 3..7).await.unwrap(), "load");
    assert_eq!(store.list(None, 10).await.unwrap().len(), 1);
    assert_eq!(store.get(id(1), 3..8).await.unwrap_err().kind(), Corrupt);
    assert_eq!(store.get(id(1), 7..8).await.unwrap_err().kind(), Corrupt);
    assert_eq!(store.get(id(2), 0..1).await.unwrap_err().kind(), NotFound);
    store.delete(&[id(1), id(2)]).await.unwrap();
    store.close().await.unwrap();
    assert!(bucket.0.lock().unwrap().kept.is_empty());
    let requests = server.take();
    assert!(
        requests.iter().all(|request| request.header("authorization").unwrap().contains("Credential=me/"))
    );
}

#[tokio::test]
async fn s07_every_answer_that_says_no_is_told_apart() {
    let cases = [
        (400, "RequestTimeout", Transient, false),
        (400, "BadDigest", Transient, false),
        (400, "IncompleteBody", Transient, false),
        (400, "ExpiredToken", Denied, false),
        (400, "InvalidArgument", Other, false),
        (401, "", Denied, false),
        (403, "AccessDenied", Denied, false),
        (403, "SignatureDoesNotMatch", Denied, false),
        (403, "QuotaExceeded", NoSpace, false),
        (404, "NoSuchBucket", Other, false),
        (404, "NoSuchUpload", Transient, false),
        (404, "NoSuchKey", Other, false), // of a put
        (408, "", Transient, false),
        (409, "OperationAborted", Transient, false),
        (409, "InvalidObjectState", Other, false),
        (412, "PreconditionFailed", Other, false),
        (413, "EntityTooLarge", Other, false),
        (429, "TooManyRequests", Transient, true),
        (500, "InternalError", Transient, false),
        (500, "OperationTimedOut", Transient, false),
        (501, "NotImplemented", Other, false),
        (502, "", Transient, false),
        (503, "SlowDown", Transient, true),
        (503, "", Transient, true),
        (504, "", Transient, false),
        (507, "", NoSpace, false),
        (507, "XMinioStorageFull", NoSpace, false),
    ];
    for (status, code, kind, throttled) in cases {
        let reply = if code.is_empty() { Reply::new(status, "") } else { Reply::xml_error(status, code) };
        let (server, _, store) = s3(always(puts, reply), |options| options).await;
        let error = store.put(id(1), b"x".to_vec().into()).await.unwrap_err();
        assert_eq!((error.kind(), error.is_throttled()), (kind, throttled), "{status} {code}: {error}");
        assert!(error.to_string().contains(&status.to_string()), "{error}");
        assert!(error.to_string().contains(code), "{error}");
        assert_eq!(server.take().len(), 1, "{status} {code}: nothing is repeated down here");
    }
}

#[tokio::test]
async fn s07_a_read_that_is_refused_is_told_apart() {
    for (status, code, kind) in [
        (404, "NoSuchKey", NotFound),
        (404, "", NotFound),
        (404, "NoSuchBucket", Other),
        (416, "InvalidRange", Corrupt),
        (403, "AccessDenied", Denied),
        (304, "", Other),
    ] {
        let reply = if code.is_empty() { Reply::new(status, "") } else { Reply::xml_error(status, code) };
        let (_server, _, store) = s3(always(reads, reply), |options| options).await;
        let error = store.get(id(1), 0..1).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{status} {code}: {error}");
    }
}

#[tokio::test]
async fn s07_throttling_comes_with_the_wait_that_was_asked_for() {
    for reply in [Reply::xml_error(503, "SlowDown"), Reply::new(429, "slower, please")] {
        let (server, _, store) = s3(always(reads, reply.with("retry-after", "11")), |options| options).await;
        let retry = Retry::new(5).waits(Duration::from_millis(1), Duration::from_secs(10));
        // The wait is longer than the layer waits, so it hands the error on.
        let error = retry.layer(store).get(id(1), 0..1).await.unwrap_err();
        assert_eq!(error.kind(), Transient);
        assert_eq!(error.retry_after(), Some(Duration::from_secs(11)));
        assert!(error.is_throttled());
        assert_eq!(server.take().len(), 1);
    }
    let date = always(reads, Reply::new(503, "").with("retry-after", "Tue, 31 Dec 2999 23:59:59 GMT"));
    let (_server, _, store) = s3(date, |options| options).await;
    let wait = store.get(id(1), 0..1).await.unwrap_err().retry_after().unwrap();
    assert!(wait > Duration::from_secs(24 * 3600), "{wait:?}");
    let refused = always(reads, Reply::new(403, "").with("retry-after", "11"));
    let (_server, _, store) = s3(refused, |options| options).await;
    assert_eq!(store.get(id(1), 0..1).await.unwrap_err().retry_after(), None);
}

#[tokio::test]
async fn s07_no_space_is_asked_for_once() {
    let (server, _, store) = s3(always(puts, Reply::new(507, "")), |options| options).await;
    let store = Retry::new(5).layer(store);
    assert_eq!(store.put(id(1), b"x".to_vec().into()).await.unwrap_err().kind(), NoSpace);
    assert_eq!(server.take().len(), 1);
}

#[tokio::test]
async fn s07_a_400_that_passes_is_repeated() {
    let fault = once(puts, Reply::xml_error(400, "RequestTimeout"));
    let (server, bucket, store) = s3(fault, |options| options).await;
    quick(store).put(id(1), b"x".to_vec().into()).await.unwrap();
    assert_eq!(server.take().iter().filter(|request| puts(request)).count(), 2);
    assert_eq!(bucket.0.lock().unwrap().blobs().len(), 1);
}

/// The store with a retry layer that hardly waits.
fn quick(store: Arc<dyn spill_core::Store>) -> Arc<dyn spill_core::Store> {
    Retry::new(3).waits(Duration::from_millis(1), Duration::from_secs(1)).layer(store)
}

#[tokio::test]
async fn s07_a_reset_is_passing_whatever_was_asked() {
    for method in ["GET", "PUT", "POST"] {
        let (server, _, store) = s3(|_| None, |options| options).await;
        store.put(id(1), b"payload".to_vec().into()).await.unwrap();
        drop((server, store));

        let fault = once(
            move |request| request.method == method && request.query("list-type").is_none(),
            Action::Reset,
        );
        let (_server, _, store) = s3(fault, |options| options).await;
        let error = match method {
            "GET" => store.get(id(1), 0..1).await.unwrap_err(),
            "PUT" => store.put(id(1), b"x".to_vec().into()).await.unwrap_err(),
            _ => store.delete(&[id(1)]).await.unwrap_err(),
        };
        assert_eq!(error.kind(), Transient, "{method}: {error}");
    }
}

#[tokio::test]
async fn s07_a_reset_delete_is_repeated() {
    let fault = once(|request| request.query("delete").is_some(), Action::Reset);
    let (server, bucket, store) = s3(fault, |options| options).await;
    store.put(id(1), b"x".to_vec().into()).await.unwrap();
    server.take();
    quick(store).delete(&[id(1)]).await.unwrap();
    assert_eq!(server.lines(), ["POST bucket?delete", "POST bucket?delete"]);
    assert!(bucket.0.lock().unwrap().blobs().is_empty());
}

#[tokio::test]
async fn s07_a_body_that_is_cut_short_is_passing() {
    let (server, _, store) = s3(once(reads, ten().way(Way::CutAfter(5))), |options| options).await;
    let error = store.get(id(1), 0..10).await.unwrap_err();
    assert_eq!(error.kind(), Transient, "{error}");
    assert_eq!(server.take().len(), 1, "nothing is repeated down here");
}

#[tokio::test]
async fn s07_a_body_that_is_shorter_than_the_range_is_damage() {
    let (_server, _, store) =
        s3(once(reads, Reply { body: b"01234".to_vec(), ..ten() }), |options| options).await;
    assert_eq!(store.get(id(1), 0..10).await.unwrap_err().kind(), Corrupt);
}

#[tokio::test]
async fn s07_flipped_bits_are_handed_up_to_the_frames() {
    // HTTP can't tell; the checksum of each frame can, and does (rule C03, case 17).
    let (_server, _, store) =
        s3(once(reads, Reply { body: b"0123?56789".to_vec(), ..ten() }), |options| options).await;
    assert_eq!(store.get(id(1), 0..10).await.unwrap(), "0123?56789");
}

#[tokio::test]
async fn s07_a_slow_download_has_all_the_time_it_needs() {
    let read_timeout = Duration::from_secs(1);
    // A byte every 150 ms makes one and a half seconds.
    let fault = once(reads, ten().way(Way::Drip(Duration::from_millis(150))));
    let (_server, _, store) = s3(fault, |options| options.with("read_timeout", "1s")).await;
    let before = std::time::Instant::now();
    assert_eq!(store.get(id(1), 0..10).await.unwrap(), "0123456789");
    assert!(before.elapsed() > read_timeout, "this was no slow download");
}

#[tokio::test]
async fn s07_a_body_that_stands_still_is_passing() {
    let fault = once(reads, ten().way(Way::StallAfter(5)));
    let (_server, _, store) = s3(fault, |options| options.with("read_timeout", "200ms")).await;
    let error = store.get(id(1), 0..10).await.unwrap_err();
    assert_eq!(error.kind(), Transient);
    assert!(
        error
            .to_string()
            .ends_with("no byte for 200ms; raise the option `read_timeout` if that is too short"),
        "{error}"
    );
}

#[tokio::test]
async fn s07_an_answer_that_never_comes_is_passing() {
    let (_server, _, store) =
        s3(once(puts, Action::Silence), |options| options.with("read_timeout", "200ms")).await;
    let error = store.put(id(1), b"x".to_vec().into()).await.unwrap_err();
    assert_eq!(error.kind(), Transient);
    assert!(error.to_string().contains("no byte for 200ms"), "{error}");
}

#[tokio::test]
async fn s07_an_error_in_the_body_of_a_200_is_an_error() {
    for (code, kind) in [("InternalError", Transient), ("SlowDown", Transient), ("AccessDenied", Denied)] {
        let (_server, bucket, store) = s3(once(puts, Reply::xml_error(200, code)), |options| options).await;
        let error = store.put(id(1), b"x".to_vec().into()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(error.is_throttled(), code == "SlowDown");
        assert!(bucket.0.lock().unwrap().blobs().is_empty());

        let fault = once(|request| request.query("delete").is_some(), Reply::xml_error(200, code));
        let (_server, _, store) = s3(fault, |options| options).await;
        let error = store.delete(&[id(1)]).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(error.failed(), [id(1)]);
    }
}

#[tokio::test]
async fn s07_a_listing_that_is_an_error_is_an_error() {
    let mut seen = 0;
    let fault = move |request: &super::Request| {
        let lists = request.query("list-type").is_some() && !request.is_about_life();
        seen += usize::from(lists);
        // The first is that of opening.
        (lists && seen == 2).then(|| Reply::xml_error(200, "InternalError").into())
    };
    let (_server, _, store) = s3(fault, |options| options).await;
    assert_eq!(store.list(None, 10).await.unwrap_err().kind(), Transient);
    assert!(store.list(None, 10).await.unwrap().is_empty());
}

/// The console of a server, or a page of a proxy, was taken for an empty bucket; and closing left everything there.
#[tokio::test]
async fn s07_a_page_that_is_no_listing_is_an_error() {
    for page in ["", "<html><body>Welcome</body></html>", "<html></html>"] {
        let mut seen = 0;
        let fault = move |request: &super::Request| {
            let lists = request.query("list-type").is_some() && !request.is_about_life();
            seen += usize::from(lists);
            // The first is that of opening.
            (lists && (2..4).contains(&seen)).then(|| Reply::new(200, page).into())
        };
        let (_server, bucket, store) = s3(fault, |options| options).await;
        store.put(id(1), b"x".to_vec().into()).await.unwrap();
        let error = store.list(None, 10).await.unwrap_err();
        assert_eq!(error.kind(), Other, "{page:?}: {error}");
        assert!(error.to_string().contains("mend the option `endpoint`"), "{page:?}: {error}");
        store.close().await.unwrap_err();
        assert!(!bucket.0.lock().unwrap().kept.is_empty());
        store.close().await.unwrap();
        assert!(bucket.0.lock().unwrap().kept.is_empty());

        let fault = once(|request| request.query("delete").is_some(), Reply::new(200, page));
        let (_server, _, store) = s3(fault, |options| options).await;
        let error = store.delete(&[id(1)]).await.unwrap_err();
        assert_eq!(error.failed(), [id(1)], "{page:?}: {error}");
    }
    let (server, _) = super::Bucket::serve(always(|_| true, Reply::new(200, "<html></html>"))).await;
    let error = super::open_s3(super::s3_options(&server)).await.unwrap_err();
    assert!(error.to_string().contains("mend the option `endpoint`"), "{error}");
}

#[tokio::test]
async fn no_message_shows_a_secret() {
    let replies = [
        Reply::xml_error(403, "SignatureDoesNotMatch"),
        Reply::xml_error(503, "SlowDown"),
        Reply::new(404, ""),
    ];
    for reply in replies {
        let (_server, _, store) = s3(always(|request| reads(request) || puts(request), reply), |options| {
            options.with("session_token", "token-of-mine")
        })
        .await;
        for error in [
            store.get(id(1), 0..1).await.unwrap_err(),
            store.put(id(1), b"x".to_vec().into()).await.unwrap_err(),
        ] {
            let shown = format!("{error} {error:?} {store:?}");
            for secret in [super::SECRET, "token-of-mine", "Signature="] {
                assert!(!shown.contains(secret), "{secret}: {shown}");
            }
        }
    }
}
