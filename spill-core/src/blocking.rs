//! The buffer for callers without async: the same calls, each blocking its thread until it is done.

use std::{borrow::Borrow, hash::Hash, sync::Arc, thread::JoinHandle};

use tokio::{
    runtime::{Builder as RuntimeBuilder, Handle},
    sync::oneshot,
};

use crate::{Error, Eviction, InsertError, PinGuard, builder::Builder, table::Key};

/// A blocking handle of a buffer.
///
/// Brings its own thread for the buffer's work, or borrows a runtime that is there already. Calls that need
/// no waiting are on [`inner`](Self::inner), the async handle of the same buffer.
///
/// ```
/// use spill_core::{ByteLength, BytesCodec, MemoryStore, SpillBuffer, TierSpec, blocking};
///
/// let buffer = blocking::SpillBuffer::<u64, String>::start(|| {
///     SpillBuffer::builder()
///         .memory_limit(1 << 20)
///         .codec(BytesCodec)
///         .weigher(ByteLength)
///         .tier(TierSpec::new(MemoryStore::new()))
/// })?;
/// buffer.insert(1, "one".to_owned())?;
/// assert_eq!(buffer.get(&1)?.as_deref().map(String::as_str), Some("one"));
/// assert!(buffer.inner().contains_key(&1));
/// buffer.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Panics
/// Its calls panic on a thread that drives async tasks: there, use the async handle.
#[derive(Debug)]
pub struct SpillBuffer<K: Key, V: Send + Sync + 'static> {
    inner: crate::SpillBuffer<K, V>,
    runtime: Handle,
    // After `inner`: the runtime goes when nothing needs it any more.
    _thread: Option<RuntimeThread>,
}

/// A thread that drives a runtime until this is dropped.
#[derive(Debug)]
struct RuntimeThread {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for RuntimeThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It panics only if a task's panic escapes the runtime, which tokio does not let happen.
            drop(thread.join());
        }
    }
}

/// Why a blocking buffer could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The buffer could not be built.
    #[error(transparent)]
    Build(#[from] crate::BuildError),
    /// The operating system gives no thread.
    #[error("start of the buffer's thread: {0}")]
    Thread(#[source] std::io::Error),
}

impl<K: Key, V: Send + Sync + 'static> SpillBuffer<K, V> {
    /// Builds a buffer on a thread of its own. `builder` is called inside its runtime, so that it can open
    /// stores there.
    ///
    /// # Errors
    /// A [`StartError`].
    pub fn start(builder: impl FnOnce() -> Builder<K, V>) -> Result<Self, StartError> {
        let runtime =
            RuntimeBuilder::new_current_thread().enable_time().build().map_err(StartError::Thread)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name("spill".into());
        // Ends when the sender is dropped.
        let thread = thread.spawn(move || drop(runtime.block_on(stopped))).map_err(StartError::Thread)?;
        let thread = RuntimeThread { stop: Some(stop), thread: Some(thread) };
        let built = {
            let _inside = handle.enter();
            builder().runtime(handle.clone()).build()
        };
        Ok(Self { inner: built?, runtime: handle, _thread: Some(thread) })
    }

    /// A blocking handle of a buffer that runs on this runtime.
    pub fn on(buffer: crate::SpillBuffer<K, V>, runtime: Handle) -> Self {
        Self { inner: buffer, runtime, _thread: None }
    }

    /// The async handle of the same buffer.
    pub fn inner(&self) -> &crate::SpillBuffer<K, V> {
        &self.inner
    }

    /// See [`SpillBuffer::insert`](crate::SpillBuffer::insert).
    ///
    /// # Errors
    /// As there.
    pub fn insert(&self, key: K, value: impl Into<Arc<V>>) -> Result<(), InsertError<V>> {
        self.runtime.block_on(self.inner.insert(key, value))
    }

    /// See [`SpillBuffer::insert_many`](crate::SpillBuffer::insert_many).
    pub fn insert_many<I, T>(&self, entries: I) -> Vec<(K, InsertError<V>)>
    where
        I: IntoIterator<Item = (K, T)>,
        T: Into<Arc<V>>,
    {
        self.runtime.block_on(self.inner.insert_many(entries))
    }

    /// See [`SpillBuffer::get`](crate::SpillBuffer::get).
    ///
    /// # Errors
    /// As there.
    pub fn get<Q>(&self, key: &Q) -> Result<Option<Arc<V>>, Error>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized + Sync,
    {
        self.runtime.block_on(self.inner.get(key))
    }

    /// See [`SpillBuffer::get_many`](crate::SpillBuffer::get_many).
    ///
    /// # Errors
    /// As there.
    pub fn get_many<Q>(&self, keys: &[Q]) -> Vec<Result<Option<Arc<V>>, Error>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + Sync,
    {
        self.runtime.block_on(self.inner.get_many(keys))
    }

    /// See [`SpillBuffer::take`](crate::SpillBuffer::take).
    ///
    /// # Errors
    /// As there.
    pub fn take<Q>(&self, key: &Q) -> Result<Option<Arc<V>>, Error>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized + Sync,
    {
        self.runtime.block_on(self.inner.take(key))
    }

    /// See [`SpillBuffer::spill`](crate::SpillBuffer::spill).
    ///
    /// # Errors
    /// As there.
    pub fn spill<Q>(&self, key: &Q) -> Result<bool, Error>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized + Sync,
    {
        self.runtime.block_on(self.inner.spill(key))
    }

    /// See [`SpillBuffer::evict_one`](crate::SpillBuffer::evict_one).
    ///
    /// # Errors
    /// As there.
    pub fn evict_one(&self) -> Result<Option<Eviction>, Error> {
        self.runtime.block_on(self.inner.evict_one())
    }

    /// See [`SpillBuffer::reclaim`](crate::SpillBuffer::reclaim).
    ///
    /// # Errors
    /// As there.
    pub fn reclaim(&self, bytes: u64) -> Result<u64, Error> {
        self.runtime.block_on(self.inner.reclaim(bytes))
    }

    /// See [`SpillBuffer::pin`](crate::SpillBuffer::pin).
    ///
    /// # Errors
    /// As there.
    pub fn pin<Q>(&self, key: &Q) -> Result<Option<PinGuard<K, V>>, Error>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized + Sync,
    {
        self.runtime.block_on(self.inner.pin(key))
    }

    /// See [`SpillBuffer::audit`](crate::SpillBuffer::audit).
    ///
    /// # Errors
    /// As there.
    pub fn audit(&self) -> Result<Vec<String>, Error> {
        self.runtime.block_on(self.inner.audit())
    }

    /// See [`SpillBuffer::close`](crate::SpillBuffer::close).
    ///
    /// # Errors
    /// As there.
    pub fn close(&self) -> Result<(), Error> {
        self.runtime.block_on(self.inner.close())
    }
}
