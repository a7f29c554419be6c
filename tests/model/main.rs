//! The buffer against a model: random calls of every kind, in random configurations, with and without stores
//! that fail, held against a plain map and its sums.
//!
//! Seeds are fixed, so that a run is repeated by the next one; `SPILL_SEED=7 cargo test --test model` runs
//! others. A failure prints the seed, the configuration and what was done last.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "helpers of tests are tests"
)]

mod call;
mod concurrent;
mod machine;
mod million;
mod random;
mod shape;
mod value;
mod world;
