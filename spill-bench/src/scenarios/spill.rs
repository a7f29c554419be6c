//! Writing: many times what memory holds goes in, by one task, as fast as it is taken.

use std::{path::Path, time::Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

use super::{Scenario, runtime};
use crate::{
    data::{Kind, Values},
    machine,
    systems::{self, BLOCK, Effort, RawFile, Setup},
    trial::{Figures, Trial},
};

pub(crate) struct Spilling;

const LENGTHS: [(&str, usize); 5] =
    [("512 B", 512), ("4 KiB", 4 << 10), ("64 KiB", 64 << 10), ("1 MiB", 1 << 20), ("16 MiB", 16 << 20)];

/// What is written of each kind: every length of random bytes as it is; text and rows with every codec.
const COMPRESSED: [&str; 3] = ["lz4", "zstd:1", "auto"];

/// A case, of its name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) length: usize,
    pub(crate) kind: Kind,
    pub(crate) compress: &'static str,
}

impl Case {
    pub(crate) fn parse(name: &str) -> Result<Self> {
        let mut parts = name.split(", ");
        let mut part = || parts.next().with_context(|| format!("no case {name:?}"));
        let length = part()?;
        let length = LENGTHS.iter().find(|(known, _)| *known == length).context("no such length")?.1;
        let kind = Kind::parse(part()?)?;
        let compress = part()?;
        let compress = ["none"].iter().chain(&COMPRESSED).find(|known| **known == compress);
        Ok(Self { length, kind, compress: compress.context("no such codec")? })
    }

    fn is_raw(&self) -> bool {
        self.compress == "none"
    }
}

/// Bytes that go in, and the memory there is for them.
pub(crate) fn amounts(quick: bool) -> (u64, u64) {
    if quick { (96 << 20, 48 << 20) } else { (2 << 30, 128 << 20) }
}

impl Scenario for Spilling {
    fn name(&self) -> &'static str {
        "spill"
    }

    fn about(&self) -> &'static str {
        "One task inserts 2 GiB of values, with memory for 128 MiB. Until the last of it is with the operating \
         system counts for MB/s, until it is on the disk for MB/s synced; what stayed in memory does not count."
    }

    fn cases(&self, _: bool) -> Vec<String> {
        let raw = LENGTHS.iter().map(|(length, _)| format!("{length}, random, none"));
        let kinds = [Kind::Text, Kind::Mixed, Kind::Int64];
        let packed = kinds.iter().flat_map(|kind| COMPRESSED.map(|codec| format!("64 KiB, {kind}, {codec}")));
        let small = COMPRESSED.map(|codec| format!("4 KiB, text, {codec}"));
        raw.chain(packed).chain(small).collect()
    }

    fn systems(&self, case: &str) -> Vec<&'static str> {
        match Case::parse(case) {
            Ok(case) if case.is_raw() => vec!["spill", "raw", "raw+copy+checksum"],
            _ => vec!["spill"],
        }
    }

    fn main_figure(&self) -> &'static str {
        "MB/s"
    }

    fn trial(&self, trial: &Trial, dir: &Path) -> Result<Figures> {
        let case = Case::parse(&trial.case)?;
        let (total, memory) = amounts(trial.quick);
        match trial.system.as_str() {
            "raw" => raw(case, dir, total - memory, Effort::Nothing),
            "raw+copy+checksum" => raw(case, dir, total - memory, Effort::CopyAndChecksum),
            system => runtime()?.block_on(keeper(system, case, dir, total, memory)),
        }
    }
}

/// What the process used since it began.
struct Meter {
    began: Instant,
    cpu: std::time::Duration,
    memory: u64,
    written: u64,
}

impl Meter {
    fn start() -> Result<Self> {
        machine::forget_memory_peak()?;
        Ok(Self {
            began: Instant::now(),
            cpu: machine::cpu_time(),
            memory: machine::memory_now(),
            written: machine::written(),
        })
    }

    /// Ends with a sync. `bytes` were written; everything that was done for it until now counts.
    fn stop(self, dir: &Path, bytes: u64) -> Result<Figures> {
        let elapsed = self.began.elapsed();
        let peak = machine::memory_peak().saturating_sub(self.memory);
        machine::sync(dir)?;
        let synced = self.began.elapsed();
        let cpu = machine::cpu_time() - self.cpu;
        let (stored, allocated) = machine::files_below(dir)?;
        let bytes = bytes as f64;
        Ok(Figures::from([
            ("MB/s".into(), bytes / elapsed.as_secs_f64() / 1e6),
            ("MB/s synced".into(), bytes / synced.as_secs_f64() / 1e6),
            ("CPU s/GiB".into(), cpu.as_secs_f64() / (bytes / f64::from(1 << 30))),
            ("peak MiB".into(), peak as f64 / f64::from(1 << 20)),
            ("written/value bytes".into(), (machine::written() - self.written) as f64 / bytes),
            ("allocated/stored".into(), allocated as f64 / stored as f64),
            ("stored/value bytes".into(), stored as f64 / bytes),
        ]))
    }
}

fn raw(case: Case, dir: &Path, total: u64, effort: Effort) -> Result<Figures> {
    let values = Values::new(case.kind, case.length);
    let block = values.whole();
    let mut file = RawFile::create(dir, effort, &block[..BLOCK])?;
    let meter = Meter::start()?;
    let length = if effort == Effort::Nothing { BLOCK } else { case.length };
    for number in 0..total / length as u64 {
        let start = usize::try_from(number)? * length % (block.len() - length);
        file.append(&block[start..start + length])?;
    }
    file.flush()?;
    meter.stop(dir, total / length as u64 * length as u64)
}

async fn keeper(system: &str, case: Case, dir: &Path, total: u64, memory: u64) -> Result<Figures> {
    let values = Values::new(case.kind, case.length);
    let setup = Setup { dir, memory, value_length: case.length, compress: case.compress };
    let keeper = systems::open(system, &setup).await?;
    let mut waits = Histogram::<u64>::new_with_bounds(1, 100_000_000_000, 3)?;
    let meter = Meter::start()?;
    let count = total / case.length as u64;
    for key in 0..count {
        let value = values.make(key);
        let began = Instant::now();
        keeper.insert(key, value).await?;
        waits.saturating_record(u64::try_from(began.elapsed().as_nanos())?);
    }
    keeper.settle().await?;
    let inserted = count * case.length as u64;
    let mut figures = meter.stop(dir, inserted - keeper.only_in_memory())?;
    let over = figures.get("peak MiB").copied().unwrap_or_default() - (memory >> 20) as f64;
    figures.insert("peak MiB over memory".into(), over);
    for (name, quantile) in [("insert p50 µs", 0.5), ("insert p99 µs", 0.99), ("insert max µs", 1.0)] {
        figures.insert(name.into(), waits.value_at_quantile(quantile) as f64 / 1e3);
    }
    keeper.close().await?;
    Ok(figures)
}
