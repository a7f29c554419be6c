//! The frame: one value inside a blob. Byte by byte in `docs/format.md`; change both together.
//!
//! A blob is nothing but frames, one after the other. A frame is a header of 64 bytes, the payload, and
//! zeros up to the next multiple of 64, so that the payload of a frame always starts at a multiple of 64.
//! Here is also the choice whether a value is worth compressing ([`Compression`]): it stands above the
//! compressors, and depends on the value's bytes alone.

use std::sync::Arc;

use bytes::Bytes;

use crate::{Compressor, EntryId, Payload, Tag};

/// Bytes of a header, and the alignment of frames and payloads: a cache line, and what Arrow asks of its
/// buffers.
pub(crate) const ALIGN: usize = 64;

/// The first bytes of every frame.
const MAGIC: [u8; 4] = *b"SPIL";

/// The version of the format that this code writes, and the only one it reads.
const VERSION: u8 = 1;

/// Values shorter than this are stored as they are: no compressor wins back its own overhead.
const TOO_SMALL: usize = 128;

/// From here on a value is sampled before it is compressed as a whole. Measured: below, trying is cheaper
/// (all compressors give up quickly on incompressible bytes).
const SAMPLED_FROM: usize = 256 << 10;

/// What is sampled: this many pieces, evenly spaced, because the head alone misleads on mixed values.
const SAMPLES: usize = 4;
const SAMPLE: usize = 4 << 10;

/// Bytes of a frame with this payload, header and padding included.
pub(crate) fn frame_len(payload: u64) -> u64 {
    ALIGN as u64 + payload.next_multiple_of(ALIGN as u64)
}

/// What a frame says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The buffer that wrote it: a random number per buffer.
    pub(crate) owner: u64,
    /// The entry whose value it holds.
    pub(crate) entry: EntryId,
    /// How the payload is compressed.
    pub(crate) tag: Tag,
    /// Bytes of the value as the codec wrote it.
    pub(crate) encoded: u64,
    /// Bytes of the payload.
    pub(crate) payload: u64,
    /// CRC32C of the payload.
    pub(crate) crc: u32,
}

/// Why bytes are not the frame that was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("{got} bytes where {want} were expected")]
    Length { got: u64, want: u64 },
    #[error("not a frame")]
    Magic,
    #[error("format version {0}, this code reads version 1")]
    Version(u8),
    #[error("checksum of the header differs")]
    HeaderChecksum,
    #[error("checksum of the payload differs")]
    PayloadChecksum,
    #[error("bytes after the payload are not zero")]
    Padding,
    #[error("it belongs to another buffer")]
    Owner,
    #[error("it holds another entry's value")]
    Entry,
    #[error("compressor {} is not registered", .0.0)]
    Compressor(Tag),
    #[error("{0}")]
    Decompress(#[from] crate::CompressError),
    #[error("the value is {0} bytes long, more than this machine can address")]
    TooLong(u64),
}

