//! Google Cloud Storage.

use std::sync::Arc;

use async_trait::async_trait;
use object_store::gcp::{GoogleCloudStorage, GoogleCloudStorageBuilder};
use spill_core::{Options, Store, StoreError, StoreFactory};
use url::Url;

use super::{
    StoreOptions,
    opening::{Opened, build},
    options::{Connection, Environment, Form, Place, Setting, Values},
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
/// store is a session of its own. Opening makes one request, a listing of one name, so that wrong
/// credentials or a missing bucket are errors then, not later.
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

impl GcsFactory {
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
impl StoreFactory for GcsFactory {
    /// # Cancel safety
    /// Nothing is left behind: opening only reads.
    async fn open(&self, url: &Url, mut options: Options) -> Result<Arc<dyn Store>, StoreError> {
        let place = Place::parse(url, SCHEME)?;
        let target = place.target(SCHEME);
        let connection = Connection::take(&mut options, &target)?;
        let values = Values::take(SETTINGS, &mut options, &self.environment, &target)?;
        let options = StoreOptions::take(options, &target)?;
        values.check_encrypted("endpoint", &connection)?;
        values.only_one(&[
            "service_account_path",
            "service_account_key",
            "application_credentials",
            "bearer_token",
        ])?;

        let nobody = !SETTINGS.iter().any(|setting| setting.credential && values.has(setting.name));
        let builder = GoogleCloudStorageBuilder::new()
            .with_bucket_name(&place.bucket)
            .with_retry(no_retries())
            .with_client_options(connection.connector.client_options(connection.allow_http))
            .with_http_connector(connection.connector.clone());
        let builder =
            values.fill(SETTINGS, builder, |builder, key, value| builder.with_config(key, value))?;
        let opened = Opened::<GoogleCloudStorage> {
            client: Arc::new(build(&target, || builder.build()).await?),
            single_deletes: None,
            no_credentials: nobody.then_some(
                "no credentials were given, so this machine was asked for some: give `service_account_path`, \
                 or `skip_signature` = \"true\"",
            ),
        };
        opened.open(SCHEME, &place, &connection, options).await
    }
}
