//! Large blobs, in parts: nothing of an upload stays behind, however it ends.

use std::{sync::Arc, time::Duration};

use object_store::{
    Error, MultipartUpload, ObjectStore, PutMultipartOptions, PutPayload, Result, path::Path,
};
use spill_core::StoreErrorKind;
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, oneshot},
    task::JoinHandle,
    time::{Instant, sleep},
};

use crate::error::kind_of;

/// How long an abort is tried again for: one that is refused has often the same reason as the upload, that the
/// service has too much to do.
const ABORTED_WITHIN: Duration = Duration::from_secs(5);

/// After the first abort that failed; twice as long after each further one.
const FIRST_WAIT: Duration = Duration::from_millis(200);

/// A started upload, which is aborted unless it is completed.
///
/// Dropping it starts the abort in the background, because the parts of a forgotten upload are stored, and
/// paid for, for ever.
pub(crate) struct Upload {
    parts: Option<Box<dyn MultipartUpload>>,
    permit: Option<OwnedSemaphorePermit>,
    runtime: Handle,
}

impl Upload {
    /// Starts an upload to `path`. It holds `permit` until nothing of it is left.
    ///
    /// # Cancel safety
    /// The request runs in a task of its own: a caller that goes away in the middle of it would otherwise
    /// leave an upload whose id nobody knows.
    pub(crate) async fn start(
        store: Arc<dyn ObjectStore>,
        path: Path,
        permit: OwnedSemaphorePermit,
        runtime: Handle,
    ) -> Result<Self> {
        let (send, started) = oneshot::channel();
        let owner = runtime.clone();
        runtime.spawn(async move {
            let parts = store.put_multipart_opts(&path, PutMultipartOptions::default()).await;
            let upload = parts.map(|parts| Self { parts: Some(parts), permit: Some(permit), runtime: owner });
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

    /// Gives the upload up and waits until its parts are gone.
    ///
    /// # Cancel safety
    /// The abort goes on in the background.
    pub(crate) async fn abort(mut self) {
        if let Some(task) = self.begin_abort() {
            drop(task.await);
        }
    }

    fn begin_abort(&mut self) -> Option<JoinHandle<()>> {
        let mut parts = self.parts.take()?;
        let permit = self.permit.take();
        Some(self.runtime.spawn(async move {
            give_up(&mut *parts).await;
            drop(permit);
        }))
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        drop(self.begin_abort());
    }
}

async fn give_up(parts: &mut dyn MultipartUpload) {
    let (begin, mut wait) = (Instant::now(), FIRST_WAIT);
    loop {
        match parts.abort().await {
            // It was completed in time, or is gone already.
            Ok(()) | Err(Error::NotFound { .. }) => return,
            Err(error)
                if kind_of(&error) == StoreErrorKind::Transient
                    && begin.elapsed() + wait <= ABORTED_WITHIN =>
            {
                tracing::debug!(%error, ?wait, "an abort is tried again");
            }
            Err(error) => {
                let fix = "let the bucket expire unfinished ones";
                tracing::warn!(%error, fix, "an upload could not be aborted");
                return;
            }
        }
        sleep(wait).await;
        wait *= 2;
    }
}

fn lost(message: &'static str) -> Error {
    Error::Generic { store: "spill", source: message.into() }
}