impl Header {
    /// The header as bytes.
    pub(crate) fn to_bytes(self) -> [u8; ALIGN] {
        let mut out = [0; ALIGN];
        out[..4].copy_from_slice(&MAGIC);
        out[4] = VERSION;
        out[5] = self.tag.0;
        out[8..16].copy_from_slice(&self.owner.to_le_bytes());
        out[16..24].copy_from_slice(&self.entry.get().to_le_bytes());
        out[24..32].copy_from_slice(&self.encoded.to_le_bytes());
        out[32..40].copy_from_slice(&self.payload.to_le_bytes());
        out[40..44].copy_from_slice(&self.crc.to_le_bytes());
        let crc = crc32c::crc32c(&out[..60]);
        out[60..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads a header back, verified.
    pub(crate) fn parse(bytes: &[u8; ALIGN]) -> Result<Self, FrameError> {
        if bytes[..4] != MAGIC {
            return Err(FrameError::Magic);
        }
        if bytes[4] != VERSION {
            return Err(FrameError::Version(bytes[4]));
        }
        if crc32c::crc32c(&bytes[..60]).to_le_bytes() != bytes[60..] {
            return Err(FrameError::HeaderChecksum);
        }
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        Ok(Self {
            owner: word(8),
            entry: EntryId::new(word(16)),
            tag: Tag(bytes[5]),
            encoded: word(24),
            payload: word(32),
            crc: u32::from_le_bytes([bytes[40], bytes[41], bytes[42], bytes[43]]),
        })
    }
}

/// CRC32C over all chunks.
pub(crate) fn checksum(payload: &Payload) -> u32 {
    payload.chunks().fold(0, |crc, chunk| crc32c::crc32c_append(crc, chunk))
}

/// What a frame has to be, known from elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// The buffer that wrote it.
    pub(crate) owner: u64,
    /// The entry it was written for.
    pub(crate) entry: EntryId,
    /// Bytes of the value as the codec wrote it: bounds what opening allocates.
    pub(crate) encoded: u64,
}

/// Opens a whole frame, padding included: verifies it, and gives the encoded value back.
///
/// Checksums come first, so damaged bytes never reach a compressor, and nothing is allocated before the
/// length that asks for it was verified. An uncompressed value is a slice of `frame`.
pub(crate) fn open(
    frame: &Bytes,
    expected: &Expected,
    compressors: &[Arc<dyn Compressor>],
) -> Result<Bytes, FrameError> {
    let (header, payload) = verify(frame)?;
    if header.owner != expected.owner {
        return Err(FrameError::Owner);
    }
    if header.entry != expected.entry {
        return Err(FrameError::Entry);
    }
    let stored_as_is = header.tag == Tag::NONE;
    if header.encoded != expected.encoded || (stored_as_is && header.encoded != header.payload) {
        return Err(FrameError::Length { got: header.encoded, want: expected.encoded });
    }
    if stored_as_is {
        return Ok(payload);
    }
    let by_tag = |compressor: &&Arc<dyn Compressor>| compressor.tag() == header.tag;
    let compressor = compressors.iter().find(by_tag).ok_or(FrameError::Compressor(header.tag))?;
    let len = usize::try_from(header.encoded).map_err(|_| FrameError::TooLong(header.encoded))?;
    let mut raw = vec![0; len];
    compressor.decompress(&payload, &mut raw)?;
    Ok(raw.into())
}

/// Checks everything a frame says of itself; the payload, verified.
pub(crate) fn verify(frame: &Bytes) -> Result<(Header, Bytes), FrameError> {
    let got = frame.len() as u64;
    let Some(head) = frame.first_chunk::<ALIGN>() else {
        return Err(FrameError::Length { got, want: ALIGN as u64 });
    };
    let header = Header::parse(head)?;
    // The first test keeps the sum of the second from overflowing.
    if header.payload > got || frame_len(header.payload) != got {
        return Err(FrameError::Length { got, want: header.payload });
    }
    let end = ALIGN + usize::try_from(header.payload).map_err(|_| FrameError::TooLong(header.payload))?;
    let payload = frame.slice(ALIGN..end);
    if crc32c::crc32c(&payload) != header.crc {
        return Err(FrameError::PayloadChecksum);
    }
    if frame[end..].iter().any(|byte| *byte != 0) {
        return Err(FrameError::Padding);
    }
    Ok((header, payload))
}

/// How the values of a tier are compressed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Compression {
    pub(crate) compressor: Option<Arc<dyn Compressor>>,
}

impl Compression {
    /// Bytes to keep ready for [`compress`](Self::compress) of this many.
    pub(crate) fn bound(&self, raw: usize) -> usize {
        self.compressor.as_ref().map_or(raw, |compressor| compressor.bound(raw).max(raw))
    }

    /// Whether a value of this length will be tried at all.
    pub(crate) fn tries(&self, raw: usize) -> bool {
        self.compressor.is_some() && raw >= TOO_SMALL
    }

    /// Compresses `raw` into the front of `out` if that is worth it, and says how many bytes it became.
    ///
    /// `None`: better stored as it is. Depends on nothing but `raw`.
    pub(crate) fn compress(&self, raw: &[u8], out: &mut [u8]) -> Option<(Tag, usize)> {
        let compressor = self.compressor.as_ref().filter(|_| self.tries(raw.len()))?;
        if raw.len() >= SAMPLED_FROM && !sample_is_worth_it(compressor.as_ref(), raw, out) {
            return None;
        }
        let packed = compressor.compress(raw, out).ok()?;
        is_worth_it(packed, raw.len()).then(|| (compressor.tag(), packed))
    }
}

/// Decompressing costs time at every read: less than a sixteenth saved is not worth it.
fn is_worth_it(packed: usize, raw: usize) -> bool {
    packed <= raw - raw / 16
}

fn sample_is_worth_it(compressor: &dyn Compressor, raw: &[u8], out: &mut [u8]) -> bool {
    let apart = (raw.len() - SAMPLE) / (SAMPLES - 1);
    let packed: Option<usize> =
        (0..SAMPLES).map(|n| compressor.compress(&raw[n * apart..][..SAMPLE], out).ok()).sum();
    packed.is_some_and(|packed| is_worth_it(packed, SAMPLES * SAMPLE))
}

#[cfg(test)]
mod tests;
