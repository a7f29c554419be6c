//! The core of Spill: contracts, the life of an entry, the ledger, the engine and the buffer.
//!
//! Users take the `spill-buffer` crate, which adds local files, object storage and codecs. Authors of a
//! store, a compressor or a policy need this one alone, and `spill-conformance` to prove it right.
//!
//! No file system, no network, no codec library. Modules stand on floors; each imports only from lower ones
//! (`tests/floors.rs` checks it): see ARCHITECTURE.md.
#![forbid(unsafe_code)]

mod id;
mod payload;
mod size;

mod capacity;
mod codec;
mod compress;
mod error;
mod layer;
mod observe;
mod policy;
mod store;
mod weigh;

mod entry;
mod frame;
mod ledger;
pub mod policies;

mod blobs;
pub mod layers;
mod memory_store;
mod queue;
mod table;
mod tier;
mod usage;

mod counters;
mod engine;

pub mod blocking;
mod buffer;
mod builder;

pub mod config;
mod registry;

pub use buffer::{Events, Eviction, PinGuard, SpillBuffer};
pub use builder::{BuildError, Builder, TierSpec};
pub use capacity::{Admission, CapacityPolicy, FixedBudget, Levels, OnFull, ParseShareError, Share};
#[cfg(feature = "postcard")]
pub use codec::PostcardCodec;
pub use codec::{BytesCodec, Codec};
pub use compress::{Compressor, Tag};
pub use config::{Config, ConfigError};
pub use counters::Stats;
pub use error::{
    BoxError, CodecError, CompressError, Error, InsertError, Resource, StoreError, StoreErrorKind,
};
pub use id::{BlobId, EntryId, ParseBlobIdError};
pub use layer::Layer;
pub use memory_store::MemoryStore;
pub use observe::{Event, Observer};
pub use payload::Payload;
pub use policy::{Arrival, Marks, Policy, Slot, Touch};
pub use registry::{Component, LookupError, Registry};
pub use size::{ParseBytesError, format_bytes, parse_bytes};
pub use store::{BlobMeta, Options, Store, StoreFactory, StoreInfo, Stored};
pub use table::Key;
pub use usage::{Location, MemoryUsage, Pressure, Tally, TierUsage, Usage};
pub use weigh::{ByteLength, MAX_WEIGHT, Weigher};
