//! The conformance suite over the in-memory store of `object_store`.

use std::{process::ExitCode, sync::Arc};

use object_store::{ObjectStore, memory::InMemory};
use spill_conformance::{Arguments, run_store_suite};

#[path = "support/bucket.rs"]
mod bucket;

fn main() -> ExitCode {
    let memory = Arc::new(InMemory::new());
    let harness = bucket::sessions(true, move || Ok(memory.clone() as Arc<dyn ObjectStore>));
    run_store_suite(&Arguments::from_args(), harness).exit_code()
}
