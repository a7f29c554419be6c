//! The suite that authors of Spill stores, compressors, codecs and policies run, and a fault-injecting store.
#![forbid(unsafe_code)]

mod codec;
mod compressor;
mod fault;
mod policy;
mod random;
mod runner;
mod store;
mod watchdog;

pub use fault::{
    Call, Calls, Counts, Damage, Fault, FaultStore, Faults, Gate, Operation, Outcome, RECORD_LIMIT,
};

pub use codec::codec_suite;
pub use compressor::compressor_suite;
pub use libtest_mimic::{Arguments, Conclusion};
pub use policy::policy_suite;
pub use runner::{CheckResult, CheckVerdict, Report, Suite};
pub use store::{Case, Group, Need, StoreHarness, run_store_suite, store_cases, store_suite};
