//! What the tests of the rules share: a value whose weight, length and fate with the codec are chosen freely,
//! builders for small exact buffers, and the comparison of what a buffer reports with what it should.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::*},
};

use bytes::Bytes;
use spill_buffer::{
    Builder, Codec, CodecError, Event, Events, InsertError, Key, MemoryStore, OnFull, Payload, SpillBuffer,
    Store, TierSpec, Usage, policies::Lru,
};
use spill_conformance::Faults;

/// What happens when a [`Lump`] is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Works,
    Fails,
    Panics,
}

/// A value that weighs what it is told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lump {
    pub(crate) weight: u64,
    /// Bytes of the encoded value, at least [`Lump::SHORTEST`].
    pub(crate) length: usize,
    pub(crate) letter: u8,
    pub(crate) encoding: Encoding,
}

impl Lump {
    pub(crate) const SHORTEST: usize = 16;

    /// As long as it weighs.
    pub(crate) fn new(letter: char, weight: u64) -> Self {
        let length = usize::try_from(weight).unwrap().max(Self::SHORTEST);
        Self { weight, length, letter: u8::try_from(letter).unwrap(), encoding: Encoding::Works }
    }

    pub(crate) fn weighing(self, weight: u64) -> Self {
        Self { weight, ..self }
    }

    pub(crate) fn unencodable(self) -> Self {
        Self { encoding: Encoding::Fails, ..self }
    }

    pub(crate) fn panicking(self) -> Self {
        Self { encoding: Encoding::Panics, ..self }
    }

    /// Bytes of its frame when it is not compressed.
    pub(crate) fn stored(self) -> u64 {
        stored(self.length as u64)
    }
}

/// Bytes of the frame of so many bytes that are not compressed.
pub(crate) fn stored(encoded: u64) -> u64 {
    64 + encoded.next_multiple_of(64)
}

/// Writes weight, letter, and the letter again up to the length. Counts how often it was asked to.
#[derive(Clone, Debug, Default)]
pub(crate) struct LumpCodec(Arc<AtomicU64>);

impl LumpCodec {
    pub(crate) fn asked(&self) -> u64 {
        self.0.load(SeqCst)
    }
}

impl Codec<Lump> for LumpCodec {
    fn encode(&self, lump: &Lump) -> Result<Payload, CodecError> {
        self.0.fetch_add(1, SeqCst);
        match lump.encoding {
            Encoding::Works => {}
            Encoding::Fails => {
                return Err(CodecError::from_source(std::io::Error::other("not for the disk")));
            }
            Encoding::Panics => panic!("the codec does not like this lump"),
        }
        let mut bytes = vec![lump.letter; lump.length];
        bytes[..8].copy_from_slice(&lump.weight.to_le_bytes());
        Ok(bytes.into())
    }

    fn decode(&self, bytes: Bytes) -> Result<Lump, CodecError> {
        let (weight, rest) = bytes.split_first_chunk().ok_or_else(|| CodecError::new("cut off"))?;
        let letter = rest[0];
        if rest.iter().any(|byte| *byte != letter) {
            return Err(CodecError::new("mixed letters"));
        }
        let weight = u64::from_le_bytes(*weight);
        Ok(Lump { weight, length: bytes.len(), letter, encoding: Encoding::Works })
    }
}

pub(crate) type Lumps<K> = SpillBuffer<K, Lump>;

/// A builder for lumps: the exact least recently used order, no slice for buffers, and no tier yet.
pub(crate) fn exact<K: Key>(limit: u64, on_full: OnFull) -> Builder<K, Lump> {
    SpillBuffer::builder()
        .memory_limit(limit)
        .exact(on_full)
        .policy(Lru::default())
        .codec(LumpCodec::default())
        .weigher(|_: &K, lump: &Lump| lump.weight)
}

/// A tier in memory that keeps each value in a blob of its own.
pub(crate) fn memory_tier() -> TierSpec {
    TierSpec::new(MemoryStore::new()).batch_entries(1)
}

/// The same, failing as `faults` says.
pub(crate) fn faulty_tier(faults: &Faults) -> TierSpec {
    memory_tier().layer(faults)
}

/// The numbers that the tests compare: weight in memory, weight in tiers only, bytes stored, and garbage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) resident: u64,
    pub(crate) spilled: u64,
    pub(crate) stored: u64,
    pub(crate) garbage: u64,
}

impl Numbers {
    pub(crate) fn of(usage: &Usage) -> Self {
        let total = usage.total();
        Self {
            resident: usage.memory.resident.weight,
            spilled: usage.spilled.weight,
            stored: total.stored,
            garbage: total.garbage,
        }
    }
}

