//! One session: its names, the heartbeat that shows that it lives, and the one task that writes it.
//!
//! Who decides that another session is dead is in `sweep`, what the session keeps in `backend`.

use std::{
    hash::{BuildHasher, RandomState},
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use object_store::{Error, ObjectStore, ObjectStoreExt, PutOptions, path::Path};
use parking_lot::Mutex;
use spill_core::{BlobId, StoreErrorKind};
use tokio::{
    runtime::Handle,
    sync::watch,
    task::JoinHandle,
    time::{Instant, timeout},
};

use crate::{ObjectOptions, error::kind_of, sweep};

/// The owner of sessions of a program without a name.
pub(crate) const NAMELESS: &str = "spill";

/// The object whose age says whether a session lives. No blob has this name.
pub(crate) const HEARTBEAT: &str = "alive";

/// How long the first put waits for the first heartbeat. Until that is there, the age of the blobs speaks.
const PATIENCE: Duration = Duration::from_secs(10);

/// Failing heartbeats are reported this often at most.
const QUIET: Duration = Duration::from_secs(600);

/// A session and its task, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Session {
    shared: Arc<Shared>,
    task: Mutex<Task>,
}

/// What the session and its task share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) inner: Arc<dyn ObjectStore>,
    /// `prefix/<owner>`: where the sessions are that belong together.
    pub(crate) root: Path,
    /// `prefix/<owner>/<session>`.
    pub(crate) path: Path,
    pub(crate) dead_after: Option<Duration>,
    every: Duration,
    pace: Mutex<Pace>,
    number: AtomicU64,
    /// Whether the first heartbeat has been tried.
    begun: watch::Sender<bool>,
    /// Whether dead sessions are to be swept.
    upkeep: watch::Sender<bool>,
    stop: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Task {
    handle: Option<JoinHandle<()>>,
    started: Option<Instant>,
    closed: bool,
}

#[derive(Debug, Default)]
struct Pace {
    /// When the last heartbeat was begun, and the last that also came to an end.
    tried: Option<Instant>,
    answered: Option<Instant>,
    swept: Option<Instant>,
    trouble: Trouble,
}

