//! Amazon S3, and the many servers that speak like it.

use std::sync::Arc;

use async_trait::async_trait;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey as Key};
use spill_core::{Options, Store, StoreError, StoreFactory};
use url::Url;

use super::{
    opening::Opening,
    options::{Connection, Environment, Form, Setting, Values, looks_into_environment, refused},
};
use crate::http::no_retries;

const SCHEME: &str = "s3";

/// The options, apart from those of the connection.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting::new("region", Form::Text, "aws_region", "Where the bucket is. Default: `us-east-1`.")
        .variables(&["AWS_REGION", "AWS_DEFAULT_REGION"]),
    Setting::new(
        "endpoint",
        Form::Endpoint,
        "aws_endpoint",
        "The address of a server that is not Amazon's. The bucket is added to it.",
    )
    .variables(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]),
    Setting::new(
        "virtual_hosted_style",
        Form::Switch,
        "aws_virtual_hosted_style_request",
        "The bucket is part of the host name, not of the path. Default: `false`.",
    ),
    Setting::new("access_key_id", Form::Text, "aws_access_key_id", "With `secret_access_key`: who asks.")
        .credential(&["AWS_ACCESS_KEY_ID"]),
    Setting::new("secret_access_key", Form::Secret, "aws_secret_access_key", "Its secret.")
        .credential(&["AWS_SECRET_ACCESS_KEY"]),
    Setting::new("session_token", Form::Secret, "aws_session_token", "For keys that expire.")
        .credential(&["AWS_SESSION_TOKEN"]),
    Setting::new(
        "role_arn",
        Form::Text,
        "aws_role_arn",
        "A role to take on, with the token in `web_identity_token_file`.",
    )
    .credential(&["AWS_ROLE_ARN"]),
    Setting::new(
        "web_identity_token_file",
        Form::Text,
        "aws_web_identity_token_file",
        "A file with a token, as Kubernetes gives one.",
    )
    .credential(&["AWS_WEB_IDENTITY_TOKEN_FILE"]),
    Setting::new("role_session_name", Form::Text, "aws_role_session_name", "Shown in logs of the account.")
        .credential(&["AWS_ROLE_SESSION_NAME"]),
    Setting::new("sts_endpoint", Form::Endpoint, "aws_endpoint_url_sts", "Where roles are taken on.")
        .credential(&["AWS_ENDPOINT_URL_STS"]),
    Setting::new("skip_signature", Form::Switch, "aws_skip_signature", "Ask as nobody. Default: `false`.")
        .credential(&[]),
    Setting::new(
        "unsigned_payload",
        Form::Switch,
        "aws_unsigned_payload",
        "Leave the body out of the signature: saves a hash of each blob where TLS protects it. Default: `false`.",
    ),
    Setting::new(
        "checksum",
        Form::OneOf(&["sha256", "crc64nvme"]),
        "aws_checksum_algorithm",
        "A checksum the server verifies. Default: none, since frames have their own.",
    ),
    Setting::new(
        "server_side_encryption",
        Form::OneOf(&["AES256", "aws:kms", "aws:kms:dsse", "sse-c"]),
        "aws_server_side_encryption",
        "How the server encrypts. Default: what the bucket says.",
    ),
    Setting::new(
        "sse_kms_key_id",
        Form::Text,
        "aws_sse_kms_key_id",
        "The key for `aws:kms` and `aws:kms:dsse`.",
    ),
    Setting::new(
        "sse_bucket_key_enabled",
        Form::Switch,
        "aws_sse_bucket_key_enabled",
        "One data key for the bucket. Default: what the bucket says.",
    ),
    Setting::new(
        "sse_customer_key_base64",
        Form::Secret,
        "aws_sse_customer_key_base64",
        "The key for `sse-c`: 32 bytes in base64.",
    ),
    Setting::new(
        "request_payer",
        Form::Switch,
        "aws_request_payer",
        "Who asks pays, not who owns the bucket. Default: `false`.",
    ),
];

/// Variables that are credentials, and no option: they are set by what runs a container.
const CONTAINER: &[(&str, Key)] = &[
    ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", Key::ContainerCredentialsRelativeUri),
    ("AWS_CONTAINER_CREDENTIALS_FULL_URI", Key::ContainerCredentialsFullUri),
    ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", Key::ContainerAuthorizationTokenFile),
];

