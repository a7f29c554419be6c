//! The contract of a codec, which turns values into bytes and back, and the built-in codecs.

use bytes::Bytes;

use crate::{CodecError, Payload};

/// Turns values of one type into bytes and back.
///
/// Called on blocking threads, or in place for a little: up to 32 KiB to encode, 96 KiB to decode, which may be in
/// the call that reads. Never under a lock. A panic is caught and treated as an error.
pub trait Codec<V>: Send + Sync + 'static {
    /// The bytes of a value. Hand out buffers the value already has where you can: nothing is copied
    /// until the store writes it.
    ///
    /// # Errors
    /// When the value can't be encoded: it then stays in memory, and others are spilled in its place.
    fn encode(&self, value: &V) -> Result<Payload, CodecError>;

    /// The value of bytes that [`encode`](Self::encode) made, verified by checksum before.
    ///
    /// The buffer holds nothing but this value, its frame's header and padding, so it may be kept.
    ///
    /// # Errors
    /// When the bytes are not what `encode` makes.
    fn decode(&self, bytes: Bytes) -> Result<V, CodecError>;
}

/// The codec of values that are bytes already: [`Bytes`], `Vec<u8>` and `String`.
///
/// Takes the bytes as they are. Encoding `Bytes` copies nothing, the others are copied once.
///
/// ```
/// use spill_core::{BytesCodec, Codec};
/// let payload = BytesCodec.encode(&"text".to_owned())?;
/// let back: String = BytesCodec.decode(payload.to_bytes())?;
/// assert_eq!(back, "text");
/// # Ok::<(), spill_core::CodecError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct BytesCodec;

impl Codec<Bytes> for BytesCodec {
    fn encode(&self, value: &Bytes) -> Result<Payload, CodecError> {
        Ok(value.clone().into())
    }

    fn decode(&self, bytes: Bytes) -> Result<Bytes, CodecError> {
        Ok(bytes)
    }
}

impl Codec<Vec<u8>> for BytesCodec {
    fn encode(&self, value: &Vec<u8>) -> Result<Payload, CodecError> {
        Ok(Bytes::copy_from_slice(value).into())
    }

    fn decode(&self, bytes: Bytes) -> Result<Vec<u8>, CodecError> {
        Ok(bytes.into())
    }
}

impl Codec<String> for BytesCodec {
    fn encode(&self, value: &String) -> Result<Payload, CodecError> {
        Ok(Bytes::copy_from_slice(value.as_bytes()).into())
    }

    fn decode(&self, bytes: Bytes) -> Result<String, CodecError> {
        String::from_utf8(bytes.into()).map_err(CodecError::from_source)
    }
}

/// The codec of any [`serde`] type, in the postcard format.
///
/// ```
/// use spill_core::{Codec, PostcardCodec};
/// let payload = PostcardCodec.encode(&(1u32, "one".to_owned()))?;
/// let back: (u32, String) = PostcardCodec.decode(payload.to_bytes())?;
/// assert_eq!(back, (1, "one".to_owned()));
/// # Ok::<(), spill_core::CodecError>(())
/// ```
#[cfg(feature = "postcard")]
#[derive(Clone, Copy, Debug, Default)]
pub struct PostcardCodec;

#[cfg(feature = "postcard")]
impl<V: serde::Serialize + serde::de::DeserializeOwned> Codec<V> for PostcardCodec {
    fn encode(&self, value: &V) -> Result<Payload, CodecError> {
        postcard::to_stdvec(value).map(Payload::from).map_err(CodecError::from_source)
    }

    fn decode(&self, bytes: Bytes) -> Result<V, CodecError> {
        match postcard::take_from_bytes(&bytes) {
            Ok((value, [])) => Ok(value),
            Ok((_, rest)) => Err(CodecError::new(format!("{} bytes left over after the value", rest.len()))),
            Err(error) => Err(CodecError::from_source(error)),
        }
    }
}
