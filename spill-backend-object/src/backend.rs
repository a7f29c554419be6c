//! The store itself: names, single requests, and what their answers have to be.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    ops::Range,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::{
    Error, GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore, ObjectStoreExt, PutOptions, PutPayload,
    path::Path,
};
use spill_core::{BlobId, BlobMeta, BoxError, Payload, Store, StoreError, StoreErrorKind, StoreInfo, Stored};
use tokio::{runtime::Handle, sync::Semaphore};

use crate::{
    ObjectOptions,
    error::{kind_of, lists_nothing, store_error},
    session::Session,
    upload::{Unaborted, Upload},
};

/// A blob up to this many bytes is one request; a larger one is sent in parts of this size.
const PART: usize = 16 << 20;

/// What one more request takes as long as: `object_store` joins reads across the same gap.
const READ_GAP: u64 = 1 << 20;

/// The most parts S3 allows.
const MOST_PARTS: u64 = 10_000;

/// Parts of one upload that are under way at once.
const PARTS_AT_ONCE: usize = 4;

/// Uploads in parts that are under way at once, those being aborted included.
const UPLOADS_AT_ONCE: u32 = 8;

/// Blobs deleted with one call while closing: what one request of S3 takes.
const CLOSE_BATCH: usize = 1000;

/// Empty pieces in a row after which a body that does not end counts as cut short.
const MOST_EMPTY_PIECES: usize = 64;

/// Keeps blobs in an object store, in a session of its own under a prefix.
///
/// Up to 16 MiB a blob is one request. A larger one goes up in parts of 16 MiB, four at a time and without
/// a copy, and is not there until the last of them is; eight such uploads at most are under way at once,
/// others wait. An upload that fails, or whose future is dropped, is aborted; if that fails too, again with later
/// uploads and when the store is closed. When the runtime ends in the middle of one, or the process dies, its parts
/// stay invisible but stored: give the bucket a rule that expires unfinished uploads.
///
/// After a `put` that failed, or was dropped, the blob may be there whole, if only the answer got lost.
/// Deleting its id makes sure.
///
/// A listing reads all names of the session after the one asked for, because not every service sorts them,
/// and keeps one page of them in memory; for one that does, see [`ObjectOptions::sorted`].
///
/// Before the first blob, and every minute from then on, the session writes an object called `alive`: its
/// heartbeat. A task on the runtime of the first `put` does it, which ends with the store; when that runtime
/// ended or stands still, the next call starts another on its own. That heartbeats fail is logged, and fails no
/// call. Runtimes need their time enabled.
///
/// ```
/// use std::sync::Arc;
/// use object_store::memory::InMemory;
/// use spill_backend_object::ObjectStoreBackend;
/// use spill_core::{BlobId, Store};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), spill_core::StoreError> {
/// let bucket = Arc::new(InMemory::new());
/// let mine = ObjectStoreBackend::new(bucket.clone(), "shared/prefix")?;
/// let yours = ObjectStoreBackend::new(bucket, "shared/prefix")?;
///
/// mine.put(BlobId::new(1), b"payload".to_vec().into()).await?;
/// assert_eq!(mine.get(BlobId::new(1), 3..7).await?, "load");
/// assert!(yours.list(None, 10).await?.is_empty());
/// mine.close().await?;
/// # Ok(())
/// # }
/// ```
pub struct ObjectStoreBackend {
    info: StoreInfo,
    inner: Arc<dyn ObjectStore>,
    session: Session,
    dead_after: Option<Duration>,
    sorted: bool,
    part: usize,
    uploads: Arc<Semaphore>,
    unaborted: Arc<Unaborted>,
}

impl fmt::Debug for ObjectStoreBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ObjectStoreBackend").field(&self.info.name).finish()
    }
}

impl ObjectStoreBackend {
    /// A new session under `prefix` of this object store, as [`ObjectOptions`] make it when nothing is set; no
    /// request is made. The prefix may be empty, and may start and end with a slash.
    ///
    /// # Errors
    /// `Other` when the prefix is no path: it has an empty, `.` or `..` segment, or a control character.
    pub fn new(inner: Arc<dyn ObjectStore>, prefix: &str) -> Result<Self, StoreError> {
        Self::open(ObjectOptions::new(inner, prefix))
    }

    pub(crate) fn open(options: ObjectOptions) -> Result<Self, StoreError> {
        Self::with_part(options, PART)
    }

