//! The conformance suite over Azurite, the emulator of Azure Blob Storage, with the container that
//! `AZURE_TEST_CONTAINER` names. Without it every case is shown as ignored. `.ci/with-azurite` starts one.

use std::{env, process::ExitCode, sync::Arc, time::Duration};

use object_store::{ObjectStore, azure::MicrosoftAzureBuilder};
use spill_backend_object::AzureFactory;
use spill_conformance::{Arguments, run_store_suite, store_cases};
use spill_core::{Layer, Options, StoreFactory, layers::Retry};
use url::Url;

#[path = "support/aged.rs"]
mod aged;
#[path = "support/bucket.rs"]
mod bucket;
#[path = "support/days.rs"]
mod days;

const CONTAINER: &str = "AZURE_TEST_CONTAINER";

fn main() -> ExitCode {
    let named = env::var(CONTAINER).ok();
    let container = named.clone().unwrap_or_default();
    let past = container.clone();
    let Ok(root) = bucket::Root::new() else { return ExitCode::FAILURE };
    let open = move |namespace: String| {
        let url = Url::parse(&format!("az://{container}/{namespace}"));
        async move {
            let options = Options::new()
                .with("use_emulator", "true")
                .with("allow_http", "true")
                .with("owner", days::OWNER)
                .with("heartbeat", "1s")
                .with("dead_after", "never");
            let store = AzureFactory::new().open(&url.map_err(bucket::refused)?, options).await?;
            // It closes connections that nobody used for 5 s, also when a request is just on its way: a tier repeats that.
            Ok(Retry::new(4).layer(store))
        }
    };
    let look = move |_: &str| {
        let builder = MicrosoftAzureBuilder::new().with_use_emulator(true).with_container_name(&past);
        Ok(Arc::new(builder.build()?) as Arc<dyn ObjectStore>)
    };
    let mut harness = bucket::harness(&root, open, look)
        .named("object: Azure (Azurite)")
        .with_processes()
        .time_limit(Duration::from_secs(300));
    if named.is_none() {
        let reason = format!("there is no server to test: `{CONTAINER}` is not set");
        harness = store_cases()
            .iter()
            .fold(harness, |harness, case| harness.waive(case.full_name(), reason.clone()));
    }
    run_store_suite(&Arguments::from_args(), harness).exit_code()
}
