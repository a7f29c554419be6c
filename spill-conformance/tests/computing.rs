//! The suites for compressors, codecs and policies catch mistakes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "these are tests")]

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use spill_conformance::{Suite, codec_suite, compressor_suite, policy_suite};
use spill_core::{
    Arrival, BytesCodec, Codec, CodecError, CompressError, Compressor, Marks, Payload, Policy, Slot, Tag,
    Touch,
};

/// The checks that fail, by the last part of their names.
#[track_caller]
fn fails(suite: Suite, wanted: &[&str]) {
    // Taken apart, so that no results of a broken part are written.
    let report = suite.only(|_| true).report();
    println!("{report}");
    let found: Vec<&str> = report.failed().map(|name| name.rsplit_once('/').unwrap().1).collect();
    assert_eq!(found, wanted);
}

/// Run lengths: pairs of a count and a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runs {
    Correct,
    LosesTheLastRun,
    BoundIsTooSmall,
    IgnoresTheLength,
    PanicsOnZeroCounts,
    TagIsNone,
    RefusesAll,
    DependsOnTheRoom,
}

impl Runs {
    fn error(message: &str) -> CompressError {
        CompressError::new("runs", message)
    }
}

impl Compressor for Runs {
    fn tag(&self) -> Tag {
        if *self == Self::TagIsNone { Tag::NONE } else { Tag(200) }
    }

    fn name(&self) -> &'static str {
        "runs"
    }

    fn bound(&self, raw: usize) -> usize {
        if *self == Self::BoundIsTooSmall { raw } else { raw * 2 }
    }

    fn compress(&self, raw: &[u8], out: &mut [u8]) -> Result<usize, CompressError> {
        if *self == Self::RefusesAll {
            return Err(Self::error("not in the mood"));
        }
        let (mut at, mut rest) = (0, raw);
        let longest = if *self == Self::DependsOnTheRoom { 1 + out.len() % 255 } else { 255 };
        while let Some(first) = rest.first() {
            let run = rest.iter().take(longest).take_while(|byte| *byte == first).count();
            rest = &rest[run..];
            if *self == Self::LosesTheLastRun && rest.is_empty() && at > 0 {
                break;
            }
            out[at..at + 2].copy_from_slice(&[u8::try_from(run).unwrap(), *first]);
            at += 2;
        }
        Ok(at)
    }

    fn decompress(&self, packed: &[u8], out: &mut [u8]) -> Result<(), CompressError> {
        let mut at = 0;
        for pair in packed.chunks(2) {
            let [count, byte] = pair else { return Err(Self::error("half a pair")) };
            assert!(*count > 0 || *self != Self::PanicsOnZeroCounts, "no count");
            let end = at + usize::from(*count);
            if end > out.len() && *self == Self::IgnoresTheLength {
                return Ok(());
            }
            out.get_mut(at..end).ok_or_else(|| Self::error("too many bytes"))?.fill(*byte);
            at = end;
        }
        if at < out.len() && *self != Self::IgnoresTheLength {
            return Err(Self::error("too few bytes"));
        }
        Ok(())
    }
}

#[test]
fn compressors_that_are_wrong_are_caught() {
    let check = |runs: Runs, wanted: &[&str]| fails(compressor_suite(Arc::new(runs)), wanted);
    check(Runs::Correct, &[]);
    check(
        Runs::LosesTheLastRun,
        &["what_is_packed_comes_back", "another_length_is_an_error", "works_from_many_threads"],
    );
    check(Runs::IgnoresTheLength, &["a_cut_off_end_is_an_error", "another_length_is_an_error"]);
    check(Runs::PanicsOnZeroCounts, &["damage_never_panics", "garbage_never_panics"]);
    check(Runs::TagIsNone, &["name_and_tag_are_constant"]);
    check(Runs::DependsOnTheRoom, &["equal_input_packs_equally"]);
    let all_but_two = [
        "what_is_packed_comes_back",
        "equal_input_packs_equally",
        "a_cut_off_end_is_an_error",
        "another_length_is_an_error",
        "damage_never_panics",
        "works_from_many_threads",
    ];
    check(Runs::RefusesAll, &all_but_two);
    let with_name = [&["name_and_tag_are_constant"][..], &all_but_two].concat();
    check(Runs::BoundIsTooSmall, &with_name);
}

/// A length and as many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prefixed {
    Correct,
    TrustsTheLength,
    LosesEmpty,
}

impl Codec<Vec<u8>> for Prefixed {
    fn encode(&self, value: &Vec<u8>) -> Result<Payload, CodecError> {
        let len = u8::try_from(value.len()).map_err(CodecError::from_source)?;
        Ok([&[len][..], value].concat().into())
    }

