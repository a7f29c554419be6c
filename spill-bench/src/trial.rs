//! One system in one case, once: a process of its own, which prints its figures.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Seek},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process_group, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use crate::scenarios::{self, Scenario};

/// What a trial measured: values by name, and the name says the unit.
pub(crate) type Figures = BTreeMap<String, f64>;

/// How often the process that waits for a trial looks whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// glibc's allocator keeps what each thread freed for that thread. What is freed by one and allocated by another is then
/// there twice, which would count as the system's memory: so all threads share one arena where memory is measured.
const ONE_ARENA: (&str, &str) = ("MALLOC_ARENA_MAX", "1");

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
    fn scenario(&self) -> Result<&'static dyn Scenario> {
        scenarios::named(&self.scenario).with_context(|| format!("there is no scenario {:?}", self.scenario))
    }

    /// Runs it in another process, and waits for its figures: at most this long.
    pub(crate) fn run_in_a_process(&self, most: Duration) -> Result<Figures> {
        // Made here: a process that is ended removes nothing.
        let dir = tempfile::Builder::new().prefix("spill-bench-").tempdir_in(&self.dir)?;
        let trial = Self { dir: dir.path().to_path_buf(), ..self.clone() };
        let (stdout, stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
        let program = std::env::current_exe().context("this program has no path")?;
        let measures_memory = self.scenario()?.measures_memory();
        let mut process = Command::new(program)
            .args(["--trial", &serde_json::to_string(&trial)?])
            .envs(measures_memory.then_some(ONE_ARENA))
            .stdin(Stdio::null())
            .stdout(stdout.try_clone()?)
            .stderr(stderr.try_clone()?)
            // Of its own, to end what it starts as well.
            .process_group(0)
            .spawn()
            .context("can't start the process of a trial")?;
        let status = wait(&mut process, most)?.with_context(|| {
            format!("timed out: it was ended after {} s, which is what `--timeout` allows", most.as_secs())
        })?;
        ensure!(status.success(), "{status}: {}", text_of(stderr)?.trim());
        serde_json::from_str(&text_of(stdout)?).context("the process printed no figures")
    }
}

/// `None`: it took too long, and was ended with all that it started.
fn wait(process: &mut Child, most: Duration) -> Result<Option<ExitStatus>> {
    let began = Instant::now();
    loop {
        if let Some(status) = process.try_wait()? {
            return Ok(Some(status));
        }
        if began.elapsed() >= most {
            let group = Pid::from_child(process);
            kill_process_group(group, Signal::KILL).context("can't end the process of a trial")?;
            process.wait()?;
            return Ok(None);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn text_of(mut file: File) -> Result<String> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Runs the trial that this text describes, in this process.
pub(crate) fn run_here(text: &str) -> Result<Figures> {
    // In a group of its own an interrupt from the terminal does not reach it.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let trial: Trial = serde_json::from_str(text).context("this is no trial")?;
    let scenario = trial.scenario()?;
    let dir = tempfile::Builder::new().prefix("spill-bench-").tempdir_in(&trial.dir)?;
    scenario.trial(&trial, dir.path())
}
