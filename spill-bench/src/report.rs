//! Figures as text: tables for a terminal, and the page of benchmarks.

use std::{collections::BTreeSet, fmt::Write};

use serde::{Deserialize, Serialize};

use crate::{
    bars::{self, Holds, Outcome},
    machine::Machine,
    scenarios::{SCENARIOS, Scenario},
    trial::Figures,
};

/// Everything that one command measured.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) quick: bool,
    pub(crate) rounds: u32,
    pub(crate) runs: Vec<Run>,
}

/// One trial.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Run {
    pub(crate) scenario: String,
    pub(crate) case: String,
    pub(crate) system: String,
    pub(crate) round: u32,
    pub(crate) figures: Figures,
    pub(crate) error: Option<String>,
}

impl Report {
    fn of<'a>(&'a self, scenario: &'a str, case: &'a str, system: &'a str) -> impl Iterator<Item = &'a Run> {
        self.runs
            .iter()
            .filter(move |run| (&*run.scenario, &*run.case, &*run.system) == (scenario, case, system))
    }

    /// The middle one of the rounds.
    pub(crate) fn median(&self, scenario: &str, case: &str, system: &str, figure: &str) -> Option<f64> {
        let mut values: Vec<f64> =
            self.of(scenario, case, system).filter_map(|run| run.figures.get(figure).copied()).collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let upper = *values.get(middle)?;
        Some(if values.len() % 2 == 1 { upper } else { f64::midpoint(values[middle - 1], upper) })
    }

    fn cases(&self, scenario: &str) -> Vec<&str> {
        in_order(self.runs.iter().filter(|run| run.scenario == scenario).map(|run| &*run.case))
    }

    fn systems(&self, scenario: &str, case: &str) -> Vec<&str> {
        let of_case = self.runs.iter().filter(|run| run.scenario == scenario && run.case == case);
        let mut systems = in_order(of_case.map(|run| &*run.system));
        systems.sort_by_key(|system| *system != "spill");
        systems
    }
}

/// Each once, in the order in which they first come.
fn in_order<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = BTreeSet::new();
    names.filter(|name| seen.insert(*name)).collect()
}

/// A number with about three digits that matter.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0..100.0 => format!("{value:.1}"),
        0.0 => "0".into(),
        _ => format!("{value:.2}"),
    }
}

/// One table, as Markdown, which a terminal shows well enough.
fn table(report: &Report, of: &dyn Scenario, case: &str, out: &mut String) {
    let (scenario, main) = (of.name(), of.main_figure());
    let systems = report.systems(scenario, case);
    let names: BTreeSet<&String> = systems
        .iter()
        .flat_map(|system| report.of(scenario, case, system))
        .flat_map(|run| run.figures.keys())
        .collect();
    let mut names: Vec<&str> = names.into_iter().map(String::as_str).collect();
    let place = |name: &str| of.next_figures().iter().position(|next| *next == name).unwrap_or(usize::MAX);
    names.sort_by_key(|name| (*name != main, place(name)));
    let own = report.median(scenario, case, "spill", main);
    _ = writeln!(out, "\n| {case} | spill is | {} |", names.join(" | "));
    _ = writeln!(out, "|---|---|{}", "---|".repeat(names.len()));
    for system in systems {
        let median = |name| report.median(scenario, case, system, name);
        let ratio = match (own, median(main)) {
            (Some(own), Some(other)) if other != 0.0 => format!("{:.2}×", own / other),
            _ => String::new(),
        };
        let cells: Vec<String> =
            names.iter().map(|name| median(name).map_or_else(String::new, number)).collect();
        _ = writeln!(out, "| {system} | {ratio} | {} |", cells.join(" | "));
        let errors = in_order(report.of(scenario, case, system).filter_map(|run| run.error.as_deref()));
        for error in errors {
            let line = error.lines().next().unwrap_or_default();
            _ = writeln!(out, "| | failed | {line} |");
        }
    }
}

fn bars(outcomes: &[Outcome], out: &mut String) {
    _ = writeln!(out, "\n| | bar | measured | |\n|---|---|---|---|");
    for Outcome { bar, value, held, beside } in outcomes {
        let against = bar.against.join(", ");
        let limit = match bar.holds {
            Holds::AtLeast(least) if against.is_empty() => format!("≥ {least}"),
            Holds::AtMost(most) if against.is_empty() => format!("≤ {most}"),
            Holds::AtLeast(least) => format!("≥ {least} × {against}"),
            Holds::AtMost(most) => format!("≤ {most} × {against}"),
            Holds::Below(most) => format!("≤ {most} below {against}"),
            Holds::TimesCase(most, case) => format!("≤ {most} × {case}"),
            Holds::AtLeastOfLower(least, other) => {
                format!("≥ {least} × the lower of {other} and the best of {against}")
            }
            Holds::AtLeastOfCases(least, cases) => {
                format!("≥ {} × the best of {}", number(least), cases.join("; "))
            }
        };
        let verdict = if *held { "held" } else { "**missed**" };
        let what = format!("{}: {}, {}", bar.scenario, bar.case, bar.figure);
        let beside = bar
            .beside
            .zip(*beside)
            .map_or_else(String::new, |(name, value)| format!("; {name}: {}", number(value)));
        _ = writeln!(out, "| {what} | {limit} | {}{beside} | {verdict} |", number(*value));
    }
}

/// Tables of everything, for a terminal.
pub(crate) fn text(report: &Report) -> String {
    let mut out = String::new();
    let Machine { date, cpu, cores, memory_gib, kernel, rust, file_system, systems } = &report.machine;
    _ = writeln!(
        out,
        "{date}: {cores} × {cpu}, {memory_gib:.0} GiB, {file_system}, {kernel}, {rust}; {}; medians of {} rounds{}",
        systems.join(", "),
        report.rounds,
        if report.quick { ", quick: the figures say nothing" } else { "" }
    );
    for scenario in SCENARIOS {
        let cases = report.cases(scenario.name());
        if cases.is_empty() {
            continue;
        }
        _ = writeln!(out, "\n## {}\n\n{}", scenario.name(), scenario.about());
        for case in cases {
            table(report, *scenario, case, &mut out);
        }
    }
    let outcomes = bars::outcomes(report);
    if !outcomes.is_empty() {
        _ = writeln!(out, "\n## Bars");
        bars(&outcomes, &mut out);
    }
    out
}

/// The page of benchmarks.
pub(crate) fn page(report: &Report) -> String {
    let head = "# Benchmarks\n\nMade by `spill-bench --report`, of what `spill-bench --json` printed; not written by hand. \
                Losses are shown like wins.\n\n";
    format!("{head}{}", text(report))
}
