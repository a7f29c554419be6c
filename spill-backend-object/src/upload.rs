//! Large blobs, in parts: nothing of an upload stays behind, however it ends.

use std::{collections::VecDeque, sync::Arc};

use object_store::{
    Error, MultipartUpload, ObjectStore, PutMultipartOptions, PutPayload, Result, path::Path,
};
use parking_lot::Mutex;
use spill_core::StoreErrorKind;
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, oneshot},
    task::JoinHandle,
};

use crate::error::{is_without_upload, kind_of};

/// Uploads that are remembered because they could not be aborted.
const MOST_UNABORTED: usize = 64;

/// How often it is tried to abort one.
const MOST_TRIES: u32 = 5;

/// A started upload, which is aborted unless it is completed.
///
/// Dropping it starts the abort in the background, because the parts of a forgotten upload are stored, and
/// paid for, for ever.
pub(crate) struct Upload {
    parts: Option<Box<dyn MultipartUpload>>,
    permit: Option<OwnedSemaphorePermit>,
    runtime: Handle,
    unaborted: Arc<Unaborted>,
}

impl Upload {
    /// Starts an upload to `path`. It holds `permit` until nothing of it is left, or until it is among those
    /// that are to be aborted later, of which this takes care of one.
    ///
    /// # Cancel safety
    /// The request runs in a task of its own: a caller that goes away in the middle of it would otherwise
    /// leave an upload whose id nobody knows.
    pub(crate) async fn start(
        store: Arc<dyn ObjectStore>,
        path: Path,
        permit: OwnedSemaphorePermit,
        runtime: Handle,
        unaborted: Arc<Unaborted>,
    ) -> Result<Self> {
        let (send, started) = oneshot::channel();
        let owner = runtime.clone();
        runtime.spawn(async move {
            // That it fails is on record.
            drop(unaborted.abort_one().await);
            let parts = store.put_multipart_opts(&path, PutMultipartOptions::default()).await;
            let upload = parts.map(|parts| Self {
                parts: Some(parts),
                permit: Some(permit),
                runtime: owner,
                unaborted,
            });
            // When nobody listens any more the upload comes back, and dropping it aborts it.
            drop(send.send(upload));
        });
        started.await.map_err(|_| lost("the task that starts an upload ended early"))?
    }

    /// Begins the next part. The parts may be awaited in any order.
    pub(crate) fn part(&mut self, bytes: PutPayload) -> object_store::UploadPart {
        match &mut self.parts {
            Some(parts) => parts.put_part(bytes),
            None => Box::pin(std::future::ready(Err(lost("the upload is over")))),
        }
    }

    /// Makes the blob of all its parts, at once and whole.
    ///
    /// # Cancel safety
    /// When the future is dropped the upload is aborted, unless the service has completed it by then.
    pub(crate) async fn complete(&mut self) -> Result<()> {
        let parts = self.parts.as_mut().ok_or_else(|| lost("the upload is over"))?;
        parts.complete().await?;
        self.parts = None;
        Ok(())
    }

    /// Gives the upload up, and waits until its parts are gone or can't be removed now.
    ///
    /// # Cancel safety
    /// The abort goes on in the background.
    pub(crate) async fn abort(mut self) {
        if let Some(task) = self.begin_abort() {
            drop(task.await);
        }
    }

    fn begin_abort(&mut self) -> Option<JoinHandle<()>> {
        let parts = self.parts.take()?;
        let (permit, unaborted) = (self.permit.take(), Arc::clone(&self.unaborted));
        Some(self.runtime.spawn(async move {
            drop(unaborted.abort(Given { parts, tries: 0 }).await);
            drop(permit);
        }))
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        drop(self.begin_abort());
    }
}

/// An upload that nobody will complete.
#[derive(Debug)]
struct Given {
    parts: Box<dyn MultipartUpload>,
    /// How often it could not be aborted.
    tries: u32,
}

/// Uploads that could not be aborted yet, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Unaborted(Mutex<VecDeque<Given>>);

impl Unaborted {
    /// Aborts those that there are now, each once.
    ///
    /// # Errors
    /// The first error. What failed is kept for the next time, as long as that may help.
    ///
    /// # Cancel safety
    /// The one that is being aborted is kept for the next time.
    pub(crate) async fn abort_all(&self) -> Result<()> {
        let mut done = Ok(());
        let number = self.0.lock().len();
        for _ in 0..number {
            done = done.and(self.abort_one().await);
        }
        done
    }

    async fn abort_one(&self) -> Result<()> {
        let given = self.0.lock().pop_front();
        match given {
            Some(given) => self.abort(given).await,
            None => Ok(()),
        }
    }

    async fn abort(&self, given: Given) -> Result<()> {
        let mut given = Held { list: self, given: Some(given) };
        let error = match given.abort().await {
            // It was completed in time, or is gone already.
            Err(error) if !is_without_upload(&error) => error,
            _ => {
                given.is_over();
                return Ok(());
            }
        };
        if kind_of(&error) == StoreErrorKind::Denied || given.tries() >= MOST_TRIES || !self.has_room() {
            let fix = "let the bucket expire unfinished ones";
            tracing::warn!(%error, fix, "an upload could not be aborted; it is not tried again");
            given.is_over();
        }
        Err(error)
    }

    fn has_room(&self) -> bool {
        self.0.lock().len() < MOST_UNABORTED
    }
}

/// One that is being aborted. It goes back to the others when this is dropped.
struct Held<'a> {
    list: &'a Unaborted,
    given: Option<Given>,
}

impl Held<'_> {
    async fn abort(&mut self) -> Result<()> {
        let Some(given) = &mut self.given else { return Ok(()) };
        given.tries += 1;
        given.parts.abort().await
    }

    fn tries(&self) -> u32 {
        self.given.as_ref().map_or(0, |given| given.tries)
    }

    fn is_over(&mut self) {
        self.given = None;
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(given) = self.given.take() {
            self.list.0.lock().push_back(given);
        }
    }
}

fn lost(message: &'static str) -> Error {
    Error::Generic { store: "spill", source: message.into() }
}
