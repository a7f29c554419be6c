//! How the conformance suite tells dead sessions from living ones, without waiting for a day: two days pass at once,
//! and whoever lives shows it before anybody sweeps.
//!
//! A session of this process lives as long as its store was not dropped; its heartbeat is written for it. One of
//! another process is known by a note with the number of the process: as long as that lives, its own heartbeat is
//! waited for.

use std::{
    collections::HashMap,
    fs,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use object_store::{ObjectStore, ObjectStoreExt, path::Path};
use spill_core::{BoxError, Store};
use tokio::sync::RwLock;

use crate::aged::{Aged, HEARTBEAT};

/// The owner of all sessions here.
pub(crate) const OWNER: &str = "conformance";

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Heartbeats of other processes come every second.
const PATIENCE: Duration = Duration::from_secs(30);

/// The same for a session of which nobody knows the process: it was killed while it opened.
const SHORT_PATIENCE: Duration = Duration::from_secs(3);

/// The sessions of one place.
#[derive(Default)]
struct Place {
    sessions: Mutex<HashMap<String, Weak<dyn Store>>>,
    /// Held for writing while the days pass, and for reading while somebody sweeps.
    days: RwLock<()>,
}

/// All places, and the directory with the notes.
#[derive(Clone)]
pub(crate) struct Days {
    places: Arc<Mutex<HashMap<String, Arc<Place>>>>,
    notes: PathBuf,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The name of a session is the last part of the name of its store.
fn session_of(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or_default()
}

impl Days {
    /// With notes in this directory, which other processes know too.
    pub(crate) fn new(notes: PathBuf) -> Self {
        Self { places: Arc::default(), notes }
    }

    fn place(&self, namespace: &str) -> Arc<Place> {
        Arc::clone(lock(&self.places).entry(namespace.to_owned()).or_default())
    }

    /// Takes note of a session that was opened.
    pub(crate) fn note(&self, namespace: &str, store: &Arc<dyn Store>) -> Result<(), BoxError> {
        let session = session_of(&store.info().name).to_owned();
        let part = self.notes.join(format!("{session}.part"));
        fs::write(&part, std::process::id().to_string())?;
        fs::rename(part, self.notes.join(&session))?;
        lock(&self.place(namespace).sessions).insert(session, Arc::downgrade(store));
        Ok(())
    }

    /// Lets two days pass, in which the living show that they live, and sweeps. How many sessions were removed.
    pub(crate) async fn sweep(
        &self,
        bucket: Arc<dyn ObjectStore>,
        namespace: String,
    ) -> Result<u64, BoxError> {
        let place = self.place(&namespace);
        let passing = place.days.write().await;
        let aged = Aged::new(Arc::clone(&bucket), &Path::from(namespace.as_str())).await?;
        for heartbeat in aged.heartbeats() {
            self.show_life(&*bucket, &place, &aged, heartbeat).await?;
        }
        drop(passing);
        let _sweeping = place.days.read().await;
        let report = spill_backend_object::sweep(Arc::new(aged), &namespace, OWNER, DAY).await?;
        Ok(report.removed as u64)
    }

    async fn show_life(
        &self,
        bucket: &dyn ObjectStore,
        place: &Place,
        aged: &Aged,
        heartbeat: &Path,
    ) -> Result<(), BoxError> {
        let mut names = heartbeat.as_ref().rsplit('/');
        let (Some(HEARTBEAT), Some(session)) = (names.next(), names.next()) else { return Ok(()) };
        let own = lock(&place.sessions).get(session).map(Weak::upgrade);
        if let Some(store) = own {
            static BEATS: AtomicU64 = AtomicU64::new(0);
            if store.is_some() {
                let text = format!("later, {}\n", BEATS.fetch_add(1, Ordering::Relaxed));
                bucket.put(heartbeat, text.into()).await?;
            }
            return Ok(());
        }
        let begun = Instant::now();
        while !aged.is_over(heartbeat).await && begun.elapsed() < self.patience(session) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// How long to wait for a sign of life of a session of another process.
    fn patience(&self, session: &str) -> Duration {
        let note = fs::read_to_string(self.notes.join(session)).unwrap_or_default();
        // Killed in the middle of it, a process leaves a note without a number.
        let Ok(process) = note.parse::<u32>() else { return SHORT_PATIENCE };
        match std::path::Path::new("/proc").join(process.to_string()).exists() {
            true => PATIENCE,
            false => Duration::ZERO,
        }
    }
}
