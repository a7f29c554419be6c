//! The suite over the store in memory, as an author of a store would run it.

use std::{process::ExitCode, sync::Arc};

use spill_conformance::{Arguments, StoreHarness, Trouble, run_store_suite};
use spill_core::{MemoryStore, Store};

#[path = "support/over_medium.rs"]
mod over_medium;

use over_medium::OverMedium;

fn main() -> ExitCode {
    let harness = StoreHarness::new(|_| async { Ok(Arc::new(MemoryStore::new()) as Arc<dyn Store>) })
        .named("memory")
        .with_faults(Trouble::OF_SERVERS, |_, medium| async {
            Ok(Arc::new(OverMedium::new(MemoryStore::new(), medium)) as Arc<dyn Store>)
        })
        .waive("faults/get_has_a_flipped_bit", "bytes are verified by the frames above the store, not by it")
        .waive("faults/get_is_truncated", "the store has a map under it, which knows no short reads");
    run_store_suite(&Arguments::from_args(), harness).exit_code()
}
