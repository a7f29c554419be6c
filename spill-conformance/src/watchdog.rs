//! Finds calls that block a runtime's thread.
//!
//! A task on a current-thread runtime beats every few milliseconds; a thread outside watches it. Any call
//! that blocks, wherever in the store it is made, stops the beat. The watcher counts its own ticks without
//! a beat rather than trusting the clock: when the whole machine stalls, the watcher stalls too and counts
//! little.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

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
                shared.beats.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(BEAT).await;
            }
        }
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
