//! A buffer of 16 MiB that holds 64 MiB: put together in code, filled, read, closed.
//!
//! `cargo run --example quickstart`

use spill_buffer::{
    ByteLength, BytesCodec, Location, SpillBuffer, TierSpec, compress::Lz4, format_bytes, fs::FsOptions,
    fs::FsStore,
};

#[tokio::main]
#[expect(clippy::print_stdout, reason = "an example shows what it does")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Where values go that don't fit: local files, compressed, at most 1 GiB.
    let store = FsStore::open(FsOptions::new("/var/tmp/spill-quickstart")).await?;
    let buffer = SpillBuffer::<u64, Vec<u8>>::builder()
        .memory_limit(16 << 20)
        .codec(BytesCodec)
        .weigher(ByteLength)
        .tier(TierSpec::new(store).compress(Lz4).max_spill(1 << 30))
        .build()?;

    // Waits now and then for the disk: that is how memory stays below the limit.
    for key in 0..1024 {
        buffer.insert(key, page(key)).await?;
    }
    let usage = buffer.usage();
    println!("{} entries, {} of them in memory", usage.entries, usage.memory.resident.entries);
    println!("{}", usage.tiers[0]);
    assert!(usage.memory.resident.weight <= 16 << 20);

    // Each is there, wherever it is.
    assert_eq!(buffer.location(&0), Some(Location::Tier(usage.tiers[0].name.clone())));
    for key in 0..1024 {
        let value = buffer.get(&key).await?.ok_or("no key is lost")?;
        assert_eq!(*value, page(key));
    }
    assert_eq!(buffer.get(&1024).await?, None);

    let stats = buffer.stats();
    println!("read back {} in {} reads", format_bytes(stats.bytes_read), stats.reads);

    // Removes all files, and the directory they were in.
    buffer.close().await?;
    assert!(buffer.usage().is_empty());
    Ok(())
}

fn page(key: u64) -> Vec<u8> {
    key.to_le_bytes().repeat(8 << 10)
}
