//! Opening a service: what is asked, with whose credentials, and what is refused at once.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use spill_backend_object::S3Factory;
use spill_core::{Options, StoreErrorKind, StoreFactory};

use super::{
    SECRET, always,
    bucket::Bucket,
    id, once, open_s3, s3_options,
    server::{Action, Reply, Request, Server},
};

use StoreErrorKind::{Denied, Other, Transient};

#[tokio::test]
async fn opening_asks_for_one_name_under_the_prefix() {
    let (server, _) = Bucket::serve(|_| None).await;
    open_s3(s3_options(&server)).await.unwrap();
    let requests = server.take();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].line(), "GET bucket?list-type");
    assert_eq!(requests[0].query("max-keys"), Some("1"));
    assert_eq!(requests[0].query("prefix"), Some("some/prefix/"));
}

#[tokio::test]
async fn s07_what_would_fail_for_good_fails_when_opening() {
    let moved = Reply::xml_error(301, "PermanentRedirect").with("x-amz-bucket-region", "eu-west-1");
    for (reply, kind, says) in [
        (
            Reply::xml_error(403, "InvalidAccessKeyId"),
            Denied,
            "403 InvalidAccessKeyId: message of InvalidAccessKeyId",
        ),
        (Reply::xml_error(403, "RequestTimeTooSkewed"), Denied, "set the clock of this machine"),
        (Reply::xml_error(404, "NoSuchBucket"), Other, "create the bucket, or mend its name in the URL"),
        (moved, Other, "set the option `region` to eu-west-1"),
        (
            Reply::new(307, "").with("location", "http://elsewhere/"),
            Other,
            "mend the options `region` and `endpoint`",
        ),
    ] {
        let (server, _) = Bucket::serve(always(|_| true, reply)).await;
        let error = open_s3(s3_options(&server)).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().starts_with("open in s3://bucket/some/prefix failed"), "{error}");
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(server.take().len(), 1, "{says}");
    }
}

#[tokio::test]
async fn s07_a_listing_of_nothing_may_be_a_404() {
    let lists = |request: &Request| request.query("list-type").is_some();
    for reply in [Reply::new(404, ""), Reply::xml_error(404, "NoSuchKey")] {
        let (server, _) = Bucket::serve(always(lists, reply)).await;
        let store = open_s3(s3_options(&server)).await.unwrap();
        assert!(store.list(None, 9).await.unwrap().is_empty());
        store.close().await.unwrap();
    }
}

#[tokio::test]
async fn s07_a_bucket_that_went_away_is_said_to_be_missing() {
    let gone = Arc::new(AtomicBool::new(false));
    let now = Arc::clone(&gone);
    let fault = move |_: &Request| now.load(Relaxed).then(|| Reply::xml_error(404, "NoSuchBucket").into());
    let (server, _) = Bucket::serve(fault).await;
    let store = open_s3(s3_options(&server)).await.unwrap();
    store.put(super::id(1), b"x".to_vec().into()).await.unwrap();
    gone.store(true, Relaxed);
    let list = store.list(None, 9).await.unwrap_err();
    for error in [
        list,
        store.get(super::id(1), 0..1).await.unwrap_err(),
        store.get(super::id(1), 0..0).await.unwrap_err(),
        store.put(super::id(2), b"x".to_vec().into()).await.unwrap_err(),
        store.delete(&[super::id(1)]).await.unwrap_err(),
        store.close().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), Other, "{error}");
        assert!(error.to_string().contains("create the bucket, or mend its name in the URL"), "{error}");
    }
}

#[tokio::test]
async fn a_bucket_that_can_not_be_written_to_fails_when_opening() {
    let writes = |request: &Request| request.method == "PUT";
    let denied = Reply::xml_error(403, "AccessDenied");
    let (server, _) = Bucket::serve(move |request| writes(request).then(|| denied.clone().into())).await;
    let error = open_s3(s3_options(&server)).await.unwrap_err();
    assert_eq!((error.kind(), error.operation()), (Denied, "open"), "{error}");
}

#[tokio::test]
async fn s07_passing_trouble_is_waited_out_when_opening() {
    for action in [Action::Reset, Reply::xml_error(503, "SlowDown").into()] {
        let (server, _) = Bucket::serve(once(|_| true, action)).await;
        open_s3(s3_options(&server)).await.unwrap();
        assert_eq!(server.take().len(), 2);
    }
    let (server, _) = Bucket::serve(always(|_| true, Reply::new(500, ""))).await;
    assert_eq!(open_s3(s3_options(&server)).await.unwrap_err().kind(), Transient);
    assert_eq!(server.take().len(), 3);
}

#[tokio::test]
async fn s07_a_server_that_is_not_there_fails_when_opening() {
    let (server, _) = Bucket::serve(|_| None).await;
    let url = server.url.clone();
    let options = s3_options(&server);
    drop(server);
    // The listener is gone once its task has ended.
    while tokio::net::TcpStream::connect(url.trim_start_matches("http://")).await.is_ok() {
        tokio::task::yield_now().await;
    }
    let error = open_s3(options).await.unwrap_err();
    assert_eq!(error.kind(), Transient, "{error}");
    assert!(error.to_string().to_lowercase().contains("connection refused"), "{error}");
}

