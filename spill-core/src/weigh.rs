//! The contract of a weigher, which says how many bytes an entry takes in memory.

/// Says how many bytes of memory an entry takes.
///
/// Asked once, at insert; the answer is what every number about the entry uses from then on. A closure
/// `Fn(&K, &V) -> u64` is a weigher. Must not call back into the buffer it weighs for.
///
/// ```
/// use spill_core::Weigher;
/// let weigher = |key: &String, value: &Vec<u64>| (key.len() + 8 * value.len()) as u64;
/// assert_eq!(weigher.weigh(&"four".into(), &vec![1, 2]), 20);
/// ```
pub trait Weigher<K, V>: Send + Sync + 'static {
    /// The entry's bytes in memory. Zero is a weight like any other. At most [`MAX_WEIGHT`].
    fn weigh(&self, key: &K, value: &V) -> u64;
}

impl<K, V, F: Fn(&K, &V) -> u64 + Send + Sync + 'static> Weigher<K, V> for F {
    fn weigh(&self, key: &K, value: &V) -> u64 {
        self(key, value)
    }
}

/// The heaviest an entry may be: 2^48 bytes. A larger answer is taken for a mistake of the weigher, and
/// sums of weights can't overflow.
pub const MAX_WEIGHT: u64 = 1 << 48;

/// Weighs a value that is bytes by its length. The key, and what the maps need per entry, are not counted.
///
/// ```
/// use spill_core::{ByteLength, Weigher};
/// assert_eq!(ByteLength.weigh(&7u64, &vec![0u8; 100]), 100);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ByteLength;

impl<K, V: AsRef<[u8]>> Weigher<K, V> for ByteLength {
    fn weigh(&self, _key: &K, value: &V) -> u64 {
        value.as_ref().len() as u64
    }
}
