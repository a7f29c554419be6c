//! Values that can be told apart, and a codec that can't encode some of them.

use bytes::Bytes;
use spill_buffer::{BytesCodec, Codec, CodecError, Payload};

use crate::random::Random;

/// What a value is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// Can't be compressed.
    Noise,
    /// One letter, over and over.
    Same,
    /// Can't be encoded, if it has four bytes.
    Bad,
}

/// One insert of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) number: u64,
    pub(crate) len: usize,
    pub(crate) fill: Fill,
    pub(crate) weight: u64,
}

const BAD: &[u8; 4] = b"BAD!";

impl Version {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut random = Random::new(self.number);
        let mut bytes = Vec::with_capacity(self.len + 8);
        if self.fill == Fill::Bad {
            bytes.extend_from_slice(BAD);
        }
        let word = random.next();
        while bytes.len() < self.len {
            let word = if self.fill == Fill::Same { word & 0xff | 0x20 } else { random.next() };
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.truncate(self.len);
        bytes
    }

    pub(crate) fn is_bad(&self) -> bool {
        self.fill == Fill::Bad && self.len >= BAD.len()
    }
}

/// Takes bytes as they are, but for bad ones.
pub(crate) struct Picky;

impl Codec<Vec<u8>> for Picky {
    fn encode(&self, value: &Vec<u8>) -> Result<Payload, CodecError> {
        if value.starts_with(BAD) {
            return Err(CodecError::new("it is bad"));
        }
        BytesCodec.encode(value)
    }

    fn decode(&self, bytes: Bytes) -> Result<Vec<u8>, CodecError> {
        BytesCodec.decode(bytes)
    }
}
