//! One system in one case, once: a process of its own, which prints its figures.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::scenarios::SCENARIOS;

/// What a trial measured: values by name, and the name says the unit.
pub(crate) type Figures = BTreeMap<String, f64>;

/// What one process is to do.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Trial {
    pub(crate) scenario: String,
    pub(crate) case: String,
    pub(crate) system: String,
    pub(crate) quick: bool,
    /// A directory for files; each trial makes one of its own in it, and removes it.
    pub(crate) dir: PathBuf,
}

impl Trial {
    /// Runs it in another process, and waits for its figures.
    pub(crate) fn run_in_a_process(&self) -> Result<Figures> {
        let program = std::env::current_exe().context("this program has no path")?;
        let output = Command::new(program)
            .args(["--trial", &serde_json::to_string(self)?])
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .output()
            .context("can't start the process of a trial")?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            bail!("{}: {}", output.status, text.trim());
        }
        serde_json::from_slice(&output.stdout).context("the process printed no figures")
    }
}

/// Runs the trial that this text describes, in this process.
pub(crate) fn run_here(text: &str) -> Result<Figures> {
    let trial: Trial = serde_json::from_str(text).context("this is no trial")?;
    let scenario = SCENARIOS.iter().find(|one| one.name() == trial.scenario);
    let scenario = scenario.with_context(|| format!("there is no scenario {:?}", trial.scenario))?;
    let dir = tempfile::Builder::new().prefix("spill-bench-").tempdir_in(&trial.dir)?;
    scenario.trial(&trial, dir.path())
}
