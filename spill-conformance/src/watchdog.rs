//! Finds calls that block a runtime's thread.
//!
//! A task on a current-thread runtime beats every few milliseconds; a thread outside watches it. Any call
//! that blocks, wherever in the store it is made, stops the beat. The watcher counts its own ticks without
//! a beat rather than trusting the clock: when the whole machine stalls, the watcher stalls too and counts
//! little. A [`Watched`] store beats around each poll as well, so that many short polls in a row, or what a
//! case computes between them, are not taken for one long one.

use std::{
    ops::Range,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    thread,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use spill_core::{BlobId, BlobMeta, Payload, Store, StoreError, StoreInfo, Stored};

const BEAT: Duration = Duration::from_millis(5);
const TICK: Duration = Duration::from_millis(10);

/// Watches one runtime, until it is stopped.
#[derive(Debug)]
pub(crate) struct Watchdog {
    shared: Arc<Shared>,
    watcher: Option<thread::JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    beats: AtomicU64,
    stopped: AtomicBool,
    worst_ticks: AtomicU32,
}

impl Watchdog {
    /// Starts the watcher; `beat` has to be run on the runtime. `None` when there is no thread for it.
    pub(crate) fn start() -> Option<Self> {
        let shared = Arc::new(Shared::default());
        let watcher = thread::Builder::new().name("watchdog".into()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.watch()
        });
        Some(Self { shared, watcher: Some(watcher.ok()?) })
    }

    /// What beats: never ends by itself.
    pub(crate) fn beat(&self) -> impl Future<Output = ()> + Send + 'static {
        let shared = Arc::clone(&self.shared);
        async move {
            loop {
                shared.beat();
                tokio::time::sleep(BEAT).await;
            }
        }
    }

    /// The store, with a beat around each poll of its futures.
    pub(crate) fn watched(&self) -> impl Fn(Arc<dyn Store>) -> Arc<dyn Store> + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move |inner| Arc::new(Watched { inner, shared: Arc::clone(&shared) })
    }

    /// Ends the watch, and says how long the runtime was blocked at worst.
    pub(crate) fn stop(mut self) -> Duration {
        self.halt();
        TICK * self.shared.worst_ticks.load(Ordering::Relaxed)
    }

    fn halt(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.halt();
    }
}

impl Shared {
    fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    fn watch(&self) {
        let (mut last, mut ticks) = (0, 0);
        while !self.stopped.load(Ordering::Relaxed) {
            thread::sleep(TICK);
            let beats = self.beats.load(Ordering::Relaxed);
            // Before the first beat the runtime is only being built.
            ticks = if beats == last && beats > 0 { ticks + 1 } else { 0 };
            last = beats;
            self.worst_ticks.fetch_max(ticks, Ordering::Relaxed);
        }
    }
}

/// Beats around each poll of the inner store's futures.
#[derive(Debug)]
struct Watched {
    inner: Arc<dyn Store>,
    shared: Arc<Shared>,
}

struct Beating<'a, T> {
    future: BoxFuture<'a, T>,
    shared: &'a Shared,
}

impl<T> Future for Beating<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        self.shared.beat();
        let answer = self.future.as_mut().poll(context);
        self.shared.beat();
        answer
    }
}

impl Watched {
    fn beating<'a, T>(&'a self, future: BoxFuture<'a, T>) -> Beating<'a, T> {
        Beating { future, shared: &self.shared }
    }
}

#[async_trait]
impl Store for Watched {
    fn info(&self) -> &StoreInfo {
        self.inner.info()
    }

    async fn put(&self, id: BlobId, blob: Payload) -> Result<Stored, StoreError> {
        self.beating(self.inner.put(id, blob)).await
    }

    async fn get(&self, id: BlobId, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.beating(self.inner.get(id, range)).await
    }

    async fn delete(&self, ids: &[BlobId]) -> Result<(), StoreError> {
        self.beating(self.inner.delete(ids)).await
    }

    async fn punch(&self, id: BlobId, ranges: &[Range<u64>]) -> Result<u64, StoreError> {
        self.beating(self.inner.punch(id, ranges)).await
    }

    async fn list(&self, after: Option<BlobId>, limit: usize) -> Result<Vec<BlobMeta>, StoreError> {
        self.beating(self.inner.list(after, limit)).await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.beating(self.inner.close()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worst(work: impl Future<Output = ()>) -> Duration {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let watchdog = Watchdog::start().unwrap();
        runtime.block_on(async {
            let beat = tokio::spawn(watchdog.beat());
            tokio::time::sleep(BEAT * 2).await;
            work.await;
            beat.abort();
        });
        watchdog.stop()
    }

    #[test]
    fn a_blocking_call_is_seen() {
        let blocked = worst(async { thread::sleep(Duration::from_secs(1)) });
        assert!(blocked >= Duration::from_millis(300), "{blocked:?}");
    }

    #[test]
    fn waiting_is_not_blocking() {
        let least = (0..3)
            .map(|_| worst(async { tokio::time::sleep(Duration::from_millis(400)).await }))
            .min()
            .unwrap();
        assert!(least < Duration::from_millis(300), "{least:?}");
    }
}
