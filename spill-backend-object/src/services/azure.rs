//! Azure Blob Storage.

use std::sync::Arc;

use async_trait::async_trait;
use object_store::azure::MicrosoftAzureBuilder;
use spill_core::{Options, Store, StoreError, StoreFactory};
use url::Url;

use super::{
    opening::Opening,
    options::{Connection, Environment, Form, Setting, Values, looks_into_environment, refused},
};
use crate::http::no_retries;

const SCHEME: &str = "az";

/// The options, apart from those of the connection.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting::new("account", Form::Text, "azure_storage_account_name", "The storage account. Needed, except with `use_emulator`.")
        .variables(&["AZURE_STORAGE_ACCOUNT_NAME"]),
    Setting::new(
        "endpoint",
        Form::Endpoint,
        "azure_storage_endpoint",
        "The address of the account, where it is not `https://ACCOUNT.blob.core.windows.net`.",
    )
    .variables(&["AZURE_STORAGE_ENDPOINT"]),
    Setting::new("access_key", Form::Secret, "azure_storage_account_key", "A key of the account.")
        .credential(&["AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY"]),
    Setting::new("sas_token", Form::Secret, "azure_storage_sas_key", "A shared access signature; it is not renewed.")
        .credential(&["AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY"]),
    Setting::new("bearer_token", Form::Secret, "azure_storage_token", "A token; it is not renewed.").credential(&[]),
    Setting::new(
        "client_id",
        Form::Text,
        "azure_storage_client_id",
        "An application, with `tenant_id` and either `client_secret` or `federated_token_file`; by itself, a managed identity.",
    )
    .credential(&["AZURE_CLIENT_ID"]),
    Setting::new("client_secret", Form::Secret, "azure_storage_client_secret", "Its secret.")
        .credential(&["AZURE_CLIENT_SECRET"]),
    Setting::new("tenant_id", Form::Text, "azure_storage_tenant_id", "Its tenant.").credential(&["AZURE_TENANT_ID"]),
    Setting::new(
        "federated_token_file",
        Form::Text,
        "azure_federated_token_file",
        "A file with a token, as Kubernetes gives one.",
    )
    .credential(&["AZURE_FEDERATED_TOKEN_FILE"]),
    Setting::new("authority_host", Form::Endpoint, "azure_storage_authority_host", "Where tokens come from.")
        .credential(&["AZURE_AUTHORITY_HOST"]),
    Setting::new("identity_endpoint", Form::Endpoint, "azure_msi_endpoint", "Where managed identities come from.")
        .credential(&["IDENTITY_ENDPOINT"]),
    Setting::new("skip_signature", Form::Switch, "azure_skip_signature", "Ask as nobody. Default: `false`.")
        .credential(&[]),
    Setting::new(
        "use_emulator",
        Form::Switch,
        "azure_storage_use_emulator",
        "Azurite at `http://127.0.0.1:10000`, with its well-known account and key. Default: `false`.",
    )
    .credential(&[]),
];

/// Opens containers of Azure Blob Storage at URLs like `az://container/prefix`; the account is an option.
///
/// The options, and what of the environment stands in for them, are in `docs/object-storage.md`. Each opened
/// store is a session of its own. Opening lists one name and writes the first heartbeat, so that wrong
/// credentials or a missing container are errors then, not later. Dead sessions are swept in the background.
///
/// ```
/// use spill_backend_object::AzureFactory;
/// use spill_core::{Options, StoreFactory};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let factory = AzureFactory::new().with_environment([("AZURE_CLIENT_ID", "app")]);
/// let refused = factory.open(&"az://container/prefix".parse()?, Options::new()).await.unwrap_err();
/// assert!(refused.to_string().ends_with("set `account` to the name of the storage account"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct AzureFactory {
    environment: Environment,
}

looks_into_environment!(AzureFactory);

#[async_trait]
impl StoreFactory for AzureFactory {
    /// # Cancel safety
    /// A heartbeat may be left, which a later sweep removes.
    async fn open(&self, url: &Url, options: Options) -> Result<Arc<dyn Store>, StoreError> {
        let opening = Opening::take(SCHEME, SETTINGS, &self.environment, url, options)?;
        check(&opening.values, &opening.connection, &opening.target)?;
        let builder = MicrosoftAzureBuilder::new()
            .with_container_name(&opening.place.bucket)
            .with_retry(no_retries())
            .with_client_options(opening.connection.client_options())
            .with_http_connector(opening.connection.connector.clone());
        let builder = opening.fill(builder, |builder, key, value| builder.with_config(key, value))?;
        let client = opening.build(|| builder.build()).await?;
        let no_credentials = opening.is_by_nobody().then_some(
            "no credentials were given, so this machine was asked for some: give `access_key` or \
             `sas_token`, or `skip_signature` = \"true\"",
        );
        opening.open(Arc::new(client), None, no_credentials).await
    }
}

fn check(values: &Values, connection: &Connection, target: &str) -> Result<(), StoreError> {
    values.check_encrypted("endpoint", connection)?;
    values.check_encrypted("authority_host", connection)?;
    values.only_one(&["access_key", "sas_token", "bearer_token", "client_id"])?;
    values.needs("client_secret", &["client_id", "tenant_id"])?;
    values.needs("federated_token_file", &["client_id", "tenant_id"])?;
    values.needs("tenant_id", &["client_id"])?;
    if values.is_true("use_emulator") {
        let message = "`use_emulator` takes no `endpoint`: it is at http://127.0.0.1:10000, or where the variable \
                       AZURITE_BLOB_STORAGE_URL says; remove one";
        return if values.has("endpoint") { Err(refused(target, message)) } else { Ok(()) };
    }
    if !values.has("account") {
        return Err(refused(
            target,
            "the account is missing: set `account` to the name of the storage account",
        ));
    }
    Ok(())
}
