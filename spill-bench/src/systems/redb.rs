//! redb: a copy-on-write B-tree in one file.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use anyhow::Result;
use async_trait::async_trait;
use bytes::Bytes;
use redb::{AccessGuard, Database, Durability, ReadableDatabase, TableDefinition};

use super::{Keeper, Setup};

const TABLE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("values");

/// Bytes of values that are committed together: each commit writes its path of the tree anew.
const BATCH: usize = 4 << 20;

pub(super) const SETTINGS: &str = "The memory as cache; 4 MiB of values in a transaction; commits not durable. Its \
    calls block: where many are in flight, one runtime thread for each.";

pub(crate) struct Redb {
    database: Database,
    memory: u64,
    batch: Mutex<Batch>,
}

/// Values not yet committed.
#[derive(Default)]
struct Batch {
    values: BTreeMap<u64, Bytes>,
    bytes: usize,
}

impl Redb {
    /// Commits are not made durable: nobody needs them after a crash, and syncing costs far more than the rest.
    pub(crate) fn open(setup: &Setup<'_>) -> Result<Self> {
        let cache = usize::try_from(setup.memory)?.saturating_sub(BATCH);
        let database = Database::builder().set_cache_size(cache).create(setup.dir.join("redb"))?;
        let keeper = Self { database, memory: setup.memory, batch: Mutex::default() };
        keeper.commit(&mut keeper.batch())?;
        Ok(keeper)
    }

    fn batch(&self) -> MutexGuard<'_, Batch> {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, key: u64, value: Bytes) -> Result<()> {
        let mut batch = self.batch();
        batch.bytes += value.len();
        if let Some(old) = batch.values.insert(key, value) {
            batch.bytes -= old.len();
        }
        if batch.bytes >= BATCH { self.commit(&mut batch) } else { Ok(()) }
    }

    fn commit(&self, batch: &mut Batch) -> Result<()> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::None)?;
        {
            let mut table = transaction.open_table(TABLE)?;
            for (key, value) in &batch.values {
                table.insert(key, &**value)?;
            }
        }
        transaction.commit()?;
        *batch = Batch::default();
        Ok(())
    }
}

/// A value in redb's own memory.
struct Page(AccessGuard<'static, &'static [u8]>);

impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        self.0.value()
    }
}

#[async_trait]
impl Keeper for Redb {
    async fn insert(&self, key: u64, value: Vec<u8>) -> Result<()> {
        self.put(key, value.into())
    }

    async fn get(&self, key: u64) -> Result<Option<Bytes>> {
        if let Some(value) = self.batch().values.get(&key) {
            return Ok(Some(value.clone()));
        }
        let table = self.database.begin_read()?.open_table(TABLE)?;
        Ok(table.get(key)?.map(|value| Bytes::from_owner(Page(value))))
    }

    async fn settle(&self) -> Result<()> {
        self.commit(&mut self.batch())
    }

    /// Its documentation says that up to half of its cache is not written yet.
    fn only_in_memory(&self) -> u64 {
        self.memory / 2
    }
}
