//! Google Cloud Storage.

use std::sync::Arc;

use async_trait::async_trait;
use object_store::gcp::GoogleCloudStorageBuilder;
use spill_core::{Options, Store, StoreError, StoreFactory};
use url::Url;

use super::{
    opening::Opening,
    options::{Environment, Form, Setting, looks_into_environment},
};
use crate::http::no_retries;

const SCHEME: &str = "gs";

/// The options, apart from those of the connection.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting::new(
        "service_account_path",
        Form::Text,
        "google_service_account",
        "A file with the key of a service account: who asks.",
    )
    .credential(&["GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"]),
    Setting::new(
        "service_account_key",
        Form::Secret,
        "google_service_account_key",
        "The same as text: the JSON of that file.",
    )
    .credential(&["GOOGLE_SERVICE_ACCOUNT_KEY"]),
    Setting::new(
        "application_credentials",
        Form::Text,
        "google_application_credentials",
        "A file that `gcloud auth application-default login` wrote. Default: the one in its usual place, if there.",
    )
    .credential(&["GOOGLE_APPLICATION_CREDENTIALS"]),
    Setting::new("bearer_token", Form::Secret, "google_bearer_token", "A token; it is not renewed.").credential(&[]),
    Setting::new("skip_signature", Form::Switch, "google_skip_signature", "Ask as nobody. Default: `false`.")
        .credential(&[]),
    Setting::new("endpoint", Form::Endpoint, "google_base_url", "The address of a server that is not Google's."),
];

/// Opens buckets of Google Cloud Storage at URLs like `gs://bucket/prefix`.
///
/// The options, and what of the environment stands in for them, are in `docs/object-storage.md`. Each opened
/// store is a session of its own. Opening lists one name and writes the first heartbeat, so that wrong
/// credentials or a missing bucket are errors then, not later. Dead sessions are swept in the background.
///
/// ```
/// use spill_backend_object::GcsFactory;
/// use spill_core::{Options, StoreFactory};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let options = Options::new().with("service_account", "key.json");
/// let refused = GcsFactory::new().open(&"gs://bucket/prefix".parse()?, options).await.unwrap_err();
/// assert!(refused.to_string().contains("unknown option `service_account`; known options: allow_http, "));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct GcsFactory {
    environment: Environment,
}

looks_into_environment!(GcsFactory);

#[async_trait]
impl StoreFactory for GcsFactory {
    /// # Cancel safety
    /// A heartbeat may be left, which a later sweep removes.
    async fn open(&self, url: &Url, options: Options) -> Result<Arc<dyn Store>, StoreError> {
        let opening = Opening::take(SCHEME, SETTINGS, &self.environment, url, options)?;
        opening.values.check_encrypted("endpoint", &opening.connection)?;
        opening.values.only_one(&[
            "service_account_path",
            "service_account_key",
            "application_credentials",
            "bearer_token",
        ])?;

        let builder = GoogleCloudStorageBuilder::new()
            .with_bucket_name(&opening.place.bucket)
            .with_retry(no_retries())
            .with_client_options(opening.connection.client_options())
            .with_http_connector(opening.connection.connector.clone());
        let builder = opening.fill(builder, |builder, key, value| builder.with_config(key, value))?;
        let client = opening.build(|| builder.build()).await?;
        let no_credentials = opening.is_by_nobody().then_some(
            "no credentials were given, so this machine was asked for some: give `service_account_path`, \
             or `skip_signature` = \"true\"",
        );
        opening.open(Arc::new(client), None, no_credentials).await
    }
}
