//! What every codec owes the contract `spill_core::Compressor`, one module of tests per codec.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]
#![cfg(any(feature = "lz4", feature = "snappy", feature = "zstd"))]

use proptest::{
    prelude::any,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use spill_core::Compressor;

const SEED: u64 = 0x5911_1c0d_ec50_0001;

const SIZES: [usize; 15] =
    [0, 1, 2, 63, 64, 65, 4095, 4096, 4097, 65_535, 65_536, 65_537, (1 << 20) - 1, 1 << 20, (1 << 20) + 1];

/// Bytes without any pattern; the same ones for the same seed.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

fn text(length: usize) -> Vec<u8> {
    let words = ["spill ", "restore ", "of ", "a ", "blob ", "and ", "its ", "frame\n", "weight ", "tier "];
    let order = noise(SEED, length);
    let mut text: Vec<u8> = order.iter().flat_map(|pick| words[usize::from(*pick) % 10].bytes()).collect();
    text.truncate(length);
    text
}

fn pack(codec: &dyn Compressor, raw: &[u8]) -> Vec<u8> {
    let bound = codec.bound(raw.len());
    let mut packed = vec![0xAA; bound + 3];
    let length = codec.compress(raw, &mut packed).unwrap();
    assert!(length <= bound, "{}: {length} bytes of a bound of {bound}", codec.name());
    assert_eq!(packed[bound..], [0xAA; 3], "{}: wrote past its bound", codec.name());
    packed.truncate(length);
    packed
}

fn round_trip(codec: &dyn Compressor, raw: &[u8]) {
    let packed = pack(codec, raw);
    let mut restored = vec![0x55; raw.len()];
    codec.decompress(&packed, &mut restored).unwrap();
    assert!(restored == raw, "{}: {} bytes differ", codec.name(), raw.len());
}

fn round_trips_at_every_boundary(codec: &dyn Compressor) {
    for size in SIZES {
        round_trip(codec, &vec![0; size]);
        round_trip(codec, &text(size));
        round_trip(codec, &noise(SEED, size));
    }
}

fn round_trips_what_looks_compressed(codec: &dyn Compressor) {
    let packed = pack(codec, &text(70_000));
    round_trip(codec, &packed);
    round_trip(codec, &pack(codec, &packed));
    round_trip(codec, &packed[..packed.len() / 2]);
    for magic in [&[0x28, 0xB5, 0x2F, 0xFD][..], &[0x04, 0x22, 0x4D, 0x18], b"\xff\x06\x00\x00sNaPpY"] {
        round_trip(codec, magic);
        round_trip(codec, &[magic, &packed].concat());
    }
}

fn makes_compressible_bytes_fewer(codec: &dyn Compressor) {
    assert!(pack(codec, &vec![0; 1 << 20]).len() < 60_000);
    let raw = text(1 << 20);
    assert!(pack(codec, &raw).len() < raw.len() * 2 / 3);
}

fn damage_is_an_error_or_the_same_length(codec: &dyn Compressor) {
    let raw = [text(150), vec![b'x'; 120], noise(SEED, 30)].concat();
    let packed = pack(codec, &raw);
    let mut out = vec![0; raw.len()];
    for length in 0..packed.len() {
        assert!(codec.decompress(&packed[..length], &mut out).is_err(), "{}: cut to {length}", codec.name());
    }
    let mut refused = 0;
    for bit in 0..packed.len() * 8 {
        let mut damaged = packed.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        refused += usize::from(codec.decompress(&damaged, &mut out).is_err());
        assert_eq!(out.len(), raw.len());
    }
    assert!(refused > 0, "{}: no flipped bit was noticed at all", codec.name());
    codec.decompress(&packed, &mut out).unwrap();
    assert_eq!(out, raw, "{}: damaged input before harms a whole one", codec.name());
}

fn another_length_is_an_error(codec: &dyn Compressor) {
    for raw in [text(5000), noise(SEED, 5000), vec![0; 5000], vec![1], Vec::new()] {
        let packed = pack(codec, &raw);
        for wrong in [0, raw.len().saturating_sub(1), raw.len() + 1, raw.len() * 2 + 7] {
            if wrong != raw.len() {
                assert!(codec.decompress(&packed, &mut vec![0; wrong]).is_err(), "{}: {wrong}", codec.name());
            }
        }
        let longer = [&packed[..], &packed[..]].concat();
        assert!(codec.decompress(&longer, &mut vec![0; raw.len()]).is_err() || raw.is_empty());
    }
}

fn garbage_never_panics(codec: &dyn Compressor) {
    let seed: [u8; 32] = noise(SEED, 32).try_into().unwrap();
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner =
        TestRunner::new_with_rng(Config { failure_persistence: None, ..Config::with_cases(2000) }, rng);
    let honest = pack(codec, &text(600));
    let garbage = (proptest::collection::vec(any::<u8>(), 0..200), 0..honest.len(), 0..700_usize);
    runner
        .run(&garbage, |(garbage, kept, length)| {
            let mut out = vec![0; length];
            let _ = codec.decompress(&garbage, &mut out);
            // A true beginning gets garbage past the checks of the header.
            let _ = codec.decompress(&[&honest[..kept], &garbage].concat(), &mut vec![0; 600]);
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("seed {SEED:#x}: {failure}"));
    round_trip(codec, &text(600));
}

fn a_short_output_is_an_error(codec: &dyn Compressor) {
    let raw = noise(SEED, 1000);
    let mut out = vec![0; codec.bound(raw.len()) - 1];
    assert!(codec.compress(&raw, &mut out).is_err());
    assert!(codec.compress(&raw, &mut []).is_err());
    assert_eq!(codec.bound(usize::MAX), 0);
}

fn equal_values_become_equal_bytes(codec: &dyn Compressor) {
    // Two bits of each byte: many chance matches, so that every difference in a match finder would show.
    let chancy: Vec<u8> = noise(SEED, 100_000).iter().map(|byte| byte & 3).collect();
    let values = [text(200_000), chancy, noise(SEED, 20_000), text(16_384), text(900), vec![3; 9000]];
    let first: Vec<_> = values.iter().map(|raw| pack(codec, raw)).collect();
    // In another order, so that what was compressed before is another value.
    for (raw, packed) in values.iter().zip(&first).rev().chain(values.iter().zip(&first)) {
        assert!(pack(codec, raw) == *packed, "{codec:?}: {} bytes became others", raw.len());
    }
}

fn eight_threads_at_once(codec: &dyn Compressor) {
    let expected: Vec<_> = (0..8).map(|n| pack(codec, &text(3000 + n * 977))).collect();
    let start = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (start, expected) = (&start, &expected);
            scope.spawn(move || {
                start.wait();
                for round in 0..24 {
                    let n = (thread + round) % 8;
                    let raw = text(3000 + n * 977);
                    assert!(pack(codec, &raw) == expected[n]);
                    round_trip(codec, &raw);
                }
            });
        }
    });
}

