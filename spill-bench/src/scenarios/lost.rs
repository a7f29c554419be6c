//! What is still there: keys are inserted at full speed, then each is asked for.

use std::path::Path;

use anyhow::{Context, Result};

use super::{Scenario, runtime};
use crate::{
    data::{Kind, Values},
    machine,
    meter::{self, Meter},
    systems::{self, Setup},
    trial::{Figures, Trial},
};

pub(crate) struct Losing;

const CASES: [(&str, u64, usize); 2] =
    [("65 536 values of 4 KiB", 65_536, 4 << 10), ("16 384 values of 64 KiB", 16_384, 64 << 10)];

impl Scenario for Losing {
    fn name(&self) -> &'static str {
        "lost"
    }

    fn about(&self) -> &'static str {
        "One task inserts as fast as it is let, with memory for 64 MiB; once everything is written, each key is \
         asked for. moka and quick_cache keep values in memory only, and foyer is a cache as well: to drop is what they \
         are made to do, and a reason not to spill with them. Paced, foyer is waited for every 4 MiB."
    }

    fn cases(&self, _: bool) -> Vec<String> {
        CASES.map(|(name, ..)| name.into()).into()
    }

    fn systems(&self, _: &str) -> Vec<&'static str> {
        vec!["spill", "foyer", "foyer paced", "fjall", "redb", "files", "moka", "quick_cache"]
    }

    fn main_figure(&self) -> &'static str {
        "lost"
    }

    fn next_figures(&self) -> &'static [&'static str] {
        &["lost %", "inserted MB/s"]
    }

    fn less_is_better(&self) -> bool {
        true
    }

    fn trial(&self, trial: &Trial, dir: &Path) -> Result<Figures> {
        let case = CASES.iter().find(|(name, ..)| *name == trial.case);
        let (_, count, length) = case.context("no such case")?;
        let (count, memory) = if trial.quick { (count / 16, 8 << 20) } else { (*count, 64 << 20) };
        runtime()?.block_on(losses(&trial.system, dir, count, *length, memory))
    }
}

async fn losses(system: &str, dir: &Path, count: u64, length: usize, memory: u64) -> Result<Figures> {
    let values = Values::new(Kind::Random, length);
    let total = count * length as u64;
    let setup = Setup { dir, memory, total, value_length: length, compress: "none" };
    let memory_before = machine::memory_now();
    let keeper = systems::open(system, &setup).await?;
    let meter = Meter::start(memory_before)?;
    for key in 0..count {
        keeper.insert(key, values.make(key)).await?;
    }
    let inserted = meter.elapsed().as_secs_f64();
    keeper.settle().await?;
    let mut lost = 0;
    for key in 0..count {
        match keeper.get(key).await? {
            Some(value) => values.check(key, &value)?,
            None => lost += 1,
        }
    }
    let peak = meter.peak_over(memory);
    let away = total.saturating_sub(keeper.only_in_memory()) / length as u64;
    keeper.close().await?;
    let mut figures = Figures::from([
        ("lost".into(), f64::from(lost)),
        ("lost %".into(), f64::from(lost) / count as f64 * 100.0),
        ("inserted MB/s".into(), total as f64 / inserted / 1e6),
    ]);
    meter::peaks(&mut figures, peak, away);
    Ok(figures)
}
