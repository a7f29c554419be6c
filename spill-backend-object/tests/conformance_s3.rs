//! The conformance suite over S3: stores opened from a URL, in a server in this process. The processes that it starts
//! use the same server.

use std::{
    env,
    hash::{DefaultHasher, Hash, Hasher},
    process::ExitCode,
    sync::Arc,
};

use spill_conformance::{Arguments, Trouble, run_store_suite, store_cases};
use spill_core::BoxError;

#[path = "support/aged.rs"]
mod aged;
#[path = "support/bucket.rs"]
mod bucket;
#[path = "support/days.rs"]
mod days;
#[path = "support/faulty.rs"]
mod faulty;
#[path = "support/s3.rs"]
mod s3;

use faulty::FaultyObjectStore;

/// Says in another process where the server is.
const ENDPOINT_VARIABLE: &str = "SPILL_TEST_ENDPOINT";

/// A bucket for each case: this server reads all of a bucket to list some of it.
fn bucket_of(case: &str) -> String {
    let mut hasher = DefaultHasher::new();
    case.hash(&mut hasher);
    format!("bucket-{:016x}", hasher.finish())
}

/// The bucket at this address that a namespace is in.
fn bucket_at(endpoint: &str, namespace: &str) -> s3::Bucket {
    // The number of the process and that of the run come last.
    let case = namespace.rsplitn(3, '-').last().unwrap_or_default();
    s3::Bucket { name: bucket_of(case), ..s3::bucket_at(endpoint.to_owned()) }
}

#[expect(clippy::print_stderr, reason = "there is no test yet whose output it could be")]
fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        eprintln!("the S3 server does not start: {error}");
        ExitCode::FAILURE
    })
}

fn run() -> Result<ExitCode, BoxError> {
    let root = bucket::Root::new()?;
    let (_server, endpoint) = match env::var(ENDPOINT_VARIABLE) {
        Ok(endpoint) => (None, endpoint),
        Err(_) => {
            let server = s3::Server::start()?;
            for case in store_cases() {
                let name = bucket_of(&format!("{}-{}", case.group.name(), case.name));
                std::fs::create_dir(server.root().join(name))?;
            }
            let endpoint = server.bucket().endpoint;
            (Some(server), endpoint)
        }
    };
    let (at, opened, faulty) = (endpoint.clone(), endpoint.clone(), endpoint.clone());
    let open = move |namespace: String| bucket_at(&opened, &namespace).open(namespace);
    let harness = bucket::harness(&root, open, move |namespace| bucket_at(&at, namespace).client())
        .named("object: S3 (s3s, in process)")
        .with_processes()
        .child_variable(ENDPOINT_VARIABLE, endpoint)
        .with_faults(Trouble::OF_SERVERS, move |namespace, medium| {
            let client = bucket_at(&faulty, &namespace).client().map_err(bucket::refused);
            async move {
                let faulty = FaultyObjectStore::new(client?, medium);
                bucket::session(Arc::new(faulty), namespace, true).await
            }
        })
        // One request: uploads in parts meet trouble in memory, where sixteen megabytes take no time.
        .large_blob(300_000)
        .waive(
            "listing/what_stays_is_listed_once_under_change",
            "this server answers 500 when a file goes while it reads the directory; a tier repeats that",
        );
    Ok(run_store_suite(&Arguments::from_args(), harness).exit_code())
}
