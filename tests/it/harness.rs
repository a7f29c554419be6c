//! What the tests of this binary share: buffers over scripted stores, values that can be checked, and the
//! ends of a test.

use std::time::Duration;

use spill_buffer::{
    Builder, ByteLength, BytesCodec, Error, MemoryStore, OnFull, SpillBuffer, Store, StoreError,
    StoreErrorKind, TierSpec,
    fs::{FsOptions, FsStore},
    policies::Lru,
};
use spill_conformance::{FaultStore, Faults, Operation};

/// Values are bytes, and weigh as much as they are long.
pub(crate) type Buffer = SpillBuffer<u64, Vec<u8>>;

/// Bytes of a frame of this many uncompressed ones: a header of 64, and padding to 64.
pub(crate) const fn frame(bytes: u64) -> u64 {
    64 + bytes.next_multiple_of(64)
}

/// Exact accounting, least recently used first, and refusal rather than waiting.
pub(crate) fn exact(limit: u64) -> Builder<u64, Vec<u8>> {
    let builder = SpillBuffer::builder().memory_limit(limit).exact(OnFull::Reject);
    builder.policy(Lru::default()).codec(BytesCodec).weigher(ByteLength)
}

/// A store in memory behind a script.
#[derive(Clone)]
pub(crate) struct Scripted {
    pub(crate) memory: MemoryStore,
    pub(crate) faults: Faults,
}

impl Scripted {
    pub(crate) fn new() -> Self {
        Self { memory: MemoryStore::new(), faults: Faults::new() }
    }

    pub(crate) fn store(&self) -> FaultStore {
        FaultStore::new(std::sync::Arc::new(self.memory.clone()), self.faults.clone())
    }

    /// A tier over it with a blob per value.
    pub(crate) fn tier(&self) -> TierSpec {
        TierSpec::new(self.store()).batch_entries(1)
    }

    pub(crate) fn reads(&self) -> u64 {
        self.faults.counts(Operation::Get).started
    }

    pub(crate) fn writes(&self) -> u64 {
        self.faults.counts(Operation::Put).started
    }

    /// Every blob that is there, in the order of their ids.
    pub(crate) async fn blobs(&self) -> Vec<spill_buffer::BlobMeta> {
        self.memory.list(None, usize::MAX).await.unwrap()
    }
}

/// A file store in this directory, on whatever file system it is.
pub(crate) async fn files(root: &std::path::Path) -> FsStore {
    FsStore::open(FsOptions::new(root).allow_tmpfs(true)).await.unwrap()
}

/// Bytes that no compressor makes fewer, and that differ between seeds.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Numbers that look random and are the same in every run (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Waits until nothing is under way and `also` holds. Fails rather than waiting for ever.
pub(crate) async fn settled_with(buffer: &Buffer, also: impl Fn(&Buffer) -> bool) {
    for _ in 0..20_000 {
        let usage = buffer.usage();
        let busy = usage.memory.spilling.entries + usage.memory.restoring + usage.memory.buffers;
        if busy + usage.total().in_flight == 0 && also(buffer) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("not at rest: {:#?}", buffer.usage());
}

pub(crate) async fn settled(buffer: &Buffer) {
    settled_with(buffer, |_| true).await;
}

/// Waits until no byte of any tier is garbage.
pub(crate) async fn swept(buffer: &Buffer) {
    settled_with(buffer, |buffer| buffer.usage().total().garbage == 0).await;
}

/// The books balance, as soon as what is being deleted is gone.
pub(crate) async fn balanced(buffer: &Buffer) {
    let mut differences = Vec::new();
    for _ in 0..1000 {
        settled(buffer).await;
        differences = buffer.audit().await.unwrap();
        if differences.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("the books do not balance: {differences:#?}");
}

/// The books balance, and after closing nothing is left.
pub(crate) async fn finish(buffer: Buffer) {
    balanced(&buffer).await;
    buffer.close().await.unwrap();
    assert!(buffer.usage().is_empty(), "{:#?}", buffer.usage());
}

/// Ends a test that hangs, on real time.
pub(crate) async fn within<T>(seconds: u64, work: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(seconds);
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| panic!("not done after {limit:?}"))
}

/// Inserts a value and moves it to a tier.
pub(crate) async fn put_away(buffer: &Buffer, key: u64, value: Vec<u8>) {
    buffer.insert(key, value).await.unwrap();
    assert!(buffer.spill(&key).await.unwrap());
}

pub(crate) async fn get(buffer: &Buffer, key: u64) -> Option<Vec<u8>> {
    buffer.get(&key).await.unwrap().map(|value| value.to_vec())
}

pub(crate) fn is_closed(error: &Error) -> bool {
    matches!(error, Error::Closed { .. })
}

/// The kind of a store's error in what a call answered.
pub(crate) fn store_kind(error: &Error) -> Option<StoreErrorKind> {
    match error {
        Error::Store { source, .. } => Some(StoreError::kind(source)),
        _ => None,
    }
}

/// Polls a future so many times, then drops it.
pub(crate) struct Polls<F> {
    future: Option<std::pin::Pin<Box<F>>>,
    left: u64,
}

impl<F: Future> Polls<F> {
    /// `Some` if it was ready by then.
    pub(crate) fn at_most(polls: u64, future: F) -> Self {
        Self { future: Some(Box::pin(future)), left: polls }
    }
}

impl<F: Future> Future for Polls<F> {
    type Output = Option<F::Output>;

    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Self::Output> {
        use std::task::Poll;
        let this = &mut *self;
        if this.left == 0 {
            this.future = None;
        }
        let Some(future) = &mut this.future else { return Poll::Ready(None) };
        this.left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => {
                this.future = None;
                Poll::Ready(Some(output))
            }
            Poll::Pending if this.left == 0 => {
                this.future = None;
                Poll::Ready(None)
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

/// What is logged as a warning or an error on this thread.
#[derive(Clone, Default)]
pub(crate) struct Log(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

impl Log {
    /// Listens until the guard is dropped.
    pub(crate) fn start() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let guard = tracing::subscriber::set_default(log.clone());
        (log, guard)
    }

    /// Lines that hold this text.
    pub(crate) fn lines(&self, text: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|line| line.contains(text)).count()
    }
}

impl tracing::field::Visit for Log {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN && metadata.is_event()
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
