//! The behaviour of the buffer, rule by rule and case by case.

mod smoke;
