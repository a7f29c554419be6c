//! The names of things: which blob, which entry.
//!
//! A store sees only [`BlobId`]s, never a user's key, so no key has to be escaped and no key can walk out
//! of a directory. An [`EntryId`] tells two values apart that were inserted under one key.

use std::{fmt, num::ParseIntError, str::FromStr};

/// Names one blob within one session of a store. Never used twice in that session.
///
/// ```
/// use spill_core::BlobId;
/// let id = BlobId::new(255);
/// assert_eq!(id.to_string(), "00000000000000ff");
/// assert_eq!("00000000000000ff".parse(), Ok(id));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobId(u64);

impl BlobId {
    /// The blob with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Sixteen lower-case hexadecimal digits: sorts as the number does.
impl fmt::Display for BlobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for BlobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlobId({:x})", self.0)
    }
}

impl FromStr for BlobId {
    type Err = ParseBlobIdError;

    /// Reads back what `Display` wrote, and nothing else: a foreign file in a store's directory must not
    /// pass for a blob because its name happens to be a number.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let canonical = text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if !canonical {
            return Err(ParseBlobIdError);
        }
        let number = u64::from_str_radix(text, 16).map_err(|_: ParseIntError| ParseBlobIdError)?;
        Ok(Self(number))
    }
}

/// The text is not sixteen lower-case hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a blob id is sixteen lower-case hexadecimal digits")]
pub struct ParseBlobIdError;

/// Names one insert: two values inserted under the same key have different ids.
///
/// Written into every frame, so that a frame can never be taken for another entry's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId(u64);

impl EntryId {
    /// The entry with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EntryId({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_form_is_a_blob_id() {
        for foreign in ["", "ff", "00000000000000FF", "+0000000000000ff", "00000000000000ff0", "lock"] {
            assert_eq!(foreign.parse::<BlobId>(), Err(ParseBlobIdError), "{foreign:?}");
        }
        for number in [0, 1, u64::MAX] {
            let id = BlobId::new(number);
            assert_eq!(id.to_string().parse(), Ok(id));
        }
    }
}
