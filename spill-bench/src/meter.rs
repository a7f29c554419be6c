//! What a stretch of work used: time, CPU, memory, and bytes that the disk moved for it.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use hdrhistogram::Histogram;

use crate::{machine, trial::Figures};

const GIB: f64 = 1073741824.0;
const MIB: f64 = 1048576.0;

/// Bytes of memory that a key whose value is not in memory may take: a bar of its own, in `scale`.
const INDEX: u64 = 120;

/// Counts from [`Meter::start`] on.
#[derive(Debug)]
pub(crate) struct Meter {
    began: Instant,
    cpu: Duration,
    memory_before: u64,
    read: u64,
    written: u64,
}

impl Meter {
    /// `memory_before`: what the process used before the system was opened, so that all the system holds counts.
    pub(crate) fn start(memory_before: u64) -> Result<Self> {
        machine::forget_memory_peak()?;
        Ok(Self {
            began: Instant::now(),
            cpu: machine::cpu_time(),
            memory_before,
            read: machine::read(),
            written: machine::written(),
        })
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    pub(crate) fn cpu(&self) -> Duration {
        machine::cpu_time() - self.cpu
    }

    /// The most memory there was beyond `memory`, which it was allowed, in MiB.
    pub(crate) fn peak_over(&self, memory: u64) -> f64 {
        machine::memory_peak().saturating_sub(self.memory_before) as f64 / MIB - memory as f64 / MIB
    }

    /// Ends with a sync. `bytes` of values were written; everything done for them until now counts.
    pub(crate) fn stop_writing(self, dir: &Path, bytes: u64) -> Result<Figures> {
        let elapsed = self.elapsed();
        let peak = self.peak_over(0);
        machine::sync(dir)?;
        let synced = self.elapsed();
        let cpu = self.cpu();
        let (stored, allocated) = machine::files_below(dir)?;
        let bytes = bytes as f64;
        Ok(Figures::from([
            ("MB/s".into(), bytes / elapsed.as_secs_f64() / 1e6),
            ("MB/s synced".into(), bytes / synced.as_secs_f64() / 1e6),
            ("CPU s/GiB".into(), cpu.as_secs_f64() / (bytes / GIB)),
            ("peak MiB".into(), peak),
            ("written/value bytes".into(), (machine::written() - self.written) as f64 / bytes),
            ("allocated/stored".into(), allocated as f64 / stored as f64),
            ("allocated/value bytes".into(), allocated as f64 / bytes),
            ("stored/value bytes".into(), stored as f64 / bytes),
        ]))
    }

    /// `reads` reads brought `bytes` of values.
    pub(crate) fn stop_reading(self, reads: u64, bytes: u64) -> Figures {
        let elapsed = self.elapsed().as_secs_f64();
        let bytes = bytes as f64;
        Figures::from([
            ("reads/s".into(), reads as f64 / elapsed),
            ("MB/s".into(), bytes / elapsed / 1e6),
            ("CPU s/GiB".into(), self.cpu().as_secs_f64() / (bytes / GIB)),
            ("read/value bytes".into(), (machine::read() - self.read) as f64 / bytes),
        ])
    }
}

/// Adds the most memory there was beyond what was allowed, in MiB: as it is, and less what so many keys may take whose
/// values are elsewhere.
pub(crate) fn peaks(figures: &mut Figures, over: f64, spilled_keys: u64) {
    figures.insert("peak MiB over memory".into(), over);
    let index = (spilled_keys * INDEX) as f64 / MIB;
    figures.insert("peak less index MiB over memory".into(), over - index);
}

/// How long calls took, in nanoseconds.
pub(crate) fn new_waits() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 100_000_000_000, 3)?)
}

pub(crate) fn record(waits: &mut Histogram<u64>, began: Instant) {
    waits.saturating_record(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
}

/// Adds quantiles in microseconds, under names that begin with `call`.
pub(crate) fn quantiles(figures: &mut Figures, call: &str, waits: &Histogram<u64>) {
    for (name, quantile) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
        figures.insert(format!("{call} {name} µs"), waits.value_at_quantile(quantile) as f64 / 1e3);
    }
}
