//! LZ4: the block format, without a length in front.

use spill_core::{CompressError, Compressor, Tag};

use crate::{checked_length, exactly, within};

const NAME: &str = "lz4";

/// What the reference implementation takes at most, so that others can read it too.
const MOST: usize = 0x7E00_0000;

/// The LZ4 block format: the fastest to restore.
///
/// Encoder and decoder are the ones without `unsafe`. There is no state: a value costs a table of
/// 8 KiB, or 16 KiB from 64 KiB on, which is gone when the call is. The length is not part of the packed bytes: the frame around
/// them has it, and damaged input can't claim another one.
///
/// Values above 2 113 929 216 bytes are refused, with a bound of 0.
///
/// ```
/// use spill_compress::Lz4;
/// use spill_core::{Compressor, Tag};
/// assert_eq!((Lz4.tag(), Lz4.name()), (Tag::LZ4, "lz4"));
///
/// let mut packed = vec![0; Lz4.bound(1000)];
/// let length = Lz4.compress(&[7; 1000], &mut packed).unwrap();
/// assert!(length < 30);
///
/// let mut other_length = [0; 999];
/// assert!(Lz4.decompress(&packed[..length], &mut other_length).is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lz4;

impl Compressor for Lz4 {
    fn tag(&self) -> Tag {
        Tag::LZ4
    }

    fn name(&self) -> &'static str {
        NAME
    }

    fn bound(&self, raw: usize) -> usize {
        if raw > MOST { 0 } else { lz4_flex::block::get_maximum_output_size(raw) }
    }

    fn compress(&self, raw: &[u8], out: &mut [u8]) -> Result<usize, CompressError> {
        checked_length(NAME, raw.len(), MOST)?;
        let out = within(NAME, out, self.bound(raw.len()))?;
        lz4_flex::block::compress_into(raw, out).map_err(|error| CompressError::new(NAME, error.to_string()))
    }

    fn decompress(&self, packed: &[u8], out: &mut [u8]) -> Result<(), CompressError> {
        let restored = lz4_flex::block::decompress_into(packed, out)
            .map_err(|error| CompressError::new(NAME, error.to_string()))?;
        exactly(NAME, restored, out.len())
    }
}
