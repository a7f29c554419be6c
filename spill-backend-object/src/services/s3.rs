//! Amazon S3, and the many servers that speak like it.

use std::sync::Arc;

use async_trait::async_trait;
use object_store::{
    ObjectStore,
    aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey as Key},
};
use spill_core::{Options, Store, StoreError, StoreFactory};
use url::Url;

use super::{
    StoreOptions,
    opening::{Opened, build},
    options::{Connection, Environment, Form, Place, Setting, Values, refused},
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
/// opened store is a session of its own. Opening makes one request, a listing of one name, so that wrong
/// credentials, a missing bucket or a server out of reach are errors then, not later; it takes 30 seconds at
/// most, or the sum of both time-outs where that is longer.
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

impl S3Factory {
    /// A factory that looks into the environment of the process for what the options leave open.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with these variables instead of those of the process.
    #[must_use]
    pub fn with_environment<N: Into<String>, T: Into<String>>(
        mut self,
        variables: impl IntoIterator<Item = (N, T)>,
    ) -> Self {
        self.environment = variables.into_iter().collect();
        self
    }
}

#[async_trait]
impl StoreFactory for S3Factory {
    /// # Cancel safety
    /// Nothing is left behind: opening only reads.
    async fn open(&self, url: &Url, mut options: Options) -> Result<Arc<dyn Store>, StoreError> {
        let place = Place::parse(url, SCHEME)?;
        let target = place.target(SCHEME);
        let connection = Connection::take(&mut options, &target)?;
        let values = Values::take(SETTINGS, &mut options, &self.environment, &target)?;
        let options = StoreOptions::take(options, &target)?;
        let container = match who_asks(&values) {
            Some(_) => Vec::new(),
            None => self.container(),
        };
        let nobody = who_asks(&values).is_none() && container.is_empty();
        let builder = builder(values, &container, &place, &connection)?;
        let single = builder.clone().with_config(Key::DisableBulkDelete, "true");
        let (client, single) = build(&target, || Ok((builder.build()?, single.build()?))).await?;
        let opened = Opened::<AmazonS3> {
            client: Arc::new(client),
            single_deletes: Some(Arc::new(single) as Arc<dyn ObjectStore>),
            no_credentials: nobody.then_some(
                "no credentials were given, so this machine was asked for some: give `access_key_id` and \
                 `secret_access_key`, or `skip_signature` = \"true\"",
            ),
        };
        opened.open(SCHEME, &place, &connection, options).await
    }
}

impl S3Factory {
    fn container(&self) -> Vec<(Key, String)> {
        let found = CONTAINER.iter().filter_map(|&(name, key)| Some((key, self.environment.get(name)?)));
        found.collect()
    }
}

/// The option that says who asks, if one does.
fn who_asks(values: &Values) -> Option<&'static str> {
    let ways = ["access_key_id", "web_identity_token_file"].into_iter().find(|name| values.has(name));
    ways.or_else(|| values.is_true("skip_signature").then_some("skip_signature"))
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

fn builder(
    mut values: Values,
    container: &[(Key, String)],
    place: &Place,
    connection: &Connection,
) -> Result<AmazonS3Builder, StoreError> {
    check(&values, connection)?;
    if values.is_true("virtual_hosted_style") {
        host_bucket(&mut values, place)?;
    }
    let builder = AmazonS3Builder::new()
        .with_bucket_name(&place.bucket)
        .with_retry(no_retries())
        .with_client_options(connection.connector.client_options(connection.allow_http))
        .with_http_connector(connection.connector.clone());
    let builder = container.iter().fold(builder, |builder, (key, value)| builder.with_config(*key, value));
    values.fill(SETTINGS, builder, |builder, key, value| builder.with_config(key, value))
}

/// Puts the bucket into the host of the endpoint: `object_store` takes it to be there.
fn host_bucket(values: &mut Values, place: &Place) -> Result<(), StoreError> {
    let Some(endpoint) = values.get("endpoint") else { return Ok(()) };
    let wrong =
        |_| refused(&place.target(SCHEME), "`endpoint` has no host name that a bucket can be part of");
    let mut url: Url = endpoint.parse().map_err(|_| wrong(()))?;
    let host = url.host_str().unwrap_or_default().to_owned();
    if !host.starts_with(&format!("{}.", place.bucket)) {
        url.set_host(Some(&format!("{}.{host}", place.bucket))).map_err(|_| wrong(()))?;
    }
    let endpoint = url.as_str().trim_end_matches('/').to_owned();
    values.set("endpoint", endpoint);
    Ok(())
}
