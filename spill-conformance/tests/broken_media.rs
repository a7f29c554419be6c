//! The groups about faults and sweeps catch mistakes: each deliberately broken store fails exactly the cases
//! it should.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "these are tests")]

use std::{collections::BTreeSet, time::Duration};

use spill_conformance::{Group, store_cases, store_suite};

#[path = "broken/medium_store.rs"]
mod medium_store;

use medium_store::{Bug, harness};

/// Runs the suite and compares the cases that fail, on either runtime, with those that should.
#[track_caller]
fn fails(bug: Bug, wanted: &[&str]) {
    let harness = harness(bug).time_limit(Duration::from_secs(60)).settle_limit(Duration::from_millis(300));
    // A store without a bug passes all; what a bug about trouble does without any is not of interest.
    let groups =
        |name: &str| bug == Bug::None || ["faults/", "sweep/"].iter().any(|group| name.starts_with(group));
    let report = store_suite(harness).only(groups).report();
    println!("{report}");
    let found: BTreeSet<&str> = report.failed().map(|name| name.rsplit_once('/').unwrap().0).collect();
    let wanted: BTreeSet<&str> = wanted.iter().copied().collect();
    let missed: Vec<_> = wanted.difference(&found).collect();
    let extra: Vec<_> = found.difference(&wanted).collect();
    assert!(
        missed.is_empty() && extra.is_empty(),
        "{bug:?}\nnot caught: {missed:#?}\nnot expected: {extra:#?}"
    );
}

#[test]
fn a_correct_store_passes() {
    fails(Bug::None, &[]);
}

macro_rules! broken {
    ($($name:ident: $bug:ident fails [$($case:literal),* $(,)?];)*) => {
        $(#[test]
        fn $name() {
            fails(Bug::$bug, &[$($case),*]);
        })*
    };
}

