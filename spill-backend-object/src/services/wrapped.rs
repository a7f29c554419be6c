//! An object store under a name that is shown, with single deletes where a server knows no others.

use std::{
    fmt,
    ops::Range,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream, stream::BoxStream};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result, path::Path,
};

use crate::{error::find, http::Answer};

/// Objects of one request.
const BATCH: usize = 1000;

/// The object store of a service.
///
/// `Display` is what messages and metrics call it.
#[derive(Debug)]
pub(crate) struct Wrapped {
    name: String,
    inner: Arc<dyn ObjectStore>,
    /// The same, with one request for each object that is deleted.
    single: Option<Arc<dyn ObjectStore>>,
    /// The server does not know how to delete many at once.
    no_batches: Arc<AtomicBool>,
}

impl Wrapped {
    pub(crate) fn new(name: String, inner: Arc<dyn ObjectStore>) -> Self {
        Self { name, inner, single: None, no_batches: Arc::default() }
    }

    /// The same, with this one for deletes after the first batch that the server did not understand.
    pub(crate) fn with_single_deletes(mut self, single: Arc<dyn ObjectStore>) -> Self {
        self.single = Some(single);
        self
    }
}

impl fmt::Display for Wrapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Deletes these by one request, or by one each when the server knows no other way.
async fn delete_batch(
    bulk: Arc<dyn ObjectStore>,
    single: Option<Arc<dyn ObjectStore>>,
    no_batches: Arc<AtomicBool>,
    paths: Vec<Path>,
) -> Vec<Result<Path>> {
    let Some(single) = single else { return delete_by(&*bulk, paths).await };
    if !no_batches.load(Ordering::Relaxed) {
        let results = delete_by(&*bulk, paths.clone()).await;
        if !results.iter().any(|result| result.as_ref().is_err_and(is_unknown_request)) {
            return results;
        }
        if !no_batches.swap(true, Ordering::Relaxed) {
            tracing::info!(store = %bulk, "the server can't delete many objects at once: each gets a request");
        }
    }
    // At most 20 at a time.
    delete_by(&*single, paths).await
}

/// The clients of `object_store` panic over an answer that names an object they did not ask about. What became of the
/// others is not known then.
async fn delete_by(store: &dyn ObjectStore, paths: Vec<Path>) -> Vec<Result<Path>> {
    let results = store.delete_stream(stream::iter(paths).map(Ok).boxed()).collect();
    AssertUnwindSafe(results).catch_unwind().await.unwrap_or_else(|_panic| {
        let source = "the answer makes no sense: it may name an object that was not to be deleted";
        vec![Err(Error::Generic { store: "spill", source: source.into() })]
    })
}

fn is_unknown_request(error: &Error) -> bool {
    find::<Answer>(error).is_some_and(Answer::is_unknown_request)
}

#[async_trait]
impl ObjectStore for Wrapped {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let (bulk, single) = (Arc::clone(&self.inner), self.single.clone());
        let no_batches = Arc::clone(&self.no_batches);
        locations
            .chunks(BATCH)
            .then(move |chunk| {
                let (bulk, single, no_batches) = (bulk.clone(), single.clone(), no_batches.clone());
                async move {
                    let (paths, wrong): (Vec<_>, Vec<_>) = chunk.into_iter().partition(Result::is_ok);
                    let paths: Vec<_> = paths.into_iter().flatten().collect();
                    let mut results = delete_batch(bulk, single, no_batches, paths).await;
                    results.extend(wrong);
                    stream::iter(results)
                }
            })
            .flatten()
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.inner.rename_opts(from, to, options).await
    }
}