/// Opens buckets of Amazon S3, and of servers that speak its language, at URLs like `s3://bucket/prefix`.
///
/// The options, and what of the environment stands in for them, are in `docs/object-storage.md`. Each
/// opened store is a session of its own. Opening lists one name and writes the first heartbeat, so that wrong
/// credentials, a missing bucket or a server out of reach are errors then, not later. The listing takes 30
/// seconds at most, or the sum of both time-outs where that is longer. Dead sessions are swept in the background.
///
/// A server that can't delete many objects by one request gets one for each, 20 at a time, from the first
/// time that it says so.
///
/// ```
/// use spill_backend_object::S3Factory;
/// use spill_core::{Options, StoreFactory};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let options = Options::new().with("endpoint", "http://127.0.0.1:8333").with("access_key_id", "me");
/// let refused = S3Factory::new().open(&"s3://bucket/prefix".parse()?, options).await.unwrap_err();
/// assert!(refused.to_string().ends_with("set `allow_http` = \"true\""));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct S3Factory {
    environment: Environment,
}

looks_into_environment!(S3Factory);

#[async_trait]
impl StoreFactory for S3Factory {
    /// # Cancel safety
    /// A heartbeat may be left, which a later sweep removes.
    async fn open(&self, url: &Url, options: Options) -> Result<Arc<dyn Store>, StoreError> {
        let mut opening = Opening::take(SCHEME, SETTINGS, &self.environment, url, options)?;
        check(&opening.values, &opening.connection)?;
        if opening.values.is_true("virtual_hosted_style") {
            host_bucket(&mut opening)?;
        }
        let container = if names_somebody(&opening.values) { Vec::new() } else { self.container() };
        let nobody = !names_somebody(&opening.values) && container.is_empty();
        let builder = builder(&opening, &container)?;
        let single = builder.clone().with_config(Key::DisableBulkDelete, "true");
        let (client, single) = opening.build(|| Ok((builder.build()?, single.build()?))).await?;
        let no_credentials = nobody.then_some(
            "no credentials were given, so this machine was asked for some: give `access_key_id` and \
             `secret_access_key`, or `skip_signature` = \"true\"",
        );
        opening.open(Arc::new(client), Some(Arc::new(single)), no_credentials).await
    }
}

impl S3Factory {
    fn container(&self) -> Vec<(Key, String)> {
        let found = CONTAINER.iter().filter_map(|&(name, key)| Some((key, self.environment.get(name)?)));
        found.collect()
    }
}

/// Whether an option says who asks, or that nobody does.
fn names_somebody(values: &Values) -> bool {
    values.has("access_key_id") || values.has("web_identity_token_file") || values.is_true("skip_signature")
}

fn check(values: &Values, connection: &Connection) -> Result<(), StoreError> {
    values.check_encrypted("endpoint", connection)?;
    values.needs("access_key_id", &["secret_access_key"])?;
    values.needs("secret_access_key", &["access_key_id"])?;
    values.needs("session_token", &["access_key_id"])?;
    values.needs("web_identity_token_file", &["role_arn"])?;
    values.needs("role_arn", &["web_identity_token_file"])?;
    values.needs("role_session_name", &["role_arn"])?;
    values.needs("sts_endpoint", &["role_arn"])?;
    for name in ["sse_kms_key_id", "sse_bucket_key_enabled", "sse_customer_key_base64"] {
        values.needs(name, &["server_side_encryption"])?;
    }
    if values.get("server_side_encryption") == Some("sse-c") {
        values.needs("server_side_encryption", &["sse_customer_key_base64"])?;
    }
    Ok(())
}

fn builder(opening: &Opening, container: &[(Key, String)]) -> Result<AmazonS3Builder, StoreError> {
    let builder = AmazonS3Builder::new()
        .with_bucket_name(&opening.place.bucket)
        .with_retry(no_retries())
        .with_client_options(opening.connection.client_options())
        .with_http_connector(opening.connection.connector.clone());
    let builder = container.iter().fold(builder, |builder, (key, value)| builder.with_config(*key, value));
    opening.fill(builder, |builder, key, value| builder.with_config(key, value))
}

/// Puts the bucket into the host of the endpoint: `object_store` takes it to be there.
fn host_bucket(opening: &mut Opening) -> Result<(), StoreError> {
    let Opening { values, place, target, .. } = opening;
    let Some(endpoint) = values.get("endpoint") else { return Ok(()) };
    let wrong = |_| refused(target, "`endpoint` has no host name that a bucket can be part of");
    let mut url: Url = endpoint.parse().map_err(|_| wrong(()))?;
    let host = url.host_str().unwrap_or_default().to_owned();
    if !host.starts_with(&format!("{}.", place.bucket)) {
        url.set_host(Some(&format!("{}.{host}", place.bucket))).map_err(|_| wrong(()))?;
    }
    let endpoint = url.as_str().trim_end_matches('/').to_owned();
    values.set("endpoint", endpoint);
    Ok(())
}
