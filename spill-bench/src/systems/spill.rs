//! Spill itself, with one tier of local files.

use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use bytes::Bytes;
use spill_buffer::{ByteLength, BytesCodec, Config, SpillBuffer};

use super::{Keeper, Setup};

pub(super) const SETTINGS: &str = "`memory.limit`, one tier of local files, its `compress`; all else as it comes, with \
    victims by the default policy. Values are `Bytes`, weighed by their length.";

pub(crate) struct Spill(SpillBuffer<u64, Bytes>);

impl Spill {
    pub(crate) async fn open(setup: &Setup<'_>) -> Result<Self> {
        let Setup { dir, memory, compress, .. } = setup;
        let text = format!(
            "[memory]\nlimit = \"{memory}\"\n[[tier]]\nstore = \"file://{}\"\ncompress = \"{compress}\"\n",
            dir.display()
        );
        let config = Config::from_toml(&text, "the settings of the bench")?;
        let builder = spill_buffer::open(&config).await?;
        Ok(Self(builder.codec(BytesCodec).weigher(ByteLength).build()?))
    }
}

#[async_trait]
impl Keeper for Spill {
    async fn insert(&self, key: u64, value: Vec<u8>) -> Result<()> {
        Ok(self.0.insert(key, Bytes::from(value)).await?)
    }

    async fn get(&self, key: u64) -> Result<Option<Bytes>> {
        Ok(self.0.get(&key).await?.map(|value| Bytes::clone(&value)))
    }

    async fn get_many(&self, keys: &[u64]) -> Result<Vec<Option<Bytes>>> {
        let values = self.0.get_many(keys).await;
        values.into_iter().map(|value| Ok(value?.map(|value| Bytes::clone(&value)))).collect()
    }

    async fn settle(&self) -> Result<()> {
        while self.0.usage().memory.spilling.entries > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    fn only_in_memory(&self) -> u64 {
        self.0.usage().memory.resident.weight
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let stats = self.0.stats();
        vec![
            ("resident", stats.hits_resident),
            ("clean", stats.hits_clean),
            ("still held", stats.hits_alive),
            ("restored", stats.hits_restored),
        ]
    }

    async fn close(&self) -> Result<()> {
        Ok(self.0.close().await?)
    }
}
