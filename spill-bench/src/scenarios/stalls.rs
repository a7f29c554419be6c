//! How long the runtime's threads are kept from other tasks, while much is spilled: [`crate::watchdog`] says how that
//! is measured.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{
    Scenario, mixed,
    spill::{self, Case},
};
use crate::{
    data::{Kind, Values},
    systems::{BLOCK, Effort, RawFile},
    trial::{Figures, Trial},
    watchdog::Watchdog,
};

pub(crate) struct Stalling;

const MIXED: &str = "mixed, 4 KiB";
const SPILLS: [&str; 4] =
    ["4 KiB, random, none", "64 KiB, random, none", "1 MiB, random, none", "64 KiB, text, zstd:1"];

impl Scenario for Stalling {
    fn name(&self) -> &'static str {
        "stalls"
    }

    fn about(&self) -> &'static str {
        "The scenarios `spill` and `mixed` once more, on a runtime of one thread that is watched. A turn is how long \
         it went on before it came to another task: one poll or a few, a poll of the tasks that insert and read \
         ends after each of their calls. What the machine took from it is not in it, as far as \
         that can be seen from inside, but in `with waits`. Closing is no part of it and stands by itself. `tick late` \
         is by how much a bystander that is always ready to run came too late for something due every millisecond: \
         the bench's own tasks are in it, which insert and read without a pause as long as they need not wait. \
         `idle`: the same runtime in the same process, with nothing on it but the bystander, while another thread writes as much past the page \
         cache: what this machine does to any program. Only systems whose calls are async take part; those of fjall \
         and redb block, and say so."
    }

    fn cases(&self, _: bool) -> Vec<String> {
        SPILLS.iter().map(|case| format!("spill, {case}")).chain([MIXED.into()]).collect()
    }

    fn systems(&self, case: &str) -> Vec<&'static str> {
        if case == MIXED || case.ends_with("none") { vec!["spill", "foyer paced"] } else { vec!["spill"] }
    }

    fn main_figure(&self) -> &'static str {
        "turn max µs"
    }

    fn less_is_better(&self) -> bool {
        true
    }

    fn next_figures(&self) -> &'static [&'static str] {
        &[
            "idle turn max µs",
            "CPU of longest turn µs",
            "closing turn max µs",
            "turn p99.9 µs",
            "idle turn p99.9 µs",
            "turns > 2 ms",
            "idle turns > 2 ms",
            "turn with waits max µs",
            "idle turn with waits max µs",
            "tick late p99 µs",
            "idle tick late p99 µs",
            "tick late p99.9 µs",
            "idle tick late p99.9 µs",
            "tick late max µs",
            "idle tick late max µs",
        ]
    }

    fn trial(&self, trial: &Trial, dir: &Path) -> Result<Figures> {
        let watchdog = Watchdog::new()?;
        let mut figures = Figures::new();
        let (total, memory) = spill::amounts(trial.quick);
        let file = dir.join("idle");
        let idle = async move { tokio::task::spawn_blocking(move || write(file, total - memory)).await? };
        watchdog.watch("idle ", idle, &mut figures)??;
        let (system, dir, quick) = (trial.system.clone(), dir.to_path_buf(), trial.quick);
        let done = if trial.case == MIXED {
            let work = async move { mixed::mix(&system, &dir, quick).await };
            watchdog.watch("", work, &mut figures)??
        } else {
            let case = trial.case.strip_prefix("spill, ").context("no such case")?;
            let case = Case::parse(case)?;
            let work = async move { spill::keeper(&system, case, &dir, total, memory).await };
            watchdog.watch("", work, &mut figures)??
        };
        // How much it did meanwhile.
        figures.extend(done.into_iter().filter(|(name, _)| name == "MB/s" || name == "ops/s"));
        Ok(figures)
    }
}

/// What a store does that has the disk to itself. The files are gone in the end.
fn write(dir: PathBuf, bytes: u64) -> Result<()> {
    std::fs::create_dir(&dir)?;
    let content = Values::new(Kind::Random, BLOCK).whole();
    let mut file = RawFile::create(&dir, Effort::PastTheCache, &content[..BLOCK])?;
    for _ in 0..bytes / BLOCK as u64 {
        file.append(&content[..BLOCK])?;
    }
    drop(file);
    Ok(std::fs::remove_dir_all(dir)?)
}
