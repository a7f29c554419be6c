//! The page of benchmarks, `docs/benchmarks.md`, of what one or several commands measured; its tables are `report`'s.

use std::fmt::Write;

use crate::{
    bars::{self, Outcome},
    machine::Machine,
    report::{self, Report},
    scenarios::{SCENARIOS, dask},
    systems,
};

/// How to get the figures and the page, for `--help` and for the page itself.
pub(crate) const COMMANDS: &str = "\
To measure everything on a directory of your disk, a file for each scenario, and make the page of them:

    cargo build --release -p spill-bench
    for scenario in hot spill restore mixed stalls policy scale lost; do
        target/release/spill-bench $scenario --json --dir /var/tmp > $scenario.json
    done
    .ci/with-weed target/release/spill-bench object --json --dir /var/tmp > object.json
    target/release/spill-bench --report *.json > docs/benchmarks.md

Of one scenario: `target/release/spill-bench spill --case \"4 KiB, random\" --system spill,raw`. `counted` in `hot` takes \
valgrind, dask takes Python and a network the first time, `object` a server, which `.ci/with-weed` starts.";

const READING: &str = "\
Each trial is a process of its own, so that memory and CPU time are its own as well. The systems take turns, round after \
round, beginning with another one each time; a figure is the median of the rounds. `spill is` is Spill's figure in the \
column after it over that of the row: 2.00× is twice as much, which is better unless it says that less is. MB are 10^6 \
bytes, MiB and GiB powers of two. A trial that failed is listed below its table.

Memory: `peak MiB over memory` is the most memory the process had, less what it had before the system was opened and \
less what the system was told to keep to. It contains the table of keys, which grows with what is spilled, not with \
what is in memory. What that may take, 120 bytes for each key whose value is elsewhere, is a bar of its own \
(`scale`); `peak less index MiB over memory` is without it. Where values are 4 KiB or less, the bar on memory judges \
the latter, and the whole figure stands next to it. Where that is measured each process allocates from one arena of glibc's malloc \
(`MALLOC_ARENA_MAX=1`): with more, what one thread frees stays its own while another allocates, which is the allocator's \
affair but counts as the system's memory. In `restore` of 4 KiB values, one in flight, that made 57 MiB beyond memory and index of Spill's 6.

A bar is what Spill is held to: a figure, as it is or as a multiple of that of others.";

const FAVOURS_SPILL: [&str; 6] = [
    "Those who wrote Spill wrote the bench, and know its settings better than those of the others, which are set as their \
     documentation says and not tuned any further.",
    "fjall and redb can do what is not asked for here: find their values again after a restart or a crash, in order of \
     their keys, in transactions. Their writing pays for that.",
    "foyer is a cache. It may drop what comes too fast; a program whose values come at the pace of the disk need not \
     wait for it as the paced one does here. That it keeps whole pages for each value suits larger values.",
    "In `spill` and `restore` keys are inserted once, none is replaced or removed: what compaction costs is in `mixed` alone.",
    "`churn` in `hot`: the caches choose a victim for each key that comes; Spill, which forgets nothing by itself, is told \
     which key to remove.",
    "dask's SpillBuffer is Python, and is measured with what Python costs.",
];

const FAVOURS_OTHERS: [&str; 6] = [
    "The raw disk writes one block again and again: it makes no values, has no keys and no checksums, and keeps nothing \
     for reading back.",
    "fjall, redb, files and foyer that is not `O_DIRECT` write into the page cache, which counts for MB/s, and whose memory \
     counts for nobody; Spill writes past it. `MB/s synced` counts until all is on the disk.",
    "fjall and redb get as many threads as there are reads in flight, Spill and foyer two.",
    "What a system says it has only in memory counts as not written; of redb that is half of its cache, as its \
     documentation has it. fjall's compaction may go on after the clock has stopped.",
    "moka and foyer are measured with a faster hasher than they come with.",
    "Files and dask get fewer values, so that they end.",
];

/// Everything that these reports hold, as one page. Runs of one case in several of them count as more rounds of it.
pub(crate) fn page(reports: Vec<Report>) -> String {
    let mut out = String::from(
        "# Benchmarks\n\nMade by `spill-bench --report` of what `spill-bench --json` printed, not written by hand: losses \
         are shown like wins.\n",
    );
    let machines: Vec<Machine> = reports.iter().map(|report| report.machine.clone()).collect();
    let Some(report) = Report::merged(reports) else { return out };
    if report.quick {
        _ = writeln!(
            out,
            "\n**Of a `--quick` run, which only shows that everything runs: the figures say nothing.**"
        );
    }
    measured_on(&machines, &report, &mut out);
    let outcomes = bars::outcomes(&report);
    in_short(&report, &outcomes, &mut out);
    _ = writeln!(out, "\n## How to read it\n\n{READING}");
    _ = writeln!(out, "\n## How the systems are set\n\n| | |\n|---|---|");
    for (system, settings) in systems::SETTINGS.iter().chain(&[("dask", dask::SETTINGS)]) {
        _ = writeln!(out, "| {system} | {settings} |");
    }
    _ = writeln!(out, "\n## What is unfair\n\nIn favour of Spill:\n\n- {}", FAVOURS_SPILL.join("\n- "));
    _ = writeln!(out, "\nIn favour of others:\n\n- {}", FAVOURS_OTHERS.join("\n- "));
    _ = writeln!(out, "\n## How to measure it yourself\n\n{COMMANDS}");
    for scenario in SCENARIOS {
        report::section(&report, *scenario, &outcomes, &mut out);
    }
    out
}

