//! Removes what dead sessions left. How a session shows that it lives is in `session`.
//!
//! Nothing is decided by the clock of this machine, nor by one number: a session is dead when its heartbeat and
//! its blobs are all older, by the clock of the service, than a heartbeat written just now, by `dead_after`; and
//! when a second look, right before anything is deleted, finds it exactly as the first.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::{Error, ObjectMeta, ObjectStore, ObjectStoreExt, path::Path};
use spill_core::{StoreError, StoreErrorKind};

use crate::{
    ObjectOptions, ObjectStoreBackend,
    backend::id_in,
    error::kind_of,
    session::{HEARTBEAT, Shared, is_session},
};

/// Sessions one sweep looks at; others are the next one's.
const MOST_SESSIONS: usize = 1000;

/// Requests one sweep makes, beyond listing the names of the sessions.
const MOST_REQUESTS: usize = 5000;

/// Names in one page of a listing, or one request to delete.
const PAGE: usize = 1000;

/// After so many sessions in a row that could not be looked at, or not be removed, the service is in trouble.
const MOST_FAILURES: usize = 3;

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SweepReport {
    /// Sessions of others that were looked at: 1000 at most.
    pub looked_at: usize,
    /// Those among them that live, or did not so long ago.
    pub living: usize,
    /// Dead ones that were removed. Of two sweeps at once both may count one.
    pub removed: usize,
    /// Objects of dead sessions that were removed, heartbeats included.
    pub objects: usize,
    /// Sessions that could not be looked at, or not be removed completely. The log says why.
    pub failed: usize,
    /// Whether there is more to do than one sweep does: sweep again.
    pub unfinished: bool,
}

/// Removes what dead sessions of `owner` left under `prefix`, and nothing else: for a command line, as each
/// store that is opened from a URL does this too.
///
/// Sessions that showed no life for `dead_after` are dead; ten minutes at least, and not less than the
/// programs of that owner are set to. Safe at any time, also beside running programs and other sweeps.
///
/// At most 1000 sessions are looked at and 5000 requests made, besides listing the names of the sessions;
/// [`SweepReport::unfinished`] says that there is more. Parts of unfinished uploads can't be listed, nor
/// removed: a rule of the bucket has to expire them.
///
/// # Errors
/// When the names of the sessions can't be listed, or an object of its own, by which it asks the service for
/// the time, not be written; what is wrong with one session is only counted. `Other` when the prefix, the
/// owner or `dead_after` make no sense.
///
/// # Cancel safety
/// Any of the dead sessions may have been removed, each from its blobs to its heartbeat. The object written to
/// learn the time is left to a later sweep.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use object_store::memory::InMemory;
/// use spill_backend_object::{ObjectOptions, sweep};
/// use spill_core::{BlobId, Store};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), spill_core::StoreError> {
/// let bucket = Arc::new(InMemory::new());
/// let store = ObjectOptions::new(bucket.clone(), "shared").owner("indexer").open()?;
/// store.put(BlobId::new(1), b"payload".to_vec().into()).await?;
///
/// let report = sweep(bucket, "shared", "indexer", Duration::from_secs(24 * 3600)).await?;
/// assert_eq!((report.looked_at, report.living, report.removed), (1, 1, 0));
/// # Ok(())
/// # }
/// ```
pub async fn sweep(
    inner: Arc<dyn ObjectStore>,
    prefix: &str,
    owner: &str,
    dead_after: Duration,
) -> Result<SweepReport, StoreError> {
    let store = ObjectOptions::new(inner, prefix).owner(owner).dead_after(Some(dead_after)).open()?;
    let swept = store.sweep().await;
    let closed = store.leave().await;
    let report = swept?;
    closed.map(|()| report)
}

impl ObjectStoreBackend {
    /// Removes what dead sessions of the same owner left under the same prefix, as [`sweep()`] does, by the
    /// `dead_after` this store was opened with. Does nothing when that is `None`.
    ///
    /// # Errors
    /// When the names of the sessions can't be listed, or the heartbeat of this one not be written or read.
    ///
    /// # Cancel safety
    /// Any of the dead sessions may have been removed, each from its blobs to its heartbeat.
    pub async fn sweep(&self) -> Result<SweepReport, StoreError> {
        let Some(dead_after) = self.dead_after() else { return Ok(SweepReport::default()) };
        let swept = self.session().sweep(dead_after).await;
        swept.map_err(|error| self.failed("sweep", error))
    }
}

/// Sweeps the sessions beside this one, whose heartbeat was just written and tells the time.
pub(crate) async fn sweep_beside(own: &Shared, dead_after: Duration) -> Result<SweepReport, Error> {
    let now = own.inner.head(&own.heartbeat()).await?.last_modified.into();
    let listed = own.inner.list_with_delimiter(Some(&own.root)).await?;
    let is_other = |path: &Path| path.filename().is_some_and(is_session) && *path != own.path;
    let mut sessions: Vec<_> = listed.common_prefixes.into_iter().filter(is_other).collect();
    // Names are random, and so each sweep begins somewhere else: in the end all get their turn.
    sessions.sort_unstable();
    let first = sessions.partition_point(|path| *path < own.path);
    sessions.rotate_left(first);
    let report = SweepReport { unfinished: sessions.len() > MOST_SESSIONS, ..SweepReport::default() };
    let mut sweeper = Sweeper { inner: &*own.inner, now, dead_after, requests: MOST_REQUESTS, report };
    sweeper.sweep(sessions).await;
    Ok(sweeper.report)
}

