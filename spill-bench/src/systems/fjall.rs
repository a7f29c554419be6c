//! fjall: a log-structured merge tree.

use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use bytes::Bytes;
use fjall::{
    CompressionType, Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode,
    config::CompressionPolicy,
};

use super::{Keeper, Setup};

/// From this length on values are kept apart from keys, as its documentation recommends for large ones.
const LARGE: usize = 1 << 10;

pub(super) const SETTINGS: &str = "A quarter of the memory as cache and as much as memtable (8 to 64 MiB); values from \
    1 KiB on apart from keys; its journal neither synced nor handed to the operating system after each insert; told that \
    reads find what they ask for. Its calls block: where many are in flight, one runtime thread for each.";

pub(crate) struct Fjall {
    database: Database,
    keyspace: Keyspace,
}

impl Fjall {
    /// A quarter of the memory for its cache, as its documentation recommends, and as much for a memtable (8 to
    /// 64 MiB), of which there are two while one is written. Nobody needs what was written after a crash, so its
    /// journal is not handed to the operating system after each insert.
    pub(crate) fn open(setup: &Setup<'_>) -> Result<Self> {
        let codec = if setup.compress == "none" { CompressionType::None } else { CompressionType::Lz4 };
        let database = Database::builder(setup.dir)
            .cache_size(setup.memory / 4)
            .manual_journal_persist(true)
            .journal_compression(CompressionType::None)
            .open()?;
        let separated = KvSeparationOptions::default().compression(codec);
        let options = KeyspaceCreateOptions::default()
            .manual_journal_persist(true)
            .max_memtable_size((setup.memory / 4).clamp(8 << 20, 64 << 20))
            .expect_point_read_hits(true)
            .data_block_compression_policy(CompressionPolicy::all(codec))
            .with_kv_separation((setup.value_length >= LARGE).then_some(separated));
        let keyspace = database.keyspace("values", || options)?;
        Ok(Self { database, keyspace })
    }
}

#[async_trait]
impl Keeper for Fjall {
    async fn insert(&self, key: u64, value: Vec<u8>) -> Result<()> {
        Ok(self.keyspace.insert(key.to_be_bytes(), value)?)
    }

    async fn get(&self, key: u64) -> Result<Option<Bytes>> {
        Ok(self.keyspace.get(key.to_be_bytes())?.map(Bytes::from_owner))
    }

    /// Until no memtable waits to be written: that memory is to be free. Compaction may go on.
    async fn settle(&self) -> Result<()> {
        self.database.persist(PersistMode::Buffer)?;
        while self.keyspace.sealed_memtable_count() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }
}
