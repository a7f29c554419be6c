//! The object-storage store of Spill: [`ObjectStoreBackend`] keeps blobs in anything the `object_store`
//! crate speaks, opened with [`ObjectOptions`]; [`MemoryFactory`] opens one in memory for `memory:` URLs;
//! [`sweep()`] removes what dead processes left.
//!
//! # In the bucket
//! ```text
//! prefix/                               yours; may be empty
//!   <owner>/                            programs whose sessions belong together: the executable's name, unless set
//!     <16 hex digits>/                  one opened store, its session; a random name
//!       alive                           its heartbeat, written again every minute
//!       <16 hex digits>                 a blob, whole and never changed
//! ```
//! So any number of processes may share a bucket and a prefix without ever touching each other's blobs. No
//! conditional request is made, since not every service has them. Names that are not like this are never
//! touched, nor listed as blobs.
//!
//! # Dead sessions
//! A store that is closed removes its blobs, then its heartbeat. One that is dropped, or whose process dies,
//! leaves them, and a later sweep removes them: each store with [upkeep](ObjectStoreBackend::spawn_upkeep) sweeps
//! in the background, [`ObjectStoreBackend::sweep`] and [`sweep()`] do it at once.
//!
//! A sweep looks at sessions of one owner under one prefix. One of them is dead when its heartbeat and all of its
//! blobs are older than [`ObjectOptions::dead_after`], a day unless set, at two looks in a row. Ages are
//! differences between times of the service, so clocks of the machines do not matter. The heartbeat goes last:
//! a sweep that ends halfway is taken up by the next.
//!
//! So a process that is stopped, or can't write to the service, for as long as `dead_after` loses what it
//! spilled; long before that a warning says that heartbeats fail. Programs of one owner should agree on
//! `dead_after`.
//!
//! Parts of uploads that a dying process left unfinished can't be found by a sweep. Give the bucket a lifecycle
//! rule that expires unfinished uploads, after a day, say.
//!
//! # Limits
//! | what | at most |
//! |---|---|
//! | a blob | 10 000 parts of 16 MiB: 156 GiB |
//! | uploads in parts at once | 8, each with 4 parts under way |
//! | sessions one sweep looks at | 1000 |
//! | requests of one sweep, besides listing the names of the sessions | 5000 |
//!
//! `object_store` is fenced in: constructors show a type of it, nothing else does. Retries beyond those
//! its clients do themselves, time-outs and limits are layers of `spill-core`.
#![forbid(unsafe_code)]

mod backend;
mod error;
mod memory;
mod options;
mod session;
mod sweep;
mod upload;

#[cfg(test)]
mod tests;

pub use backend::ObjectStoreBackend;
pub use memory::MemoryFactory;
pub use options::ObjectOptions;
pub use sweep::{SweepReport, sweep};
