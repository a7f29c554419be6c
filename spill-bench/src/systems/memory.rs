//! The systems by what they do in memory: each behind [`MemoryCache`], which is resolved at compile time, so that
//! nothing is measured but the system.
//!
//! All of them hash with foldhash: it is what Spill and `quick_cache` come with, and faster than the `SipHash` of moka
//! and the `XxHash64` of foyer; moka's documentation names another hasher as the way to make it faster.

use std::{
    borrow::Borrow,
    fmt::{self, Write},
    future::Future,
    hash::Hash,
    sync::Arc,
};

use anyhow::{Result, bail};
use bytes::Bytes;
use dashmap::DashMap;
use foldhash::fast::RandomState;
use foyer::{CacheBuilder, CacheEntry, EvictionConfig};
use quick_cache::{OptionsBuilder, UnitWeighter, sync::DefaultLifecycle};
use spill_buffer::{Codec, CodecError, MemoryStore, Payload, SpillBuffer, TierSpec};

/// What is kept. Handed out as an `Arc` of it, or as the handle that the system has for the purpose.
pub(crate) type Value = [u8; 64];

/// A key, and how many of them lie in memory one after the other: what is looked up comes out of a list in order, so
/// that reaching for the next key costs no cache miss.
pub(crate) trait Key:
    Borrow<Self::Look> + Hash + Eq + Clone + fmt::Debug + Send + Sync + 'static
{
    type Look: Hash + Eq + Sync + ?Sized;
    type List: Send + Sync;

    fn list(numbers: impl Iterator<Item = u64>) -> Self::List;

    fn at(list: &Self::List, index: usize) -> &Self::Look;

    fn owned(look: &Self::Look) -> Self;
}

impl Key for u64 {
    type Look = Self;
    type List = Vec<Self>;

    fn list(numbers: impl Iterator<Item = Self>) -> Vec<Self> {
        numbers.collect()
    }

    fn at(list: &Vec<Self>, index: usize) -> &Self {
        &list[index]
    }

    fn owned(look: &Self) -> Self {
        *look
    }
}

/// Bytes of a key that is text.
const TEXT: usize = 32;

impl Key for String {
    type Look = str;
    type List = Self;

    fn list(numbers: impl Iterator<Item = u64>) -> Self {
        numbers.fold(Self::new(), |mut text, number| {
            _ = write!(text, "key-{number:028}");
            text
        })
    }

    fn at(list: &Self, index: usize) -> &str {
        &list[index * TEXT..(index + 1) * TEXT]
    }

    fn owned(look: &str) -> Self {
        look.into()
    }
}

/// Something that keeps values in memory.
pub(crate) trait MemoryCache<K: Key>: Send + Sync + Sized {
    /// What a read hands out.
    type Held;

    /// `room` is for that many values.
    fn open(system: &str, room: usize) -> Result<Self>;

    /// By the call that leaves the least trace, if there is one.
    fn peek(&self, key: &K::Look) -> Option<Self::Held>;

    /// As users read. Only Spill has something to wait for; the others' futures are ready, and cost nothing.
    fn get(&self, key: &K::Look) -> impl Future<Output = Result<Option<Self::Held>>> {
        std::future::ready(Ok(self.peek(key)))
    }

    fn insert(&self, key: K, value: Value) -> impl Future<Output = Result<()>>;

    /// Makes the oldest leave, if an insert into a full one has not.
    fn remove_oldest(&self, _key: &K::Look) -> Result<()> {
        Ok(())
    }

    /// Does what was put off.
    fn settle(&self) {}
}

/// Values of fixed length, as bytes.
#[derive(Debug)]
struct Plain;

impl Codec<Value> for Plain {
    fn encode(&self, value: &Value) -> Result<Payload, CodecError> {
        Ok(Bytes::copy_from_slice(value).into())
    }

    fn decode(&self, bytes: Bytes) -> Result<Value, CodecError> {
        Value::try_from(&*bytes).map_err(CodecError::from_source)
    }
}

pub(crate) struct Spill<K: Key>(SpillBuffer<K, Value>);

impl<K: Key> MemoryCache<K> for Spill<K> {
    type Held = Arc<Value>;

    fn open(_: &str, room: usize) -> Result<Self> {
        // Spill forgets nothing, so there is always room here: what comes in has to leave by hand.
        let limit = 4 * (room * size_of::<Value>()) as u64 + (64 << 20);
        let builder = SpillBuffer::builder().memory_limit(limit).codec(Plain);
        let builder = builder.weigher(|_: &K, value: &Value| value.len() as u64);
        Ok(Self(builder.tier(TierSpec::new(MemoryStore::new())).build()?))
    }

