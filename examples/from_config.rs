//! Settings from a file, then from the environment, then from code: later ones win, and what is wrong is
//! refused with the fix.
//!
//! `SPILL_TIER_0_COMPRESS=none cargo run --example from_config`

use spill_buffer::{ByteLength, BytesCodec, Config, Error};

const FILE: &str = r#"
    [memory]
    limit = "64 MiB"
    policy = "s3-fifo"
    on_full = "reject"             # or wait, or keep

    [[tier]]
    name = "scratch"
    store = "file:///var/tmp/spill-from-config"
    max_spill = "1 MiB"
    compress = "lz4"
"#;

#[tokio::main]
#[expect(clippy::print_stdout, reason = "an example shows what it does")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // From a file on disk: `Config::from_file("spill.toml")`.
    let mut config = Config::from_toml(FILE, "spill.toml")?.with_process_env()?;
    config.memory.limit = Some("1 MiB".parse()?);

    let builder = spill_buffer::open::<String, Vec<u8>>(&config).await?;
    let buffer = builder.codec(BytesCodec).weigher(ByteLength).build()?;

    // Two limits of 1 MiB, and random bytes that don't compress: sooner or later there is no room.
    let mut refused = None;
    for n in 0..1000 {
        let value: Vec<u8> = (0..16 << 10).map(|_| rand::random()).collect();
        if let Err(error) = buffer.insert(format!("key {n}"), value).await {
            refused = Some((n, error)); // The value is in the error: nothing is lost.
            break;
        }
    }
    let (held, refusal) = refused.ok_or("two limits of 1 MiB hold no 16 MiB")?;
    println!("after {held} values: {}", refusal.error);
    assert!(matches!(refusal.error, Error::Full { .. }) && refusal.value.len() == 16 << 10);
    assert_eq!(buffer.len(), held);

    // Limits can be changed while it runs.
    buffer.set_max_spill(0, Some(1 << 30));
    buffer.insert("one more".to_owned(), refusal.value).await?;
    buffer.close().await?;

    // A mistake is refused before anything is opened.
    let mistake = Config::from_toml("[memory]\nlimmit = \"1 GiB\"", "spill.toml");
    println!("{}", mistake.err().ok_or("`limmit` is no setting")?);
    Ok(())
}
