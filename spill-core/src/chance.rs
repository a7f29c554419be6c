//! Chance: seeds that differ everywhere, and numbers made of them that are the same each time.

use std::hash::{BuildHasher, RandomState};

/// A number that nobody else has, in this process or elsewhere.
pub(crate) fn random() -> u64 {
    // Seeded by the operating system, and another one at each call.
    RandomState::new().hash_one(0)
}

/// A number in which each bit depends on every bit of `number`: the finalizer of `SplitMix64`.
pub(crate) fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
