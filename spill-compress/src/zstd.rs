//! Zstandard: one frame per value, without a checksum of its own.

use std::{fmt, io, ops::RangeInclusive};

use spill_core::{CompressError, Compressor, Tag};
use zstd::{
    bulk,
    zstd_safe::{self, CParameter},
};

use crate::{checked_length, exactly, pool::Pool, within};

const NAME: &str = "zstd";

/// Stronger levels want up to 1 GiB of working memory, which no budget would see.
const LEVELS: RangeInclusive<i32> = 1..=19;

/// The most a value may have: beyond it [`zstd_safe::compress_bound`] is an error code, not a length.
const MOST: usize = (u32::MAX / 2) as usize;

/// The first bytes of a frame. Older formats have other ones and decoders of lesser repute, which another
/// crate's features may have compiled in.
const MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();

/// Zstandard: the smallest result.
///
/// Contexts are kept and used again (as many as threads can run, 32 at most, for each direction), because
/// a new one for every value of a few KiB more than halves the speed. A used one writes the bytes a new one
/// writes.
///
/// Working memory is outside the buffer's budget. For each compressing thread it is at most 0.6 MiB at
/// level 1, 1.3 MiB at level 3, 10.5 MiB at level 9 and 82 MiB at level 19 (17 MiB for values of 1 MiB);
/// restoring takes 0.1 MiB per thread. Windows are 8 MiB at most, and a restore writes straight into the
/// output, so that nothing a damaged value claims is ever allocated.
///
/// Values above 2 147 483 647 bytes are refused, with a bound of 0.
///
/// ```
/// use spill_compress::Zstd;
/// use spill_core::{Compressor, Tag};
/// let zstd = Zstd::new(1).unwrap();
/// assert_eq!((zstd.tag(), zstd.name(), zstd.level()), (Tag::ZSTD, "zstd", 1));
/// assert_eq!(Zstd::default().level(), 3);
///
/// let mut packed = vec![0; zstd.bound(1000)];
/// let length = zstd.compress(&[7; 1000], &mut packed).unwrap();
/// assert!(length < 30);
/// let mut restored = [0; 1000];
/// Zstd::default().decompress(&packed[..length], &mut restored).unwrap(); // any level reads any other
/// assert_eq!(restored, [7; 1000]);
/// ```
pub struct Zstd {
    level: i32,
    compressors: Pool<bulk::Compressor<'static>>,
    decompressors: Pool<bulk::Decompressor<'static>>,
}

impl Zstd {
    /// The level unless another one is asked for.
    pub const DEFAULT_LEVEL: i32 = 3;

    /// A compressor of this level, from 1 (fastest) to 19 (smallest).
    ///
    /// Allocates nothing yet; contexts come with use.
    ///
    /// # Errors
    /// When there is no such level: the message names the ones there are.
    ///
    /// ```
    /// let error = spill_compress::Zstd::new(22).unwrap_err();
    /// assert_eq!(error.to_string(), "zstd: level 22 is not one of 1 to 19; 1 is fastest, 3 the default");
    /// ```
    pub fn new(level: i32) -> Result<Self, CompressError> {
        if !LEVELS.contains(&level) {
            let (first, last) = (LEVELS.start(), LEVELS.end());
            let message = format!(
                "level {level} is not one of {first} to {last}; {first} is fastest, {} the default",
                Self::DEFAULT_LEVEL
            );
            return Err(CompressError::new(NAME, message));
        }
        Ok(Self::at(level))
    }

    /// The level it compresses with.
    pub fn level(&self) -> i32 {
        self.level
    }

    fn at(level: i32) -> Self {
        Self { level, compressors: Pool::default(), decompressors: Pool::default() }
    }

    fn compressor(&self) -> Result<bulk::Compressor<'static>, CompressError> {
        let mut compressor = bulk::Compressor::new(self.level).map_err(|error| failed(&error))?;
        // Frames of Spill have a CRC32C; a second checksum would only cost.
        compressor.set_parameter(CParameter::ChecksumFlag(false)).map_err(|error| failed(&error))?;
        compressor.set_parameter(CParameter::ContentSizeFlag(true)).map_err(|error| failed(&error))?;
        Ok(compressor)
    }
}

impl Default for Zstd {
    /// Level 3.
    fn default() -> Self {
        Self::at(Self::DEFAULT_LEVEL)
    }
}

impl fmt::Debug for Zstd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Zstd").field("level", &self.level).finish_non_exhaustive()
    }
}

fn failed(error: &io::Error) -> CompressError {
    CompressError::new(NAME, error.to_string())
}

/// Refuses all but one whole frame that says it holds `expected` bytes, before a byte is restored.
fn check_frame(packed: &[u8], expected: usize) -> Result<(), CompressError> {
    if !packed.starts_with(&MAGIC) {
        return Err(CompressError::new(NAME, "the packed bytes are no Zstandard frame"));
    }
    let claimed = zstd_safe::get_frame_content_size(packed).ok().flatten();
    let claimed = claimed.ok_or_else(|| CompressError::new(NAME, "the frame does not say its length"))?;
    if claimed != expected as u64 {
        let message = format!("the packed bytes hold {claimed} bytes, expected {expected}");
        return Err(CompressError::new(NAME, message));
    }
    match zstd_safe::find_frame_compressed_size(packed) {
        Ok(length) if length == packed.len() => Ok(()),
        Ok(_) => Err(CompressError::new(NAME, "there are bytes after the frame")),
        Err(code) => Err(CompressError::new(NAME, zstd_safe::get_error_name(code))),
    }
}

impl Compressor for Zstd {
    fn tag(&self) -> Tag {
        Tag::ZSTD
    }

    fn name(&self) -> &'static str {
        NAME
    }

    fn bound(&self, raw: usize) -> usize {
        if raw > MOST { 0 } else { zstd_safe::compress_bound(raw) }
    }

    fn compress(&self, raw: &[u8], out: &mut [u8]) -> Result<usize, CompressError> {
        checked_length(NAME, raw.len(), MOST)?;
        let out = within(NAME, out, self.bound(raw.len()))?;
        self.compressors.with(
            || self.compressor(),
            |compressor| compressor.compress_to_buffer(raw, out).map_err(|error| failed(&error)),
        )
    }

    fn decompress(&self, packed: &[u8], out: &mut [u8]) -> Result<(), CompressError> {
        check_frame(packed, out.len())?;
        let restored = self.decompressors.with(
            || bulk::Decompressor::new().map_err(|error| failed(&error)),
            |decompressor| decompressor.decompress_to_buffer(packed, out).map_err(|error| failed(&error)),
        )?;
        exactly(NAME, restored, out.len())
    }
}
