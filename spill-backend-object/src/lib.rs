//! The object-storage store of Spill: [`ObjectStoreBackend`] keeps blobs in anything the `object_store`
//! crate speaks, [`MemoryFactory`] opens one in memory for `memory:` URLs.
//!
//! Each opened store is a session of its own, with a random name:
//!
//! ```text
//! prefix/<session, sixteen hexadecimal digits>/<blob id, sixteen hexadecimal digits>
//! ```
//!
//! So several processes may share a bucket and a prefix without ever touching each other's blobs. No
//! conditional request is made, since not every service has them.
//!
//! `object_store` is fenced in: one constructor shows a type of it, nothing else does. Retries beyond those
//! its clients do themselves, time-outs and limits are layers of `spill-core`.
#![forbid(unsafe_code)]

mod backend;
mod error;
mod memory;
mod upload;

#[cfg(test)]
mod tests;

pub use backend::ObjectStoreBackend;
pub use memory::MemoryFactory;
