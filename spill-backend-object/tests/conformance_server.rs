//! The conformance suite over an S3 server that runs elsewhere, named by the environment:
//!
//! | variable | what |
//! |---|---|
//! | `S3_TEST_ENDPOINT` | its URL, like `http://127.0.0.1:8333` |
//! | `S3_TEST_BUCKET` | a bucket that is there, and that tests may write to |
//! | `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` | who may |
//! | `S3_TEST_NAME` | what results call the server: SeaweedFS unless set |
//!
//! Without the others every case is shown as ignored.

use std::{env, process::ExitCode, time::Duration};

use spill_conformance::{Arguments, StoreHarness, run_store_suite, store_cases};

#[path = "support/aged.rs"]
mod aged;
#[path = "support/bucket.rs"]
mod bucket;
#[path = "support/days.rs"]
mod days;
#[path = "support/s3.rs"]
#[allow(dead_code, reason = "the server in this process is another binary's")]
mod s3;

fn main() -> ExitCode {
    let names = ["S3_TEST_ENDPOINT", "S3_TEST_BUCKET", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
    let [endpoint, name, key, secret] = names.map(|name| env::var(name).unwrap_or_default());
    let bucket = s3::Bucket { endpoint, name, key, secret };
    let past = bucket.clone();
    let Ok(root) = bucket::Root::new() else { return ExitCode::FAILURE };
    let server = env::var("S3_TEST_NAME").unwrap_or_else(|_| "SeaweedFS".to_owned());
    let open = move |namespace| bucket.clone().open(namespace);
    let mut harness = bucket::harness(&root, open, move |_| past.client())
        .named(format!("object: S3 ({server})"))
        .with_processes()
        .time_limit(Duration::from_secs(300));
    if let Some(missing) = names.into_iter().find(|name| env::var_os(name).is_none()) {
        harness = ignored(harness, &unset(missing));
    }
    run_store_suite(&Arguments::from_args(), harness).exit_code()
}

fn unset(name: &str) -> String {
    format!("there is no server to test: `{name}` is not set")
}

fn ignored(harness: StoreHarness, reason: &str) -> StoreHarness {
    store_cases().iter().fold(harness, |harness, case| harness.waive(case.full_name(), reason))
}
