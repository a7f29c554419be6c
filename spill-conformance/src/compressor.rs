//! The suite for compressors.
//!
//! Not proven: that damaged input allocates no more than it may, that native code reads nothing outside its
//! input, and how fast or how tight it is.

use std::{sync::Arc, thread, time::Duration};

use spill_core::{CompressError, Compressor, Tag};

use crate::{
    random::Random,
    runner::{Stop, Suite, Verdict, ensure, ensure_eq},
};

const LIMIT: Duration = Duration::from_secs(120);
const SIZES: [usize; 24] = [
    1,
    2,
    3,
    7,
    8,
    15,
    16,
    17,
    63,
    64,
    65,
    255,
    256,
    257,
    4095,
    4096,
    4097,
    65_535,
    65_536,
    65_537,
    200_000,
    (1 << 20) - 1,
    1 << 20,
    (1 << 20) + 1,
];
/// Written around the output, to see writes past it.
const GUARD: [u8; 64] = [0xA5; 64];

/// The checks for one compressor, named `compressor/<its name>/<check>`.
///
/// A compressor may refuse to compress, as the contract allows; what it takes it must give back. One that
/// takes none of the samples fails.
///
/// ```
/// fn check(mine: std::sync::Arc<dyn spill_core::Compressor>) {
///     spill_conformance::compressor_suite(mine).report().assert_passed();
/// }
/// ```
#[expect(clippy::needless_pass_by_value, reason = "the suite keeps it: the checks outlive this call")]
pub fn compressor_suite(compressor: Arc<dyn Compressor>) -> Suite {
    type Check = fn(&Arc<dyn Compressor>) -> Verdict;
    let checks: [(&str, Check); 9] = [
        ("name_and_tag_are_constant", name_and_tag_are_constant),
        ("what_is_packed_comes_back", what_is_packed_comes_back),
        ("nothing_packs_into_nothing", nothing_packs_into_nothing),
        ("equal_input_packs_equally", equal_input_packs_equally),
        ("a_cut_off_end_is_an_error", a_cut_off_end_is_an_error),
        ("another_length_is_an_error", another_length_is_an_error),
        ("damage_never_panics", damage_never_panics),
        ("garbage_never_panics", garbage_never_panics),
        ("works_from_many_threads", works_from_many_threads),
    ];
    let mut suite = Suite::new("compressor", compressor.name());
    for (name, check) in checks {
        let compressor = Arc::clone(&compressor);
        let name = format!("compressor/{}/{name}", compressor.name());
        suite.add_bounded(name, LIMIT, move || check(&compressor));
    }
    suite
}

/// An input that the compressor takes.
struct Sample {
    what: String,
    raw: Vec<u8>,
    packed: Vec<u8>,
}

/// Inputs of many kinds and sizes; zero bytes have a check of their own.
fn samples(sizes: &[usize]) -> impl Iterator<Item = (String, Vec<u8>)> {
    sizes.iter().flat_map(|&len| {
        let mut text = b"The quick brown fox jumps over the lazy dog. ".repeat(len / 45 + 1);
        text.truncate(len);
        let ramp: Vec<u8> = (0..=255).cycle().take(len).collect();
        let mut mixed = text.clone();
        mixed[len / 2..].copy_from_slice(&Random::new(3).bytes(len - len / 2));
        let kinds = [
            ("zeros", vec![0; len]),
            ("text", text),
            ("ramp", ramp),
            ("mixed", mixed),
            ("noise", Random::new(7).bytes(len)),
        ];
        kinds.map(|(kind, raw)| (format!("{len} bytes of {kind}"), raw))
    })
}

/// What a sample packs into, or `None` when the compressor refuses it.
fn pack(compressor: &dyn Compressor, raw: &[u8], what: &str) -> Result<Option<Vec<u8>>, Stop> {
    let bound = compressor.bound(raw.len());
    let mut out = [GUARD.as_slice(), &vec![0x5A; bound], &GUARD].concat();
    let Ok(len) = compressor.compress(raw, &mut out[GUARD.len()..][..bound]) else { return Ok(None) };
    ensure!(len <= bound, "{what}: packed into {len} bytes, more than the bound, {bound}");
    guarded(&out, what)?;
    Ok(Some(out[GUARD.len()..][..len].to_vec()))
}

fn unpack(
    compressor: &dyn Compressor,
    packed: &[u8],
    len: usize,
    what: &str,
) -> Result<Result<Vec<u8>, CompressError>, Stop> {
    let mut out = [GUARD.as_slice(), &vec![0x5A; len], &GUARD].concat();
    let answer = compressor.decompress(packed, &mut out[GUARD.len()..][..len]);
    guarded(&out, what)?;
    Ok(answer.map(|()| out[GUARD.len()..][..len].to_vec()))
}

fn guarded(out: &[u8], what: &str) -> Verdict {
    ensure!(out.starts_with(&GUARD) && out.ends_with(&GUARD), "{what}: wrote outside of the output");
    Ok(())
}

/// The samples that the compressor takes, packed.
fn packed_samples(compressor: &dyn Compressor, sizes: &[usize]) -> Result<Vec<Sample>, Stop> {
    let mut taken = Vec::new();
    for (what, raw) in samples(sizes) {
        if let Some(packed) = pack(compressor, &raw, &what)? {
            taken.push(Sample { what, raw, packed });
        }
    }
    ensure!(!taken.is_empty(), "refuses to pack any of the samples: nothing can be checked");
    Ok(taken)
}

