//! The behaviour of the buffer, rule by rule and case by case.

mod cases_insert;
mod golden;
mod rules_b;
mod rules_b10;
mod rules_i;
mod smoke;
mod support;
