//! The behaviour of the buffer, rule by rule and case by case.

mod golden;
mod rules_b;
//mod rules_i;
mod smoke;
mod support;
