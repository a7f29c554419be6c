//! Writing: many times what memory holds goes in, by one task, as fast as it is taken.

use std::{
    path::Path,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};

use super::{Scenario, dask, runtime};
use crate::{
    data::{Kind, Values},
    machine,
    meter::{self, Meter},
    systems::{self, BLOCK, Effort, RawFile, Setup},
    trial::{Figures, Trial},
    watchdog,
};

pub(crate) struct Spilling;

const LENGTHS: [(&str, usize); 5] =
    [("512 B", 512), ("4 KiB", 4 << 10), ("64 KiB", 64 << 10), ("1 MiB", 1 << 20), ("16 MiB", 16 << 20)];

/// What is written of each kind: every length of random bytes as it is; 64 KiB of everything, and 4 KiB of text, with
/// each of these.
const CODECS: [&str; 4] = ["none", "lz4", "zstd:1", "auto"];

/// What the machine has, and two writing jobs of Spill use.
const CODEC_THREADS: usize = 2;

/// Bytes of values that are made in a row, so that looking at the clock costs little; 2 GiB would take all memory.
const AHEAD: usize = 256 << 10;

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
        let compress = CODECS.iter().find(|known| **known == compress);
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
         system counts for MB/s, until it is on the disk for MB/s synced; what stayed in memory does not count. \
         Making the values is the bench's work: it is taken out of the CPU time, and is in the time of all that insert, by \
         the share shown, but not in that of the raw disk. (dask's CPU time has it in.) `bare codec` is two threads that compress the same and write \
         nothing. One file per value gets 128 MiB of small values, dask 20 000 of 4 KiB, 512 MiB of 64 KiB, 1 GiB of 1 MiB, \
         and a sixteenth of it as memory."
    }

    fn cases(&self, _: bool) -> Vec<String> {
        let raw = LENGTHS.iter().map(|(length, _)| format!("{length}, random, none"));
        let kinds = [Kind::Text, Kind::Mixed, Kind::Int64, Kind::Random];
        let packed = kinds.iter().flat_map(|kind| CODECS.map(|codec| format!("64 KiB, {kind}, {codec}")));
        let small = CODECS.map(|codec| format!("4 KiB, text, {codec}"));
        let mut cases: Vec<String> = raw.collect();
        for case in packed.chain(small) {
            if !cases.contains(&case) {
                cases.push(case);
            }
        }
        cases
    }

    fn systems(&self, case: &str) -> Vec<&'static str> {
        match Case::parse(case) {
            Ok(case) if case.is_raw() && case.kind == Kind::Random => {
                let mut systems = vec!["spill", "raw", "raw O_DIRECT", "raw+copy+checksum"];
                systems.extend(["foyer paced", "foyer paced O_DIRECT", "fjall", "redb"]);
                if case.length >= 4 << 10 {
                    systems.push("files");
                }
                if (4 << 10..=1 << 20).contains(&case.length) {
                    systems.push("dask");
                }
                systems
            }
            // The only other that compresses: the block engine of foyer 0.22.6 ignores its setting for it.
            Ok(Case { compress: "lz4", .. }) => vec!["spill", "bare codec", "raw", "raw O_DIRECT", "fjall"],
            Ok(Case { compress: "zstd:1", .. }) => vec!["spill", "bare codec", "raw", "raw O_DIRECT"],
            _ => vec!["spill"],
        }
    }

    fn measures_memory(&self) -> bool {
        true
    }

    fn main_figure(&self) -> &'static str {
        "MB/s"
    }

    fn next_figures(&self) -> &'static [&'static str] {
        &[
            "MB/s synced",
            "CPU s/GiB",
            "peak MiB over memory",
            "peak less index MiB over memory",
            "insert p50 µs",
            "insert p99 µs",
            "insert max µs",
            "written/value bytes",
            "stored/value bytes",
            "allocated/stored",
        ]
    }

    fn trial(&self, trial: &Trial, dir: &Path) -> Result<Figures> {
        let case = Case::parse(&trial.case)?;
        let (total, memory) = amounts(trial.quick);
        match trial.system.as_str() {
            "raw O_DIRECT" => raw(case, dir, total - memory, Effort::PastTheCache),
            "raw" => raw(case, dir, total - memory, Effort::Nothing),
            "raw+copy+checksum" => raw(case, dir, total - memory, Effort::CopyAndChecksum),
            "bare codec" => bare_codec(case, total - memory),
            "dask" => dask::spill(case.length, dir, trial.quick),
            system => runtime()?.block_on(keeper(system, case, dir, total, memory)),
        }
    }
}