    fn peek(&self, key: &K::Look) -> Option<Arc<Value>> {
        self.0.peek(key)
    }

    async fn get(&self, key: &K::Look) -> Result<Option<Arc<Value>>> {
        Ok(self.0.get(key).await?)
    }

    async fn insert(&self, key: K, value: Value) -> Result<()> {
        Ok(self.0.insert(key, value).await?)
    }

    fn remove_oldest(&self, key: &K::Look) -> Result<()> {
        if !self.0.remove(key)? {
            bail!("a key is gone");
        }
        Ok(())
    }
}

type Quick<K> = quick_cache::sync::Cache<K, Arc<Value>, UnitWeighter, RandomState>;

pub(crate) struct QuickCache<K: Key>(Quick<K>);

impl<K: Key> MemoryCache<K> for QuickCache<K> {
    type Held = Arc<Value>;

    fn open(_: &str, room: usize) -> Result<Self> {
        let mut options = OptionsBuilder::new();
        let options = options.estimated_items_capacity(room).weight_capacity(room as u64).build()?;
        let lifecycle = DefaultLifecycle::default();
        Ok(Self(Quick::with_options(options, UnitWeighter, RandomState::default(), lifecycle)))
    }

    fn peek(&self, key: &K::Look) -> Option<Arc<Value>> {
        self.0.peek(key)
    }

    async fn get(&self, key: &K::Look) -> Result<Option<Arc<Value>>> {
        Ok(self.0.get(key))
    }

    async fn insert(&self, key: K, value: Value) -> Result<()> {
        self.0.insert(key, Arc::new(value));
        Ok(())
    }
}

pub(crate) struct Moka<K: Key>(moka::sync::Cache<K, Arc<Value>, RandomState>);

impl<K: Key> MemoryCache<K> for Moka<K> {
    type Held = Arc<Value>;

    fn open(_: &str, room: usize) -> Result<Self> {
        let builder = moka::sync::Cache::builder().max_capacity(room as u64).initial_capacity(room);
        Ok(Self(builder.build_with_hasher(RandomState::default())))
    }

    fn peek(&self, key: &K::Look) -> Option<Arc<Value>> {
        self.0.get(key)
    }

    async fn insert(&self, key: K, value: Value) -> Result<()> {
        self.0.insert(key, Arc::new(value));
        Ok(())
    }

    fn settle(&self) {
        self.0.run_pending_tasks();
    }
}

/// The policy of a system that is foyer, as it comes.
pub(crate) fn foyer_policy(system: &str) -> Result<EvictionConfig> {
    Ok(match system {
        "foyer fifo" => foyer::FifoConfig::default().into(),
        "foyer lru" => foyer::LruConfig::default().into(),
        "foyer s3-fifo" => foyer::S3FifoConfig::default().into(),
        "foyer sieve" => foyer::SieveConfig.into(),
        "foyer lfu" => foyer::LfuConfig::default().into(),
        _ => bail!("foyer has no such policy: {system}"),
    })
}

/// Its handles count references by themselves, so values need no `Arc` of their own.
pub(crate) struct Foyer<K: Key>(foyer::Cache<K, Value, RandomState>);

impl<K: Key> MemoryCache<K> for Foyer<K> {
    type Held = CacheEntry<K, Value, RandomState>;

    fn open(system: &str, room: usize) -> Result<Self> {
        let builder = CacheBuilder::new(room).with_hash_builder(RandomState::default());
        Ok(Self(builder.with_eviction_config(foyer_policy(system)?).build()))
    }

    fn peek(&self, key: &K::Look) -> Option<Self::Held> {
        self.0.get(key)
    }

    async fn insert(&self, key: K, value: Value) -> Result<()> {
        drop(self.0.insert(key, value));
        Ok(())
    }
}

/// No cache at all: a map that many threads can use, as a floor.
pub(crate) struct PlainMap<K: Key>(DashMap<K, Arc<Value>, RandomState>);

impl<K: Key> MemoryCache<K> for PlainMap<K> {
    type Held = Arc<Value>;

    fn open(_: &str, room: usize) -> Result<Self> {
        Ok(Self(DashMap::with_capacity_and_hasher(room, RandomState::default())))
    }

    fn peek(&self, key: &K::Look) -> Option<Arc<Value>> {
        self.0.get(key).map(|value| Arc::clone(&value))
    }

    async fn insert(&self, key: K, value: Value) -> Result<()> {
        drop(self.0.insert(key, Arc::new(value)));
        Ok(())
    }

    fn remove_oldest(&self, key: &K::Look) -> Result<()> {
        if self.0.remove(key).is_none() {
            bail!("a key is gone");
        }
        Ok(())
    }
}
