//! foyer: a cache in memory and on a disk.
//!
//! It drops what its writer can't take at once, so there are two ways to use it: at its defaults, and waiting for
//! its writer so often that nothing is dropped.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use anyhow::Result;
use async_trait::async_trait;
use bytes::Bytes;
use foyer::{BlockEngineConfig, DeviceBuilder, FifoConfig, FsDeviceBuilder, HybridCache, HybridCacheBuilder};

use super::{Keeper, Setup};

/// How often the paced one waits, in bytes inserted: well before its queue of 16 MiB is full, in which a value of
/// 4 KiB takes 8.
const PACE: usize = 4 << 20;

pub(super) const SETTINGS: &str = "As it comes (`foyer`), or paced: waited for after every 4 MiB, so that its queue of \
    16 MiB never overflows and nothing is dropped, with its cheapest policy in memory (FIFO), one shard for values from \
    1 MiB on, and blocks of four values from 8 MiB on. `O_DIRECT`: its device opened that way. Room on the disk so \
    that it never evicts there. It compresses nothing: the block engine of 0.22.6 ignores that setting.";

/// Which way it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Defaults,
    Paced,
    /// Paced, on files opened with `O_DIRECT`.
    PacedDirect,
}

pub(crate) struct Foyer {
    cache: HybridCache<u64, Bytes>,
    paced: bool,
    since_wait: AtomicUsize,
}

impl Foyer {
    /// Room enough that it never has to evict from the disk: an entry takes whole pages of 4 KiB.
    pub(crate) async fn open(setup: &Setup<'_>, way: Way) -> Result<Self> {
        let length = setup.value_length;
        let entry = (length + 4096).next_multiple_of(4096) as u64;
        let room = setup.total / length as u64 * entry * 5 / 4 + (1 << 30);
        let device = FsDeviceBuilder::new(setup.dir)
            .with_capacity(usize::try_from(room)?)
            .with_direct(way == Way::PacedDirect)
            .build()?;
        let mut engine = BlockEngineConfig::new(device);
        let mut memory = HybridCacheBuilder::new()
            .with_flush_on_close(false)
            .memory(usize::try_from(setup.memory)?)
            .with_weighter(|_, value: &Bytes| value.len());
        if way != Way::Defaults {
            // The cheapest of its policies; one shard if there is room for a few values only.
            memory = memory.with_eviction_config(FifoConfig::default());
            if length >= 1 << 20 {
                memory = memory.with_shards(1);
            }
            if length >= 8 << 20 {
                // By default a block, and what waits to be written, is 16 MiB, which a value has to fit in.
                let block = length * 4;
                engine = engine
                    .with_block_size(block)
                    .with_buffer_pool_size(block)
                    .with_submit_queue_size_threshold(block);
            }
        }
        let storage = memory.storage().with_engine_config(engine);
        Ok(Self {
            cache: storage.build().await?,
            paced: way != Way::Defaults,
            since_wait: AtomicUsize::new(0),
        })
    }
}

#[async_trait]
impl Keeper for Foyer {
    async fn insert(&self, key: u64, value: Vec<u8>) -> Result<()> {
        let length = value.len();
        drop(self.cache.insert(key, value.into()));
        if self.paced && self.since_wait.fetch_add(length, Relaxed) + length >= PACE {
            self.since_wait.store(0, Relaxed);
            self.cache.storage().wait().await;
        }
        Ok(())
    }

    async fn get(&self, key: u64) -> Result<Option<Bytes>> {
        Ok(self.cache.get(&key).await?.map(|entry| entry.value().clone()))
    }

    async fn settle(&self) -> Result<()> {
        self.cache.storage().wait().await;
        Ok(())
    }

    fn only_in_memory(&self) -> u64 {
        self.cache.memory().usage() as u64
    }

    async fn close(&self) -> Result<()> {
        Ok(self.cache.close().await?)
    }
}
