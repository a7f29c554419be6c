//! Bytes in several pieces, handed on without copying them together.

use bytes::{Bytes, BytesMut};

/// A sequence of byte chunks that together are one run of bytes.
///
/// A codec can hand out the buffers a value already has, and a store can write them with one vectored
/// call. Cloning is cheap: the chunks are shared. One chunk costs no allocation.
///
/// ```
/// use spill_core::Payload;
/// let payload: Payload = ["head", "", "tail"].into_iter().map(bytes::Bytes::from).collect();
/// assert_eq!(payload.len(), 8);
/// assert_eq!(payload.chunks().count(), 2); // empty chunks are dropped
/// assert_eq!(payload.to_bytes(), "headtail");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Payload {
    first: Bytes,
    rest: Vec<Bytes>,
    len: usize,
}

impl Payload {
    /// No bytes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a chunk; an empty one is dropped.
    pub fn push(&mut self, chunk: Bytes) {
        self.len += chunk.len();
        if self.first.is_empty() {
            self.first = chunk;
        } else if !chunk.is_empty() {
            self.rest.push(chunk);
        }
    }

    /// Bytes in all chunks together.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes at all. An empty payload is a value like any other.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The chunks in order, none of them empty.
    pub fn chunks(&self) -> impl Iterator<Item = &Bytes> {
        std::iter::once(&self.first).filter(|chunk| !chunk.is_empty()).chain(&self.rest)
    }

    /// All bytes in one buffer. Free for a single chunk, one copy for several.
    pub fn to_bytes(&self) -> Bytes {
        if self.rest.is_empty() {
            return self.first.clone();
        }
        let mut joined = BytesMut::with_capacity(self.len);
        self.chunks().for_each(|chunk| joined.extend_from_slice(chunk));
        joined.freeze()
    }

    /// Copies all bytes to the front of `out`.
    ///
    /// # Panics
    /// When `out` is shorter than [`len`](Self::len).
    pub fn copy_to_slice(&self, out: &mut [u8]) {
        let mut at = 0;
        for chunk in self.chunks() {
            out[at..at + chunk.len()].copy_from_slice(chunk);
            at += chunk.len();
        }
    }
}

impl From<Bytes> for Payload {
    fn from(chunk: Bytes) -> Self {
        Self { len: chunk.len(), first: chunk, rest: Vec::new() }
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl FromIterator<Bytes> for Payload {
    fn from_iter<I: IntoIterator<Item = Bytes>>(chunks: I) -> Self {
        let mut payload = Self::new();
        chunks.into_iter().for_each(|chunk| payload.push(chunk));
        payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joining_and_copying_agree() {
        let payload: Payload = (0u8..5).map(|n| Bytes::from(vec![n; usize::from(n)])).collect();
        let mut out = [9u8; 12];
        payload.copy_to_slice(&mut out);
        assert_eq!(payload.len(), 10);
        assert_eq!(out[..10], payload.to_bytes()[..]);
        assert_eq!(out[10..], [9, 9]);
    }

    #[test]
    fn one_chunk_is_not_copied() {
        let bytes = Bytes::from(vec![1u8; 100]);
        assert_eq!(Payload::from(bytes.clone()).to_bytes().as_ptr(), bytes.as_ptr());
    }
}
