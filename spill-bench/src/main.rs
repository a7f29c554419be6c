//! Sets Spill beside other stores, on one machine, in one run.
//!
//! `cargo run --release -p spill-bench -- spill restore` runs two scenarios, `-- --report FILE…` makes the page
//! `docs/benchmarks.md` of what `--json` printed. Each trial is a process of its own, so that memory and CPU time are
//! its own as well; the systems take turns, round after round, so that a slow minute of the machine hits all of
//! them. What counts is the median of the rounds, and the ratio to it.
//!
//! `scenarios` says what is measured, `systems` who is, `bars` what has to come out of it; `trial` runs one
//! system once, `meter` counts what that used, `watchdog` how long threads were kept, `report` makes tables of the
//! figures and `page` the page.

mod bars;
mod data;
mod machine;
mod meter;
mod page;
mod report;
mod scenarios;
mod systems;
mod traces;
mod trial;
mod watchdog;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;

use crate::{
    report::{Report, Run},
    scenarios::{SCENARIOS, Scenario},
    trial::Trial,
};

/// Sets Spill beside other stores, on one machine, in one run.
#[derive(Debug, Parser)]
#[command(name = "spill-bench", after_help = page::COMMANDS)]
struct Arguments {
    /// The scenarios to run, of: hot, spill, restore, mixed, stalls, object, policy, scale, lost. None: all.
    scenarios: Vec<String>,
    /// Run only cases whose name contains this.
    #[arg(long, default_value = "")]
    case: String,
    /// Run only these systems, as a list with commas.
    #[arg(long, value_delimiter = ',')]
    system: Vec<String>,
    /// Small amounts, one round: to see that everything runs. The figures say nothing.
    #[arg(long)]
    quick: bool,
    /// How often each system has its turn; the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Print the figures as JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Also write the figures to this file, as `--json` prints them, after each trial: what is there counts if the rest
    /// is cut off.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Where the systems keep their files. A disk, not a file system in memory.
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
    /// The most seconds of one trial: it is ended then, counts as failed, and the others go on.
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    timeout: u64,
    /// Print the page of benchmarks made of these files, which `--json` printed or `--output` wrote, instead of running
    /// anything.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    report: Vec<PathBuf>,
    /// Run this one trial in this process: what the command starts for each of them.
    #[arg(long, hide = true)]
    trial: Option<String>,
}

#[expect(clippy::print_stdout, reason = "the output of a command")]
fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(trial) = &arguments.trial {
        println!("{}", serde_json::to_string(&trial::run_here(trial)?)?);
        return Ok(());
    }
    if !arguments.report.is_empty() {
        let reports = arguments.report.iter().map(|path| read(path)).collect::<Result<Vec<_>>>()?;
        print!("{}", page::page(reports));
        return Ok(());
    }
    let report = run(&arguments)?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report::text(&report));
    }
    Ok(())
}

fn read(path: &Path) -> Result<Report> {
    let text = std::fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is not what `--json` prints", path.display()))
}

fn run(arguments: &Arguments) -> Result<Report> {
    ensure!(arguments.rounds > 0, "no rounds, no figures");
    if cfg!(debug_assertions) && !arguments.quick {
        bail!("this is a debug build, whose figures say nothing: use `cargo run --release`, or `--quick`");
    }
    let rounds = if arguments.quick { 1 } else { arguments.rounds };
    let machine = machine::describe(&arguments.dir);
    let mut report = Report { machine, quick: arguments.quick, rounds, runs: Vec::new() };
    let plan = plan(arguments)?;
    for round in 0..rounds {
        for (scenario, case, systems) in &plan {
            if round > 0 && scenario.is_exact(case) {
                continue;
            }
            // Each round begins with another system: the first one meets the machine as the last round left it.
            let first = round as usize % systems.len().max(1);
            for system in systems[first..].iter().chain(&systems[..first]) {
                report.runs.push(one_trial(*scenario, case, system, round, arguments));
                if let Some(path) = &arguments.output {
                    let text = serde_json::to_string_pretty(&report)?;
                    std::fs::write(path, text).with_context(|| format!("can't write {}", path.display()))?;
                }
            }
        }
    }
    Ok(report)
}

/// A scenario, a case of it, and the systems that are to run.
type Planned = (&'static dyn Scenario, String, Vec<&'static str>);

#[expect(clippy::print_stderr, reason = "progress of a command")]
fn plan(arguments: &Arguments) -> Result<Vec<Planned>> {
    let mut plan = Vec::new();
    for scenario in chosen(&arguments.scenarios)? {
        let cases = scenario.cases(arguments.quick);
        if cases.is_empty() {
            eprintln!("{}: nothing to run here. {}", scenario.name(), scenario.about());
        }
        for case in cases.into_iter().filter(|case| case.contains(&arguments.case)) {
            let mut systems = scenario.systems(&case);
            systems.retain(|system| {
                arguments.system.is_empty() || arguments.system.iter().any(|one| one == system)
            });
            plan.push((scenario, case, systems));
        }
    }
    Ok(plan)
}

#[expect(clippy::print_stderr, reason = "progress of a command")]
fn one_trial(scenario: &dyn Scenario, case: &str, system: &str, round: u32, arguments: &Arguments) -> Run {
    let trial = Trial {
        scenario: scenario.name().into(),
        case: case.into(),
        system: system.into(),
        quick: arguments.quick,
        dir: arguments.dir.clone(),
    };
    eprint!("{} · {case} · {system} · round {} … ", scenario.name(), round + 1);
    let result = trial.run_in_a_process(Duration::from_secs(arguments.timeout));
    let (figures, error) = match result {
        Ok(figures) => (figures, None),
        Err(error) => (trial::Figures::new(), Some(format!("{error:#}"))),
    };
    match (&error, figures.get(scenario.main_figure())) {
        (Some(error), _) => eprintln!("failed: {}", error.lines().next().unwrap_or_default()),
        (None, Some(main)) => eprintln!("{} {}", report::number(*main), scenario.main_figure()),
        (None, None) => eprintln!("done"),
    }
    Run { scenario: trial.scenario, case: trial.case, system: trial.system, round, figures, error }
}

fn chosen(names: &[String]) -> Result<Vec<&'static dyn Scenario>> {
    if names.is_empty() {
        return Ok(SCENARIOS.to_vec());
    }
    let find = |name: &String| {
        let known = || SCENARIOS.iter().map(|one| one.name()).collect::<Vec<_>>().join(", ");
        scenarios::named(name)
            .with_context(|| format!("there is no scenario {name:?}; there are: {}", known()))
    };
    names.iter().map(find).collect()
}