impl Session {
    pub(crate) fn new(options: &ObjectOptions, root: Path) -> Self {
        let shared = Shared {
            inner: Arc::clone(&options.inner),
            path: root.clone().join(session_name()),
            root,
            dead_after: options.dead_after,
            every: options.heartbeat,
            pace: Mutex::default(),
            number: AtomicU64::new(0),
            begun: watch::Sender::new(false),
            upkeep: watch::Sender::new(false),
            stop: watch::Sender::new(false),
        };
        Self { shared: Arc::new(shared), task: Mutex::default() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Waits for the first heartbeat, which comes before the first blob.
    ///
    /// # Cancel safety
    /// The task writes it, so that it is not cut off with a caller.
    pub(crate) async fn begin(&self) {
        self.keep_up();
        if *self.shared.begun.borrow() || !self.task.lock().is_running() {
            return;
        }
        // Not for ever: the task may be on a runtime that nobody drives.
        drop(timeout(PATIENCE, self.shared.begun.subscribe().wait_for(|begun| *begun)).await);
    }

    /// Sees to it that the task goes on, once there was a reason for it. Cheap enough for every call.
    pub(crate) fn go_on(&self) {
        if self.shared.is_there() {
            self.keep_up();
        }
    }

    /// Writes a heartbeat in the caller's future, for its answer.
    pub(crate) async fn announce(&self) -> Result<(), Error> {
        let done = self.shared.beat().await;
        self.keep_up();
        done
    }

    /// Lets the task sweep dead sessions, now and again every `dead_after`.
    pub(crate) fn spawn_upkeep(&self) {
        self.shared.upkeep.send_replace(true);
        self.keep_up();
    }

    pub(crate) async fn sweep(&self, dead_after: Duration) -> Result<sweep::SweepReport, Error> {
        self.announce().await?;
        sweep::sweep_beside(&self.shared, dead_after).await
    }

    /// Ends the task, after the heartbeat it may be writing: one that came later would stay for ever.
    ///
    /// # Cancel safety
    /// The task is aborted.
    pub(crate) async fn stop(&self) {
        let handle = {
            let mut task = self.task.lock();
            task.closed = true;
            task.handle.take()
        };
        self.shared.stop.send_replace(true);
        let Some(handle) = handle else { return };
        let mut ended = Aborted(handle);
        drop(timeout(PATIENCE, &mut ended.0).await);
    }

    /// Removes the heartbeat: the last thing of a session.
    pub(crate) async fn remove_heartbeat(&self) -> Result<(), Error> {
        if !self.shared.is_there() {
            return Ok(());
        }
        match self.shared.inner.delete(&self.shared.heartbeat()).await {
            Err(error) if kind_of(&error) != StoreErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Starts the task on this runtime, unless it is at work on one: a runtime may have ended, or stand still.
    fn keep_up(&self) {
        let Ok(runtime) = Handle::try_current() else { return };
        let mut task = self.task.lock();
        if task.closed || (task.is_running() && !self.shared.is_overdue(task.started)) {
            return;
        }
        if let Some(old) = task.handle.take() {
            old.abort();
        }
        let shared = Arc::clone(&self.shared);
        task.started = Some(Instant::now());
        task.handle = Some(runtime.spawn(async move {
            tokio::select! {
                () = shared.beats() => {}
                () = shared.sweeps() => {}
            }
        }));
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(handle) = self.task.get_mut().handle.take() {
            handle.abort();
        }
    }
}

/// A task that ends with whoever waits for it.
struct Aborted(JoinHandle<()>);

impl Drop for Aborted {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Task {
    fn is_running(&self) -> bool {
        self.handle.as_ref().is_some_and(|handle| !handle.is_finished())
    }
}

impl Shared {
    pub(crate) fn heartbeat(&self) -> Path {
        self.path.clone().join(HEARTBEAT)
    }

    /// Whether a heartbeat may be there.
    fn is_there(&self) -> bool {
        self.pace.lock().tried.is_some()
    }

    fn is_overdue(&self, started: Option<Instant>) -> bool {
        let last = self.pace.lock().tried.max(started);
        last.is_some_and(|last| last.elapsed() > self.every.saturating_mul(2))
    }

    /// Writes heartbeats until the session is closed.
    async fn beats(&self) {
        let mut stop = self.stop.subscribe();
        loop {
            let last = self.pace.lock().answered;
            let wait = last.map_or(Duration::ZERO, |last| self.every.saturating_sub(last.elapsed()));
            // Without a wait that is none: timers are a millisecond late, and a put waits for the first heartbeat.
            if !wait.is_zero() {
                drop(timeout(wait, stop.wait_for(|stop| *stop)).await);
            }
            if *stop.borrow() {
                return;
            }
            // The failure is on record, and no caller's business.
            drop(self.beat().await);
        }
    }

    /// Writes one heartbeat, within the time until the next.
    async fn beat(&self) -> Result<(), Error> {
        let begin = Instant::now();
        self.pace.lock().tried = Some(begin);
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        // The bytes differ each time, and with them whatever a service makes of them to tell versions apart.
        let text = format!("{number}, every {:?}\n", self.every);
        let path = self.heartbeat();
        let put = self.inner.put_opts(&path, text.into(), PutOptions::default());
        let done = match timeout(self.every, put).await {
            Ok(done) => done.map(drop),
            Err(_) => {
                let message = format!("the heartbeat was not answered within {:?}", self.every);
                let late = io::Error::new(io::ErrorKind::TimedOut, message);
                Err(Error::Generic { store: "spill", source: late.into() })
            }
        };
        self.pace.lock().answered = Some(begin);
        self.record(done.as_ref().err());
        self.begun.send_replace(true);
        done
    }

    fn record(&self, error: Option<&Error>) {
        let danger = self.dead_after.unwrap_or(ObjectOptions::DEAD_AFTER) / 2;
        let news = self.pace.lock().trouble.news(Instant::now(), error.is_some(), danger);
        let path = &self.path;
        match (news, error) {
            (News::Failing, Some(error)) => {
                tracing::warn!(%path, %error, "a heartbeat could not be written; it is tried again");
            }
            (News::Danger(without), Some(error)) => tracing::warn!(
                %path, %error, ?without,
                "no heartbeat could be written for so long that a sweep may soon take this session for dead \
                 and delete its blobs"
            ),
            (News::Over, _) => tracing::info!(%path, "heartbeats are being written again"),
            _ => {}
        }
    }

    /// Sweeps as soon as there is a heartbeat, and again every `dead_after`. Does not end.
    async fn sweeps(&self) {
        let asked = self.upkeep.subscribe().wait_for(|on| *on).await.is_ok();
        let begun = self.begun.subscribe().wait_for(|begun| *begun).await.is_ok();
        let Some(dead_after) = self.dead_after.filter(|_| asked && begun) else {
            return std::future::pending().await;
        };
        loop {
            let swept = self.pace.lock().swept;
            let wait = swept.map_or(Duration::ZERO, |swept| dead_after.saturating_sub(swept.elapsed()));
            tokio::time::sleep(wait).await;
            self.pace.lock().swept = Some(Instant::now());
            match sweep::sweep_beside(self, dead_after).await {
                Ok(report) => tracing::debug!(root = %self.root, ?report, "swept"),
                Err(error) => {
                    tracing::warn!(root = %self.root, %error, "dead sessions could not be swept");
                }
            }
        }
    }
}

/// What is known of heartbeats that fail, so that each fact is reported once and then rarely.
#[derive(Debug, Default)]
struct Trouble {
    /// When the last heartbeat was written, or else the first one tried.
    good: Option<Instant>,
    reported: Option<Instant>,
    endangered: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum News {
    Nothing,
    Failing,
    /// For so long there was none.
    Danger(Duration),
    Over,
}

impl Trouble {
    fn news(&mut self, now: Instant, failed: bool, danger: Duration) -> News {
        if !failed {
            self.good = Some(now);
            self.endangered = false;
            return if self.reported.take().is_some() { News::Over } else { News::Nothing };
        }
        let without = now.duration_since(*self.good.get_or_insert(now));
        let endangered = without > danger;
        let recent = self.reported.is_some_and(|reported| now.duration_since(reported) < QUIET);
        if recent && endangered == self.endangered {
            return News::Nothing;
        }
        (self.reported, self.endangered) = (Some(now), endangered);
        if endangered { News::Danger(without) } else { News::Failing }
    }
}

/// Whether a session may have this name.
pub(crate) fn is_session(name: &str) -> bool {
    // Blob ids are written the same way.
    name.parse::<BlobId>().is_ok()
}

/// Sixteen hexadecimal digits nobody else has: the keys of the hasher are random in each process, and the
/// rest tells apart what happens within one, and clones of one virtual machine.
fn session_name() -> String {
    static OPENED: AtomicU64 = AtomicU64::new(0);
    let opened = OPENED.fetch_add(1, Ordering::Relaxed);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_nanos());
    format!("{:016x}", RandomState::new().hash_one((std::process::id(), opened, now)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failing_heartbeats_are_reported_once_then_rarely_and_when_they_become_dangerous() {
        let (begin, danger) = (Instant::now(), Duration::from_secs(3600));
        let mut trouble = Trouble::default();
        let mut at =
            |minutes: u64, failed| trouble.news(begin + Duration::from_secs(minutes * 60), failed, danger);
        assert_eq!(at(0, false), News::Nothing);
        assert_eq!(at(1, true), News::Failing);
        assert_eq!(at(2, true), News::Nothing);
        assert_eq!(at(11, true), News::Failing);
        assert_eq!(at(12, false), News::Over);
        assert_eq!(at(13, false), News::Nothing);
        assert_eq!(at(14, true), News::Failing);
        assert_eq!(at(71, true), News::Failing);
        assert_eq!(at(73, true), News::Nothing);
        assert_eq!(at(74, true), News::Danger(Duration::from_secs(61 * 60)));
        assert_eq!(at(75, true), News::Nothing);
        assert_eq!(at(84, true), News::Danger(Duration::from_secs(71 * 60)));
        assert_eq!(at(85, false), News::Over);
    }

    #[test]
    fn names_of_sessions_differ_and_are_told_from_others() {
        let (one, other) = (session_name(), session_name());
        assert_ne!(one, other);
        assert!(is_session(&one) && is_session(&other));
        for foreign in ["", "alive", "0123", "00000000000000FF", "0000000000000001.tmp", "+000000000000001"] {
            assert!(!is_session(foreign), "{foreign:?}");
        }
    }
}
