//! The suite that authors of Spill stores, compressors, codecs and policies run, and a fault-injecting store.
#![forbid(unsafe_code)]

mod fault;

pub use fault::{
    Call, Calls, Counts, Damage, Fault, FaultStore, Faults, Gate, Operation, Outcome, RECORD_LIMIT,
};