broken! {
    no_space_is_other: NoSpaceIsOther fails [
        "faults/open_meets_no_space",
        "faults/put_meets_no_space",
        "faults/put_meets_no_space_that_lasts",
    ];
    throttled_is_other: ThrottledIsOther fails [
        "faults/close_is_throttled",
        "faults/delete_is_throttled",
        "faults/get_is_throttled",
        "faults/list_is_throttled",
        "faults/put_is_throttled",
    ];
    reset_is_other: ResetIsOther fails [
        "faults/close_is_reset_after_the_effect",
        "faults/delete_is_reset_after_the_effect",
        "faults/delete_is_reset_before_the_effect",
        "faults/get_is_reset_after_the_effect",
        "faults/get_is_reset_before_the_effect",
        "faults/list_is_reset_after_the_effect",
        "faults/put_is_reset_after_the_effect",
        "faults/put_is_reset_before_the_effect",
    ];
    ignores_errors_of_writes: IgnoresErrorsOfWrites fails [
        "faults/put_is_reset_before_the_effect",
        "faults/put_is_throttled",
        "faults/put_meets_a_server_error",
        "faults/put_meets_a_torn_write",
        "faults/put_meets_an_io_error",
        "faults/put_meets_an_unavailable_server",
        "faults/put_meets_no_space",
    ];
    takes_short_writes_for_whole: TakesShortWritesForWhole fails [
        "faults/put_meets_a_short_write",
        "faults/put_meets_short_writes_only",
    ];
    publishes_torn_blobs: PublishesTornBlobs fails ["faults/put_meets_a_torn_write"];
    passes_truncated_reads_on: PassesTruncatedReadsOn fails ["faults/get_is_truncated"];
    passes_flipped_bits_on: PassesFlippedBitsOn fails ["faults/get_has_a_flipped_bit"];
    swallows_errors_of_deletes: SwallowsErrorsOfDeletes fails [
        "faults/delete_is_reset_before_the_effect",
        "faults/delete_is_throttled",
        "faults/delete_meets_an_io_error",
        "faults/delete_meets_an_unavailable_server",
        "faults/delete_meets_io_errors_that_last",
    ];
    names_the_wrong_in_deletes: NamesTheWrongInDeletes fails [
        "faults/delete_is_reset_before_the_effect",
        "faults/delete_is_throttled",
        "faults/delete_meets_an_io_error",
        "faults/delete_meets_an_unavailable_server",
        "faults/delete_meets_io_errors_that_last",
    ];
    stops_deleting_at_an_error: StopsDeletingAtAnError fails [
        "faults/delete_is_reset_after_the_effect",
        "faults/delete_is_reset_before_the_effect",
        "faults/delete_is_throttled",
        "faults/delete_meets_an_io_error",
        "faults/delete_meets_an_unavailable_server",
        "faults/delete_meets_io_errors_that_last",
    ];
    lists_nothing_on_errors: ListsNothingOnErrors fails [
        "faults/list_is_reset_after_the_effect",
        "faults/list_is_throttled",
        "faults/list_meets_an_io_error",
        "faults/list_meets_an_unavailable_server",
    ];
    a_hang_blocks_all: AHangBlocksAll fails [
        "faults/delete_hangs",
        "faults/get_hangs",
        "faults/list_hangs",
        "faults/put_hangs",
        "faults/close_hangs",
    ];
    a_failed_put_burns_the_id: AFailedPutBurnsTheId fails [
        "faults/put_is_reset_after_the_effect",
        "faults/put_is_reset_before_the_effect",
        "faults/put_is_throttled",
        "faults/put_meets_a_server_error",
        "faults/put_meets_a_server_that_stays_unavailable",
        "faults/put_meets_a_torn_write",
        "faults/put_meets_an_io_error",
        "faults/put_meets_an_unavailable_server",
        "faults/put_meets_io_errors_that_last",
        "faults/put_meets_no_space",
        "faults/put_meets_no_space_that_lasts",
    ];
    gives_up_closing: GivesUpClosing fails [
        "faults/close_hangs",
        "faults/close_is_reset_after_the_effect",
        "faults/close_is_throttled",
        "faults/close_meets_an_io_error",
        "faults/close_meets_an_unavailable_server",
    ];
    fails_to_open_twice: FailsToOpenTwice fails [
        "faults/open_meets_an_io_error",
        "faults/open_meets_an_unavailable_server",
        "faults/open_meets_no_space",
    ];
    sweep_takes_the_living: SweepTakesTheLiving fails [
        "sweep/a_living_session_is_left_alone",
        "sweep/foreign_things_are_left_alone",
        "sweep/sessions_come_and_go_during_sweeps",
        "sweep/the_dead_are_told_from_the_living",
    ];
    sweep_leaves_blobs: SweepLeavesBlobs fails [
        "sweep/a_dropped_session_is_swept",
        "sweep/every_dropped_session_is_counted_once",
        "sweep/sweeping_again_finds_nothing",
        "sweep/the_dead_are_told_from_the_living",
        "sweep/two_sweeps_at_once_are_one",
    ];
    sweep_counts_the_living: SweepCountsTheLiving fails [
        "sweep/a_living_session_is_left_alone",
        "sweep/the_dead_are_told_from_the_living",
    ];
    sweep_takes_foreign_things: SweepTakesForeignThings fails ["sweep/foreign_things_are_left_alone"];
    sweep_fails_where_nothing_is: SweepFailsWhereNothingIs fails [
        "sweep/a_closed_session_leaves_nothing_to_sweep",
        "sweep/sessions_come_and_go_during_sweeps",
        "sweep/sweeping_again_finds_nothing",
        "sweep/sweeping_where_nothing_ever_was_is_fine",
        "sweep/two_sweeps_at_once_are_one",
    ];
    sweeps_count_each_other: SweepsCountEachOther fails ["sweep/two_sweeps_at_once_are_one"];
}

/// After its first error every call fails: that is seen wherever there can be an error.
#[test]
fn an_error_poisons() {
    let quiet = ["hangs", "short", "truncated", "flipped", "/open", "/close"];
    let cases = store_cases().into_iter().filter(|case| case.group == Group::Faults);
    let names: Vec<String> = cases.map(|case| case.full_name()).collect();
    let wanted: Vec<&str> = names.iter().map(String::as_str).collect();
    fails(
        Bug::AnErrorPoisons,
        &wanted
            .into_iter()
            .filter(|name| quiet.iter().all(|quiet| !name.contains(quiet)))
            .collect::<Vec<_>>(),
    );
}
