//! What is measured: one module for each scenario.

pub(crate) mod dask;
mod hot;
mod lost;
mod mixed;
mod object;
mod policy;
mod restore;
mod scale;
mod spill;
mod stalls;

use std::path::Path;

use anyhow::Result;

use crate::trial::{Figures, Trial};

/// Something to be measured, in several cases, each of which several systems run.
pub(crate) trait Scenario: Sync {
    fn name(&self) -> &'static str;

    /// One sentence for the page: what is done, and what the figures count.
    fn about(&self) -> &'static str;

    fn cases(&self, quick: bool) -> Vec<String>;

    fn systems(&self, case: &str) -> Vec<&'static str>;

    /// The figure that systems are compared by.
    fn main_figure(&self) -> &'static str;

    /// Whether the most memory that a process had is among its figures.
    fn measures_memory(&self) -> bool {
        false
    }

    /// Whether of the main figure less is better.
    fn less_is_better(&self) -> bool {
        false
    }

    /// The figures that come next in a table, in this order; the others follow by name.
    fn next_figures(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether every round gives the same figures, so that one is enough.
    fn is_exact(&self, _case: &str) -> bool {
        false
    }

    /// Runs one system in one case, in a directory that is empty.
    fn trial(&self, trial: &Trial, dir: &Path) -> Result<Figures>;
}

pub(crate) static SCENARIOS: &[&dyn Scenario] = &[
    &hot::Hot,
    &spill::Spilling,
    &restore::Restoring,
    &mixed::Mixing,
    &stalls::Stalling,
    &object::Objects,
    &policy::Policies,
    &scale::Scale,
    &lost::Losing,
];

/// The scenario of this name, if there is one.
pub(crate) fn named(name: &str) -> Option<&'static dyn Scenario> {
    SCENARIOS.iter().find(|one| one.name() == name).copied()
}

/// The runtime that every system runs on: two workers, as the machines it is made for have two cores.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    runtime_of(2)
}

/// For systems whose calls block: as many workers as calls are made at once.
pub(crate) fn runtime_of(workers: usize) -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build()?)
}
