//! The object-storage store of Spill: [`ObjectStoreBackend`] keeps blobs in anything the `object_store`
//! crate speaks. Factories open one from a URL and options, each behind a cargo feature:
//!
//! | feature | URL | factory |
//! |---|---|---|
//! | `memory` (default) | `memory:` | `MemoryFactory`: in this process, for trying things out |
//! | `file` | `file:///directory` | `LocalFactory`: local files; see there for why to use `spill-backend-fs` |
//! | `s3` | `s3://bucket/prefix` | `S3Factory`: Amazon S3 and servers that speak like it |
//! | `gs` | `gs://bucket/prefix` | `GcsFactory`: Google Cloud Storage |
//! | `az` | `az://container/prefix` | `AzureFactory`: Azure Blob Storage |
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
//! `object_store` is fenced in: one constructor shows a type of it, nothing else does. It sends each request
//! once, through an HTTP client of this crate; retries, time-outs and limits are layers of `spill-core`.
#![forbid(unsafe_code)]

mod backend;
mod error;
#[cfg(feature = "service")]
mod http;
#[cfg(any(feature = "memory", feature = "file", feature = "service"))]
mod services;
mod upload;

#[cfg(test)]
mod tests;

pub use backend::ObjectStoreBackend;
#[cfg(feature = "az")]
pub use services::azure::AzureFactory;
#[cfg(feature = "file")]
pub use services::file::LocalFactory;
#[cfg(feature = "gs")]
pub use services::gcs::GcsFactory;
#[cfg(feature = "memory")]
pub use services::memory::MemoryFactory;
#[cfg(feature = "s3")]
pub use services::s3::S3Factory;
