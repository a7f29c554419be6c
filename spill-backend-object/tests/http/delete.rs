//! Deleting many blobs at once, and one by one where that is all a server can.

use std::collections::BTreeSet;

use spill_core::StoreErrorKind;

use super::{
    always, id, once, s3,
    server::{Reply, Request},
};

fn is_batch(request: &Request) -> bool {
    request.query("delete").is_some()
}

#[tokio::test]
async fn many_blobs_are_one_request() {
    let (server, bucket, store) = s3(|_| None, |options| options).await;
    for number in 1..4 {
        store.put(id(number), b"x".to_vec().into()).await.unwrap();
    }
    server.take();
    store.delete(&[id(1), id(2), id(3), id(4)]).await.unwrap();
    assert_eq!(server.lines(), ["POST bucket?delete"]);
    assert!(bucket.0.lock().unwrap().blobs().is_empty());
}

#[tokio::test]
async fn s03_a_server_without_deletes_of_many_is_asked_once() {
    for reply in [
        Reply::xml_error(501, "NotImplemented"),
        Reply::new(405, ""),
        Reply::xml_error(400, "MalformedXML"),
        Reply::xml_error(400, "InvalidRequest"),
        Reply::new(404, "page not found"),
    ] {
        let status = reply.status;
        let (server, bucket, store) = s3(always(is_batch, reply), |options| options).await;
        for number in 1..4 {
            store.put(id(number), b"x".to_vec().into()).await.unwrap();
        }
        server.take();
        store.delete(&[id(1), id(2)]).await.unwrap();
        let lines = server.lines();
        assert_eq!(lines[0], "POST bucket?delete", "{status}");
        assert_eq!(lines.len(), 3, "{status}: {lines:?}");
        store.delete(&[id(3), id(4)]).await.unwrap();
        let lines = server.lines();
        assert!(
            lines.len() == 2 && lines.iter().all(|line| line.starts_with("DELETE ")),
            "{status}: {lines:?}"
        );
        assert!(bucket.0.lock().unwrap().blobs().is_empty());
    }
}

#[tokio::test]
async fn s03_a_refusal_is_no_reason_to_ask_one_by_one() {
    for (status, code) in [(403, "AccessDenied"), (404, "NoSuchBucket"), (503, "SlowDown")] {
        let (server, _, store) =
            s3(always(is_batch, Reply::xml_error(status, code)), |options| options).await;
        let error = store.delete(&[id(1), id(2)]).await.unwrap_err();
        assert!(error.to_string().contains(code), "{error}");
        assert_eq!(error.failed().iter().collect::<BTreeSet<_>>().len(), 2);
        assert_eq!(server.lines(), ["POST bucket?delete"]);
    }
}

#[tokio::test]
async fn s03_what_failed_of_a_batch_is_named() {
    // The path of the session is known to the server only.
    let fault = |request: &Request| {
        is_batch(request).then(|| {
            let asked = String::from_utf8(request.body.clone()).unwrap();
            let keys: Vec<_> =
                asked.split("<Key>").skip(1).filter_map(|rest| rest.split("</Key>").next()).collect();
            let body = format!(
                "<DeleteResult><Deleted><Key>{}</Key></Deleted>\
                 <Error><Key>{}</Key><Code>SlowDown</Code><Message>m</Message></Error></DeleteResult>",
                keys[0], keys[1]
            );
            Reply::new(200, body).into()
        })
    };
    let (_server, _, store) = s3(fault, |options| options).await;
    let error = store.delete(&[id(1), id(2)]).await.unwrap_err();
    assert_eq!(error.failed(), [id(2)], "{error}");
    assert_eq!((error.kind(), error.is_throttled()), (StoreErrorKind::Transient, true));
}

#[tokio::test]
async fn s07_one_single_delete_that_fails_is_named() {
    let mut single = once(|request| request.method == "DELETE", Reply::xml_error(503, "SlowDown"));
    let mut batch = always(is_batch, Reply::new(405, ""));
    let (_server, _, store) =
        s3(move |request| batch(request).or_else(|| single(request)), |options| options).await;
    let error = store.delete(&[id(1), id(2), id(3)]).await.unwrap_err();
    assert_eq!(error.failed().len(), 1);
    assert_eq!(error.kind(), StoreErrorKind::Transient);
}

/// `object_store` panics over it.
#[tokio::test]
async fn s03_an_answer_about_something_else_is_an_error() {
    let body = "<DeleteResult><Error><Key>some/other</Key><Code>AccessDenied</Code><Message>m</Message></Error>\
                </DeleteResult>";
    let (_server, _, store) = s3(once(is_batch, Reply::new(200, body)), |options| options).await;
    let error = store.delete(&[id(1), id(2)]).await.unwrap_err();
    assert_eq!((error.kind(), error.failed()), (StoreErrorKind::Other, &[id(1), id(2)][..]), "{error}");
    assert!(error.to_string().contains("an object that was not to be deleted"), "{error}");
    store.delete(&[id(1), id(2)]).await.unwrap();
}

/// `object_store` takes an answer with one of two words in it for a failure.
#[tokio::test]
async fn s07_an_owner_may_be_called_like_an_error() {
    for owner in ["SlowDown", "InternalError"] {
        let fault = |request: &Request| {
            is_batch(request).then(|| {
                let asked = String::from_utf8(request.body.clone()).unwrap();
                let key = asked.split("<Key>").nth(2).unwrap().split("</Key>").next().unwrap();
                let error =
                    format!("<Error><Key>{key}</Key><Code>AccessDenied</Code><Message>m</Message></Error>");
                Reply::new(200, format!("<DeleteResult>{error}</DeleteResult>")).into()
            })
        };
        let (_server, _, store) = s3(fault, |options| options.with("owner", owner)).await;
        let error = store.delete(&[id(1), id(2)]).await.unwrap_err();
        assert_eq!((error.kind(), error.failed()), (StoreErrorKind::Denied, &[id(2)][..]), "{error}");
        let (_server, bucket, store) = s3(|_| None, |options| options.with("owner", owner)).await;
        store.put(id(1), vec![0; (16 << 20) + 1].into()).await.unwrap();
        assert_eq!(store.list(None, 9).await.unwrap().len(), 1);
        store.close().await.unwrap();
        assert!(bucket.0.lock().unwrap().kept.is_empty());
    }
}
