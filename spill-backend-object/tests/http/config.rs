//! What is refused before anything is asked, and how that is said.

use spill_backend_object::{AzureFactory, GcsFactory, LocalFactory, MemoryFactory, S3Factory};
use spill_core::{Options, StoreErrorKind, StoreFactory};

use super::SECRET;

async fn refusal(url: &str, options: &[(&str, &str)]) -> String {
    let environment: [(&str, &str); 0] = [];
    let factory: Box<dyn StoreFactory> = match url.split_once(':').unwrap().0 {
        "gs" => Box::new(GcsFactory::new().with_environment(environment)),
        "az" => Box::new(AzureFactory::new().with_environment(environment)),
        "file" => Box::new(LocalFactory),
        "memory" => Box::new(MemoryFactory),
        _ => Box::new(S3Factory::new().with_environment(environment)),
    };
    let options: Options = options.iter().copied().collect();
    let error = factory.open(&url.parse().unwrap(), options).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Other, "{error}");
    assert_eq!(error.operation(), "open");
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains(SECRET), "{shown}");
    error.to_string()
}

/// A URL, options, and a part of what is said of them.
type Wrong = (&'static str, &'static [(&'static str, &'static str)], &'static str);

const WRONG_OPTIONS: &[Wrong] = &[
    (
        "s3://b/p",
        &[("regoin", "eu")],
        "open in s3://b/p failed (other): unknown option `regoin`; known options: access_key_id, allow_http, checksum, connect_timeout, dead_after, endpoint, heartbeat, owner, proxy_excludes, proxy_url, read_timeout, region, request_payer, role_arn, role_session_name, secret_access_key, server_side_encryption, session_token, skip_signature, sse_bucket_key_enabled, sse_customer_key_base64, sse_kms_key_id, sts_endpoint, unsigned_payload, virtual_hosted_style, web_identity_token_file",
    ),
    ("s3://b", &[("conditional_put", "etag")], "unknown option `conditional_put`"),
    ("s3://b", &[("allow_http", "yes")], "option `allow_http` = \"yes\": write true or false"),
    ("s3://b", &[("region", " ")], "option `region` is empty: give it a value, or remove it"),
    (
        "s3://b",
        &[("endpoint", "127.0.0.1:9000")],
        "option `endpoint`: write a URL like https://storage.example:9000, without user, `?` or `#`",
    ),
    ("s3://b", &[("endpoint", "https://me:hunter2hunter2@host")], "option `endpoint`: write a URL like"),
    (
        "s3://b",
        &[("endpoint", "http://host:9000")],
        "`endpoint` = \"http://host:9000\" is not encrypted: write https://, or set `allow_http` = \"true\"",
    ),
    (
        "s3://b",
        &[("read_timeout", "soon")],
        "option `read_timeout` = \"soon\": write a duration like 30s, at most 24h",
    ),
    ("s3://b", &[("connect_timeout", "0s")], "option `connect_timeout` = \"0s\": write a duration"),
    (
        "s3://b",
        &[("access_key_id", "me")],
        "`access_key_id` is of no use without `secret_access_key`: give both",
    ),
    (
        "s3://b",
        &[("secret_access_key", SECRET)],
        "`secret_access_key` is of no use without `access_key_id`: give both",
    ),
    (
        "s3://b",
        &[("role_arn", "arn")],
        "`role_arn` is of no use without `web_identity_token_file`: give both",
    ),
    (
        "s3://b",
        &[("server_side_encryption", "rot13")],
        "option `server_side_encryption` = \"rot13\": write one of AES256, aws:kms, aws:kms:dsse, sse-c",
    ),
    (
        "s3://b",
        &[("server_side_encryption", "sse-c")],
        "`server_side_encryption` is of no use without `sse_customer_key_base64`",
    ),
    (
        "s3://b",
        &[("sse_customer_key_base64", SECRET)],
        "`sse_customer_key_base64` is of no use without `server_side_encryption`",
    ),
    ("s3://b", &[("proxy_excludes", "host")], "`proxy_excludes` is of no use without `proxy_url`"),
    (
        "s3://b",
        &[("proxy_url", "::hunter2hunter2")],
        "option `proxy_url`: write a URL like http://proxy.example:3128",
    ),
    (
        "gs://b",
        &[("bucket", "b")],
        "unknown option `bucket`; known options: allow_http, application_credentials, bearer_token, connect_timeout, dead_after, endpoint, heartbeat, owner, proxy_excludes, proxy_url, read_timeout, service_account_key, service_account_path, skip_signature",
    ),
    (
        "gs://b",
        &[("service_account_path", "key.json"), ("service_account_key", SECRET)],
        "`service_account_path` and `service_account_key` say who asks, in two ways: remove one",
    ),
    ("gs://b", &[("service_account_path", "/not/there.json")], "/not/there.json"),
    ("gs://b", &[("service_account_key", "hunter2hunter2")], "open in gs://b failed"),
    (
        "az://c",
        &[("access_key", SECRET)],
        "the account is missing: set `account` to the name of the storage account",
    ),
    (
        "az://c",
        &[("account", "a"), ("access_key", SECRET), ("sas_token", "x=y")],
        "`access_key` and `sas_token` say who asks, in two ways: remove one",
    ),
    (
        "az://c",
        &[("account", "a"), ("client_id", "i"), ("client_secret", SECRET)],
        "`client_secret` is of no use without `tenant_id`",
    ),
    (
        "az://c",
        &[("use_emulator", "true"), ("endpoint", "https://host")],
        "`use_emulator` takes no `endpoint`",
    ),
    ("az://c", &[("account", "a"), ("access_key", "hunter2hunter2!")], "open in az://c failed"),
    (
        "file:///tmp",
        &[("durable", "true")],
        "unknown option `durable`; known options: dead_after, heartbeat, owner",
    ),
    ("memory:", &[("region", "here")], "unknown option `region`; this store takes no options; remove it"),
];

#[tokio::test]
async fn wrong_options_are_told_what_is_wrong() {
    for (url, options, expected) in WRONG_OPTIONS {
        let message = refusal(url, options).await;
        assert!(
            message.contains(expected),
            "{url} {options:?}\n  said:     {message}\n  expected: {expected}"
        );
    }
}

#[tokio::test]
async fn wrong_urls_are_told_what_is_wrong() {
    let cases = [
        ("s3://", "the name of the bucket is missing"),
        ("s3:bucket", "the name of the bucket is missing"),
        ("s3://buc%20ket", "characters that no bucket has"),
        ("s3://me:hunter2hunter2@bucket", "credentials and the address of the service are options"),
        ("s3://bucket:9000/p", "credentials and the address of the service are options"),
        ("s3://bucket/p?token=hunter2hunter2", "settings are options"),
        ("s3://bucket/p#hunter2hunter2", "settings are options"),
        ("s3://bucket/a//b", "open in s3://bucket failed"),
        ("gs://me@bucket", "write gs://BUCKET or gs://BUCKET/PREFIX"),
        ("az://bucket?sig=hunter2hunter2", "write az://BUCKET or az://BUCKET/PREFIX"),
        ("https://bucket", "this store does not take such URLs; write s3://BUCKET"),
        ("file://host/p", "write an absolute path"),
        ("file:///tmp?x", "write an absolute path"),
        ("memory://host", "write `memory:`"),
    ];
    for (url, expected) in cases {
        let message = refusal(url, &[]).await;
        assert!(message.contains(expected), "{url}\n  said:     {message}\n  expected: {expected}");
    }
}

#[tokio::test]
async fn local_files_are_kept_in_the_directory_that_is_named() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("new/with space");
    let url = url::Url::from_directory_path(&directory).unwrap();
    let store = LocalFactory.open(&url, Options::new()).await.unwrap();
    store.put(super::id(1), b"payload".to_vec().into()).await.unwrap();
    assert_eq!(store.get(super::id(1), 3..7).await.unwrap(), "load");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1);
    store.close().await.unwrap();
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
}
