//! dask's `SpillBuffer`, which a Python script in a process of its own measures.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, ensure};

use super::restore::Case;
use crate::trial::Figures;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/dask_spill.py");

pub(crate) const SETTINGS: &str = "`distributed.spill.SpillBuffer` of Python, of the version that `dask_spill.py` \
    names, in one process; its compression off. Fewer values than the others, as it makes a file for each.";

/// How many values, and the memory for them: fewer than the others get, as it makes a file for each of them.
fn amounts(length: usize, quick: bool) -> (u64, u64) {
    let count = match length {
        ..0x1_0000 => 20_000,
        0x1_0000..0x10_0000 => 8_192,
        _ => 1_024,
    };
    let count = if quick { count / 16 } else { count };
    (count, count * length as u64 / 16)
}

pub(super) fn spill(length: usize, dir: &Path, quick: bool) -> Result<Figures> {
    run("spill", length, dir, quick, &[])
}

pub(super) fn restore(case: Case<'_>, dir: &Path, quick: bool) -> Result<Figures> {
    run("restore", case.length, dir, quick, if case.cold { &[] } else { &["--warm"] })
}

fn run(what: &str, length: usize, dir: &Path, quick: bool, more: &[&str]) -> Result<Figures> {
    let (count, memory) = amounts(length, quick);
    let numbers = [("--length", length as u64), ("--count", count), ("--memory", memory)];
    let output = Command::new("python3")
        .args([SCRIPT, what, "--dir"])
        .arg(dir)
        .args(numbers.iter().flat_map(|(name, number)| [(*name).into(), number.to_string()]))
        .args(more)
        .output()
        .context("can't start python3")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    serde_json::from_slice(&output.stdout).context("the script printed no figures")
}
