//! The conformance suite over S3: stores opened from a URL, in a server in this process.

use std::process::ExitCode;

use spill_conformance::{Arguments, run_store_suite};

#[path = "support/bucket.rs"]
mod bucket;
#[path = "support/s3.rs"]
mod s3;

#[expect(clippy::print_stderr, reason = "there is no test yet whose output it could be")]
fn main() -> ExitCode {
    let server = match s3::Server::start() {
        Ok(server) => server,
        Err(error) => {
            eprintln!("the S3 server does not start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let (bucket, past) = (server.bucket(), server.bucket());
    let harness = bucket::harness(move |namespace| bucket.clone().open(namespace), move || past.client());
    run_store_suite(&Arguments::from_args(), harness).exit_code()
}