    fn decode(&self, bytes: Bytes) -> Result<Vec<u8>, CodecError> {
        let (len, rest) = bytes.split_first().ok_or_else(|| CodecError::new("no length"))?;
        let len = usize::from(*len);
        if len == 0 && *self == Self::LosesEmpty {
            return Err(CodecError::new("nothing there"));
        }
        if *self == Self::TrustsTheLength {
            return Ok(rest[..len].to_vec());
        }
        rest.get(..len).map(<[u8]>::to_vec).ok_or_else(|| CodecError::new("cut off"))
    }
}

#[test]
fn codecs_that_are_wrong_are_caught() {
    let samples = || vec![Vec::new(), vec![1, 2, 3], vec![9; 255]];
    let check = |codec, wanted: &[&str]| fails(codec_suite("prefixed", codec, samples()), wanted);
    check(Prefixed::Correct, &[]);
    check(
        Prefixed::TrustsTheLength,
        &["a_cut_off_end_never_panics", "damage_never_panics", "garbage_never_panics"],
    );
    check(Prefixed::LosesEmpty, &["what_is_encoded_comes_back", "works_from_many_threads"]);
    fails(codec_suite::<String, _>("empty", BytesCodec, Vec::new()), &["what_is_encoded_comes_back"]);
}

#[test]
fn the_built_in_codecs_pass() {
    let texts = vec![String::new(), "text".to_owned(), "ä€𝄞".repeat(1000)];
    codec_suite("string", BytesCodec, texts).report().assert_passed();
    codec_suite("bytes", BytesCodec, vec![Bytes::new(), Bytes::from_static(b"\0\xFF")])
        .report()
        .assert_passed();
}

/// A queue with a second chance for those that were read.
#[derive(Debug)]
struct Clock {
    bug: PolicyBug,
    queue: VecDeque<Slot>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PolicyBug {
    None,
    OffersTheForgotten,
    ForgetsTooMuch,
    OffersTwice,
    NeverOffersTheRead,
    PanicsOnUnknown,
    SumsWeights,
}

impl Policy for Clock {
    fn name(&self) -> &'static str {
        "clock"
    }

    fn touch(&self) -> Touch {
        Touch::Count(1)
    }

    fn admit(&mut self, arrival: &Arrival) {
        if self.bug == PolicyBug::SumsWeights {
            arrival.weight.checked_mul(1 << 20).expect("weights are small");
        }
        self.queue.push_back(arrival.slot);
    }

    fn forget(&mut self, slot: Slot) {
        match self.bug {
            PolicyBug::OffersTheForgotten => {}
            PolicyBug::ForgetsTooMuch => self.queue.retain(|other| other.get() / 2 != slot.get() / 2),
            PolicyBug::PanicsOnUnknown => {
                let at = self.queue.iter().position(|other| *other == slot).expect("it is held");
                self.queue.remove(at);
            }
            _ => self.queue.retain(|other| *other != slot),
        }
    }

    fn victim(&mut self, marks: &dyn Marks) -> Option<Slot> {
        for _ in 0..self.queue.len() {
            let slot = self.queue.pop_front()?;
            if marks.get(slot) == 0 {
                if self.bug == PolicyBug::OffersTwice {
                    self.queue.push_back(slot);
                }
                return Some(slot);
            }
            if self.bug != PolicyBug::NeverOffersTheRead {
                marks.reset(slot, 0);
            }
            self.queue.push_back(slot);
        }
        if self.bug == PolicyBug::NeverOffersTheRead { None } else { self.queue.pop_front() }
    }
}

#[test]
fn policies_that_are_wrong_are_caught() {
    let check = |bug: PolicyBug, wanted: &[&str]| {
        fails(policy_suite(move || Box::new(Clock { bug, queue: VecDeque::new() })), wanted);
    };
    let random = "random_operations_agree_with_a_model";
    check(PolicyBug::None, &[]);
    check(
        PolicyBug::OffersTheForgotten,
        &[
            "a_forgotten_entry_is_not_offered",
            "forgetting_what_it_does_not_hold_does_nothing",
            "slots_are_used_again",
            "extreme_weights_work",
            random,
        ],
    );
    check(
        PolicyBug::ForgetsTooMuch,
        &[
            "a_forgotten_entry_is_not_offered",
            "forgetting_what_it_does_not_hold_does_nothing",
            "slots_are_used_again",
            "extreme_weights_work",
            random,
        ],
    );
    check(
        PolicyBug::OffersTwice,
        &[
            "each_entry_is_offered_once",
            "a_forgotten_entry_is_not_offered",
            "forgetting_what_it_does_not_hold_does_nothing",
            "slots_are_used_again",
            "extreme_weights_work",
            random,
        ],
    );
    check(
        PolicyBug::NeverOffersTheRead,
        &["a_forgotten_entry_is_not_offered", "entries_read_all_the_time_are_offered_too", random],
    );
    check(
        PolicyBug::PanicsOnUnknown,
        &["forgetting_what_it_does_not_hold_does_nothing", "slots_are_used_again", random],
    );
    check(PolicyBug::SumsWeights, &["extreme_weights_work"]);
}