    pub(crate) fn with_part(options: ObjectOptions, part: usize) -> Result<Self, StoreError> {
        let root = options.root()?;
        options.check_times()?;
        let session = Session::new(&options, root);
        let ObjectOptions { inner, dead_after, sorted, .. } = options;
        let info = StoreInfo::new(format!("{inner}/{}", session.path()))
            .max_blob(part as u64 * MOST_PARTS)
            .preferred_blob(part as u64)
            .read_gap(READ_GAP);
        let uploads = Arc::new(Semaphore::new(UPLOADS_AT_ONCE as usize));
        let unaborted = Arc::default();
        Ok(Self { info, inner, session, dead_after, sorted, part, uploads, unaborted })
    }

    /// Writes the first heartbeat now, rather than before the first blob: one small write, which tells whether
    /// the service can be reached and written to. What opens a store from a URL calls it.
    ///
    /// # Errors
    /// What the service said, with `open` as the operation. The store can be used nevertheless, and tries again
    /// by itself.
    ///
    /// # Cancel safety
    /// The heartbeat may have been written; closing removes it.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use object_store::memory::InMemory;
    /// # use spill_core::Store;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), spill_core::StoreError> {
    /// let store = spill_backend_object::ObjectStoreBackend::new(Arc::new(InMemory::new()), "prefix")?;
    /// store.announce().await?;
    /// store.spawn_upkeep();
    /// # store.close().await
    /// # }
    /// ```
    pub async fn announce(&self) -> Result<(), StoreError> {
        self.session.announce().await.map_err(|error| self.failed("open", error))
    }

    /// Lets the task that writes heartbeats also sweep dead sessions of the same owner: now, and again every
    /// `dead_after`. It never fails a call; what it did is logged. Does nothing when `dead_after` is `None`, but
    /// to start the heartbeats.
    ///
    /// Outside of a runtime it begins with the next call that is made inside of one.
    pub fn spawn_upkeep(&self) {
        self.session.spawn_upkeep();
    }

    /// Ends the session, which never kept a blob.
    pub(crate) async fn leave(&self) -> Result<(), StoreError> {
        self.session.stop().await;
        self.session.remove_heartbeat().await.map_err(|error| self.failed("close", error))
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) fn dead_after(&self) -> Option<Duration> {
        self.dead_after
    }

    fn path(&self, id: BlobId) -> Path {
        self.session.path().clone().join(id.to_string())
    }

    fn error(
        &self,
        kind: StoreErrorKind,
        operation: &'static str,
        source: impl Into<BoxError>,
    ) -> StoreError {
        StoreError::new(kind, operation, self.info.name.clone()).with_source(source)
    }

    pub(crate) fn failed(&self, operation: &'static str, error: Error) -> StoreError {
        store_error(&self.info.name, operation, error)
    }

    fn corrupt(&self, id: BlobId, message: String) -> StoreError {
        self.error(StoreErrorKind::Corrupt, "get", message).with_blob(id)
    }

    /// The blob this object is, if it is one of this session.
    fn blob_of(&self, object: &ObjectMeta) -> Option<BlobMeta> {
        let mut names = object.location.prefix_match(self.session.path())?;
        let id = names.next()?.as_ref().parse().ok()?;
        let stored = Stored { bytes: object.size, allocated: object.size };
        names.next().is_none().then_some(BlobMeta { id, stored })
    }

    async fn put_in_parts(&self, path: Path, blob: &Payload) -> Result<(), StoreError> {
        let runtime =
            Handle::try_current().map_err(|error| self.error(StoreErrorKind::Other, "put", error))?;
        let permit = Arc::clone(&self.uploads).acquire_owned().await;
        let permit = permit.map_err(|error| self.error(StoreErrorKind::Other, "put", error))?;
        let unaborted = Arc::clone(&self.unaborted);
        let upload = Upload::start(Arc::clone(&self.inner), path, permit, runtime, unaborted).await;
        let mut upload = upload.map_err(|error| self.failed("put", error))?;
        let sent = stream::iter(split(blob, self.part))
            .map(|bytes| upload.part(bytes))
            .buffer_unordered(PARTS_AT_ONCE)
            .try_collect::<()>()
            .await;
        let done = match sent {
            Ok(()) => upload.complete().await,
            failed => failed,
        };
        if let Err(error) = done {
            upload.abort().await;
            return Err(self.failed("put", error));
        }
        Ok(())
    }

    /// What an answer that makes no sense means: a service asked for bytes past the end may say anything.
    async fn explain(&self, id: BlobId, range: &Range<u64>, error: Error) -> StoreError {
        let failed = self.failed("get", error).with_blob(id);
        if failed.kind() != StoreErrorKind::Other {
            return failed;
        }
        match self.inner.head(&self.path(id)).await {
            Ok(object) if range.end > object.size => self.past_the_end(id, range, object.size),
            _ => failed,
        }
    }

