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
//! twice gives two sessions of one place. What does not hold is [waived](StoreHarness::waive) in the open,
//! with a reason. What the harness gives beyond the constructor unlocks more cases; without it they are shown as
//! ignored, with the name of what they need:
//!
//! | give | and these run |
//! |---|---|
//! | [`with_leftovers`](StoreHarness::with_leftovers): what is really there, past the store | what is left after closing, cancelling, failing, sweeping |
//! | [`with_foreign`](StoreHarness::with_foreign): plants things that are not the store's | what listings and sweeps leave alone |
//! | [`with_faults`](StoreHarness::with_faults): a session over a medium that asks [`Medium`] at each call | `faults` |
//! | [`with_sweep`](StoreHarness::with_sweep): removes what dead sessions left | `sweep` |
//! | [`with_processes`](StoreHarness::with_processes): a namespace is the same place in another process | `processes` |
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
//! | faults | trouble at any call of the medium is an error of the right kind, or no error: never wrong bytes, half a blob, a blob that can't be deleted and put again, or damage to another one; calls that hang can be dropped; and afterwards all works |
//! | sweep | what dropped sessions left is removed and counted once, living ones and foreign things stay, also with sweeps at once |
//! | processes | the same between processes: two at work are exact, and of one killed by `kill -9` while it puts, opens or closes nothing is seen, and all is swept |
//!
//! Each case runs on a current-thread and on a multi-thread runtime, under a
//! [time limit](StoreHarness::time_limit). On the current-thread one a watchdog sees every call that blocks
//! the runtime, whoever makes it. The contract is 100 ms; a case fails when one call blocked 300 ms or more in
//! each of three runs, so that a loaded machine is not taken for a blocking store.
//!
//! ## Trouble in the medium
//!
//! A case repeats one operation: trouble meets the first call of the medium that it makes, then the second,
//! until the operation no longer gets that far. So the adapter has to ask about *every* call, before it: a put that
//! never asks fails its cases, other operations that never do are shown as not applicable.
//!
//! | trouble | an error has to be |
//! |---|---|
//! | [`NoSpace`](Trouble::NoSpace) | `NoSpace` |
//! | [`IoError`](Trouble::IoError), [`Torn`](Trouble::Torn) | `Other` or `Transient` |
//! | [`Throttled`](Trouble::Throttled), [`ServerError`](Trouble::ServerError), [`Unavailable`](Trouble::Unavailable), [`ResetBefore`](Trouble::ResetBefore), [`ResetAfter`](Trouble::ResetAfter) | `Transient` |
//! | [`Truncated`](Trouble::Truncated), [`BitFlip`](Trouble::BitFlip) | `Corrupt` or `Transient` |
//! | [`Short`](Trouble::Short), [`Hang`](Trouble::Hang) | there is no excuse for one |
//!
//! A store that does not verify bytes waives `faults/get_has_a_flipped_bit`; that the frames of a buffer see the
//! flip is a case of its own.
//!
//! ## Not proven
//!
//! A power cut. Memory use and speed. Two machines with clocks that differ. Trouble that meets two calls in ways other
//! than *once* or *from here on*, or that comes with several operations at once. Trouble in punching, and in what the
//! adapter does not ask about. More than a few seconds of life: what takes hours or fills a disk. Blocking that is
//! shorter than the threshold, or that only happens on a multi-thread runtime. What is left after a failure or a
//! cancelled put outside of the store's own sight, without `with_leftovers`; and what a killed process leaves, without
//! `with_sweep` as well. A kill meets a handful of moments, not every instruction.
//!
//! # Compressors, codecs, policies
//!
//! [`compressor_suite`], [`codec_suite`] and [`policy_suite`] give a [`Suite`] as well: run it under
//! `libtest-mimic` or inside a test. What they don't prove is at each of them.
//!
//! # Results
//!
//! With the environment variable [`SPILL_CONFORMANCE_REPORT`](REPORT_VARIABLE) set to a directory, each suite that
//! runs whole writes a small file there: what passed, failed, was waived and why, and was not applicable and what would
//! unlock it. [`results_table`], or `cargo run -p spill-conformance --example table`, makes a page of them. Give the
//! store a [name](StoreHarness::named) for it.
//!
//! # Faults for users of stores
//!
//! [`FaultStore`] wraps a store, and a [`Faults`] handle scripts it: failing, slow, stuck or damaged calls,
//! space that runs out; and it records every call. It is what tests of a *user* of stores need; to prove a store
//! itself, trouble has to come from below it, by [`Medium`].
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
