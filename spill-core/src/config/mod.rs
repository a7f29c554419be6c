//! Settings as plain data, and where they come from: a TOML file, the environment, or code.
//!
//! A [`Config`] holds what was asked for and names components by name; the components themselves are in a
//! [`Registry`](crate::Registry). The usual way: [`Config::from_file`], then
//! [`Config::with_process_env`], then whatever the program sets itself, then the builder, which calls
//! [`Config::validate`]. Later sources win.
//!
//! Every key is described once, in `schema`; parsing, the environment, messages and `docs/config.md`
//! follow from it. `value` reads one value, `file` a TOML text, `env` the environment, `validate` judges
//! the whole against a registry, `error` is what all of them answer with.
//!
//! ```
//! use spill_core::config::{Amount, Config};
//!
//! let text = r#"
//!     [memory]
//!     limit = "512 MiB"
//!
//!     [[tier]]
//!     store = "file:///var/tmp/myapp"
//!     max_spill = "20 GiB"
//! "#;
//! let variables = [("SPILL_TIER_0_MAX_SPILL".to_owned(), "5 GiB".to_owned())];
//! let mut config = Config::from_toml(text, "spill.toml")?.with_env(variables)?;
//! assert_eq!(config.tiers[0].max_spill, Some(5 << 30));
//! assert_eq!(config.memory.limit, Some(Amount::Bytes(512 << 20)));
//!
//! config.memory.limit = Some("60%".parse()?);
//! assert_eq!(config.memory.budget(Some(1000))?.limit, 600);
//!
//! let wrong = Config::from_toml("[memory]\nlimmit = 1", "spill.toml").unwrap_err();
//! assert!(wrong.to_string().starts_with("spill.toml:2: memory.limmit: unknown key"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod amount;
mod env;
mod error;
mod file;
mod open;
mod origin;
mod schema;
mod spelling;
mod store_url;
mod validate;
mod value;

use std::time::Duration;

pub use amount::{Amount, Compression, ParseAmountError, ParseCompressionError, format_bytes_exactly};
pub use error::ConfigError;
pub use schema::{KeyInfo, keys};
pub use store_url::{ParseStoreUrlError, StoreUrl};

pub(crate) use spelling::nearest;

use crate::{FixedBudget, OnFull, Options, Share};
use origin::Origins;

/// The most tiers a buffer has.
pub const MAX_TIERS: usize = 16;

/// The most bytes of a TOML text.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// Everything that can be set about a buffer.
///
/// Plain data: read it from somewhere, change any field, and give it to the builder. The default has no
/// memory limit, which has to be set, and no tiers.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// What is kept in memory.
    pub memory: MemoryConfig,
    /// Where the rest goes: the first tier with room is used. At most [`MAX_TIERS`].
    pub tiers: Vec<TierConfig>,
}

/// Table `[memory]`: what is kept in memory, and what happens when that is not enough.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MemoryConfig {
    /// The budget, in bytes or as a share of the memory of the container or machine. Has to be set.
    pub limit: Option<Amount>,
    /// Name of the victim policy.
    pub policy: String,
    /// What an insert gets when there is no room anywhere. Holds both `on_full` and `wait_timeout`.
    pub on_full: OnFull,
    /// Bytes of the limit that are kept for the spill path's own buffers. `None`: an eighth of the limit,
    /// at most 64 MiB.
    pub spill_buffers: Option<u64>,
    /// Spilling starts above this share of what entries may weigh.
    pub high_watermark: Share,
    /// Spilling stops at this share of what entries may weigh.
    pub low_watermark: Share,
    origins: Origins,
}

/// The victim policy when none is named.
const DEFAULT_POLICY: &str = "s3-fifo";

const fn thousandths(number: u16) -> Share {
    match Share::thousandths(number) {
        Some(share) => share,
        None => Share::WHOLE,
    }
}

impl Default for MemoryConfig {
    /// No limit yet; everything else as `docs/config.md` says.
    fn default() -> Self {
        Self {
            limit: None,
            policy: DEFAULT_POLICY.to_owned(),
            on_full: OnFull::default(),
            spill_buffers: None,
            high_watermark: thousandths(875),
            low_watermark: thousandths(750),
            origins: Origins::default(),
        }
    }
}

/// What a memory limit comes to, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryBudget {
    /// Everything the buffer may hold in memory.
    pub limit: u64,
    /// The part of it that the spill path's own buffers have.
    pub spill_buffers: u64,
}

impl MemoryBudget {
    /// What entries may weigh together: the limit without the spill path's buffers.
    pub fn entries(self) -> u64 {
        self.limit.saturating_sub(self.spill_buffers)
    }
}

