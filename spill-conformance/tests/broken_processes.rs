//! The cases about several processes catch mistakes: each deliberately broken store over files fails exactly
//! the cases it should.
//!
//! They run only in a binary that can be started again, so this one has a `main` of its own: without a bug in
//! its environment it starts itself once per bug and looks at what failed; with one it runs the suite.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "these are tests")]

use std::{
    collections::BTreeSet,
    env, fs,
    process::{Command, ExitCode},
};

use spill_conformance::{Arguments, run_store_suite};

#[path = "broken/file_store.rs"]
mod file_store;

use file_store::{Bug, harness};

const BUG_VARIABLE: &str = "SPILL_TEST_BUG";

/// Which cases of the group a bug makes fail.
const BUGS: [(Bug, &[&str]); 5] = [
    (Bug::None, &[]),
    (
        Bug::OneSessionForAll,
        &[
            "processes/a_sweep_leaves_a_living_process_alone",
            "processes/a_sweep_tells_the_killed_from_the_living",
            "processes/another_process_is_another_session",
            "processes/nothing_is_seen_of_a_process_killed_while_it_puts",
            "processes/opening_leaves_a_living_process_alone",
            "processes/two_processes_at_work_are_both_exact",
        ],
    ),
    (
        Bug::OpeningTakesTheLiving,
        &[
            "processes/a_sweep_tells_the_killed_from_the_living",
            "processes/another_process_is_another_session",
            "processes/opening_leaves_a_living_process_alone",
            "processes/processes_that_close_leave_nothing",
            "processes/two_processes_at_work_are_both_exact",
        ],
    ),
    (
        Bug::SweepTakesTheLiving,
        &[
            "processes/a_sweep_leaves_a_living_process_alone",
            "processes/a_sweep_tells_the_killed_from_the_living",
        ],
    ),
    (
        Bug::SweepMissesTheKilled,
        &[
            "processes/a_sweep_tells_the_killed_from_the_living",
            "processes/what_a_killed_process_left_is_swept",
        ],
    ),
];

/// Whether these see a bug depends on the moment: of the kill, or in which they close.
const BY_CHANCE: [(Bug, &str); 3] = [
    (Bug::OneSessionForAll, "processes/nothing_is_seen_of_a_process_killed_while_it_opens_or_closes"),
    (Bug::OneSessionForAll, "processes/processes_that_close_leave_nothing"),
    (Bug::SweepMissesTheKilled, "processes/what_one_killed_while_it_opens_or_closes_left_is_swept"),
];

fn main() -> ExitCode {
    let name = env::var(BUG_VARIABLE).ok();
    if let Some((bug, _)) = BUGS.iter().find(|(bug, _)| name == Some(format!("{bug:?}"))) {
        return run_store_suite(&Arguments::from_args(), harness(*bug)).exit_code();
    }
    let mut right = true;
    for (bug, wanted) in BUGS {
        let found = failing(bug);
        let wanted: BTreeSet<String> = wanted.iter().map(|case| (*case).to_owned()).collect();
        let is_right = found == wanted;
        right &= is_right;
        println!("test {bug:?} ... {}", if is_right { "ok" } else { "FAILED" });
        if !is_right {
            let (missed, extra) = (wanted.difference(&found), found.difference(&wanted));
            println!("not caught: {:#?}", missed.collect::<Vec<_>>());
            println!("not expected: {:#?}", extra.collect::<Vec<_>>());
        }
    }
    // What can't be removed is in the build directory, and goes with it.
    let _ = fs::remove_dir_all(file_store::root());
    if right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the cases with this bug in another process, and reads which failed.
fn failing(bug: Bug) -> BTreeSet<String> {
    let output = Command::new(env::current_exe().unwrap())
        .args(["processes/", "--format", "pretty"])
        .env(BUG_VARIABLE, format!("{bug:?}"))
        .output()
        .unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    if env::args().any(|argument| argument == "--nocapture") {
        println!("{out}");
    }
    let failed = out.lines().filter(|line| line.starts_with("test processes/") && line.ends_with("FAILED"));
    let cases = failed.filter_map(|line| line.split_whitespace().nth(1)?.rsplit_once('/'));
    let mut found: BTreeSet<String> = cases.map(|(case, _)| case.to_owned()).collect();
    assert_eq!(output.status.success(), found.is_empty(), "{out}");
    found.retain(|case| !BY_CHANCE.contains(&(bug, case.as_str())));
    assert!(out.contains("test result:"), "the suite did not run: {out}");
    found
}
