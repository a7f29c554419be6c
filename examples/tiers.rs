//! Memory, then a small local directory, then object storage: an entry goes to the first that has room, and
//! a tier that is full or fails is passed over.
//!
//! `cargo run --example tiers --features object`

use std::collections::BTreeMap;

use spill_buffer::{ByteLength, BytesCodec, Config, Event, Location, format_bytes};

/// The bucket is one in memory here; `s3://bucket/prefix`, `gs://…` and `az://…` are written in its place.
const SETTINGS: &str = r#"
    [memory]
    limit = "2 MiB"
    on_full = "wait"
    wait_timeout = "10s"

    [[tier]]
    name = "directory"
    store = "file:///var/tmp/spill-tiers"
    max_spill = "4 MiB"
    compress = "lz4"        # keeps up with a disk

    [[tier]]
    name = "bucket"
    store = "memory:"
    max_spill = "1 TiB"
    compress = "zstd:3"     # fewer bytes to send
"#;

#[tokio::main]
#[expect(clippy::print_stdout, reason = "an example shows what it does")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::from_toml(SETTINGS, "spill.toml")?.with_process_env()?;
    let builder = spill_buffer::open::<u64, Vec<u8>>(&config).await?;
    let buffer = builder.codec(BytesCodec).weigher(ByteLength).build()?;
    let mut events = buffer.events();

    let total: u64 = 3_000;
    for key in 0..total {
        buffer.insert(key, reading(key)).await?;
    }

    // The buffer tells what it does; a log or a metric listens.
    let mut batches = BTreeMap::new();
    while let Some(event) = events.try_next() {
        if let Event::Spilled { tier, .. } = event {
            *batches.entry(tier).or_insert(0) += 1;
        }
    }
    println!("batches spilled: {batches:?}");

    let usage = buffer.usage();
    println!("in memory: {} entries", usage.memory.resident.entries);
    for tier in &usage.tiers {
        let limit = tier.max_spill.map_or("no limit".into(), format_bytes);
        println!("{}: {} entries, {} of {limit} stored", tier.name, tier.entries, format_bytes(tier.stored));
        assert!(tier.entries > 0 && tier.max_spill.is_none_or(|limit| tier.stored + tier.garbage <= limit));
    }

    // Where an entry is makes no difference to who reads it.
    let mut places = BTreeMap::new();
    for key in 0..total {
        let place = match buffer.location(&key).ok_or("a key is never lost")? {
            Location::Tier(name) => name,
            _ => "memory".to_owned(),
        };
        *places.entry(place).or_insert(0) += 1;
        assert_eq!(*buffer.get(&key).await?.ok_or("a key is never lost")?, reading(key));
    }
    println!("read from: {places:?}");

    buffer.close().await?;
    assert!(buffer.usage().is_empty());
    Ok(())
}

/// Some kilobytes that compress a little.
fn reading(key: u64) -> Vec<u8> {
    let mixed = (0..1024).map(|n| (key << 10 | n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40);
    mixed.flat_map(|number| number.to_le_bytes()).collect()
}
