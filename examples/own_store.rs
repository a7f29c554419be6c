//! A store of your own: proven by the conformance suite, registered by value, named in a config.
//! The store itself is in `own_store/shelf.rs`.
//!
//! `cargo run --example own_store`

#[path = "own_store/shelf.rs"]
mod shelf;

use std::sync::Arc;

use shelf::Shelf;
use spill_buffer::{ByteLength, BytesCodec, Config, Options, Store, StoreError, StoreFactory, StoreInfo};
use spill_conformance::{StoreHarness, store_suite};
use url::Url;

/// Opens a shelf for URLs like `shelf:left`.
#[derive(Debug)]
struct Shelves;

#[async_trait::async_trait]
impl StoreFactory for Shelves {
    async fn open(&self, url: &Url, options: Options) -> Result<Arc<dyn Store>, StoreError> {
        options.finish("open", url.as_str())?; // What nobody has taken is a spelling mistake.
        Ok(Arc::new(Shelf(StoreInfo::new(url.as_str()), Default::default())))
    }
}

const SETTINGS: &str = r#"
    [memory]
    limit = "1 MiB"

    [[tier]]
    store = "shelf:left"
    max_spill = "64 MiB"
"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Some eighty cases, on two kinds of runtime: does it keep what it is given, whatever happens?
    let open = |name: String| async move {
        Ok(Arc::new(Shelf(StoreInfo::new(name), Default::default())) as Arc<dyn Store>)
    };
    store_suite(StoreHarness::new(open)).report().assert_passed();
    tokio::runtime::Runtime::new()?.block_on(use_it())
}

async fn use_it() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::from_toml(SETTINGS, "spill.toml")?;
    let registry = spill_buffer::registry().with_store("shelf", Arc::new(Shelves));
    let builder = config.builder::<u64, Vec<u8>>(&registry, None).await?;
    let buffer = builder.codec(BytesCodec).weigher(ByteLength).build()?;
    for key in 0..100 {
        buffer.insert(key, vec![7; 64 << 10]).await?;
    }
    assert_eq!(buffer.get(&0).await?.as_deref(), Some(&vec![7; 64 << 10]));
    assert!(buffer.usage().tiers[0].stored > 5 << 20);
    Ok(buffer.close().await?)
}
