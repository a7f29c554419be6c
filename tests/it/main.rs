//! The behaviour of the buffer, rule by rule and case by case.

#![allow(clippy::cast_possible_truncation, reason = "tests cast small numbers")]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test ends with a panic")]
#![allow(clippy::wildcard_imports, reason = "the harness is written to be used whole")]

mod harness;
mod support;

mod attacks;
mod cases;
mod cases_files;
mod cases_full;
mod cases_insert;
mod cases_load;
mod configured;
mod demotion;
mod golden;
mod processes;
mod regressions;
mod rules_a;
mod rules_b;
mod rules_b10;
mod rules_c;
mod rules_e;
mod rules_f;
mod rules_f2;
mod rules_g;
mod rules_i;
