//! An object store as it is two days later: what was there when it was looked at is older by so much, what is written
//! from then on is not.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, stream::BoxStream};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, path::Path,
};

/// By how much.
const TWO_DAYS: Duration = Duration::from_secs(48 * 3600);

/// The object that is written again and again. All others are written once.
pub(crate) const HEARTBEAT: &str = "alive";

/// What was there, heartbeats with what tells their versions apart.
pub(crate) type Old = HashMap<Path, Option<String>>;

/// Reads and listings give other times; nothing else differs.
#[derive(Clone, Debug)]
pub(crate) struct Aged {
    inner: Arc<dyn ObjectStore>,
    old: Arc<Old>,
}

impl Aged {
    /// Lets two days pass for all that is below `prefix` now.
    pub(crate) async fn new(inner: Arc<dyn ObjectStore>, prefix: &Path) -> Result<Self> {
        let mut old = Old::new();
        let mut objects = inner.list(Some(prefix));
        while let Some(object) = objects.try_next().await? {
            let mut version = None;
            if object.location.filename() == Some(HEARTBEAT) {
                // Closed in the meantime, perhaps.
                let Ok(now) = inner.head(&object.location).await else { continue };
                version = now.e_tag;
            }
            old.insert(object.location, version);
        }
        drop(objects);
        Ok(Self { inner, old: Arc::new(old) })
    }

    /// The heartbeats that are old.
    pub(crate) fn heartbeats(&self) -> impl Iterator<Item = &Path> {
        self.old.keys().filter(|path| path.filename() == Some(HEARTBEAT))
    }

    /// Whether it was written again, or removed.
    pub(crate) async fn is_over(&self, heartbeat: &Path) -> bool {
        let now = self.inner.head(heartbeat).await;
        now.is_err() || now.is_ok_and(|now| !self.is_old(&now))
    }

    fn is_old(&self, object: &ObjectMeta) -> bool {
        let is_heartbeat = object.location.filename() == Some(HEARTBEAT);
        let old = self.old.get(&object.location);
        old.is_some_and(|version| !is_heartbeat || *version == object.e_tag)
    }

    fn timed(&self, mut object: ObjectMeta) -> ObjectMeta {
        if self.is_old(&object) {
            object.last_modified -= TWO_DAYS;
        }
        object
    }
}

impl fmt::Display for Aged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for Aged {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let mut answer = self.inner.get_opts(path, options).await?;
        answer.meta = self.timed(answer.meta);
        Ok(answer)
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let own = self.clone();
        self.inner.list(prefix).map_ok(move |object| own.timed(object)).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
