//! The codecs of Spill: `Lz4`, `Snappy` and `Zstd`, each a [`Compressor`](spill_core::Compressor)
//! and each behind a cargo feature of its own name. None of them needs another one.
//!
//! Whether a value is worth compressing, and what becomes of one that is not, is decided above, in
//! `spill-core`; so are checksums. What is here turns bytes into fewer bytes and back.
//!
//! # Which one to take
//!
//! | | take it when | memory per call |
//! |---|---|---|
//! | `Lz4` | the tier is a local disk: restores are the fastest of the three | 8–16 KiB |
//! | `Snappy` | values are a few KiB, or numbers: it compresses those a little faster | up to 34 KiB |
//! | `Zstd` level 1 | the tier is remote or dear, and bytes cost more than CPU time | 0.6 MiB |
//! | `Zstd` level 3 | the same, with text and logs in it, and CPU time to spare | 1.3 MiB |
//!
//! `compress = "auto"` in the settings, or `TierSpec::compress_auto`, finds out which of none, `Lz4` and `Zstd` level 1
//! spills most in a second. It asks for time, not for space: name one where space is dear.
//!
//! Compress / decompress in MB/s on one core, with the ratio in brackets, measured on 2 vCPU AMD EPYC (a
//! shared virtual machine: trust the relations more than the numbers):
//!
//! | data | LZ4 | Snappy | Zstd 1 | Zstd 3 |
//! |---|---|---|---|---|
//! | text, 1 MiB | 314 / 1780 (2.2) | 329 / 954 (2.2) | 253 / 810 (3.1) | 151 / 682 (3.6) |
//! | log, 1 MiB | 545 / 2900 (2.6) | 474 / 1380 (2.5) | 297 / 857 (4.3) | 200 / 1046 (4.1) |
//! | `i64` range, 1 MiB | 529 / 824 (2.0) | 620 / 877 (2.0) | 272 / 513 (7.9) | 173 / 414 (7.9) |
//! | mixed rows, 64 KiB | 560 / 1350 (1.5) | 595 / 1258 (1.5) | 223 / 479 (2.2) | 132 / 473 (2.2) |
//! | text, 4 KiB | 356 (1.7) | 466 (1.7) | 203 (2.3) | 103 |
//! | random, 1 MiB | 14700 | 11200 | 4100 | 2600 |
//!
//! A local disk of that machine takes 1340 MB/s, more than any of them makes on one core: there,
//! compression saves space and page cache, and saves time only on slower and on remote tiers.
//!
//! ```
//! # #[cfg(feature = "lz4")] {
//! use spill_compress::Lz4;
//! use spill_core::Compressor;
//!
//! let raw = b"a value, a value, a value, a value, a value";
//! let mut packed = vec![0; Lz4.bound(raw.len())];
//! let length = Lz4.compress(raw, &mut packed).unwrap();
//! assert!(length < raw.len());
//!
//! let mut restored = vec![0; raw.len()];
//! Lz4.decompress(&packed[..length], &mut restored).unwrap();
//! assert_eq!(restored, raw);
//! # }
//! ```
#![forbid(unsafe_code)]

#[cfg(feature = "lz4")]
mod lz4;
#[cfg(any(feature = "snappy", feature = "zstd"))]
mod pool;
#[cfg(feature = "snappy")]
mod snappy;
#[cfg(feature = "zstd")]
mod zstd;

#[cfg(feature = "lz4")]
pub use crate::lz4::Lz4;
#[cfg(feature = "snappy")]
pub use crate::snappy::Snappy;
#[cfg(feature = "zstd")]
pub use crate::zstd::Zstd;

/// The first `bound` bytes of `out`, so that what lies behind them can't influence what is written.
#[cfg(any(feature = "lz4", feature = "snappy", feature = "zstd"))]
fn within<'a>(
    name: &'static str,
    out: &'a mut [u8],
    bound: usize,
) -> Result<&'a mut [u8], spill_core::CompressError> {
    let given = out.len();
    out.get_mut(..bound).ok_or_else(|| {
        spill_core::CompressError::new(name, format!("the output has {given} bytes, {bound} may be needed"))
    })
}

/// Refuses what the format can't hold.
#[cfg(any(feature = "lz4", feature = "snappy", feature = "zstd"))]
fn checked_length(name: &'static str, raw: usize, most: usize) -> Result<(), spill_core::CompressError> {
    if raw > most {
        let message = format!("the value has {raw} bytes, the most it takes is {most}; store it as is");
        return Err(spill_core::CompressError::new(name, message));
    }
    Ok(())
}

/// Refuses what came out shorter than the value was.
#[cfg(any(feature = "lz4", feature = "snappy", feature = "zstd"))]
fn exactly(name: &'static str, restored: usize, expected: usize) -> Result<(), spill_core::CompressError> {
    if restored != expected {
        let message = format!("the packed bytes hold {restored} bytes, expected {expected}");
        return Err(spill_core::CompressError::new(name, message));
    }
    Ok(())
}
