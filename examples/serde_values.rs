//! Values of your own type: anything that serde can write. Needs the feature `postcard`.
//!
//! `cargo run --example serde_values --features postcard`

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use spill_buffer::{MemoryStore, PostcardCodec, SpillBuffer, TierSpec};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    customer: String,
    lines: Vec<(String, u32)>,
    note: Option<String>,
}

/// What an order takes in memory, more or less: this is what the memory limit is held against.
fn weigh(_key: &u64, order: &Order) -> u64 {
    let text = |text: &String| size_of::<String>() + text.capacity();
    let lines: usize = order.lines.iter().map(|(article, _)| text(article) + size_of::<u32>()).sum();
    (size_of::<Order>() + text(&order.customer) + lines + order.note.as_ref().map_or(0, text)) as u64
}

fn order(number: u64) -> Order {
    Order {
        customer: format!("customer {}", number % 7),
        lines: (0..20).map(|line| (format!("article {line}"), line)).collect(),
        note: number.is_multiple_of(2).then(|| "leave at the door".to_owned()),
    }
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "an example shows what it does")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let buffer = SpillBuffer::<u64, Order>::builder()
        .memory_limit(256 << 10)
        .codec(PostcardCodec)
        .weigher(weigh)
        .tier(TierSpec::new(MemoryStore::new()))
        .build()?;
    for number in 0..2000 {
        buffer.insert(number, order(number)).await?;
    }
    println!("{}", buffer.usage().tiers[0]);

    // A value that somebody holds is the same value for everybody, and no copy of it.
    let held = buffer.get(&7).await?.ok_or("no key is lost")?;
    buffer.reclaim(256 << 10).await?;
    let again = buffer.get(&7).await?.ok_or("no key is lost")?;
    assert!(Arc::ptr_eq(&held, &again));
    assert_eq!(*held, order(7));

    // Changing a value is inserting a new one.
    buffer.insert(7, Order { note: Some("ring twice".into()), ..order(7) }).await?;
    assert_eq!(held.note, None);
    Ok(buffer.close().await?)
}