/// Numbers with all garbage gone.
pub(crate) const fn at_rest(resident: u64, spilled: u64, stored: u64) -> Numbers {
    Numbers { resident, spilled, stored, garbage: 0 }
}

/// Yields this often before it gives up: far more than any step of a small buffer takes.
const PATIENCE: u32 = 2_000_000;
/// Yields this often to see whether anything moves on.
const CALM: u32 = 64;

/// Waits until the usage is as it should be; with the usage as it stayed, if it never was.
pub(crate) async fn until<K: Key, V: Send + Sync>(
    buffer: &SpillBuffer<K, V>,
    is_so: impl Fn(&Usage) -> bool,
) -> Usage {
    for _ in 0..PATIENCE {
        if is_so(&buffer.usage()) {
            break;
        }
        tokio::task::yield_now().await;
    }
    buffer.usage()
}

fn nothing_moves(usage: &Usage) -> bool {
    let memory = &usage.memory;
    memory.spilling.entries == 0
        && memory.restoring == 0
        && memory.buffers == 0
        && usage.total().in_flight == 0
}

/// Waits until the buffer has come to these numbers and to rest, checks that it stays so, and audits it.
#[track_caller]
pub(crate) fn rests<K: Key, V: Send + Sync>(
    buffer: &SpillBuffer<K, V>,
    expected: Numbers,
) -> impl Future<Output = ()> {
    rests_after(std::panic::Location::caller().to_string(), buffer, expected)
}

/// The same; `what` says in a failure what was done before.
pub(crate) async fn rests_after<K: Key, V: Send + Sync>(
    what: String,
    buffer: &SpillBuffer<K, V>,
    expected: Numbers,
) {
    until(buffer, |usage| nothing_moves(usage) && Numbers::of(usage) == expected).await;
    for _ in 0..CALM {
        tokio::task::yield_now().await;
    }
    let usage = buffer.usage();
    assert_eq!(Numbers::of(&usage), expected, "after {what}: {usage:#?}");
    assert!(nothing_moves(&usage), "after {what}: {usage:#?}");
    assert_eq!(buffer.audit().await.unwrap(), Vec::<String>::new(), "after {what}");
}

/// Removes everything, and shows that nothing is left: not before closing, and not after.
#[track_caller]
pub(crate) fn ends_empty<K: Key, V: Send + Sync>(buffer: SpillBuffer<K, V>) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        buffer.clear().unwrap();
        until(&buffer, Usage::is_empty).await;
        let usage = buffer.usage();
        assert!(usage.is_empty(), "at {caller}, cleared: {usage:#?}");
        assert_eq!(buffer.audit().await.unwrap(), Vec::<String>::new(), "at {caller}");
        buffer.close().await.unwrap();
        assert!(buffer.usage().is_empty(), "at {caller}, closed: {:#?}", buffer.usage());
    }
}

/// Whether the keys are in memory at all, as a string: readable in an assertion.
pub(crate) fn in_memory<V: Send + Sync>(buffer: &SpillBuffer<char, V>) -> String {
    let mut keys: Vec<char> = buffer.keys();
    keys.retain(|key| buffer.peek(key).is_some());
    keys.sort_unstable();
    keys.into_iter().collect()
}

/// Inserts lumps of this weight, each under its letter, and lets go of them.
pub(crate) async fn fill(buffer: &Lumps<char>, letters: &str, weight: u64) {
    for letter in letters.chars() {
        buffer.insert(letter, Lump::new(letter, weight)).await.unwrap();
    }
}

/// A copy of the value under a key, which is then held by nobody outside the buffer.
pub(crate) async fn read(buffer: &Lumps<char>, key: char) -> Lump {
    *buffer.get(&key).await.unwrap().unwrap()
}

/// How many events so far are like this one.
pub(crate) fn count(events: &mut Events, is_one: impl Fn(&Event) -> bool) -> usize {
    std::iter::from_fn(|| events.try_next()).filter(|event| is_one(event)).count()
}

/// The variant of the error of a refused insert.
pub(crate) fn kind<V>(refused: &InsertError<V>) -> String {
    let text = format!("{:?}", refused.error);
    text.split([' ', '{', '(']).next().unwrap_or_default().to_owned()
}

/// What a store holds: the number of blobs.
pub(crate) async fn blobs(store: &impl Store) -> usize {
    store.list(None, usize::MAX).await.unwrap().len()
}
