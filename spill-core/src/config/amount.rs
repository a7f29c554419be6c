//! Values that have a form of their own: [`Amount`] and [`Compression`].

use std::{fmt, str::FromStr};

use crate::{Share, parse_bytes};

/// A number of bytes, or a share of something whose size is known later.
///
/// Written exactly, so that what is printed reads back as the same amount.
///
/// ```
/// use spill_core::config::Amount;
/// let half: Amount = "50%".parse()?;
/// assert_eq!(half.of(300), 150);
/// let fixed: Amount = "1.5 KiB".parse()?;
/// assert_eq!(fixed.of(300), 1536);
/// assert_eq!(fixed.to_string(), "1536 B");
/// # Ok::<(), spill_core::config::ParseAmountError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// This many bytes.
    Bytes(u64),
    /// This share of the whole.
    Share(Share),
}

impl Amount {
    /// The bytes this comes to when the whole has `whole` bytes.
    pub fn of(self, whole: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Share(share) => share.of(whole),
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => f.write_str(&format_bytes_exactly(*bytes)),
            Self::Share(share) => share.fmt(f),
        }
    }
}

/// The text is neither a number of bytes nor a percentage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("neither a number of bytes nor a percentage: write one like \"512 MiB\", or one like \"12.5%\"")]
pub struct ParseAmountError;

impl FromStr for Amount {
    type Err = ParseAmountError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.trim_end().ends_with('%') {
            text.parse().map(Self::Share).map_err(|_| ParseAmountError)
        } else {
            parse_bytes(text).map(Self::Bytes).map_err(|_| ParseAmountError)
        }
    }
}

/// Writes a number of bytes in the largest binary unit that loses nothing, so that
/// [`parse_bytes`](crate::parse_bytes) gives back the same number.
///
/// ```
/// use spill_core::config::format_bytes_exactly;
/// assert_eq!(format_bytes_exactly(512 << 20), "512 MiB");
/// assert_eq!(format_bytes_exactly(1025), "1025 B");
/// ```
pub fn format_bytes_exactly(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut number, mut unit) = (bytes, 0);
    while number != 0 && number % 1024 == 0 && unit + 1 < units.len() {
        number /= 1024;
        unit += 1;
    }
    format!("{number} {}", units[unit])
}

/// How the values of a tier are compressed.
///
/// ```
/// use spill_core::config::Compression;
/// let packed: Compression = "zstd:3".parse()?;
/// assert_eq!(packed, Compression::Named { name: "zstd".into(), argument: Some("3".into()) });
/// assert_eq!(packed.to_string(), "zstd:3");
/// assert!("".parse::<Compression>().is_err());
/// # Ok::<(), spill_core::config::ParseCompressionError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// By what suits the tier, of what the registry has.
    Auto,
    /// By the compressor of this name.
    Named {
        /// Its name in the registry.
        name: String,
        /// What follows the colon: a level, for `zstd`.
        argument: Option<String>,
    },
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Auto => f.write_str("auto"),
            Self::Named { name, argument: None } => f.write_str(name),
            Self::Named { name, argument: Some(argument) } => write!(f, "{name}:{argument}"),
        }
    }
}

/// The text does not name a compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseCompressionError {
    /// There is no name, or one with other characters than small letters, digits, `-` and `_`.
    #[error("not the name of a compressor")]
    Name,
    /// There is a colon and nothing behind it.
    #[error("nothing follows the colon")]
    Argument,
    /// `none` and `auto` take no level.
    #[error("`none` and `auto` take nothing after a colon")]
    NoArgument,
}

impl FromStr for Compression {
    type Err = ParseCompressionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, argument) = match text.split_once(':') {
            Some((name, argument)) => (name, Some(argument)),
            None => (text, None),
        };
        let letter =
            |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-_".contains(letter);
        if name.is_empty() || !name.chars().all(letter) {
            return Err(ParseCompressionError::Name);
        }
        match (name, argument) {
            ("none" | "auto", Some(_)) => Err(ParseCompressionError::NoArgument),
            ("none", None) => Ok(Self::None),
            ("auto", None) => Ok(Self::Auto),
            (_, Some("")) => Err(ParseCompressionError::Argument),
            _ => Ok(Self::Named { name: name.to_owned(), argument: argument.map(str::to_owned) }),
        }
    }
}
