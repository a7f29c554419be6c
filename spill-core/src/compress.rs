//! The contract of a compressor. The shipped ones are in `spill-compress`; which values are worth
//! compressing is decided above them, in `frame`.

use std::fmt;

use crate::CompressError;

/// Says in a frame which compressor wrote it. Part of the format: never reuse one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u8);

impl Tag {
    /// Stored as is.
    pub const NONE: Self = Self(0);
    /// The LZ4 block format.
    pub const LZ4: Self = Self(1);
    /// The raw Snappy format.
    pub const SNAPPY: Self = Self(2);
    /// A Zstandard frame.
    pub const ZSTD: Self = Self(3);
    /// The first tag that is free for compressors from elsewhere; those below are kept for Spill.
    pub const FIRST_FREE: Self = Self(128);
}

/// Makes bytes fewer, and gives them back exactly.
///
/// Implementations are deterministic, keep no state a caller could see, and may be called from many
/// threads at once. Damaged input is an error: never a panic, never a write past `out`, never an
/// allocation that the input's own claims decide.
///
/// ```
/// use spill_core::{CompressError, Compressor, Tag};
///
/// /// Keeps one byte of a run of equal ones.
/// #[derive(Debug)]
/// struct OneLetter;
///
/// impl Compressor for OneLetter {
///     fn tag(&self) -> Tag {
///         Tag(200)
///     }
///     fn name(&self) -> &'static str {
///         "one-letter"
///     }
///     fn bound(&self, _raw: usize) -> usize {
///         1
///     }
///     fn compress(&self, raw: &[u8], out: &mut [u8]) -> Result<usize, CompressError> {
///         let first = *raw.first().ok_or_else(|| CompressError::new(self.name(), "nothing to compress"))?;
///         if raw.iter().any(|byte| *byte != first) {
///             return Err(CompressError::new(self.name(), "more than one letter"));
///         }
///         out[0] = first;
///         Ok(1)
///     }
///     fn decompress(&self, packed: &[u8], out: &mut [u8]) -> Result<(), CompressError> {
///         let [letter] = packed else { return Err(CompressError::new(self.name(), "not one letter")) };
///         out.fill(*letter);
///         Ok(())
///     }
/// }
///
/// let mut packed = [0; 1];
/// assert_eq!(OneLetter.compress(b"aaaa", &mut packed).unwrap(), 1);
/// let mut raw = [0; 4];
/// OneLetter.decompress(&packed, &mut raw).unwrap();
/// assert_eq!(&raw, b"aaaa");
/// ```
pub trait Compressor: fmt::Debug + Send + Sync + 'static {
    /// What marks its frames. Constant.
    fn tag(&self) -> Tag;

    /// Its name in configs and messages. Constant.
    fn name(&self) -> &'static str;

    /// The most bytes that `raw` bytes can become.
    fn bound(&self, raw: usize) -> usize;

    /// Compresses `raw` into the front of `out` and says how many bytes that took.
    ///
    /// `out` has at least [`bound`](Self::bound) bytes.
    ///
    /// # Errors
    /// When it can't; the value is then stored as is.
    fn compress(&self, raw: &[u8], out: &mut [u8]) -> Result<usize, CompressError>;

    /// Restores exactly `out.len()` bytes from `packed`.
    ///
    /// # Errors
    /// When `packed` is damaged, or holds more or fewer bytes than `out`. What `out` then holds is
    /// unspecified.
    fn decompress(&self, packed: &[u8], out: &mut [u8]) -> Result<(), CompressError>;
}
