//! **Spill**: a keyed buffer bigger than memory.
//!
//! Values live in memory under a byte budget; when it is used up, the coldest are *spilled* to local files
//! and then to object storage, compressed and checksummed, under a cap on spilled bytes; they come back when
//! asked for. Unlike a cache it never loses a key, and its books balance: what it says it holds in memory and
//! on disk is what is there.
//!
//! ```
//! use spill_buffer::{ByteLength, BytesCodec, Config};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let dir = dir.path().display();
//! let config = Config::from_toml(
//!     &format!(r#"
//!         [memory]
//!         limit = "4 MiB"
//!
//!         [[tier]]
//!         store = "file://{dir}"
//!         max_spill = "1 GiB"
//!         compress = "lz4"
//!         [tier.options]
//!         allow_tmpfs = "true"
//!     "#),
//!     "spill.toml",
//! )?;
//! let buffer = spill_buffer::open::<String, Vec<u8>>(&config).await?.codec(BytesCodec).weigher(ByteLength).build()?;
//! for n in 0..1000 {
//!     buffer.insert(format!("key {n}"), vec![7; 16 << 10]).await?; // 16 MiB in all
//! }
//! assert_eq!(buffer.get("key 0").await?.as_deref(), Some(&vec![7; 16 << 10]));
//! buffer.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! This crate puts the others together: what [`spill_core`] defines is re-exported here, [`registry`] has the
//! stores and codecs that the cargo features compiled in, and [`open`] turns a [`Config`] into a builder.
#![forbid(unsafe_code)]

mod machine;

pub use spill_core::*;

#[cfg(feature = "fs")]
pub use spill_backend_fs as fs;
#[cfg(feature = "object")]
pub use spill_backend_object as object;
pub use spill_compress as compress;

pub use machine::total_memory;

/// Everything that a config can name in this build: the stores and compressors of the cargo features that
/// are on, and the shipped victim policies. Add your own with [`Registry::with_store`] and its like.
///
/// ```
/// let registry = spill_buffer::registry();
/// assert!(registry.schemes().any(|scheme| scheme == "file"));
/// assert!(registry.compressor("zstd", Some("3")).is_ok());
/// ```
pub fn registry() -> Registry {
    let names = ["s3", "gs", "az", "lz4", "snappy", "zstd"].map(|name| (name, name));
    let registry = [("file", "fs")]
        .into_iter()
        .chain(names)
        .fold(Registry::new(), |registry, (name, feature)| registry.with_known_feature(name, feature));
    with_compressors(with_stores(registry))
}

fn with_stores(registry: Registry) -> Registry {
    #[cfg(feature = "fs")]
    let registry = registry.with_store("file", std::sync::Arc::new(fs::FsFactory));
    #[cfg(feature = "s3")]
    let registry = registry.with_store("s3", std::sync::Arc::new(object::S3Factory::new()));
    #[cfg(feature = "gs")]
    let registry = registry.with_store("gs", std::sync::Arc::new(object::GcsFactory::new()));
    #[cfg(feature = "az")]
    let registry = registry.with_store("az", std::sync::Arc::new(object::AzureFactory::new()));
    registry
}

fn with_compressors(registry: Registry) -> Registry {
    #[cfg(feature = "lz4")]
    let registry = registry.with_compressor("lz4", |argument| match argument {
        None => Ok(std::sync::Arc::new(compress::Lz4)),
        Some(_) => Err("it takes no argument".into()),
    });
    #[cfg(feature = "snappy")]
    let registry = registry.with_compressor("snappy", |argument| match argument {
        None => Ok(std::sync::Arc::new(compress::Snappy::new())),
        Some(_) => Err("it takes no argument".into()),
    });
    #[cfg(feature = "zstd")]
    let registry = registry.with_compressor("zstd", |argument| {
        let level = match argument {
            None => return Ok(std::sync::Arc::new(compress::Zstd::default())),
            Some(level) => {
                level.parse().map_err(|_| format!("{level:?} is not a level: write a whole number"))?
            }
        };
        Ok(std::sync::Arc::new(compress::Zstd::new(level).map_err(|error| error.to_string())?))
    });
    registry
}

/// Opens what a config names, with the [`registry`] of this build, and gives a builder that has it all: what
/// is left to add is a codec and a weigher.
///
/// A memory limit in percent is one of what the container or machine has ([`total_memory`]).
///
/// # Errors
/// What is wrong with the settings, or a store that can't be opened. The message names file, key and fix.
///
/// # Cancel safety
/// As for [`Config::builder`].
pub async fn open<K: Key, V: Send + Sync + 'static>(config: &Config) -> Result<Builder<K, V>, ConfigError> {
    config.builder(&registry(), total_memory()).await
}

/// Keeps the README's code true.
#[cfg(all(doctest, feature = "fs", feature = "lz4"))]
#[doc = include_str!("../README.md")]
struct Readme;