impl MemoryConfig {
    /// The most the spill path's buffers get by default.
    const MAX_DEFAULT_BUFFERS: u64 = 64 << 20;

    /// The limit and its parts in bytes. `total` is the memory of the container or machine, needed only
    /// when the limit is a percentage.
    ///
    /// # Errors
    /// When no limit is set, when it is a percentage and `total` is unknown, and when the spill path's
    /// buffers would leave nothing to entries.
    ///
    /// ```
    /// use spill_core::config::{Amount, MemoryConfig};
    /// let mut memory = MemoryConfig::default();
    /// memory.limit = Some(Amount::Bytes(64 << 20));
    /// let budget = memory.budget(None)?;
    /// assert_eq!((budget.spill_buffers, budget.entries()), (8 << 20, 56 << 20));
    /// # Ok::<(), spill_core::config::ConfigError>(())
    /// ```
    pub fn budget(&self, total: Option<u64>) -> Result<MemoryBudget, ConfigError> {
        let limit = self.limit_in_bytes(total)?;
        let by_default = (limit / 8).min(Self::MAX_DEFAULT_BUFFERS);
        let budget = MemoryBudget { limit, spill_buffers: self.spill_buffers.unwrap_or(by_default) };
        self.check_budget(budget)?;
        Ok(budget)
    }

    /// The capacity policy that these watermarks and this `on_full` describe.
    pub fn capacity(&self) -> FixedBudget {
        FixedBudget::default().watermarks(self.high_watermark, self.low_watermark).when_full(self.on_full)
    }
}

/// Table `[[tier]]`: one store, with its compression and its quota.
///
/// ```
/// use spill_core::config::TierConfig;
/// let mut tier = TierConfig::new("s3://bucket/prefix".parse()?);
/// tier.max_spill = Some(2 << 40);
/// tier.compress = "zstd:3".parse()?;
/// assert_eq!(tier.name(), "s3://bucket/prefix");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TierConfig {
    /// Shown in messages and statistics. `None`: the store's URL without secrets. See
    /// [`name`](Self::name).
    pub name: Option<String>,
    /// Where the store is.
    pub store: StoreUrl,
    /// The most bytes it may hold, garbage and writes in flight included. `None`: no cap. Zero: nothing
    /// is ever spilled to it.
    pub max_spill: Option<u64>,
    /// Above this share of `max_spill` the coldest blobs are moved on to the next tier that takes them.
    /// `None`: nothing is moved on.
    pub demote_at: Option<Share>,
    /// What is left to others on the file system, in bytes or as a share of its size. `None`: nothing.
    pub reserve_free: Option<Amount>,
    /// How values are compressed.
    pub compress: Compression,
    /// The size in bytes that a batch grows to. `None`: what the store prefers.
    pub batch_bytes: Option<u64>,
    /// The most entries of a batch.
    pub batch_entries: u32,
    /// How often a failed request is repeated.
    pub retries: u32,
    /// The longest that one request may take; one that moves bytes has a second more for each 128 KiB.
    pub timeout: Duration,
    /// The most requests of a kind (writes, reads, deletes) at once. `None`: 64, or for a store on a file
    /// system only the bounds it has itself.
    pub concurrency: Option<u32>,
    /// Whether a blob is forced to the medium before it counts as spilled.
    pub durable: bool,
    /// What only this kind of store knows. Values may be secrets and are never shown.
    pub options: Options,
    origins: Origins,
}

impl TierConfig {
    /// A tier on this store, with no cap and no compression, and everything else as `docs/config.md` says.
    pub fn new(store: StoreUrl) -> Self {
        Self {
            name: None,
            store,
            max_spill: None,
            demote_at: None,
            reserve_free: None,
            compress: Compression::None,
            batch_bytes: None,
            batch_entries: 4096,
            retries: 3,
            timeout: Duration::from_secs(30),
            concurrency: None,
            durable: false,
            options: Options::new(),
            origins: Origins::default(),
        }
    }

    /// The name it goes by: the one that was set, else the store's URL without secrets.
    pub fn name(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.store.to_string())
    }

    /// What the factory of the store gets: the tier's options, with `reserve_free` and `durable` among
    /// them if they are set.
    ///
    /// ```
    /// use spill_core::config::TierConfig;
    /// let mut tier = TierConfig::new("file:///var/tmp/myapp".parse()?);
    /// tier.reserve_free = Some("5%".parse()?);
    /// assert_eq!(tier.store_options().take("reserve_free").as_deref(), Some("5%"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn store_options(&self) -> Options {
        let mut options = self.options.clone();
        if let Some(amount) = self.reserve_free {
            options = options.with("reserve_free", amount.to_string());
        }
        if self.durable {
            options = options.with("durable", "true");
        }
        options
    }
}