macro_rules! contract {
    ($module:ident, $feature:literal, $codec:expr) => {
        contract!($module, $feature, $codec, [
            round_trips_at_every_boundary,
            round_trips_what_looks_compressed,
            makes_compressible_bytes_fewer,
            damage_is_an_error_or_the_same_length,
            another_length_is_an_error,
            garbage_never_panics,
            a_short_output_is_an_error,
            equal_values_become_equal_bytes,
            eight_threads_at_once,
        ]);
    };
    ($module:ident, $feature:literal, $codec:expr, [$($test:ident,)*]) => {
        #[cfg(feature = $feature)]
        mod $module {
            $(
                #[test]
                fn $test() {
                    super::$test(&$codec);
                }
            )*
        }
    };
}

contract!(lz4, "lz4", spill_compress::Lz4);
contract!(snappy, "snappy", spill_compress::Snappy::new());
contract!(zstd, "zstd", spill_compress::Zstd::default());
contract!(zstd_1, "zstd", spill_compress::Zstd::new(1).unwrap());
contract!(zstd_9, "zstd", spill_compress::Zstd::new(9).unwrap());

#[cfg(feature = "zstd")]
mod zstd_levels {
    use spill_compress::Zstd;

    #[test]
    fn every_level_writes_equal_bytes_and_is_read_by_any_other() {
        let reader = Zstd::default();
        for level in 1..=19 {
            let codec = Zstd::new(level).unwrap();
            super::equal_values_become_equal_bytes(&codec);
            let raw = super::text(40_000);
            let packed = super::pack(&codec, &raw);
            let mut restored = vec![0; raw.len()];
            spill_core::Compressor::decompress(&reader, &packed, &mut restored).unwrap();
            assert!(restored == raw, "level {level}");
        }
    }

    #[test]
    fn levels_outside_the_range_are_refused() {
        for level in [i32::MIN, -1, 0, 20, 22, i32::MAX] {
            assert!(Zstd::new(level).unwrap_err().to_string().contains(&level.to_string()));
        }
    }

    #[test]
    fn frames_of_other_formats_are_refused() {
        let codec = Zstd::default();
        let empty = super::pack(&codec, &[]);
        let skippable = [&0x184D_2A50_u32.to_le_bytes()[..], &[0; 4]].concat();
        for foreign in
            [skippable.clone(), [skippable, empty.clone()].concat(), [empty.clone(), empty].concat()]
        {
            assert!(spill_core::Compressor::decompress(&codec, &foreign, &mut []).is_err(), "{foreign:?}");
        }
    }
}
