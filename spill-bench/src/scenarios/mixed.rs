//! Reading and overwriting at once, for long: what reclaiming costs, and how much space it lets go to waste.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;

use super::{Scenario, runtime_of};
use crate::{
    data::{self, Kind, Values},
    machine,
    meter::{self, Meter},
    systems::{self, Keeper, Setup},
    trial::{Figures, Trial},
    watchdog,
};

pub(crate) struct Mixing;

const LENGTH: usize = 4 << 10;

/// Tasks at work; a key belongs to one of them, which so knows what it has to find.
const TASKS: u64 = 8;

/// How often one of them looks how much space the files take, in calls.
const LOOK_EVERY: usize = 1_000;

impl Scenario for Mixing {
    fn name(&self) -> &'static str {
        "mixed"
    }

    fn about(&self) -> &'static str {
        "65 536 values of 4 KiB, four times the memory; then 8 tasks do 400 000 calls, every other one an overwrite, \
         the others reads, of keys that are zipf-distributed (0.99). Live are 256 MiB, in memory or not. Stale: \
         reads that brought an older value than the last one written, lost: reads that found nothing."
    }

    fn cases(&self, _: bool) -> Vec<String> {
        vec!["4 KiB".into()]
    }

    fn systems(&self, _: &str) -> Vec<&'static str> {
        vec!["spill", "foyer paced", "fjall", "redb"]
    }

    fn measures_memory(&self) -> bool {
        true
    }

    fn main_figure(&self) -> &'static str {
        "ops/s"
    }

    fn next_figures(&self) -> &'static [&'static str] {
        &[
            "CPU s/1e6 ops",
            "allocated/live at most",
            "allocated/live at the end",
            "peak MiB over memory",
            "peak less index MiB over memory",
            "stale",
            "lost",
            "read p50 µs",
            "read p99 µs",
            "read max µs",
            "insert p50 µs",
            "insert p99 µs",
            "insert max µs",
        ]
    }

    fn trial(&self, trial: &Trial, dir: &Path) -> Result<Figures> {
        let workers = if systems::blocks(&trial.system) { usize::try_from(TASKS)? } else { 2 };
        runtime_of(workers)?.block_on(mix(&trial.system, dir, trial.quick))
    }
}

/// What one task does, and what it met.
struct Task {
    keeper: Arc<dyn Keeper>,
    values: Arc<Values>,
    keys: Vec<u64>,
    /// By key, how often it was written.
    versions: Vec<u64>,
    /// Whether to look at the space.
    looks_at: Option<PathBuf>,
    met: Met,
}

struct Met {
    reads: Histogram<u64>,
    inserts: Histogram<u64>,
    stale: u64,
    lost: u64,
    most_allocated: u64,
}

impl Met {
    fn new() -> Result<Self> {
        let (reads, inserts) = (meter::new_waits()?, meter::new_waits()?);
        Ok(Self { reads, inserts, stale: 0, lost: 0, most_allocated: 0 })
    }
}

/// Values say which they are: the key at the start, then the version.
fn make(values: &Values, key: u64, version: u64) -> Vec<u8> {
    let mut value = values.make(key);
    value[8..16].copy_from_slice(&version.to_le_bytes());
    value
}

impl Task {
    async fn run(mut self) -> Result<Met> {
        for (number, key) in std::mem::take(&mut self.keys).into_iter().enumerate() {
            let place = usize::try_from(key)?;
            let began = Instant::now();
            if number % 2 == 0 {
                let value = self.keeper.get(key).await?;
                meter::record(&mut self.met.reads, began);
                self.check(key, value.as_deref())?;
            } else {
                self.versions[place] += 1;
                let value = make(&self.values, key, self.versions[place]);
                let began = Instant::now();
                self.keeper.insert(key, value).await?;
                meter::record(&mut self.met.inserts, began);
            }
            watchdog::sign();
            if let (0, Some(dir)) = (number % LOOK_EVERY, &self.looks_at) {
                let allocated = allocated_below(dir).await?;
                self.met.most_allocated = self.met.most_allocated.max(allocated);
            }
        }
        Ok(self.met)
    }

    fn check(&mut self, key: u64, value: Option<&[u8]>) -> Result<()> {
        let Some(value) = value else {
            self.met.lost += 1;
            return Ok(());
        };
        self.values.check(key, value)?;
        let version = self.versions[usize::try_from(key)?].to_le_bytes();
        self.met.stale += u64::from(value[8..16] != version);
        Ok(())
    }
}

