//! A keyed buffer bigger than memory.

pub use spill_core::*;
