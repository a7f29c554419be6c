//! Reading back: values that were spilled are asked for in random order.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;

use super::{Scenario, dask, runtime_of};
use crate::{
    data::{self, Kind, Values},
    machine,
    meter::{self, Meter},
    systems::{self, Effort, Keeper, RawFile, Setup, raw_reads},
    trial::{Figures, Trial},
};

pub(crate) struct Restoring;

const LENGTHS: [(&str, usize); 3] = [("4 KiB", 4 << 10), ("64 KiB", 64 << 10), ("1 MiB", 1 << 20)];

/// How it is asked for.
const ONE: &str = "1 in flight";
const MANY: &str = "32 in flight";
const TOGETHER: &str = "get_many of 16";

const IN_FLIGHT: usize = 32;
const NEIGHBOURS: u64 = 16;

/// A case, of its name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case<'a> {
    pub(crate) length: usize,
    pub(crate) cold: bool,
    pub(crate) how: &'a str,
}

impl<'a> Case<'a> {
    pub(crate) fn parse(name: &'a str) -> Result<Self> {
        let parts: Vec<&str> = name.split(", ").collect();
        let [length, temperature, how] = parts[..] else { anyhow::bail!("no case {name:?}") };
        let length = LENGTHS.iter().find(|(known, _)| *known == length).context("no such length")?.1;
        Ok(Self { length, cold: temperature == "cold", how })
    }

    fn in_flight(&self) -> usize {
        if self.how == MANY { IN_FLIGHT } else { 1 }
    }

    /// Bytes that are written, and the memory there is for them.
    pub(crate) fn amounts(&self, quick: bool) -> (u64, u64) {
        match (quick, self.length) {
            (true, _) => (64 << 20, 8 << 20),
            (false, 4096) => (512 << 20, 64 << 20),
            (false, _) => (1 << 30, 64 << 20),
        }
    }

    /// In random order, some of those that nobody has in memory: twice as much was written after them.
    fn keys(&self, total: u64, memory: u64) -> Vec<u64> {
        let mut keys = data::shuffled((total - 2 * memory) / self.length as u64);
        // A few seconds' worth.
        keys.truncate(if self.in_flight() == 1 { 16_384 } else { 65_536 });
        keys
    }
}

impl Scenario for Restoring {
    fn name(&self) -> &'static str {
        "restore"
    }

    fn about(&self) -> &'static str {
        "1 GiB of values (512 MiB of 4 KiB) is written with memory for 64 MiB; then those that were written before \
         the last 128 MiB are asked for in random order, up to 65 536 of them (16 384 one at a time). Cold: their files \
         were taken out of the page cache; warm: they were read into it. fjall and redb have a thread for each read \
         in flight, the others two in all."
    }

    fn cases(&self, _: bool) -> Vec<String> {
        let mut cases = Vec::new();
        for (length, _) in LENGTHS {
            for temperature in ["cold", "warm"] {
                cases.extend([ONE, MANY].map(|how| format!("{length}, {temperature}, {how}")));
            }
        }
        cases.extend(LENGTHS[..2].iter().map(|(length, _)| format!("{length}, cold, {TOGETHER}")));
        cases
    }

    fn systems(&self, case: &str) -> Vec<&'static str> {
        let Ok(case) = Case::parse(case) else { return Vec::new() };
        if case.how == TOGETHER {
            return vec!["spill", "spill singly"];
        }
        let raw: &[_] = match (case.how == ONE, case.cold) {
            (true, _) => &["pread"],
            (false, true) => &["pread on threads", "io_uring O_DIRECT"],
            (false, false) => &["pread on threads"],
        };
        let mut systems = vec!["spill"];
        systems.extend(raw);
        systems.push("foyer paced");
        if case.cold {
            systems.push("foyer paced O_DIRECT");
        }
        systems.extend(["fjall", "redb", "files"]);
        // It answers one call at a time.
        if case.how == ONE {
            systems.push("dask");
        }
        systems
    }

    fn measures_memory(&self) -> bool {
        true
    }

    fn main_figure(&self) -> &'static str {
        "MB/s"
    }

    fn next_figures(&self) -> &'static [&'static str] {
        &[
            "reads/s",
            "CPU s/GiB",
            "peak MiB over memory",
            "peak less index MiB over memory",
            "read/value bytes",
            "read p50 µs",
            "read p99 µs",
            "read max µs",
        ]
    }

    fn trial(&self, trial: &Trial, dir: &Path) -> Result<Figures> {
        let case = Case::parse(&trial.case)?;
        match trial.system.as_str() {
            "pread" | "pread on threads" | "io_uring O_DIRECT" => raw(&trial.system, case, dir, trial.quick),
            "dask" => dask::restore(case, dir, trial.quick),
            system => {
                let workers = if systems::blocks(system) { case.in_flight().max(2) } else { 2 };
                runtime_of(workers)?.block_on(keeper(system, case, dir, trial.quick))
            }
        }
    }
}