async fn allocated_below(dir: &Path) -> Result<u64> {
    let dir = dir.to_path_buf();
    Ok(watchdog::elsewhere(move || machine::files_below(&dir)).await??.1)
}

/// What one task needs that is made before the memory is looked at.
struct Plan {
    task: u64,
    keys: Vec<u64>,
    versions: Vec<u64>,
    met: Met,
}

fn plans(count: u64, calls: usize) -> Result<Vec<Plan>> {
    let plan = |task| {
        let keys = data::zipf(count, 0.99, calls / usize::try_from(TASKS)?, task)?;
        let keys: Vec<u64> = keys.into_iter().map(|key| key - key % TASKS + task).collect();
        Ok(Plan { task, keys, versions: vec![1; usize::try_from(count)?], met: Met::new()? })
    };
    (0..TASKS).map(plan).collect()
}

pub(super) async fn mix(system: &str, dir: &Path, quick: bool) -> Result<Figures> {
    let (memory, calls) = if quick { (8 << 20, 40_000) } else { (64 << 20, 400_000) };
    let values = Arc::new(watchdog::elsewhere(|| Values::new(Kind::Random, LENGTH)).await?);
    let count = 4 * memory / LENGTH as u64;
    let live = 4 * memory;
    // Enough for every overwrite to be somewhere else.
    let total = live + calls as u64 * LENGTH as u64;
    let setup = Setup { dir, memory, total, value_length: LENGTH, compress: "none" };
    // Before the memory is looked at: what the bench itself needs is not the system's.
    let plans = watchdog::elsewhere(move || plans(count, calls)).await??;
    let memory_before = machine::memory_now();
    let keeper: Arc<dyn Keeper> = systems::open(system, &setup).await?.into();
    for key in 0..count {
        keeper.insert(key, make(&values, key, 1)).await?;
        watchdog::sign();
    }
    keeper.settle().await?;
    let tasks = plans.into_iter().map(|Plan { task, keys, versions, met }| Task {
        keeper: Arc::clone(&keeper),
        values: Arc::clone(&values),
        keys,
        versions,
        looks_at: (task == 0).then(|| dir.to_path_buf()),
        met,
    });
    let before = keeper.counts();
    let meter = Meter::start(memory_before)?;
    let running: Vec<_> = tasks.map(|task| tokio::spawn(watchdog::signing(task.run()))).collect();
    let mut met = Met::new()?;
    for task in running {
        add(&mut met, &task.await??)?;
    }
    let (elapsed, cpu, peak) = (meter.elapsed(), meter.cpu(), meter.peak_over(memory));
    keeper.settle().await?;
    let allocated = allocated_below(dir).await?;
    ensure!(met.reads.len() + met.inserts.len() > 0, "nothing was done");
    let per_call = 1e6 / calls as f64;
    let mut figures = Figures::from([
        ("ops/s".into(), calls as f64 / elapsed.as_secs_f64()),
        ("CPU s/1e6 ops".into(), cpu.as_secs_f64() * per_call),
        ("allocated/live at most".into(), met.most_allocated.max(allocated) as f64 / live as f64),
        ("allocated/live at the end".into(), allocated as f64 / live as f64),
        ("stale".into(), met.stale as f64),
        ("lost".into(), met.lost as f64),
    ]);
    meter::peaks(&mut figures, peak, live.saturating_sub(keeper.only_in_memory()) / LENGTH as u64);
    meter::quantiles(&mut figures, "read", &met.reads);
    meter::quantiles(&mut figures, "insert", &met.inserts);
    for ((name, after), (_, before)) in keeper.counts().into_iter().zip(before) {
        figures.insert(format!("{name} %"), (after - before) as f64 / met.reads.len() as f64 * 100.0);
    }
    watchdog::closing();
    keeper.close().await?;
    Ok(figures)
}

fn add(met: &mut Met, more: &Met) -> Result<()> {
    met.reads.add(&more.reads)?;
    met.inserts.add(&more.inserts)?;
    met.stale += more.stale;
    met.lost += more.lost;
    met.most_allocated = met.most_allocated.max(more.most_allocated);
    Ok(())
}
