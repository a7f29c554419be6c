//! Figures as tables, in Markdown, which a terminal shows well enough.

use std::{collections::BTreeSet, fmt::Write};

use serde::{Deserialize, Serialize};

use crate::{
    bars::{self, Holds, Outcome},
    machine::Machine,
    scenarios::{self, SCENARIOS, Scenario},
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
    /// One of all, as of the first's machine. None: there are none.
    pub(crate) fn merged(reports: Vec<Self>) -> Option<Self> {
        reports.into_iter().reduce(|mut one, mut other| {
            one.quick |= other.quick;
            one.rounds = one.rounds.max(other.rounds);
            one.runs.append(&mut other.runs);
            one
        })
    }

    pub(crate) fn of<'a>(
        &'a self,
        scenario: &'a str,
        case: &'a str,
        system: &'a str,
    ) -> impl Iterator<Item = &'a Run> {
        self.runs
            .iter()
            .filter(move |run| (&*run.scenario, &*run.case, &*run.system) == (scenario, case, system))
    }

    /// The fewest and the most trials that there are of a system in a case; once is enough where that is exact.
    pub(crate) fn rounds_done(&self) -> (usize, usize) {
        let is_exact = |run: &Run| scenarios::named(&run.scenario).is_some_and(|one| one.is_exact(&run.case));
        let trials = self.runs.iter().filter(|run| !is_exact(run));
        let done = trials.map(|run| self.of(&run.scenario, &run.case, &run.system).count());
        let done: Vec<usize> = done.collect();
        (done.iter().min().copied().unwrap_or(1), done.iter().max().copied().unwrap_or(1))
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

/// One case.
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
        let failed = report.of(scenario, case, system).all(|run| run.error.is_some());
        let ratio = if failed { "failed" } else { &ratio };
        _ = writeln!(out, "| {system} | {ratio} | {} |", cells.join(" | "));
    }
    failures(report, scenario, case, out);
}

/// A list below the table.
fn failures(report: &Report, scenario: &str, case: &str, out: &mut String) {
    for system in report.systems(scenario, case) {
        let rounds = report.of(scenario, case, system).count();
        let failed: Vec<&str> =
            report.of(scenario, case, system).filter_map(|run| run.error.as_deref()).collect();
        if !failed.is_empty() {
            let lines = in_order(failed.iter().map(|error| error.lines().next().unwrap_or_default()));
            let lines = lines.join("; ");
            _ = writeln!(out, "\n{system} failed in {} of {rounds} rounds: {lines}", failed.len());
        }
    }
}

/// A table of bars and what came out.
pub(crate) fn bars(outcomes: &[&Outcome], out: &mut String) {
    _ = writeln!(out, "\n| | bar | measured | |\n|---|---|---|---|");
    for outcome in outcomes {
        let Outcome { bar, value, beside } = outcome;
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
        let verdict = match outcome.held() {
            Some(true) => "held",
            Some(false) => "**missed**",
            None => "not judged",
        };
        let value = value.map_or_else(String::new, number);
        let beside = bar
            .beside
            .zip(*beside)
            .map_or_else(String::new, |(name, value)| format!("; {name}: {}", number(value)));
        let what = format!("{}: {}, {}", bar.scenario, bar.case, bar.figure);
        _ = writeln!(out, "| {what} | {limit} | {value}{beside} | {verdict} |");
    }
}

/// What was measured of one scenario: its tables, then its bars.
pub(crate) fn section(report: &Report, scenario: &dyn Scenario, outcomes: &[Outcome], out: &mut String) {
    let cases = report.cases(scenario.name());
    if cases.is_empty() {
        return;
    }
    _ = writeln!(out, "\n## {}\n\n{}", scenario.name(), scenario.about());
    if scenario.less_is_better() {
        _ = writeln!(out, "\nOf {} less is better.", scenario.main_figure());
    }
    for case in cases {
        table(report, scenario, case, out);
    }
    let of_it: Vec<&Outcome> =
        outcomes.iter().filter(|outcome| outcome.bar.scenario == scenario.name()).collect();
    if !of_it.is_empty() {
        _ = writeln!(out, "\nBars:");
        bars(&of_it, out);
    }
}

/// Tables of everything, for a terminal.
pub(crate) fn text(report: &Report) -> String {
    let mut out = String::new();
    _ = writeln!(
        out,
        "{}: {}; medians of {} rounds{}",
        report.machine.date,
        report.machine.line(),
        report.rounds,
        if report.quick { ", quick: the figures say nothing" } else { "" }
    );
    // Who runs some systems only knows that not everything can be compared.
    let mut outcomes = bars::outcomes(report);
    outcomes.retain(|outcome| outcome.value.is_some());
    for scenario in SCENARIOS {
        section(report, *scenario, &outcomes, &mut out);
    }
    out
}