fn name_and_tag_are_constant(compressor: &Arc<dyn Compressor>) -> Verdict {
    let (name, tag) = (compressor.name(), compressor.tag());
    ensure!(!name.is_empty(), "the name is empty");
    ensure!(tag != Tag::NONE, "the tag is {tag:?}, which marks what is stored as is");
    pack(&**compressor, b"some bytes", "some bytes")?;
    ensure_eq!((compressor.name(), compressor.tag()), (name, tag), "name and tag after a call");
    Ok(())
}

fn what_is_packed_comes_back(compressor: &Arc<dyn Compressor>) -> Verdict {
    for Sample { what, raw, packed } in packed_samples(&**compressor, &SIZES)? {
        let back =
            unpack(&**compressor, &packed, raw.len(), &what)?.map_err(|error| format!("{what}: {error}"))?;
        ensure!(back == raw, "{what}: other bytes come back");
    }
    Ok(())
}

fn nothing_packs_into_nothing(compressor: &Arc<dyn Compressor>) -> Verdict {
    if let Some(packed) = pack(&**compressor, &[], "no bytes")? {
        unpack(&**compressor, &packed, 0, "no bytes")??;
    }
    Ok(())
}

fn equal_input_packs_equally(compressor: &Arc<dyn Compressor>) -> Verdict {
    for Sample { what, raw, packed } in packed_samples(&**compressor, &SIZES)? {
        // Another buffer, more room, and other calls in between.
        let mut out = vec![0xFF; compressor.bound(raw.len()) + 1000];
        let len = compressor.compress(&raw, &mut out)?;
        ensure!(out.get(..len) == Some(packed.as_slice()), "{what}: packs into other bytes the second time");
    }
    Ok(())
}

fn a_cut_off_end_is_an_error(compressor: &Arc<dyn Compressor>) -> Verdict {
    for Sample { what, raw, packed } in packed_samples(&**compressor, &[17, 300, 5000])? {
        let step = packed.len() / 500 + 1;
        for len in (0..packed.len()).step_by(step).chain([packed.len().saturating_sub(1)]) {
            if len == packed.len() {
                continue;
            }
            let answer = unpack(&**compressor, &packed[..len], raw.len(), &what)?;
            ensure!(
                answer.is_err(),
                "{what}: the first {len} of {} packed bytes unpack without an error",
                packed.len()
            );
        }
    }
    Ok(())
}

fn another_length_is_an_error(compressor: &Arc<dyn Compressor>) -> Verdict {
    for Sample { what, raw, packed } in packed_samples(&**compressor, &[17, 300, 5000, 65_536])? {
        for len in [0, 1, raw.len() - 1, raw.len() + 1, raw.len() * 2] {
            let answer = unpack(&**compressor, &packed, len, &what)?;
            ensure!(answer.is_err(), "{what}: unpacks into {len} bytes without an error");
        }
    }
    Ok(())
}

fn damage_never_panics(compressor: &Arc<dyn Compressor>) -> Verdict {
    let mut random = Random::new(11);
    for Sample { what, raw, packed } in packed_samples(&**compressor, &[17, 300, 5000])? {
        let step = packed.len() / 200 + 1;
        for at in (0..packed.len()).step_by(step) {
            for flip in [1, 0x80, 0xFF] {
                let mut damaged = packed.clone();
                damaged[at] ^= flip;
                let _ = unpack(&**compressor, &damaged, raw.len(), &what)?;
            }
        }
        for _ in 0..50 {
            let mut damaged = packed.clone();
            for _ in 0..1 + random.below(8) {
                let at = random.below(damaged.len());
                damaged[at] = random.bytes(1)[0];
            }
            damaged.extend_from_slice(&random.bytes(3));
            let _ = unpack(&**compressor, &damaged, raw.len(), &what)?;
        }
    }
    Ok(())
}

fn garbage_never_panics(compressor: &Arc<dyn Compressor>) -> Verdict {
    let mut random = Random::new(13);
    for round in 0..2000 {
        let len = random.below(200);
        let garbage = random.bytes(len);
        let into = random.below(5000);
        let _ = unpack(&**compressor, &garbage, into, &format!("garbage of round {round}"))?;
    }
    let huge = vec![0xFF; 100];
    let _ = unpack(&**compressor, &huge, 1000, "a hundred bytes of 255")?;
    Ok(())
}

fn works_from_many_threads(compressor: &Arc<dyn Compressor>) -> Verdict {
    let wanted = Arc::new(packed_samples(&**compressor, &[300, 5000, 65_537])?);
    let threads: Vec<_> = (0..8)
        .map(|number| {
            let (compressor, wanted) = (Arc::clone(compressor), Arc::clone(&wanted));
            thread::spawn(move || {
                for round in 0..10 * wanted.len() {
                    let Sample { what, raw, packed } = &wanted[(round + number) % wanted.len()];
                    let again = pack(&*compressor, raw, what)?;
                    ensure!(
                        again.as_ref() == Some(packed),
                        "{what}: packs into other bytes on another thread"
                    );
                    let back = unpack(&*compressor, packed, raw.len(), what)??;
                    ensure!(back == *raw, "{what}: other bytes come back on another thread");
                }
                Ok(())
            })
        })
        .collect();
    for thread in threads {
        thread.join().map_err(|_| "panicked when it was used from many threads")??;
    }
    Ok(())
}
