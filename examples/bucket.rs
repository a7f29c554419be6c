//! A directory or a bucket: the program is the same, one line of the settings differs.
//!
//! `cargo run --example bucket --features s3` spills to memory, so that it runs anywhere. With a bucket:
//!
//! ```sh
//! AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=… AWS_REGION=eu-central-1 \
//!     cargo run --example bucket --features s3 -- s3://my-bucket/some/prefix
//! ```
//!
//! For a server of your own, its address follows: `-- s3://bucket/prefix http://127.0.0.1:8333`.

use spill_buffer::{ByteLength, BytesCodec, Config};

const SETTINGS: &str = r#"
    [memory]
    limit = "4 MiB"

    [[tier]]
    store = "memory:"       # or "file:///var/tmp/myapp", or "s3://bucket/prefix"
    max_spill = "1 GiB"
    compress = "zstd:1"
    timeout = "30s"         # without any progress
    retries = 3
"#;

#[tokio::main]
#[expect(clippy::print_stdout, reason = "an example shows what it does")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::from_toml(SETTINGS, "spill.toml")?.with_process_env()?;
    let mut arguments = std::env::args().skip(1);
    if let Some(url) = arguments.next() {
        config.tiers[0].store = url.parse()?;
    }
    if let Some(endpoint) = arguments.next() {
        // Plain HTTP has to be asked for; a server of one's own rarely cares for the region.
        let options = std::mem::take(&mut config.tiers[0].options).with("region", "us-east-1");
        let options = options.with("allow_http", endpoint.starts_with("http:").to_string());
        config.tiers[0].options = options.with("endpoint", endpoint);
    }

    // Wrong credentials or a bucket that is not there are an error here, not at the first spill.
    let builder = spill_buffer::open::<u32, Vec<u8>>(&config).await?;
    let buffer = builder.codec(BytesCodec).weigher(ByteLength).build()?;

    for key in 0..2_000 {
        buffer.insert(key, page(key)).await?; // 16 MB through 4 MiB
    }
    let tier = &buffer.usage().tiers[0];
    println!(
        "{}: {} entries, {} bytes stored in {} objects",
        tier.name, tier.entries, tier.stored, tier.blobs
    );
    assert!(tier.entries > 1_000);

    // Neighbours come back with one request.
    let before = buffer.stats().reads;
    let keys: Vec<u32> = (0..64).collect();
    for (key, value) in keys.iter().zip(buffer.get_many(&keys).await) {
        assert_eq!(*value?.ok_or("a key is never lost")?, page(*key));
    }
    println!("64 values by {} requests", buffer.stats().reads - before);

    buffer.close().await?; // Nothing of ours stays in the bucket.
    Ok(())
}

fn page(key: u32) -> Vec<u8> {
    format!("page {key} ").into_bytes().repeat(800)
}
