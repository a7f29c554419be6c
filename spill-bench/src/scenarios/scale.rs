//! More keys: what a call costs, and how much memory a key takes, from 10^4 to 10^7 of them.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use spill_buffer::{
    ByteLength, BytesCodec, SpillBuffer, TierSpec,
    fs::{FsOptions, FsStore},
};

use super::{Scenario, runtime};
use crate::{
    data, machine,
    systems::memory::{MemoryCache, PlainMap, Spill},
    trial::{Figures, Trial},
};

pub(crate) struct Scale;

const SIZES: [(&str, usize); 4] =
    [("10^4 keys", 10_000), ("10^5 keys", 100_000), ("10^6 keys", 1_000_000), ("10^7 keys", 10_000_000)];

/// Bytes of a value that is spilled.
const VALUE: usize = 16;

/// What the spill path gets for its buffers, whatever the number of keys is.
const BUFFERS: u64 = 4 << 20;

/// The most reads and removes of each kind that are measured, in keys taken at random.
const MOST: usize = 1_000_000;

impl Scenario for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn about(&self) -> &'static str {
        "u64 keys, one thread. Resident: values of 64 bytes, all in memory. Spilled: values of 16 bytes, memory for a \
         quarter of them, files in the page cache; a get of a spilled one makes another leave. Bytes per spilled key are \
         what the memory of the process grows by when every value is spilled. The plain map is a floor: what it costs \
         more with more keys are misses of the processor's caches."
    }

    fn cases(&self, quick: bool) -> Vec<String> {
        let sizes = SIZES.iter().take(if quick { 3 } else { 4 });
        sizes.map(|(name, _)| (*name).into()).collect()
    }

    fn systems(&self, _: &str) -> Vec<&'static str> {
        vec!["spill", "dashmap"]
    }

    fn main_figure(&self) -> &'static str {
        "ns/get resident"
    }

    fn less_is_better(&self) -> bool {
        true
    }

    fn trial(&self, trial: &Trial, dir: &Path) -> Result<Figures> {
        let size = SIZES.iter().find(|(name, _)| *name == trial.case);
        let keys = size.context("there is no such size")?.1;
        let order = data::shuffled(keys as u64);
        runtime()?.block_on(async {
            match trial.system.as_str() {
                "dashmap" => resident::<PlainMap<u64>>(&order).await,
                "spill" => {
                    // Memory first: what later parts leave with the allocator would hide some of it.
                    let bytes = bytes_per_key(keys, dir).await?;
                    let mut figures = Figures::from([("bytes/spilled key".into(), bytes)]);
                    figures.append(&mut spilled(&order, dir).await?);
                    figures.append(&mut resident::<Spill<u64>>(&order).await?);
                    Ok(figures)
                }
                system => bail!("there is no system {system:?}"),
            }
        })
    }
}

/// Time, and how many calls took it.
#[derive(Debug, Default)]
struct Clock {
    time: Duration,
    calls: usize,
}

impl Clock {
    fn add(&mut self, began: Instant, calls: usize) {
        self.time += began.elapsed();
        self.calls += calls;
    }

    fn each(&self) -> f64 {
        self.time.as_secs_f64() * 1e9 / self.calls as f64
    }
}

/// Few keys are done with so quickly that it has to be done again.
fn repeats(keys: usize) -> usize {
    (MOST / keys).clamp(1, 10)
}

async fn resident<C: MemoryCache<u64>>(order: &[u64]) -> Result<Figures> {
    let [mut insert, mut get, mut remove] = [(); 3].map(|()| Clock::default());
    let some = &order[..order.len().min(MOST)];
    for _ in 0..repeats(order.len()) {
        let cache = C::open("", order.len())?;
        let began = Instant::now();
        for key in 0..order.len() as u64 {
            cache.insert(key, [0x5b; 64]).await?;
        }
        insert.add(began, order.len());
        let began = Instant::now();
        for key in some {
            ensure!(cache.get(key).await?.is_some(), "key {key} is gone");
        }
        get.add(began, some.len());
        let began = Instant::now();
        for key in some {
            cache.remove_oldest(key)?;
        }
        remove.add(began, some.len());
    }
    Ok(Figures::from([
        ("ns/insert resident".into(), insert.each()),
        ("ns/get resident".into(), get.each()),
        ("ns/remove resident".into(), remove.each()),
    ]))
}

async fn open(memory: u64, dir: &Path) -> Result<SpillBuffer<u64, Bytes>> {
    let store = FsStore::open(FsOptions::new(dir)).await?;
    let builder = SpillBuffer::builder().memory_limit(memory + BUFFERS).spill_buffers(BUFFERS);
    Ok(builder.codec(BytesCodec).weigher(ByteLength).tier(TierSpec::new(store)).build()?)
}

async fn fill(buffer: &SpillBuffer<u64, Bytes>, keys: usize) -> Result<()> {
    for key in 0..keys as u64 {
        let mut value = [0x5b; VALUE];
        value[..8].copy_from_slice(&key.to_le_bytes());
        buffer.insert(key, Bytes::copy_from_slice(&value)).await?;
    }
    Ok(())
}

async fn bytes_per_key(keys: usize, dir: &Path) -> Result<f64> {
    // A first one touches what every buffer needs, however many keys there are.
    let first = open(64 << 10, dir).await?;
    fill(&first, 100_000).await?;
    first.reclaim(u64::MAX).await?;
    first.close().await?;
    drop(first);
    let before = machine::memory_now();
    let buffer = open(64 << 10, dir).await?;
    fill(&buffer, keys).await?;
    buffer.reclaim(u64::MAX).await?;
    let after = machine::memory_now();
    ensure!(buffer.usage().spilled.entries == keys as u64, "not everything was spilled");
    buffer.close().await?;
    Ok(after.saturating_sub(before) as f64 / keys as f64)
}

async fn spilled(order: &[u64], dir: &Path) -> Result<Figures> {
    let [mut insert, mut get, mut remove] = [(); 3].map(|()| Clock::default());
    for _ in 0..repeats(order.len()) {
        let buffer = open((order.len() * VALUE / 4) as u64, dir).await?;
        let began = Instant::now();
        fill(&buffer, order.len()).await?;
        insert.add(began, order.len());
        while buffer.usage().memory.spilling.entries > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // A tenth: each costs about a hundred times what a hit does.
        let some = &order[..order.len().min(MOST) / 10];
        let restored = buffer.stats().hits_restored;
        let mut time = Duration::ZERO;
        for key in some {
            if buffer.peek(key).is_none() {
                let began = Instant::now();
                ensure!(buffer.get(key).await?.is_some(), "key {key} is gone");
                time += began.elapsed();
            }
        }
        get.time += time;
        get.calls += usize::try_from(buffer.stats().hits_restored - restored)?;
        let began = Instant::now();
        for key in some {
            ensure!(buffer.remove(key)?, "key {key} is gone");
        }
        remove.add(began, some.len());
        buffer.close().await?;
    }
    Ok(Figures::from([
        ("ns/insert spilled".into(), insert.each()),
        ("ns/get spilled".into(), get.each()),
        ("ns/remove spilled".into(), remove.each()),
    ]))
}
