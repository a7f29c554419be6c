//! The conformance suite over the local files of `object_store`.

use std::{process::ExitCode, sync::Arc};

use object_store::{ObjectStore, local::LocalFileSystem};
use spill_conformance::{Arguments, run_store_suite};

#[path = "support/bucket.rs"]
mod bucket;

fn main() -> ExitCode {
    let Ok(root) = tempfile::tempdir() else { return ExitCode::FAILURE };
    let path = root.path().to_owned();
    let harness = bucket::sessions(false, move || {
        Ok(Arc::new(LocalFileSystem::new_with_prefix(&path)?) as Arc<dyn ObjectStore>)
    });
    run_store_suite(&Arguments::from_args(), harness).exit_code()
}
