//! The conformance suite over the local files of `object_store`.

use std::{fs, process::ExitCode, sync::Arc};

use object_store::{ObjectStore, local::LocalFileSystem};
use spill_conformance::{Arguments, run_store_suite};

#[path = "support/aged.rs"]
mod aged;
#[path = "support/bucket.rs"]
mod bucket;
#[path = "support/days.rs"]
mod days;

fn main() -> ExitCode {
    let Ok(root) = bucket::Root::new() else { return ExitCode::FAILURE };
    let directory = root.path.join("objects");
    if fs::create_dir_all(&directory).is_err() {
        return ExitCode::FAILURE;
    }
    let files =
        move |_: &str| Ok(Arc::new(LocalFileSystem::new_with_prefix(&directory)?) as Arc<dyn ObjectStore>);
    let open_in = files.clone();
    let open = move |namespace: String| {
        let files = open_in(&namespace);
        async move { bucket::session(files.map_err(bucket::refused)?, namespace, false).await }
    };
    let harness = bucket::harness(&root, open, files).named("object: local files").with_processes();
    run_store_suite(&Arguments::from_args(), harness).exit_code()
}
