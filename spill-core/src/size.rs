//! Numbers of bytes as people write and read them.

use bytesize::ByteSize;

/// Writes a number of bytes in the largest binary unit that fits, for messages.
///
/// ```
/// use spill_core::format_bytes;
/// assert_eq!(format_bytes(0), "0 B");
/// assert_eq!(format_bytes(1536), "1.5 KiB");
/// ```
pub fn format_bytes(bytes: u64) -> String {
    ByteSize::b(bytes).display().iec().to_string()
}

/// Reads a number of bytes: a plain number, or one with a unit (`kB`, `MB`, … are powers of 1000; `KiB`,
/// `MiB`, … of 1024).
///
/// # Errors
/// When it is not that: the error says what is allowed.
///
/// ```
/// use spill_core::parse_bytes;
/// assert_eq!(parse_bytes("512 MiB").unwrap(), 512 << 20);
/// assert_eq!(parse_bytes("4096").unwrap(), 4096);
/// assert!(parse_bytes("-1").is_err());
/// assert!(parse_bytes("12 parsecs").is_err());
/// ```
pub fn parse_bytes(text: &str) -> Result<u64, ParseBytesError> {
    // bytesize rounds fractions through f64, which is exact far beyond any memory or disk.
    text.trim().parse::<ByteSize>().map(|size| size.as_u64()).map_err(|_| ParseBytesError)
}

/// The text is not a number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a number of bytes: write a whole number of bytes, or a number and a unit (kB, MB, GB, TB, KiB, MiB, GiB, TiB)")]
pub struct ParseBytesError;
