//! An object store whose every request can meet trouble, scripted by the conformance suite: the medium under
//! a store of this crate.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream, stream::BoxStream};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
    path::Path,
};
use spill_conformance::{Access, Medium, Trouble};

/// Any object store, with trouble. Clones share everything.
#[derive(Clone, Debug)]
pub(crate) struct FaultyObjectStore {
    inner: Arc<dyn ObjectStore>,
    medium: Medium,
    unfinished: Arc<AtomicUsize>,
}

impl FaultyObjectStore {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, medium: Medium) -> Self {
        Self { inner, medium, unfinished: Arc::default() }
    }

    /// The same, counting in `unfinished` the uploads in parts that are neither completed nor aborted. One of
    /// which the answer to its start was lost does not count: no client can know its name, and buckets have
    /// rules that expire such.
    #[must_use]
    #[allow(dead_code, reason = "not every binary looks for unfinished uploads")]
    pub(crate) fn counting(mut self, unfinished: Arc<AtomicUsize>) -> Self {
        self.unfinished = unfinished;
        self
    }
}

impl fmt::Display for FaultyObjectStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "faulty({})", self.inner)
    }
}

/// What a client of `object_store` reports: the status of an answer in words, or an error of the system.
fn error_of(trouble: Trouble) -> Option<Error> {
    let source = match (trouble.status(), trouble.error()) {
        (Some(status), _) => format!("Server returned non-2xx status code: {status} injected: ").into(),
        (None, Some(error)) => error.into(),
        (None, None) => return None,
    };
    Some(Error::Generic { store: "faulty", source })
}

/// Makes a request that may meet trouble. What is left of it concerns what the answer brings.
async fn request<T>(
    medium: &Medium,
    access: Access,
    effect: impl Future<Output = Result<T>>,
) -> Result<(T, Option<Trouble>)> {
    let trouble = medium.call(access).await;
    match trouble.and_then(error_of) {
        None => Ok((effect.await?, trouble)),
        Some(error) if trouble.is_some_and(Trouble::is_after_effect) => effect.await.and(Err(error)),
        Some(error) => Err(error),
    }
}

/// The body of an answer, damaged.
async fn damaged(body: BoxStream<'static, Result<Bytes>>, trouble: Trouble) -> Result<Bytes> {
    let pieces: Vec<Bytes> = body.try_collect().await?;
    let mut whole = pieces.concat();
    match trouble {
        Trouble::Truncated => whole.truncate(trouble.part(whole.len())),
        _ => Trouble::flip(&mut whole),
    }
    Ok(whole.into())
}

#[derive(Debug)]
struct FaultyUpload {
    inner: Box<dyn MultipartUpload>,
    medium: Medium,
    /// Counted as unfinished until it is over.
    counted: Option<Arc<AtomicUsize>>,
}

impl FaultyUpload {
    fn over(counted: &mut Option<Arc<AtomicUsize>>) {
        if let Some(unfinished) = counted.take() {
            unfinished.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[async_trait]
impl MultipartUpload for FaultyUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (medium, put) = (self.medium.clone(), self.inner.put_part(data));
        Box::pin(async move { request(&medium, Access::Write, put).await.map(|_| ()) })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let (inner, counted) = (&mut self.inner, &mut self.counted);
        let effect = async {
            let done = inner.complete().await?;
            Self::over(counted);
            Ok(done)
        };
        Ok(request(&self.medium, Access::Other, effect).await?.0)
    }

    async fn abort(&mut self) -> Result<()> {
        let (inner, counted) = (&mut self.inner, &mut self.counted);
        let effect = async {
            inner.abort().await?;
            Self::over(counted);
            Ok(())
        };
        request(&self.medium, Access::Other, effect).await.map(|_| ())
    }
}

#[async_trait]
impl ObjectStore for FaultyObjectStore {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let effect = self.inner.put_opts(path, payload, options);
        Ok(request(&self.medium, Access::Write, effect).await?.0)
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let effect = self.inner.put_multipart_opts(path, options);
        let (inner, _) = request(&self.medium, Access::Other, effect).await?;
        self.unfinished.fetch_add(1, Ordering::Relaxed);
        let counted = Some(Arc::clone(&self.unfinished));
        Ok(Box::new(FaultyUpload { inner, medium: self.medium.clone(), counted }))
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let effect = self.inner.get_opts(path, options);
        let (mut answer, trouble) = request(&self.medium, Access::Read, effect).await?;
        #[allow(irrefutable_let_patterns, reason = "with a feature of object_store there is another variant")]
        if let (Some(trouble), GetResultPayload::Stream(_)) = (trouble, &answer.payload) {
            let whole = GetResultPayload::Stream(stream::empty().boxed());
            if let GetResultPayload::Stream(body) = std::mem::replace(&mut answer.payload, whole) {
                let body = stream::once(damaged(body, trouble)).boxed();
                answer.payload = GetResultPayload::Stream(body);
            }
        }
        Ok(answer)
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let own = self.clone();
        let delete = move |path: Result<Path>| {
            let own = own.clone();
            async move {
                let path = path?;
                request(&own.medium, Access::Other, own.inner.delete(&path)).await?;
                Ok(path)
            }
        };
        paths.map(delete).buffered(3).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (listed, medium) = (self.inner.list(prefix), self.medium.clone());
        let pages = stream::once(async move {
            let trouble = medium.call(Access::Other).await;
            let error = trouble.and_then(error_of);
            match error {
                None => listed,
                // Some of it has come by then.
                Some(error) if trouble.is_some_and(Trouble::is_after_effect) => {
                    listed.take(1).chain(stream::iter([Err(error)])).boxed()
                }
                Some(error) => stream::iter([Err(error)]).boxed(),
            }
        });
        pages.flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        Ok(request(&self.medium, Access::Other, self.inner.list_with_delimiter(prefix)).await?.0)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        request(&self.medium, Access::Other, self.inner.copy_opts(from, to, options)).await.map(|_| ())
    }
}