    fn past_the_end(&self, id: BlobId, range: &Range<u64>, size: u64) -> StoreError {
        self.corrupt(id, format!("bytes {range:?} of a blob of {size}"))
    }

    /// For a read of nothing: whether the blob is there and long enough.
    ///
    /// By a read of one byte, since an answer to a HEAD has no room to say that it is the bucket that is missing.
    async fn check_there(&self, id: BlobId, range: &Range<u64>) -> Result<(), StoreError> {
        let options = GetOptions { range: Some(GetRange::Bounded(0..1)), ..GetOptions::default() };
        let object = match self.inner.get_opts(&self.path(id), options).await {
            Ok(answer) => Ok(answer.meta),
            // It may have no first byte.
            Err(error) if matches!(kind_of(&error), StoreErrorKind::Corrupt | StoreErrorKind::Other) => {
                self.inner.head(&self.path(id)).await.map_err(|_| error)
            }
            Err(error) => Err(error),
        };
        let object = object.map_err(|error| self.failed("get", error).with_blob(id))?;
        if range.end > object.size {
            return Err(self.past_the_end(id, range, object.size));
        }
        Ok(())
    }

    async fn read_exactly(&self, id: BlobId, length: usize, answer: GetResult) -> Result<Bytes, StoreError> {
        let mut body = answer.into_stream();
        let mut whole = BytesMut::new();
        let mut empty_pieces = 0;
        while let Some(piece) = body.next().await {
            let piece = piece.map_err(|error| self.failed("get", error).with_blob(id))?;
            let read = whole.len() + piece.len();
            empty_pieces = if piece.is_empty() { empty_pieces + 1 } else { 0 };
            if read > length {
                return Err(self.corrupt(id, format!("more than the {length} bytes asked for came")));
            }
            if empty_pieces > MOST_EMPTY_PIECES {
                break;
            }
            if whole.is_empty() && piece.len() == length {
                self.expect_end(id, &mut body, length).await?;
                return Ok(piece);
            }
            if whole.is_empty() && !piece.is_empty() {
                whole.reserve(length);
            }
            whole.extend_from_slice(&piece);
        }
        if whole.len() < length {
            return Err(self.corrupt(id, format!("{} of the {length} bytes asked for came", whole.len())));
        }
        Ok(whole.freeze())
    }

    /// The one piece that came was all: what follows it may be nothing.
    async fn expect_end(
        &self,
        id: BlobId,
        body: &mut (impl stream::Stream<Item = object_store::Result<Bytes>> + Unpin),
        length: usize,
    ) -> Result<(), StoreError> {
        match body.next().await {
            Some(Ok(piece)) if !piece.is_empty() => {
                Err(self.corrupt(id, format!("more than the {length} bytes asked for came")))
            }
            _ => Ok(()),
        }
    }

    /// The names of all blobs of the session after `after`, in no particular order.
    fn blobs(&self, after: Option<BlobId>) -> impl stream::Stream<Item = Result<BlobMeta, StoreError>> {
        let objects = match after {
            Some(after) => self.inner.list_with_offset(Some(self.session.path()), &self.path(after)),
            None => self.inner.list(Some(self.session.path())),
        };
        objects.filter_map(move |object| {
            std::future::ready(match object {
                Ok(object) => {
                    self.blob_of(&object).filter(|blob| after.is_none_or(|id| blob.id > id)).map(Ok)
                }
                Err(error) if lists_nothing(&error) => None,
                Err(error) => Some(Err(self.failed("list", error))),
            })
        })
    }
}

#[async_trait]
impl Store for ObjectStoreBackend {
    fn info(&self) -> &StoreInfo {
        &self.info
    }

    async fn put(&self, id: BlobId, blob: Payload) -> Result<Stored, StoreError> {
        let bytes = blob.len() as u64;
        if bytes > self.info.max_blob {
            let source = format!("the blob has {bytes} bytes, the most is {}", self.info.max_blob);
            return Err(self.error(StoreErrorKind::Other, "put", source).with_blob(id));
        }
        self.session.begin().await;
        if blob.len() > self.part {
            self.put_in_parts(self.path(id), &blob).await.map_err(|error| error.with_blob(id))?;
        } else {
            let payload = PutPayload::from_iter(blob.chunks().cloned());
            let put = self.inner.put_opts(&self.path(id), payload, PutOptions::default()).await;
            put.map_err(|error| self.failed("put", error).with_blob(id))?;
        }
        Ok(Stored { bytes, allocated: bytes })
    }

