//! The systems that are compared, each behind [`Keeper`], with the best settings that its documentation names.

mod caches;
mod files;
mod fjall;
mod foyer;
pub(crate) mod memory;
mod raw;
pub(crate) mod raw_reads;
mod redb;
mod spill;

use std::path::Path;

use anyhow::{Result, bail};
use async_trait::async_trait;
use bytes::Bytes;

pub(crate) use self::raw::{BLOCK, Effort, RawFile};
use self::{
    caches::{Moka, QuickCache},
    files::Files,
    fjall::Fjall,
    foyer::{Foyer, Way},
    redb::Redb,
    spill::Spill,
};

/// Something that keeps values by key, in memory and on a disk.
#[async_trait]
pub(crate) trait Keeper: Send + Sync {
    async fn insert(&self, key: u64, value: Vec<u8>) -> Result<()>;

    /// `None`: there is no such key, or not any more.
    async fn get(&self, key: u64) -> Result<Option<Bytes>>;

    /// Several keys, by the call that the system has for it, if it has one.
    async fn get_many(&self, keys: &[u64]) -> Result<Vec<Option<Bytes>>> {
        let mut values = Vec::with_capacity(keys.len());
        for key in keys {
            values.push(self.get(*key).await?);
        }
        Ok(values)
    }

    /// Waits until nothing is on its way any more: what the system does not keep in memory is with the operating
    /// system, or on the disk.
    async fn settle(&self) -> Result<()>;

    /// Bytes of values that are only in memory, and so were not written.
    fn only_in_memory(&self) -> u64 {
        0
    }

    /// Reads so far, by where they were answered from, if the system says so.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Ends it, if dropping it is not enough. Its files may stay; they are removed with the directory.
    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// How a system is set up.
#[derive(Clone, Debug)]
pub(crate) struct Setup<'a> {
    pub(crate) dir: &'a Path,
    /// Bytes of memory that it may use for values.
    pub(crate) memory: u64,
    /// Bytes of all values that will be inserted, at most.
    pub(crate) total: u64,
    /// Of a value, if all are equally long.
    pub(crate) value_length: usize,
    /// `none`, `lz4`, `zstd:1` or `auto`.
    pub(crate) compress: &'a str,
}

/// Opens a system by name.
pub(crate) async fn open(system: &str, setup: &Setup<'_>) -> Result<Box<dyn Keeper>> {
    Ok(match system {
        "spill" | "spill singly" => Box::new(Spill::open(setup).await?),
        "foyer" => Box::new(Foyer::open(setup, Way::Defaults).await?),
        "foyer paced" => Box::new(Foyer::open(setup, Way::Paced).await?),
        "foyer paced O_DIRECT" => Box::new(Foyer::open(setup, Way::PacedDirect).await?),
        "fjall" => Box::new(Fjall::open(setup)?),
        "redb" => Box::new(Redb::open(setup)?),
        "files" => Box::new(Files::open(setup)?),
        "moka" => Box::new(Moka::open(setup)),
        "quick_cache" => Box::new(QuickCache::open(setup)?),
        _ => bail!("there is no system {system:?}"),
    })
}

/// How each is set up, for the page.
pub(crate) const SETTINGS: [(&str, &str); 7] = [
    ("spill", spill::SETTINGS),
    ("foyer", foyer::SETTINGS),
    ("fjall", fjall::SETTINGS),
    ("redb", redb::SETTINGS),
    ("files", files::SETTINGS),
    ("moka, quick_cache", caches::SETTINGS),
    ("raw, pread, io_uring", raw::SETTINGS),
];

/// Whether its calls block the thread, so that it needs one for each.
pub(crate) fn blocks(system: &str) -> bool {
    matches!(system, "fjall" | "redb")
}