fn set_temperature(case: Case<'_>, dir: &Path) -> Result<()> {
    if case.cold { machine::make_cold(dir) } else { machine::make_warm(dir) }
}

fn raw(system: &str, case: Case<'_>, dir: &Path, quick: bool) -> Result<Figures> {
    let (total, memory) = case.amounts(quick);
    let values = Values::new(Kind::Random, case.length);
    let memory_before = machine::memory_now();
    let mut file = RawFile::create(dir, Effort::CopyAndChecksum, &[0])?;
    for key in 0..total / case.length as u64 {
        file.append(&values.make(key))?;
    }
    file.flush()?;
    drop(file);
    set_temperature(case, dir)?;
    let keys = case.keys(total, memory);
    let reads =
        raw_reads::Reads { path: &dir.join("raw"), keys: &keys, length: case.length, values: &values };
    let meter = Meter::start(memory_before)?;
    let waits = match system {
        "io_uring O_DIRECT" => raw_reads::on_ring(&reads, IN_FLIGHT)?,
        _ => raw_reads::on_threads(&reads, case.in_flight())?,
    };
    let mut figures = meter.stop_reading(keys.len() as u64, (keys.len() * case.length) as u64);
    meter::quantiles(&mut figures, "read", &waits);
    Ok(figures)
}

async fn keeper(system: &str, case: Case<'_>, dir: &Path, quick: bool) -> Result<Figures> {
    let (mut total, memory) = case.amounts(quick);
    if system == "files" && case.length < 64 << 10 {
        // All of it is on the disk anyway, and making files takes long.
        total /= 2;
    }
    let values = Arc::new(Values::new(Kind::Random, case.length));
    let setup = Setup { dir, memory, total, value_length: case.length, compress: "none" };
    let memory_before = machine::memory_now();
    let keeper: Arc<dyn Keeper> = systems::open(system, &setup).await?.into();
    for key in 0..total / case.length as u64 {
        keeper.insert(key, values.make(key)).await?;
    }
    keeper.settle().await?;
    set_temperature(case, dir)?;
    let mut keys = case.keys(total, memory);
    if case.how == TOGETHER {
        keys = groups(&keys);
    }
    let keys: Arc<[u64]> = keys.into();
    let meter = Meter::start(memory_before)?;
    let waits = if case.how == TOGETHER && system == "spill" {
        // In a task, as the others.
        let (keeper, keys, values) = (Arc::clone(&keeper), Arc::clone(&keys), Arc::clone(&values));
        tokio::spawn(async move { together(&*keeper, &keys, &values).await }).await??
    } else {
        singly(&keeper, &keys, &values, case.in_flight()).await?
    };
    let peak = meter.peak_over(memory);
    let mut figures = meter.stop_reading(keys.len() as u64, (keys.len() * case.length) as u64);
    meter::peaks(&mut figures, peak, total.saturating_sub(keeper.only_in_memory()) / case.length as u64);
    meter::quantiles(&mut figures, "read", &waits);
    keeper.close().await?;
    Ok(figures)
}

/// Instead of keys, neighbours in the order in which they were inserted; the groups are in random order.
fn groups(keys: &[u64]) -> Vec<u64> {
    let firsts = keys.iter().filter(|key| key.is_multiple_of(NEIGHBOURS));
    firsts.flat_map(|first| *first..first + NEIGHBOURS).collect()
}

async fn together(keeper: &dyn Keeper, keys: &[u64], values: &Values) -> Result<Histogram<u64>> {
    let mut waits = meter::new_waits()?;
    for group in keys.chunks(usize::try_from(NEIGHBOURS)?) {
        let began = Instant::now();
        let found = keeper.get_many(group).await?;
        meter::record(&mut waits, began);
        ensure!(found.len() == group.len(), "{} values for {} keys", found.len(), group.len());
        for (key, value) in group.iter().zip(found) {
            values.check(*key, &value.with_context(|| format!("key {key} is lost"))?)?;
        }
    }
    Ok(waits)
}

/// So many tasks, each of which asks for the next key once it has its value.
async fn singly(
    keeper: &Arc<dyn Keeper>,
    keys: &Arc<[u64]>,
    values: &Arc<Values>,
    in_flight: usize,
) -> Result<Histogram<u64>> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for _ in 0..in_flight {
        let (keeper, keys, values) = (Arc::clone(keeper), Arc::clone(keys), Arc::clone(values));
        let next = Arc::clone(&next);
        tasks.push(tokio::spawn(async move {
            let mut waits = meter::new_waits()?;
            while let Some(key) = keys.get(next.fetch_add(1, Relaxed)) {
                let began = Instant::now();
                let value = keeper.get(*key).await?;
                meter::record(&mut waits, began);
                values.check(*key, &value.with_context(|| format!("key {key} is lost"))?)?;
            }
            anyhow::Ok(waits)
        }));
    }
    let mut waits = meter::new_waits()?;
    for task in tasks {
        waits.add(task.await??)?;
    }
    Ok(waits)
}
