//! The suite catches mistakes: each deliberately broken store fails exactly the cases it should.

use std::{collections::BTreeSet, time::Duration};

use spill_conformance::store_suite;

#[path = "broken/store.rs"]
mod store;

use store::{Bug, harness};

/// Runs the suite and compares the cases that fail, on either runtime, with those that should.
#[track_caller]
fn fails(bug: Bug, wanted: &[&str]) {
    let harness = harness(bug).time_limit(Duration::from_secs(20));
    let report = store_suite(harness).report();
    println!("{report}");
    if std::env::var_os("COLLECT").is_some() {
        let found: BTreeSet<&str> = report.failed().map(|name| name.rsplit_once('/').unwrap().0).collect();
        std::fs::write(format!("/tmp/collect/{bug:?}"), found.into_iter().collect::<Vec<_>>().join("\n"))
            .unwrap();
    }
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

#[test]
fn get_is_off_by_one() {
    fails(Bug::GetIsOffByOne, &[]);
}

#[test]
fn get_is_short() {
    fails(Bug::GetIsShort, &[]);
}

#[test]
fn past_the_end_is_clipped() {
    fails(Bug::PastTheEndIsClipped, &[]);
}

#[test]
fn missing_is_empty() {
    fails(Bug::MissingIsEmpty, &[]);
}

#[test]
fn missing_is_other() {
    fails(Bug::MissingIsOther, &[]);
}

#[test]
fn empty_range_of_missing_is_empty() {
    fails(Bug::EmptyRangeOfMissingIsEmpty, &[]);
}

#[test]
fn delete_of_missing_fails() {
    fails(Bug::DeleteOfMissingFails, &[]);
}

#[test]
fn delete_stops_at_the_first_missing() {
    fails(Bug::DeleteStopsAtTheFirstMissing, &[]);
}

#[test]
fn delete_takes_a_thousand_at_most() {
    fails(Bug::DeleteTakesAThousandAtMost, &[]);
}

#[test]
fn delete_removes_by_prefix() {
    fails(Bug::DeleteRemovesByPrefix, &[]);
}

#[test]
fn delete_forgets_the_last() {
    fails(Bug::DeleteForgetsTheLast, &[]);
}

#[test]
fn list_is_unordered() {
    fails(Bug::ListIsUnordered, &[]);
}

#[test]
fn list_has_duplicates() {
    fails(Bug::ListHasDuplicates, &[]);
}

#[test]
fn list_ignores_the_limit() {
    fails(Bug::ListIgnoresTheLimit, &[]);
}

#[test]
fn list_includes_the_given_id() {
    fails(Bug::ListIncludesTheGivenId, &[]);
}

#[test]
fn list_is_one_short() {
    fails(Bug::ListIsOneShort, &[]);
}

#[test]
fn list_goes_by_position() {
    fails(Bug::ListGoesByPosition, &[]);
}

#[test]
fn list_shows_foreign_things() {
    fails(Bug::ListShowsForeignThings, &[]);
}

#[test]
fn put_overwrites() {
    fails(Bug::PutOverwrites, &[]);
}

#[test]
fn put_is_refused_but_overwrites() {
    fails(Bug::PutIsRefusedButOverwrites, &[]);
}

#[test]
fn put_says_the_wrong_size() {
    fails(Bug::PutSaysTheWrongSize, &[]);
}

#[test]
fn put_is_seen_half() {
    fails(Bug::PutIsSeenHalf, &[]);
}

#[test]
fn put_takes_the_first_chunk_only() {
    fails(Bug::PutTakesTheFirstChunkOnly, &[]);
}

#[test]
fn put_loses_the_last_byte_of_large() {
    fails(Bug::PutLosesTheLastByteOfLarge, &[]);
}

#[test]
fn put_forgets_chunks_beyond_one_call() {
    fails(Bug::PutForgetsChunksBeyondOneCall, &[]);
}

#[test]
fn empty_is_not_kept() {
    fails(Bug::EmptyIsNotKept, &[]);
}

#[test]
fn sessions_share_blobs() {
    fails(Bug::SessionsShareBlobs, &[]);
}

#[test]
fn sessions_share_ids() {
    fails(Bug::SessionsShareIds, &[]);
}

#[test]
fn close_leaves_blobs() {
    fails(Bug::CloseLeavesBlobs, &[]);
}

#[test]
fn close_fails() {
    fails(Bug::CloseFails, &[]);
}

#[test]
fn close_closes_all() {
    fails(Bug::CloseClosesAll, &[]);
}

#[test]
fn blocks_the_runtime() {
    fails(Bug::BlocksTheRuntime, &[]);
}

#[test]
fn hangs_on_an_empty_batch() {
    fails(Bug::HangsOnAnEmptyBatch, &[]);
}

#[test]
fn panics_on_far_ranges() {
    fails(Bug::PanicsOnFarRanges, &[]);
}

#[test]
fn counts_allocation_in_blocks() {
    fails(Bug::CountsAllocationInBlocks, &[]);
}

#[test]
fn punches_too_much() {
    fails(Bug::PunchesTooMuch, &[]);
}

#[test]
fn works_on_one_runtime_only() {
    fails(Bug::WorksOnOneRuntimeOnly, &[]);
}
