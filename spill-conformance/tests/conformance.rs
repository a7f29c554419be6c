//! The suite over the store in memory, as an author of a store would run it.

use std::{process::ExitCode, sync::Arc};

use spill_conformance::{Arguments, StoreHarness, run_store_suite};
use spill_core::{MemoryStore, Store};

fn main() -> ExitCode {
    let harness = StoreHarness::new(|_| async { Ok(Arc::new(MemoryStore::new()) as Arc<dyn Store>) });
    run_store_suite(&Arguments::from_args(), harness).exit_code()
}