fn raw(case: Case, dir: &Path, total: u64, effort: Effort) -> Result<Figures> {
    let values = Values::new(case.kind, case.length);
    let block = values.whole();
    let mut file = RawFile::create(dir, effort, &block[..BLOCK])?;
    let meter = Meter::start(machine::memory_now())?;
    let length = if effort == Effort::CopyAndChecksum { case.length } else { BLOCK };
    for number in 0..total / length as u64 {
        let start = usize::try_from(number)? * length % (block.len() - length);
        file.append(&block[start..start + length])?;
    }
    file.flush()?;
    meter.stop_writing(dir, total / length as u64 * length as u64)
}

/// The same bytes through the codec alone, on so many threads as there are cores, into a buffer that each uses again.
fn bare_codec(case: Case, total: u64) -> Result<Figures> {
    let (name, level) = case.compress.split_once(':').map_or((case.compress, None), |(n, l)| (n, Some(l)));
    let codec = spill_buffer::registry().compressor(name, level)?;
    let values = Values::new(case.kind, case.length);
    let count = total / case.length as u64;
    let next = AtomicU64::new(0);
    let packed = AtomicU64::new(0);
    let lane = || -> Result<()> {
        let mut out = vec![0; codec.bound(case.length)];
        loop {
            let key = next.fetch_add(1, Relaxed);
            if key >= count {
                return Ok(());
            }
            packed.fetch_add(codec.compress(values.at(key), &mut out)? as u64, Relaxed);
        }
    };
    let meter = Meter::start(machine::memory_now())?;
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..CODEC_THREADS).map(|_| scope.spawn(lane)).collect();
        let join = |one: std::thread::ScopedJoinHandle<'_, _>| {
            one.join().map_err(|_| anyhow!("a thread panicked"))?
        };
        lanes.into_iter().try_for_each(join)
    })?;
    let bytes = (count * case.length as u64) as f64;
    let rate = bytes / meter.elapsed().as_secs_f64() / 1e6;
    // Nothing is written: there is nothing to sync.
    Ok(Figures::from([
        ("MB/s".into(), rate),
        ("MB/s synced".into(), rate),
        ("CPU s/GiB".into(), meter.cpu().as_secs_f64() / (bytes / f64::from(1 << 30))),
        ("stored/value bytes".into(), packed.into_inner() as f64 / bytes),
    ]))
}

/// Files of their own for small values take minutes for 2 GiB, and as long per value however many there are.
fn total_for(system: &str, case: Case, total: u64) -> u64 {
    if system == "files" && case.length < 64 << 10 { total / 16 } else { total }
}

/// What making values took, which is work of the bench and of one thread.
#[derive(Debug, Default)]
struct Making {
    time: Duration,
    cpu: Duration,
}

impl Making {
    fn of<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let (began, cpu) = (Instant::now(), machine::cpu_time_of_thread());
        let made = work();
        self.time += began.elapsed();
        self.cpu += machine::cpu_time_of_thread().saturating_sub(cpu);
        made
    }
}

pub(super) async fn keeper(system: &str, case: Case, dir: &Path, total: u64, memory: u64) -> Result<Figures> {
    let values = watchdog::elsewhere(move || Values::new(case.kind, case.length)).await?;
    let total = total_for(system, case, total);
    let setup = Setup { dir, memory, total, value_length: case.length, compress: case.compress };
    let memory_before = machine::memory_now();
    let keeper = systems::open(system, &setup).await?;
    let mut waits = meter::new_waits()?;
    let meter = Meter::start(memory_before)?;
    let count = total / case.length as u64;
    let mut making = Making::default();
    let ahead = (AHEAD / case.length).max(1) as u64;
    for first in (0..count).step_by(usize::try_from(ahead)?) {
        let keys = first..count.min(first + ahead);
        let made =
            watchdog::apart(|| making.of(|| keys.clone().map(|key| values.make(key)).collect::<Vec<_>>()));
        for (key, value) in keys.zip(made) {
            let began = Instant::now();
            keeper.insert(key, value).await?;
            meter::record(&mut waits, began);
            watchdog::sign();
        }
    }
    keeper.settle().await?;
    let inserted = count * case.length as u64;
    let making_share = making.time.as_secs_f64() / meter.elapsed().as_secs_f64();
    let written = inserted - keeper.only_in_memory().min(inserted);
    let files = dir.to_path_buf();
    let mut figures = watchdog::elsewhere(move || meter.stop_writing(&files, written)).await??;
    let over = figures.get("peak MiB").copied().unwrap_or_default() - (memory >> 20) as f64;
    meter::peaks(&mut figures, over, written / case.length as u64);
    meter::quantiles(&mut figures, "insert", &waits);
    let made = making.cpu.as_secs_f64() / (written as f64 / f64::from(1 << 30));
    figures.entry("CPU s/GiB".into()).and_modify(|all| *all -= made);
    figures.insert("CPU s/GiB of making values".into(), made);
    figures.insert("making values % of time".into(), making_share * 100.0);
    watchdog::closing();
    keeper.close().await?;
    Ok(figures)
}
