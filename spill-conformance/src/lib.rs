//! The suite that authors of Spill stores, compressors, codecs and policies run, and a fault-injecting store.
//!
//! # A store
//!
//! Hand in one constructor. In `tests/conformance.rs`, with `harness = false` for it in `Cargo.toml`:
//!
//! ```
//! use std::{process::ExitCode, sync::Arc};
//! use spill_conformance::{Arguments, StoreHarness, run_store_suite};
//! use spill_core::{MemoryStore, Store};
//!
//! fn main() -> ExitCode {
//!     let harness = StoreHarness::new(|_namespace| async { Ok(Arc::new(MemoryStore::new()) as Arc<dyn Store>) })
//!         .waive("ids/a_refused_put_leaves_the_first", "why it does not hold here");
//!     run_store_suite(&Arguments::from_args(), harness).exit_code()
//! }
//! ```
//!
//! Every case is then a test with a name, `group/name/runtime`, that can be filtered as usual. Inside a plain
//! `#[test]`, `store_suite(harness).report().assert_passed()` runs all of them.
//!
//! A *namespace* is a name that belongs to one run of one case: make it a directory or a prefix. Opening one
//! twice gives two sessions of one place. Two more functions unlock more cases:
//! [`with_leftovers`](StoreHarness::with_leftovers) looks at what is really there, past the store, and
//! [`with_foreign`](StoreHarness::with_foreign) plants things that are not the store's. What does not hold
//! is [waived](StoreHarness::waive) in the open, with a reason.
//!
//! | group | what passing it proves |
//! |---|---|
//! | basics | what was put comes back, missing is `NotFound`, all ids and all bytes work, errors name operation, blob and target |
//! | sizes | blobs of 0 bytes to 8 MiB + 1 come back whole, around pages and segments |
//! | ranges | a read gives exactly the bytes asked for; past the end is `Corrupt` |
//! | listing | ordered, paged, without duplicates, gaps or foreign things, also under change |
//! | delete | idempotent, in batches beyond a thousand, of nothing else, never seen half |
//! | ids | an id is put once; refusing leaves the first blob as it was |
//! | concurrency | many calls at once; a second runtime; a put is seen whole or not at all |
//! | cancel | a future dropped after any number of polls leaves all or nothing, and the store in order |
//! | usage | sizes that puts and listings tell are those of the payloads |
//! | sessions | two sessions of one place never see or touch each other's blobs |
//! | close | closing works, and leaves nothing |
//! | payloads | any cutting into chunks gives the same blob |
//! | punch | punching keeps the length and all bytes outside of the holes |
//!
//! Each case runs on a current-thread and on a multi-thread runtime, under a
//! [time limit](StoreHarness::time_limit). On the current-thread one a watchdog sees every call that blocks
//! the runtime, whoever makes it. The contract is 100 ms; a case fails when one call blocked 300 ms or more in
//! each of three runs, so that a loaded machine is not taken for a blocking store.
//!
//! **Not proven:** anything about a process that is killed, two processes, a power cut, the sweep of dead
//! sessions, a medium that is full or failing underneath, memory use, and speed. Blocking that is shorter
//! than the threshold, or that only happens on a multi-thread runtime, goes unseen. What a cancelled put
//! leaves outside of the store's own sight is seen only with `with_leftovers`.
//!
//! # Compressors, codecs, policies
//!
//! [`compressor_suite`], [`codec_suite`] and [`policy_suite`] give a [`Suite`] as well: run it under
//! `libtest-mimic` or inside a test.
//!
//! # Faults
//!
//! [`FaultStore`] wraps a store, and a [`Faults`] handle scripts it: failing, slow, stuck or damaged calls,
//! space that runs out; and it records every call. It is what tests of a *user* of stores need.
//!
//! [`Proxy`] stands between a store and its server: it delays, cuts, resets and swallows.
#![forbid(unsafe_code)]

mod codec;
mod compressor;
mod fault;
mod medium;
mod policy;
mod proxy;
mod random;
mod results;
mod runner;
mod store;
mod watchdog;

pub use codec::codec_suite;
pub use compressor::compressor_suite;
pub use fault::{
    Call, Calls, Counts, Damage, Fault, FaultStore, Faults, Gate, Operation, Outcome, RECORD_LIMIT,
};
pub use libtest_mimic::{Arguments, Conclusion};
pub use medium::{Access, Medium, Trouble};
pub use policy::policy_suite;
pub use proxy::{Proxy, Traffic, Weather};
pub use results::{REPORT_VARIABLE, results_table};
pub use runner::{CheckResult, CheckVerdict, Report, Suite};
pub use store::{Case, Group, Need, StoreHarness, run_store_suite, store_cases, store_suite};
