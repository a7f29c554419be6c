//! The core of Spill: contracts, the life of an entry, the ledger, the engine and the buffer.
//!
//! A [`SpillBuffer`] holds values in memory under a byte budget, moves the coldest to the first tier with room
//! and brings them back when asked. It loses no key, and what it says it holds is what is there.
//!
//! **Services** take the `spill-buffer` crate, which re-exports this one and adds local files, object storage and
//! codecs. **Authors of parts** need this crate alone, and `spill-conformance` to prove theirs right:
//!
//! | to bring your own | implement | look at | and hand it to |
//! |---|---|---|---|
//! | place to spill to | [`Store`]; [`StoreFactory`] to open it from a URL | [`MemoryStore`] | [`TierSpec::new`], [`Registry::with_store`] |
//! | compression | [`Compressor`], with a [`Tag`] of its own | the example there | [`TierSpec::compress`], [`Registry::with_compressor`] |
//! | bytes for a type | [`Codec`] | [`BytesCodec`] | [`Builder::codec`] |
//! | size of an entry | [`Weigher`]; a closure will do | [`ByteLength`] | [`Builder::weigher`] |
//! | choice of victims | [`Policy`] | [`policies`], where the shipped ones are compared | [`Builder::policy`], [`Registry::with_policy`] |
//! | choice of when and how far to shrink | [`CapacityPolicy`] | [`FixedBudget`] | [`Builder::capacity`] |
//! | behaviour around a store | [`Layer`] | [`layers`] | [`TierSpec::layer`] |
//! | logs and metrics | [`Observer`]; a closure will do | [`Event`], [`Stats`], [`Usage`] | [`Builder::observer`] |
//!
//! All of these but [`Store`] and [`StoreFactory`] are plain synchronous code. What each owes its callers is in
//! its own documentation; the buffer catches what panics in codecs, compressors, weighers and observers.
//!
//! Then: [`config`] for settings from a file or the environment, [`blocking`] for callers without async,
//! [`Error`] for what a call can come back with, [`Usage`] and [`Pressure`] for what to watch.
//!
//! No network and no codec library; of the file system nothing but reading a config file. How it is built inside
//! is in ARCHITECTURE.md, the bytes it writes in docs/format.md of the repository.
#![forbid(unsafe_code)]

// The floors. A module uses only what stands on its own floor or below; `tests/floors.rs` reads this table and
// the sources, and fails where one reaches up.
//
// F6: config, registry                                                  names, and what they stand for
// F5: blocking, buffer, builder                                         the public face
// F4: engine                                                            the only place that runs effects
// F3: blobs, layers, memory_store, queue, table, tier                   shared state behind locks
// F2: chooser, counters, entry, frame, ledger, list, policies, stripe, usage      pure: decides and counts
// F1: capacity, codec, compress, error, layer, observe, policy, store, weigh      the contracts
// F0: chance, id, payload, size                                                 words
//
// The three lowest import no tokio, and nothing of `std` that reaches outside: no `fs`, `net`, `thread`, `process`
// or `env`, and of `time` only `Duration`.

mod chance;
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

mod chooser;
mod counters;
mod entry;
mod frame;
mod ledger;
mod list;
pub mod policies;
mod stripe;
mod usage;

mod blobs;
pub mod layers;
mod memory_store;
mod queue;
mod table;
mod tier;

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
    BoxError, CodecError, CompressError, Error, InsertError, Resource, StoreError, StoreErrorKind, TierLevel,
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