#[tokio::test]
async fn credentials_of_the_environment_are_taken_whole_or_not_at_all() {
    let environment = [
        ("AWS_ACCESS_KEY_ID", "theirs"),
        ("AWS_SECRET_ACCESS_KEY", "their-secret"),
        ("AWS_SESSION_TOKEN", "their-token"),
        ("AWS_REGION", "eu-west-1"),
    ];
    let factory = S3Factory::new().with_environment(environment);
    let (server, _) = Bucket::serve(|_| None).await;
    let url = "s3://bucket".parse().unwrap();

    let bare = Options::new().with("endpoint", &server.url).with("allow_http", "true");
    factory.open(&url, bare).await.unwrap();
    let asked = server.take().remove(0);
    assert!(asked.header("authorization").unwrap().contains("Credential=theirs/"), "{asked:?}");
    assert!(asked.header("authorization").unwrap().contains("/eu-west-1/"), "{asked:?}");
    assert_eq!(asked.header("x-amz-security-token"), Some("their-token"));

    factory.open(&url, s3_options(&server)).await.unwrap();
    let asked = server.take().remove(0);
    assert!(asked.header("authorization").unwrap().contains("Credential=me/"), "{asked:?}");
    assert_eq!(asked.header("x-amz-security-token"), None, "a token of someone else");

    let nobody = Options::new()
        .with("endpoint", &server.url)
        .with("allow_http", "true")
        .with("skip_signature", "true");
    factory.open(&url, nobody).await.unwrap();
    assert_eq!(server.take().remove(0).header("authorization"), None);
    assert!(!format!("{factory:?}").contains("their-secret"));
}

#[tokio::test]
async fn credentials_of_a_container_are_asked_for_over_the_same_client() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, "token-of-the-pod").unwrap();
    let answers = |credentials: Reply| {
        let bucket = Bucket::default();
        move |request: &Request| -> Action {
            match request.path.as_str() {
                "credentials" => credentials.clone().into(),
                _ => bucket.answer(request).into(),
            }
        }
    };
    let given =
        r#"{"AccessKeyId":"pod","SecretAccessKey":"s","Token":"t","Expiration":"2999-01-01T00:00:00Z"}"#;
    for (reply, refused) in [(Reply::new(200, given), false), (Reply::new(403, "who are you?"), true)] {
        let server = Server::start(answers(reply)).await;
        let full = format!("{}/credentials", server.url);
        let factory = S3Factory::new().with_environment([
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", full.as_str()),
            ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token.to_str().unwrap()),
        ]);
        let options = Options::new().with("endpoint", &server.url).with("allow_http", "true");
        let opened = factory.open(&"s3://bucket".parse().unwrap(), options).await;
        let asked = server.take();
        assert_eq!(asked[0].header("authorization"), Some("token-of-the-pod"));
        if refused {
            let error = opened.unwrap_err();
            assert_eq!(error.kind(), Denied, "{error}");
            assert!(!error.to_string().contains("token-of-the-pod"));
        } else {
            opened.unwrap();
            assert!(asked[1].header("authorization").unwrap().contains("Credential=pod/"));
        }
    }
}

#[tokio::test]
async fn the_bucket_is_in_the_host_name_when_that_is_asked_for() {
    let (server, _) = Bucket::serve(|_| None).await;
    let port = server.url.rsplit(':').next().unwrap().to_owned();
    let options = s3_options(&server)
        .with("endpoint", format!("http://localhost:{port}"))
        .with("virtual_hosted_style", "true")
        // So that no name has to be looked up.
        .with("proxy_url", &server.url);
    open_s3(options).await.unwrap();
    let asked = server.take().remove(0);
    assert_eq!(asked.header("host"), Some(format!("bucket.localhost:{port}").as_str()));
}

#[tokio::test]
async fn options_reach_the_requests() {
    let (server, _) = Bucket::serve(|_| None).await;
    let options = s3_options(&server)
        .with("server_side_encryption", "aws:kms")
        .with("sse_kms_key_id", "key")
        .with("request_payer", "true")
        .with("unsigned_payload", "true")
        .with("checksum", "crc64nvme");
    let store = open_s3(options).await.unwrap();
    server.take();
    store.put(id(1), b"x".to_vec().into()).await.unwrap();
    let asked = server.take().remove(0);
    assert_eq!(asked.header("x-amz-server-side-encryption"), Some("aws:kms"));
    assert_eq!(asked.header("x-amz-server-side-encryption-aws-kms-key-id"), Some("key"));
    assert_eq!(asked.header("x-amz-request-payer"), Some("requester"));
    assert_eq!(asked.header("x-amz-content-sha256"), Some("UNSIGNED-PAYLOAD"));
    assert!(asked.header("x-amz-checksum-crc64nvme").is_some());
    assert!(!format!("{asked:?}").contains(SECRET));
}
