//! A bucket as a tier, beside the bare client that uploads to it as fast as it can.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use hdrhistogram::Histogram;
use object_store::{ObjectStore, ObjectStoreExt, aws::AmazonS3Builder, path::Path as Name};
use spill_buffer::{ByteLength, BytesCodec, Config, SpillBuffer};
use tokio::task::JoinSet;

use super::{Scenario, runtime};
use crate::{
    data::{self, Kind, Values},
    machine,
    meter::{self, Meter},
    trial::{Figures, Trial},
};

pub(crate) struct Objects;

const LENGTHS: [(&str, usize); 3] = [("4 KiB", 4 << 10), ("64 KiB", 64 << 10), ("1 MiB", 1 << 20)];

/// Bytes of one object of the bare client.
const OBJECT: usize = 8 << 20;
const UPLOADS: usize = 8;
/// Reads, one after the other, whose times are taken.
const READS: usize = 1000;

/// Where the server is, and what its bucket is called. Who asks is read from `AWS_…` by the clients.
#[derive(Debug)]
struct Server {
    endpoint: String,
    bucket: String,
}

impl Server {
    fn find() -> Result<Self> {
        let variable = |name| std::env::var(name).with_context(|| format!("{name} is not set"));
        Ok(Self { endpoint: variable("S3_TEST_ENDPOINT")?, bucket: variable("S3_TEST_BUCKET")? })
    }
}

/// Bytes that go in, and the memory there is for them.
fn amounts(quick: bool) -> (usize, usize) {
    if quick { (96 << 20, 64 << 20) } else { (768 << 20, 256 << 20) }
}

impl Scenario for Objects {
    fn name(&self) -> &'static str {
        "object"
    }

    fn about(&self) -> &'static str {
        "A tier in a bucket, of an S3 server on the same machine: run it by `.ci/with-weed`, which starts one; otherwise \
         there are no cases. One task inserts 768 MiB of random bytes, with memory for 256 MiB; what the bucket has in the \
         end counts for MB/s. Then it gets spilled values, one at a time. `8 uploads` is the client by itself: objects \
         of 8 MiB, 8 at a time, and then ranges of them as long as a value."
    }

    fn cases(&self, _: bool) -> Vec<String> {
        let lengths = LENGTHS.iter().take(if Server::find().is_ok() { LENGTHS.len() } else { 0 });
        lengths.map(|(name, _)| (*name).into()).collect()
    }

    fn systems(&self, _: &str) -> Vec<&'static str> {
        vec!["spill", "8 uploads"]
    }

    fn measures_memory(&self) -> bool {
        true
    }

    fn main_figure(&self) -> &'static str {
        "MB/s"
    }

    fn trial(&self, trial: &Trial, _: &Path) -> Result<Figures> {
        let length = LENGTHS.iter().find(|(name, _)| *name == trial.case).context("no such length")?.1;
        let (total, memory) = amounts(trial.quick);
        runtime()?.block_on(async {
            let server = Server::find()?;
            match trial.system.as_str() {
                "spill" => spill(&server, length, total, memory).await,
                "8 uploads" => uploads(&server, length, total - memory).await,
                system => bail!("there is no system {system:?}"),
            }
        })
    }
}

fn figures(bytes: u64, time: Duration, requests: u64, reads: &Histogram<u64>) -> Figures {
    let (mb, gib) = (bytes as f64 / 1e6, bytes as f64 / f64::from(1 << 30));
    let read = |quantile| reads.value_at_quantile(quantile) as f64 / 1e6;
    Figures::from([
        ("MB/s".into(), mb / time.as_secs_f64()),
        ("requests/GiB".into(), requests as f64 / gib),
        ("get p50 ms".into(), read(0.5)),
        ("get p99 ms".into(), read(0.99)),
    ])
}

fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 100_000_000_000, 3)?)
}

async fn open(server: &Server, memory: usize) -> Result<SpillBuffer<u64, Bytes>> {
    let Server { endpoint, bucket } = server;
    let text = format!(
        "[memory]\nlimit = \"{memory}\"\n[[tier]]\nstore = \"s3://{bucket}/spill\"\ncompress = \"none\"\n\
         [tier.options]\nendpoint = \"{endpoint}\"\nallow_http = \"true\"\n"
    );
    let builder = spill_buffer::open(&Config::from_toml(&text, "the settings of the bench")?).await?;
    Ok(builder.codec(BytesCodec).weigher(ByteLength).build()?)
}

async fn spill(server: &Server, length: usize, total: usize, memory: usize) -> Result<Figures> {
    let values = Values::new(Kind::Random, length);
    let memory_before = machine::memory_now();
    let buffer = open(server, memory).await?;
    let meter = Meter::start(memory_before)?;
    let keys = (total / length) as u64;
    for key in 0..keys {
        buffer.insert(key, Bytes::from(values.make(key))).await?;
    }
    while buffer.usage().memory.spilling.entries > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let time = meter.elapsed();
    let peak = meter.peak_over(memory as u64);
    let (stats, spilled) = (buffer.stats(), buffer.usage().spilled.entries);
    let mut reads = histogram()?;
    let away = data::shuffled(keys).into_iter().filter(|key| buffer.peek(key).is_none());
    for key in away.take(READS).collect::<Vec<_>>() {
        let began = Instant::now();
        let value = buffer.get(&key).await?.context("a key is gone")?;
        reads.saturating_record(u64::try_from(began.elapsed().as_nanos())?);
        values.check(key, &value)?;
    }
    buffer.close().await?;
    let mut figures = figures(stats.bytes_written, time, stats.blobs_written, &reads);
    meter::peaks(&mut figures, peak, spilled);
    Ok(figures)
}

async fn uploads(server: &Server, length: usize, total: usize) -> Result<Figures> {
    let client = AmazonS3Builder::from_env()
        .with_endpoint(&server.endpoint)
        .with_bucket_name(&server.bucket)
        .with_allow_http(true)
        .build()?;
    let client: Arc<dyn ObjectStore> = Arc::new(client);
    let content = Values::new(Kind::Random, OBJECT).whole().slice(..OBJECT);
    let count = (total / OBJECT) as u64;
    let next = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let mut lanes = JoinSet::new();
    for _ in 0..UPLOADS {
        let (client, content, next) = (client.clone(), content.clone(), next.clone());
        lanes.spawn(async move {
            loop {
                let number = next.fetch_add(1, Relaxed);
                if number >= count {
                    return anyhow::Ok(());
                }
                client.put(&name(number), content.clone().into()).await?;
            }
        });
    }
    while let Some(lane) = lanes.join_next().await {
        lane??;
    }
    let time = began.elapsed();
    let mut reads = histogram()?;
    let places = (OBJECT / length) as u64;
    for place in data::shuffled(count * places).into_iter().take(READS) {
        let start = place % places * length as u64;
        let began = Instant::now();
        let value = client.get_range(&name(place / places), start..start + length as u64).await?;
        reads.saturating_record(u64::try_from(began.elapsed().as_nanos())?);
        ensure!(value.len() == length, "{} bytes came instead of {length}", value.len());
    }
    for number in 0..count {
        client.delete(&name(number)).await?;
    }
    Ok(figures(count * OBJECT as u64, time, count, &reads))
}

fn name(number: u64) -> Name {
    Name::from(format!("uploads/{number}"))
}
