//! The conformance suite over Azurite, the emulator of Azure Blob Storage, with the container that
//! `AZURE_TEST_CONTAINER` names. Without it every case is shown as ignored. `.ci/with-azurite` starts one.

use std::{env, process::ExitCode, sync::Arc};

use object_store::{ObjectStore, azure::MicrosoftAzureBuilder};
use spill_backend_object::AzureFactory;
use spill_conformance::{Arguments, run_store_suite, store_cases};
use spill_core::{Options, StoreFactory};

#[path = "support/bucket.rs"]
mod bucket;

const CONTAINER: &str = "AZURE_TEST_CONTAINER";

fn main() -> ExitCode {
    let named = env::var(CONTAINER).ok();
    let container = named.clone().unwrap_or_default();
    let past = container.clone();
    let open = move |namespace: String| {
        let url = format!("az://{container}/{namespace}").parse();
        async move {
            let url = url.map_err(|error| {
                spill_core::StoreError::new(spill_core::StoreErrorKind::Other, "open", CONTAINER)
                    .with_source(error)
            })?;
            let options = Options::new().with("use_emulator", "true").with("allow_http", "true");
            AzureFactory::new().open(&url, options).await
        }
    };
    let look = move || {
        let builder = MicrosoftAzureBuilder::new().with_use_emulator(true).with_container_name(&past);
        Ok(Arc::new(builder.build()?) as Arc<dyn ObjectStore>)
    };
    let mut harness = bucket::harness(open, look).named("object: Azure (Azurite)");
    if named.is_none() {
        let reason = format!("there is no server to test: `{CONTAINER}` is not set");
        harness = store_cases()
            .iter()
            .fold(harness, |harness, case| harness.waive(case.full_name(), reason.clone()));
    }
    run_store_suite(&Arguments::from_args(), harness).exit_code()
}
