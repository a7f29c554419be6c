//! The suite catches mistakes: each deliberately broken store fails exactly the cases it should.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "these are tests")]

use std::{collections::BTreeSet, time::Duration};

use spill_conformance::store_suite;

#[path = "broken/store.rs"]
mod store;

use store::{Bug, harness};

/// Runs the suite and compares the cases that fail, on either runtime, with those that should.
#[track_caller]
fn fails(bug: Bug, wanted: &[&str]) {
    // A store that only hangs is found sooner; the others never come near the limit.
    let limit = if bug == Bug::HangsOnAnEmptyBatch { 3 } else { 60 };
    let harness =
        harness(bug).time_limit(Duration::from_secs(limit)).settle_limit(Duration::from_millis(100));
    // Taken apart, so that no results of a broken store are written.
    let report = store_suite(harness).only(|_| true).report();
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

#[test]
fn get_is_off_by_one() {
    fails(
        Bug::GetIsOffByOne,
        &[
            "cancel/get_at_every_poll",
            "punch/punching_keeps_length_and_the_rest",
            "ranges/every_range_of_a_small_blob",
            "ranges/many_ranges_at_once",
            "ranges/ranges_around_boundaries",
            "ranges/the_same_range_again_is_the_same",
        ],
    );
}

#[test]
fn get_is_short() {
    fails(
        Bug::GetIsShort,
        &[
            "basics/too_large_is_refused_and_leaves_nothing",
            "cancel/cancelled_puts_leave_nothing_after_close",
            "cancel/get_at_every_poll",
            "cancel/put_of_a_large_blob_at_every_poll",
            "cancel/puts_dropped_with_their_runtime",
            "concurrency/a_put_is_seen_whole_or_not_at_all",
            "concurrency/many_large_puts_at_once",
            "delete/a_reader_sees_all_or_nothing",
            "payloads/a_thousand_uneven_chunks",
            "payloads/large_and_tiny_chunks",
            "punch/punching_keeps_length_and_the_rest",
            "ranges/ranges_around_boundaries",
            "sizes/large",
            "sizes/large_and_one",
            "sizes/large_less_one",
            "sizes/segment_and_one",
        ],
    );
}

#[test]
fn past_the_end_is_clipped() {
    fails(
        Bug::PastTheEndIsClipped,
        &["ranges/far_past_the_end_is_corrupt", "ranges/one_byte_past_the_end_is_corrupt"],
    );
}

#[test]
fn missing_is_empty() {
    fails(
        Bug::MissingIsEmpty,
        &[
            "basics/deleted_is_not_found",
            "basics/errors_say_what_and_where",
            "basics/missing_is_not_found",
            "basics/missing_is_not_found_for_any_range",
            "cancel/cancelled_puts_leave_nothing_after_close",
            "cancel/delete_at_every_poll",
            "cancel/put_at_every_poll",
            "cancel/put_of_a_large_blob_at_every_poll",
            "concurrency/loops_of_put_get_delete_at_once",
            "delete/a_reader_sees_all_or_nothing",
            "delete/deleting_again_is_fine",
            "sessions/a_second_session_sees_nothing_of_the_first",
        ],
    );
}

#[test]
fn missing_is_other() {
    fails(
        Bug::MissingIsOther,
        &[
            "basics/deleted_is_not_found",
            "basics/missing_is_not_found",
            "basics/missing_is_not_found_for_any_range",
            "cancel/cancelled_puts_leave_nothing_after_close",
            "cancel/delete_at_every_poll",
            "cancel/put_at_every_poll",
            "cancel/put_of_a_large_blob_at_every_poll",
            "concurrency/loops_of_put_get_delete_at_once",
            "delete/a_reader_sees_all_or_nothing",
            "delete/deleting_again_is_fine",
            "sessions/a_second_session_sees_nothing_of_the_first",
        ],
    );
}

#[test]
fn empty_range_of_missing_is_empty() {
    fails(Bug::EmptyRangeOfMissingIsEmpty, &["basics/missing_is_not_found_for_any_range"]);
}

#[test]
fn delete_of_missing_fails() {
    fails(
        Bug::DeleteOfMissingFails,
        &[
            "cancel/put_at_every_poll",
            "cancel/put_of_a_large_blob_at_every_poll",
            "concurrency/many_deletes_of_one_blob_at_once",
            "delete/a_batch_with_missing_ones_removes_the_others",
            "delete/deleting_again_is_fine",
            "delete/deleting_what_never_was_is_fine",
            "delete/one_id_twice_in_a_batch_is_fine",
            "delete/others_stay",
            "sessions/deleting_in_one_leaves_the_other",
        ],
    );
}

#[test]
fn delete_stops_at_the_first_missing() {
    fails(
        Bug::DeleteStopsAtTheFirstMissing,
        &[
            "cancel/put_at_every_poll",
            "cancel/put_of_a_large_blob_at_every_poll",
            "concurrency/many_deletes_of_one_blob_at_once",
            "delete/a_batch_with_missing_ones_removes_the_others",
        ],
    );
}

#[test]
fn delete_takes_a_thousand_at_most() {
    fails(Bug::DeleteTakesAThousandAtMost, &["delete/a_batch_beyond_a_thousand"]);
}

#[test]
fn delete_removes_by_prefix() {
    fails(
        Bug::DeleteRemovesByPrefix,
        &["delete/others_stay", "listing/what_stays_is_listed_once_under_change"],
    );
}

#[test]
fn delete_forgets_the_last() {
    fails(
        Bug::DeleteForgetsTheLast,
        &[
            "basics/extreme_ids_work",
            "cancel/delete_at_every_poll",
            "cancel/put_at_every_poll",
            "cancel/put_of_a_large_blob_at_every_poll",
            "close/deleting_all_leaves_no_blob",
            "concurrency/many_deletes_of_one_blob_at_once",
            "delete/a_batch_beyond_a_thousand",
            "delete/a_batch_of_a_thousand",
            "listing/deleted_are_not_listed",
            "listing/foreign_things_are_ignored",
        ],
    );
}

#[test]
fn list_is_unordered() {
    fails(
        Bug::ListIsUnordered,
        &[
            "listing/a_page_starts_after_an_id_that_is_gone",
            "listing/a_page_starts_after_the_given_id",
            "listing/after_the_last_there_is_nothing",
            "listing/listing_is_ordered",
            "listing/pages_join_to_the_whole",
        ],
    );
}

#[test]
fn list_has_duplicates() {
    fails(
        Bug::ListHasDuplicates,
        &[
            "cancel/list_at_every_poll",
            "listing/a_page_starts_after_an_id_that_is_gone",
            "listing/a_page_starts_after_the_given_id",
            "listing/more_than_a_thousand",
            "listing/nothing_is_listed_twice",
            "listing/pages_join_to_the_whole",
            "listing/what_stays_is_listed_once_under_change",
            "usage/put_and_listing_agree_after_changes",
        ],
    );
}

#[test]
fn list_ignores_the_limit() {
    fails(
        Bug::ListIgnoresTheLimit,
        &["listing/never_more_than_the_limit", "listing/pages_are_full_until_the_last"],
    );
}

#[test]
fn list_includes_the_given_id() {
    fails(
        Bug::ListIncludesTheGivenId,
        &[
            "listing/a_page_starts_after_the_given_id",
            "listing/after_the_last_there_is_nothing",
            "listing/more_than_a_thousand",
            "listing/nothing_is_listed_twice",
            "listing/pages_join_to_the_whole",
            "listing/what_stays_is_listed_once_under_change",
            "usage/put_and_listing_agree_after_changes",
        ],
    );
}

#[test]
fn list_is_one_short() {
    fails(
        Bug::ListIsOneShort,
        &[
            "listing/more_than_a_thousand",
            "listing/pages_are_full_until_the_last",
            "listing/pages_join_to_the_whole",
            "listing/what_stays_is_listed_once_under_change",
            "usage/put_and_listing_agree_after_changes",
            "usage/the_listing_says_the_size_of_the_payload",
        ],
    );
}

#[test]
fn list_goes_by_position() {
    fails(
        Bug::ListGoesByPosition,
        &[
            "listing/a_page_starts_after_an_id_that_is_gone",
            "listing/what_stays_is_listed_once_under_change",
            "usage/put_and_listing_agree_after_changes",
        ],
    );
}

#[test]
fn list_shows_foreign_things() {
    fails(Bug::ListShowsForeignThings, &["listing/foreign_things_are_ignored"]);
}

#[test]
fn put_overwrites() {
    fails(Bug::PutOverwrites, &["ids/a_second_put_is_refused"]);
}

#[test]
fn put_is_refused_but_overwrites() {
    fails(Bug::PutIsRefusedButOverwrites, &["ids/a_refused_put_leaves_the_first"]);
}

#[test]
fn put_says_the_wrong_size() {
    fails(
        Bug::PutSaysTheWrongSize,
        &[
            "payloads/a_thousand_uneven_chunks",
            "payloads/empty_chunks",
            "payloads/large_and_tiny_chunks",
            "payloads/more_chunks_than_one_call_takes",
            "payloads/two_chunks",
            "payloads/windows_into_a_larger_buffer",
            "usage/an_empty_blob_has_no_bytes",
            "usage/put_and_listing_agree_after_changes",
            "usage/put_says_the_size_of_the_payload",
        ],
    );
}

#[test]
fn put_is_seen_half() {
    fails(
        Bug::PutIsSeenHalf,
        &[
            "cancel/cancelled_puts_leave_nothing_after_close",
            "cancel/put_at_every_poll",
            "cancel/put_of_a_large_blob_at_every_poll",
            "cancel/puts_dropped_with_their_runtime",
            "concurrency/a_put_is_seen_whole_or_not_at_all",
        ],
    );
}

#[test]
fn put_takes_the_first_chunk_only() {
    fails(
        Bug::PutTakesTheFirstChunkOnly,
        &[
            "payloads/a_thousand_uneven_chunks",
            "payloads/empty_chunks",
            "payloads/large_and_tiny_chunks",
            "payloads/more_chunks_than_one_call_takes",
            "payloads/one_payload_under_two_ids",
            "payloads/two_chunks",
            "payloads/windows_into_a_larger_buffer",
        ],
    );
}

#[test]
fn put_loses_the_last_byte_of_large() {
    fails(
        Bug::PutLosesTheLastByteOfLarge,
        &["basics/too_large_is_refused_and_leaves_nothing", "sizes/large", "sizes/large_and_one"],
    );
}

#[test]
fn put_forgets_chunks_beyond_one_call() {
    fails(Bug::PutForgetsChunksBeyondOneCall, &["payloads/more_chunks_than_one_call_takes"]);
}

#[test]
fn empty_is_not_kept() {
    fails(
        Bug::EmptyIsNotKept,
        &[
            "ranges/an_empty_range_is_empty",
            "ranges/one_byte_past_the_end_is_corrupt",
            "sizes/empty",
            "sizes/every_small_size",
            "usage/an_empty_blob_has_no_bytes",
            "usage/the_listing_says_the_size_of_the_payload",
        ],
    );
}

#[test]
fn sessions_share_blobs() {
    fails(
        Bug::SessionsShareBlobs,
        &[
            "sessions/a_second_session_sees_nothing_of_the_first",
            "sessions/closing_one_leaves_the_other",
            "sessions/deleting_in_one_leaves_the_other",
            "sessions/dropping_one_leaves_the_other",
            "sessions/one_id_in_two_sessions_is_two_blobs",
            "sessions/two_sessions_at_work_at_once",
        ],
    );
}

#[test]
fn close_leaves_blobs() {
    fails(
        Bug::CloseLeavesBlobs,
        &["cancel/cancelled_puts_leave_nothing_after_close", "close/closing_leaves_nothing"],
    );
}

#[test]
fn close_fails() {
    fails(
        Bug::CloseFails,
        &[
            "cancel/cancelled_puts_leave_nothing_after_close",
            "close/closing_an_unused_store_is_fine",
            "close/closing_an_unused_store_leaves_nothing",
            "close/closing_leaves_nothing",
            "close/closing_with_blobs_is_fine",
            "concurrency/works_after_the_runtime_it_was_opened_on_is_gone",
            "sessions/closing_one_leaves_the_other",
            "sessions/opening_again_after_close_works",
        ],
    );
}

#[test]
fn close_closes_all() {
    fails(Bug::CloseClosesAll, &["sessions/closing_one_leaves_the_other"]);
}

#[test]
fn blocks_the_runtime() {
    fails(Bug::BlocksTheRuntime, &["basics/too_large_is_refused_and_leaves_nothing", "sizes/large_and_one"]);
}

#[test]
fn hangs_on_an_empty_batch() {
    fails(Bug::HangsOnAnEmptyBatch, &["delete/an_empty_batch_is_fine"]);
}

#[test]
fn panics_on_far_ranges() {
    fails(Bug::PanicsOnFarRanges, &["ranges/far_past_the_end_is_corrupt"]);
}

#[test]
fn counts_allocation_in_blocks() {
    fails(Bug::CountsAllocationInBlocks, &["usage/allocation_is_plausible"]);
}

#[test]
fn punches_too_much() {
    fails(Bug::PunchesTooMuch, &["punch/punching_keeps_length_and_the_rest"]);
}

#[test]
fn works_on_one_runtime_only() {
    fails(
        Bug::WorksOnOneRuntimeOnly,
        &[
            "concurrency/works_after_the_runtime_it_was_opened_on_is_gone",
            "concurrency/works_from_a_second_runtime",
        ],
    );
}

#[test]
fn text_is_translated() {
    fails(
        Bug::TextIsTranslated,
        &[
            "basics/any_bytes_are_kept",
            "basics/extreme_ids_work",
            "cancel/list_at_every_poll",
            "delete/others_stay",
            "sizes/every_small_size",
        ],
    );
}

#[test]
fn reads_change_the_listing() {
    fails(Bug::ReadsChangeTheListing, &["basics/reading_changes_nothing"]);
}

#[test]
fn preferred_blob_is_zero() {
    fails(Bug::PreferredBlobIsZero, &["basics/info_is_constant"]);
}

#[test]
fn fails_when_busy() {
    fails(
        Bug::FailsWhenBusy,
        &["concurrency/many_gets_of_one_blob_at_once", "concurrency/many_puts_at_once"],
    );
}

#[test]
fn drop_needs_a_runtime() {
    fails(Bug::DropNeedsARuntime, &["concurrency/can_be_dropped_outside_a_runtime"]);
}

#[test]
fn punch_says_too_much() {
    fails(
        Bug::PunchSaysTooMuch,
        &["punch/punching_nothing_gives_nothing", "punch/punching_says_no_more_than_was_asked"],
    );
}

#[test]
fn backward_range_is_empty() {
    fails(Bug::BackwardRangeIsEmpty, &["ranges/a_backward_range_is_an_error"]);
}

#[test]
fn damages_page_edges() {
    fails(
        Bug::DamagesPageEdges,
        &[
            "basics/any_bytes_are_kept",
            "basics/too_large_is_refused_and_leaves_nothing",
            "cancel/put_of_a_large_blob_at_every_poll",
            "cancel/puts_dropped_with_their_runtime",
            "concurrency/a_put_is_seen_whole_or_not_at_all",
            "sizes/every_small_size",
            "sizes/large",
            "sizes/large_and_one",
            "sizes/large_less_one",
            "sizes/one_byte",
            "sizes/page",
            "sizes/page_and_one",
            "sizes/page_less_one",
            "sizes/segment",
            "sizes/segment_and_one",
            "sizes/segment_less_one",
        ],
    );
}