    async fn get(&self, id: BlobId, range: Range<u64>) -> Result<Bytes, StoreError> {
        let Some(length) = range.end.checked_sub(range.start) else {
            return Err(self.corrupt(id, format!("bytes {range:?} end before they start")));
        };
        self.session.go_on();
        if length == 0 {
            return self.check_there(id, &range).await.map(|()| Bytes::new());
        }
        let length = usize::try_from(length)
            .map_err(|_| self.corrupt(id, format!("bytes {range:?} are more than memory can hold")))?;
        let options = GetOptions { range: Some(GetRange::Bounded(range.clone())), ..GetOptions::default() };
        let answer = match self.inner.get_opts(&self.path(id), options).await {
            Ok(answer) => answer,
            Err(error) => return Err(self.explain(id, &range, error).await),
        };
        if answer.range != range {
            return Err(self.past_the_end(id, &range, answer.meta.size));
        }
        self.read_exactly(id, length, answer).await
    }

    async fn delete(&self, ids: &[BlobId]) -> Result<(), StoreError> {
        self.session.go_on();
        let paths: Vec<_> = ids.iter().map(|id| Ok(self.path(*id))).collect();
        let mut gone = HashSet::with_capacity(ids.len());
        let mut first = None;
        let mut results = self.inner.delete_stream(stream::iter(paths).boxed());
        while let Some(result) = results.next().await {
            match result {
                Ok(path) => gone.extend(id_in(path.as_ref())),
                Err(Error::NotFound { ref path, .. }) if id_in(path).is_some() => gone.extend(id_in(path)),
                Err(error) => first = first.or(Some(error)),
            }
        }
        let failed: Vec<_> = ids.iter().copied().filter(|id| !gone.contains(id)).collect();
        if failed.is_empty() {
            return Ok(());
        }
        let error = match first {
            Some(error) if kind_of(&error) == StoreErrorKind::NotFound => {
                self.error(StoreErrorKind::Other, "delete", error)
            }
            Some(error) => self.failed("delete", error),
            None => {
                self.error(StoreErrorKind::Other, "delete", "the service did not say what became of them")
            }
        };
        Err(error.with_failed(failed))
    }

    async fn list(&self, after: Option<BlobId>, limit: usize) -> Result<Vec<BlobMeta>, StoreError> {
        self.session.go_on();
        let mut page = BTreeMap::new();
        if limit == 0 {
            return Ok(Vec::new());
        }
        let mut sorted = self.sorted;
        let mut blobs = std::pin::pin!(self.blobs(after));
        while let Some(blob) = blobs.try_next().await? {
            // A service that does not keep to it is read to the end.
            sorted &= page.last_key_value().is_none_or(|(last, _)| *last < blob.id);
            page.insert(blob.id, blob);
            if sorted && page.len() == limit {
                break;
            }
            if page.len() > limit {
                page.pop_last();
            }
        }
        Ok(page.into_values().collect())
    }

    /// Waits for uploads that are being aborted, aborts those for which that failed before, and ends the
    /// heartbeats; then deletes the session's blobs, 1000 at a time, and last its heartbeat.
    ///
    /// # Cancel safety
    /// Any of the blobs may have been removed; closing again removes the others.
    async fn close(&self) -> Result<(), StoreError> {
        let over = self.uploads.acquire_many(UPLOADS_AT_ONCE).await;
        let _over = over.map_err(|error| self.error(StoreErrorKind::Other, "close", error))?;
        self.session.stop().await;
        let mut first = self.unaborted.abort_all().await.err().map(|error| self.failed("close", error));
        let mut ids = std::pin::pin!(self.blobs(None).map_ok(|blob| blob.id).chunks(CLOSE_BATCH));
        while let Some(batch) = ids.next().await {
            let batch = batch.into_iter().collect::<Result<Vec<_>, _>>()?;
            if let Err(error) = self.delete(&batch).await {
                first = first.or(Some(error));
            }
        }
        match first {
            Some(error) => Err(error),
            None => self.leave().await,
        }
    }
}

/// The blob id that a path ends with.
pub(crate) fn id_in(path: &str) -> Option<BlobId> {
    path.rsplit('/').next()?.parse().ok()
}

/// The payload in parts of `size` bytes, the last one shorter, without copying any.
fn split(blob: &Payload, size: usize) -> Vec<PutPayload> {
    let mut parts = Vec::with_capacity(blob.len().div_ceil(size));
    let mut part = Vec::new();
    let mut room = size;
    for chunk in blob.chunks() {
        let mut chunk = chunk.clone();
        while !chunk.is_empty() {
            let piece = chunk.split_to(room.min(chunk.len()));
            room -= piece.len();
            part.push(piece);
            if room == 0 {
                parts.push(PutPayload::from_iter(std::mem::take(&mut part)));
                room = size;
            }
        }
    }
    if !part.is_empty() {
        parts.push(PutPayload::from_iter(part));
    }
    parts
}