struct Sweeper<'a> {
    inner: &'a dyn ObjectStore,
    /// By the clock of the service.
    now: SystemTime,
    dead_after: Duration,
    /// Those that may still be made.
    requests: usize,
    report: SweepReport,
}

/// What was seen of a session.
#[derive(Debug, PartialEq, Eq)]
struct Look {
    /// The newest of its objects.
    newest: SystemTime,
    heartbeat: Option<Beat>,
}

/// One version of a heartbeat.
#[derive(Debug, PartialEq, Eq)]
struct Beat {
    written: SystemTime,
    tag: Option<String>,
}

/// Why a session is left as it is.
enum Left {
    /// It lives.
    Living,
    /// There is nothing in it that a session would have.
    Foreign,
    /// The sweep has made its requests.
    Spent,
    Failed(Error),
}

impl From<Error> for Left {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Sweeper<'_> {
    async fn sweep(&mut self, sessions: Vec<Path>) {
        let mut failures = 0;
        for session in sessions.into_iter().take(MOST_SESSIONS) {
            self.report.looked_at += 1;
            match self.sweep_one(&session).await {
                Ok(()) => self.report.removed += 1,
                Err(Left::Living) => self.report.living += 1,
                Err(Left::Foreign) => {}
                Err(Left::Spent) => {
                    self.report.unfinished = true;
                    return;
                }
                Err(Left::Failed(error)) => {
                    tracing::warn!(%session, %error, "a session could not be swept");
                    self.report.failed += 1;
                    failures += 1;
                    if failures == MOST_FAILURES {
                        self.report.unfinished = true;
                        return;
                    }
                    continue;
                }
            }
            failures = 0;
        }
    }

    /// Removes a session, if it is dead.
    async fn sweep_one(&mut self, session: &Path) -> Result<(), Left> {
        let first = self.look(session).await?;
        if first != self.look(session).await? {
            return Err(Left::Living);
        }
        let mut blobs = self
            .inner
            .list(Some(session))
            .try_filter(|object| std::future::ready(is_blob(&object.location, session)))
            // It is asked again after its end, which those of services do not bear.
            .fuse();
        loop {
            self.spend()?;
            let page: Vec<_> = (&mut blobs).take(PAGE).try_collect().await?;
            if page.is_empty() {
                break;
            }
            // Deleting takes its time: what lives again in the middle of it keeps the rest.
            if page.iter().any(|object| self.is_young(object.last_modified.into()))
                || self.heartbeat(session).await? != first.heartbeat
            {
                return Err(Left::Living);
            }
            self.delete(page.into_iter().map(|object| object.location).collect()).await?;
        }
        if first.heartbeat.is_some() {
            self.delete(vec![session.clone().join(HEARTBEAT)]).await?;
        }
        Ok(())
    }

    /// What is there of a session that is old enough to be dead.
    async fn look(&mut self, session: &Path) -> Result<Look, Left> {
        let heartbeat = self.heartbeat(session).await?;
        let mut newest = heartbeat.as_ref().map(|beat| beat.written);
        if newest.is_some_and(|newest| self.is_young(newest)) {
            return Err(Left::Living);
        }
        let mut objects = self.inner.list(Some(session));
        let mut seen = 0;
        while let Some(object) = objects.try_next().await? {
            if seen % PAGE == 0 {
                self.spend()?;
            }
            seen += 1;
            if is_blob(&object.location, session) {
                newest = newest.max(Some(object.last_modified.into()));
            }
        }
        match newest {
            Some(newest) if self.is_young(newest) => Err(Left::Living),
            Some(newest) => Ok(Look { newest, heartbeat }),
            None => Err(Left::Foreign),
        }
    }

    async fn heartbeat(&mut self, session: &Path) -> Result<Option<Beat>, Left> {
        self.spend()?;
        match self.inner.head(&session.clone().join(HEARTBEAT)).await {
            Ok(ObjectMeta { last_modified, e_tag, .. }) => {
                Ok(Some(Beat { written: last_modified.into(), tag: e_tag }))
            }
            Err(error) if kind_of(&error) == StoreErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn delete(&mut self, paths: Vec<Path>) -> Result<(), Left> {
        self.spend()?;
        let mut first = None;
        let mut results = self.inner.delete_stream(stream::iter(paths.into_iter().map(Ok)).boxed());
        while let Some(result) = results.next().await {
            match result {
                Ok(_) => self.report.objects += 1,
                // Another sweep was faster.
                Err(error) if kind_of(&error) == StoreErrorKind::NotFound => {}
                Err(error) => first = first.or(Some(error)),
            }
        }
        first.map_or(Ok(()), |error| Err(error.into()))
    }

    fn is_young(&self, written: SystemTime) -> bool {
        self.now.duration_since(written).is_ok_and(|age| age < self.dead_after) || written > self.now
    }

    fn spend(&mut self) -> Result<(), Left> {
        self.requests = self.requests.checked_sub(1).ok_or(Left::Spent)?;
        Ok(())
    }
}

/// Whether a session would call a blob so.
fn is_blob(path: &Path, session: &Path) -> bool {
    let below = path.prefix_match(session).map(Iterator::count);
    below == Some(1) && id_in(path.as_ref()).is_some()
}
