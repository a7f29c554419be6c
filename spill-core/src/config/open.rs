//! Turns settings into parts: opens the stores, finds the components, fills a builder.

use std::sync::Arc;

use super::{
    Compression, Config, ConfigError, TierConfig,
    validate::{missing, path, refuse},
};
use crate::{
    Builder, Layer, Registry, SpillBuffer, Store, TierSpec,
    chance::random,
    layers::{AdaptiveLimit, Retry, Timeout},
    table::Key,
};

/// A request may be this slow and no slower, in bytes per second: 1 Mbit/s. What is below is stuck rather than
/// slow, and no tier worth having; a batch of 8 MiB has a minute more at this rate.
const LEAST_RATE: u64 = 128 << 10;
/// The most requests of a kind at once, unless set. A store on a file system has a few threads and needs no bound.
const CONCURRENCY: u32 = 64;
/// What `auto` chooses among, beside leaving values as they are.
const AUTO: [(&str, Option<&str>); 2] = [("lz4", None), ("zstd", Some("1"))];

impl Config {
    /// Validates the settings, opens every store, and gives a builder that has it all: what is left to add
    /// is a codec and a weigher. `total` is the memory of the container or machine in bytes, needed only
    /// when the memory limit is a percentage.
    ///
    /// Each store is wrapped so that a call that takes longer than `timeout` fails, and one that fails
    /// passingly is repeated `retries` times; at most `concurrency` calls of a kind are under way at
    /// once, and fewer when the store says that this is too much.
    ///
    /// # Errors
    /// What is wrong with the settings; or a store that can't be opened, named by its tier.
    ///
    /// # Cancel safety
    /// Stores that were opened are dropped with the future; what they set up is left to their next sweep.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use spill_core::{ByteLength, BytesCodec, Registry, config::Config};
    /// let text = "[memory]\nlimit = \"1 MiB\"\n[[tier]]\nstore = \"memory:\"";
    /// let config = Config::from_toml(text, "spill.toml")?;
    /// let builder = config.builder::<u64, String>(&Registry::new(), None).await?;
    /// let buffer = builder.codec(BytesCodec).weigher(ByteLength).build()?;
    /// buffer.insert(1, "one".to_owned()).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn builder<K: Key, V: Send + Sync + 'static>(
        &self,
        registry: &Registry,
        total: Option<u64>,
    ) -> Result<Builder<K, V>, ConfigError> {
        self.validate(registry)?;
        let budget = self.memory.budget(total)?;
        let policy = registry.policy(&self.memory.policy);
        let policy = policy.map_err(|error| missing(&self.memory, "memory", "policy", error, &[]))?;
        let mut builder = SpillBuffer::<K, V>::builder()
            .memory_limit(budget.limit)
            .spill_buffers(budget.spill_buffers)
            .capacity(self.memory.capacity())
            .boxed_policy(policy);
        for (index, tier) in self.tiers.iter().enumerate() {
            builder = builder.tier(tier.open(&path(index), registry).await?);
        }
        Ok(builder)
    }
}

impl TierConfig {
    async fn open(&self, path: &str, registry: &Registry) -> Result<TierSpec, ConfigError> {
        let scheme = self.store.scheme();
        let factory = registry.store(scheme).map_err(|error| missing(self, path, "store", error, &[]))?;
        let opened = factory.open(self.store.as_url(), self.store_options()).await;
        let store = opened.map_err(|error| {
            let fix = "mend what the store complains about, or name another store";
            refuse(self, path, "store", error.to_string(), fix).with_source(error)
        })?;
        let mut spec = TierSpec::from_arc(self.wrap(store, registry))
            .name(self.name())
            .max_spill(self.max_spill)
            .demote_at(self.demote_at)
            .batch_entries(self.batch_entries as usize);
        spec = self.compressed(spec, path, registry)?;
        if let Some(bytes) = self.batch_bytes {
            spec = spec.batch_bytes(bytes);
        }
        Ok(spec)
    }

    /// Each try has its own time limit, so the time-out is inside and the retries around it. Between them the
    /// bound on calls at once: a place in its queue counts against no time limit, and is not kept while a
    /// call waits to be repeated.
    fn wrap(&self, store: Arc<dyn Store>, registry: &Registry) -> Arc<dyn Store> {
        let mut store = Timeout::new(self.timeout).least_rate(LEAST_RATE).layer(store);
        let by_default = (!registry.is_file_system(self.store.scheme())).then_some(CONCURRENCY);
        if let Some(most) = self.concurrency.or(by_default) {
            store = AdaptiveLimit::new(most as usize).layer(store);
        }
        // Processes that were refused together must not come back together.
        if self.retries == 0 { store } else { Retry::new(self.retries + 1).seed(random()).layer(store) }
    }

    /// For `auto` the quick one goes first: it is taken until something was measured. Those that are not compiled in
    /// are left out, all of them if need be.
    fn compressed(&self, spec: TierSpec, path: &str, registry: &Registry) -> Result<TierSpec, ConfigError> {
        let (name, argument) = match &self.compress {
            Compression::None => return Ok(spec),
            Compression::Auto => {
                let known =
                    AUTO.iter().filter_map(|(name, argument)| registry.compressor(name, *argument).ok());
                return Ok(spec.compress_auto(known));
            }
            Compression::Named { name, argument } => (name.as_str(), argument.as_deref()),
        };
        let found = registry.compressor(name, argument);
        let found = found.map_err(|error| missing(self, path, "compress", error, &["none", "auto"]))?;
        Ok(spec.compress_with(Some(found)))
    }
}
