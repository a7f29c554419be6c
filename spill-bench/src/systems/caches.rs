//! Caches in memory only, which drop what has no room: for what they do with keys.

use anyhow::Result;
use async_trait::async_trait;
use bytes::Bytes;

use super::{Keeper, Setup};

pub(super) const SETTINGS: &str = "In memory only: weighed by length, the memory as capacity; in `hot` by number, with \
    room reserved and the hasher that Spill uses, which is faster than moka's and foyer's own.";

pub(crate) struct Moka(moka::sync::Cache<u64, Bytes>);

impl Moka {
    pub(crate) fn open(setup: &Setup<'_>) -> Self {
        let weigher = |_: &u64, value: &Bytes| u32::try_from(value.len()).unwrap_or(u32::MAX);
        Self(moka::sync::Cache::builder().max_capacity(setup.memory).weigher(weigher).build())
    }
}

#[async_trait]
impl Keeper for Moka {
    async fn insert(&self, key: u64, value: Vec<u8>) -> Result<()> {
        self.0.insert(key, value.into());
        Ok(())
    }

    async fn get(&self, key: u64) -> Result<Option<Bytes>> {
        Ok(self.0.get(&key))
    }

    async fn settle(&self) -> Result<()> {
        self.0.run_pending_tasks();
        Ok(())
    }

    fn only_in_memory(&self) -> u64 {
        self.0.weighted_size()
    }
}

#[derive(Clone)]
struct Length;

impl quick_cache::Weighter<u64, Bytes> for Length {
    fn weight(&self, _: &u64, value: &Bytes) -> u64 {
        value.len() as u64
    }
}

pub(crate) struct QuickCache(quick_cache::sync::Cache<u64, Bytes, Length>);

impl QuickCache {
    pub(crate) fn open(setup: &Setup<'_>) -> Result<Self> {
        let entries = usize::try_from(setup.memory)? / setup.value_length;
        Ok(Self(quick_cache::sync::Cache::with_weighter(entries, setup.memory, Length)))
    }
}

#[async_trait]
impl Keeper for QuickCache {
    async fn insert(&self, key: u64, value: Vec<u8>) -> Result<()> {
        self.0.insert(key, value.into());
        Ok(())
    }

    async fn get(&self, key: u64) -> Result<Option<Bytes>> {
        Ok(self.0.get(&key))
    }

    async fn settle(&self) -> Result<()> {
        Ok(())
    }

    fn only_in_memory(&self) -> u64 {
        self.0.weight()
    }
}