fn measured_on(machines: &[Machine], report: &Report, out: &mut String) {
    let mut alike: Vec<(String, Vec<&str>)> = Vec::new();
    for machine in machines {
        let line = machine.line();
        match alike.iter_mut().find(|(known, _)| *known == line) {
            Some((_, dates)) if dates.contains(&&*machine.date) => {}
            Some((_, dates)) => dates.push(&machine.date),
            None => alike.push((line, vec![&machine.date])),
        }
    }
    _ = writeln!(out, "\n## What it was measured on\n");
    for (line, dates) in &alike {
        _ = writeln!(out, "- {}: {line}", dates.join(", "));
    }
    if alike.len() > 1 {
        _ = writeln!(
            out,
            "\nThese differ: figures of different scenarios can't be compared with each other."
        );
    }
    let rounds = match report.rounds_done() {
        (1, 1) => "one round".into(),
        (fewest, most) if fewest == most => format!("{most} rounds"),
        (fewest, most) => format!("{fewest} to {most} rounds"),
    };
    _ = writeln!(out, "\nMedians of {rounds}; what comes out the same each time was measured once.");
}

/// What is missed, and what could not be compared, before all else.
fn in_short(report: &Report, outcomes: &[Outcome], out: &mut String) {
    let count = |wanted| outcomes.iter().filter(|outcome| outcome.held() == wanted).count();
    let failed = report.runs.iter().filter(|run| run.error.is_some()).count();
    _ = writeln!(out, "\n## In short\n");
    _ = writeln!(
        out,
        "Of {} bars that Spill is held to, {} are held, {} are missed, {} could not be judged, as a figure is \
         missing. Of {} trials {failed} failed.",
        outcomes.len(),
        count(Some(true)),
        count(Some(false)),
        count(None),
        report.runs.len()
    );
    let not_held: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.held() != Some(true)).collect();
    if !not_held.is_empty() {
        report::bars(&not_held, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{report::Run, trial::Figures};

    const CASE: &str = "4 KiB, random, none";

    fn machine(date: &str) -> Machine {
        Machine {
            date: date.into(),
            cpu: "a CPU".into(),
            cores: 2,
            memory_gib: 24.0,
            kernel: "Linux".into(),
            rust: "rustc".into(),
            file_system: "ext4".into(),
            systems: vec!["spill-buffer 0.1.0".into()],
        }
    }

    fn run(system: &str, figures: &[(&str, f64)], error: Option<&str>) -> Run {
        let figures: Figures = figures.iter().map(|(name, value)| ((*name).into(), *value)).collect();
        let (scenario, case) = ("spill".into(), CASE.into());
        Run { scenario, case, system: system.into(), round: 0, figures, error: error.map(Into::into) }
    }

    fn report(date: &str, runs: Vec<Run>) -> Report {
        Report { machine: machine(date), quick: false, rounds: 1, runs }
    }

    #[test]
    fn files_are_merged_and_what_failed_or_is_missed_is_said() {
        let small =
            [("MB/s", 900.0), ("peak less index MiB over memory", 20.0), ("peak MiB over memory", 76.0)];
        let one = report("2026-01-01", vec![run("spill", &small, None)]);
        let others =
            vec![run("fjall", &[("MB/s", 1000.0)], None), run("redb", &[], Some("timed out: it was ended"))];
        let page = page(vec![one, report("2026-01-02", others)]);
        for part in [
            "2026-01-01, 2026-01-02: 2 × a CPU",
            "Of 3 trials 1 failed.",
            "| spill: 4 KiB, random, none, MB/s | ≥ 1.5 × fjall | 0.90 | **missed** |",
            "| ≥ 50 × dask |  | not judged |",
            "| ≤ 32 | 20.0; peak MiB over memory: 76.0 | held |",
            "| redb | failed |",
            "redb failed in 1 of 1 rounds: timed out: it was ended",
        ] {
            assert!(page.contains(part), "{part:?} is not in:\n{page}");
        }
    }
}
