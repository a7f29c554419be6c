//! An object store in memory with a clock of its own, which waits at every step and does what a test tells it.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use futures_util::{StreamExt, stream, stream::BoxStream};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, memory::InMemory,
    path::Path,
};

/// What a script makes of a call.
#[derive(Debug)]
pub(crate) enum Act {
    Go,
    Fail,
    /// Never answers.
    Hang,
    /// First somebody else writes this object.
    After(Path),
}

type Script = Box<dyn FnMut(&'static str, &Path) -> Act + Send>;

/// Tells the time that a test sets, and records every call.
#[derive(Default)]
pub(crate) struct Clocked {
    inner: InMemory,
    now: AtomicU64,
    written: Mutex<HashMap<Path, u64>>,
    script: Mutex<Option<Script>>,
    calls: Mutex<Vec<(&'static str, String)>>,
    /// Objects that listings gave out.
    pub(crate) listed: Arc<AtomicUsize>,
    /// Listings give the last name first.
    pub(crate) backwards: AtomicBool,
    /// Puts go on for a while when they are dropped, as those of a file system do.
    pub(crate) lingering: AtomicBool,
}

impl fmt::Debug for Clocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clocked")
    }
}

impl fmt::Display for Clocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("clocked:")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Clocked {
    /// A store where it is so many seconds after 1970.
    pub(crate) fn at(seconds: u64) -> Arc<Self> {
        let store = Self::default();
        store.now.store(seconds, Ordering::Relaxed);
        Arc::new(store)
    }

    pub(crate) fn set(&self, seconds: u64) {
        self.now.store(seconds, Ordering::Relaxed);
    }

    pub(crate) fn pass(&self, hours: u64) {
        self.now.fetch_add(hours * 3600, Ordering::Relaxed);
    }

    pub(crate) fn script(&self, script: impl FnMut(&'static str, &Path) -> Act + Send + 'static) {
        *lock(&self.script) = Some(Box::new(script));
    }

    pub(crate) fn no_script(&self) {
        *lock(&self.script) = None;
    }

    /// Calls since the last look that do `operation` on a path that ends like this.
    pub(crate) fn count(&self, operation: &str, end: &str) -> usize {
        lock(&self.calls).iter().filter(|(done, path)| *done == operation && path.ends_with(end)).count()
    }

    pub(crate) fn take_calls(&self) -> Vec<(&'static str, String)> {
        std::mem::take(&mut *lock(&self.calls))
    }

    /// Writes an object, past all scripts.
    pub(crate) async fn plant(&self, path: &str) {
        let path = Path::parse(path).unwrap();
        self.write(&path).await;
    }

    /// All names, sorted.
    pub(crate) async fn names(&self) -> Vec<String> {
        let listed = self.inner.list(None).map(|object| object.unwrap().location.to_string());
        listed.collect().await
    }

    async fn write(&self, path: &Path) {
        self.inner.put(path, "planted".into()).await.unwrap();
        self.stamp(path);
    }

    fn stamp(&self, path: &Path) {
        lock(&self.written).insert(path.clone(), self.now.load(Ordering::Relaxed));
    }

    fn timed(&self, mut object: ObjectMeta) -> ObjectMeta {
        let seconds = lock(&self.written).get(&object.location).copied().unwrap_or_default();
        object.last_modified = (SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).into();
        object
    }

    async fn step(&self, operation: &'static str, path: &Path) -> Result<()> {
        tokio::task::yield_now().await;
        lock(&self.calls).push((operation, path.to_string()));
        let act = lock(&self.script).as_mut().map_or(Act::Go, |script| script(operation, path));
        match act {
            Act::Go => Ok(()),
            Act::Fail => {
                Err(Error::Generic { store: "clocked", source: "status code: 503: on purpose".into() })
            }
            Act::Hang => std::future::pending().await,
            Act::After(path) => {
                self.write(&path).await;
                Ok(())
            }
        }
    }
}

/// `Clocked` behind an `Arc`, as what a stream has to own.
#[derive(Clone, Debug)]
pub(crate) struct Bucket(pub(crate) Arc<Clocked>);

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for Bucket {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.0.step("put", path).await?;
        if self.0.lingering.load(Ordering::Relaxed) {
            let (store, path) = (Arc::clone(&self.0), path.clone());
            let write = tokio::spawn(async move {
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
                store.write(&path).await;
            });
            write.await.unwrap();
        }
        let done = self.0.inner.put_opts(path, payload, options).await?;
        self.0.stamp(path);
        tokio::task::yield_now().await;
        Ok(done)
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.0.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.0.step(if options.head { "head" } else { "get" }, path).await?;
        let mut answer = self.0.inner.get_opts(path, options).await?;
        answer.meta = self.0.timed(answer.meta);
        Ok(answer)
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = Arc::clone(&self.0);
        let delete = move |path: Result<Path>| {
            let store = Arc::clone(&store);
            async move {
                let path = path?;
                store.step("delete", &path).await?;
                store.inner.delete(&path).await.map(|()| path)
            }
        };
        paths.map(delete).buffered(3).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (store, prefix) = (Arc::clone(&self.0), prefix.cloned().unwrap_or_default());
        let listed = stream::once(async move {
            if let Err(error) = store.step("list", &prefix).await {
                return stream::iter(vec![Err(error)]);
            }
            let mut objects: Vec<_> = store
                .inner
                .list(Some(&prefix))
                .map(|object| object.map(|object| store.timed(object)))
                .collect()
                .await;
            if store.backwards.load(Ordering::Relaxed) {
                objects.reverse();
            }
            stream::iter(objects)
        });
        let count = Arc::clone(&self.0.listed);
        listed
            .flatten()
            .inspect(move |_| {
                count.fetch_add(1, Ordering::Relaxed);
            })
            .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.step("list_sessions", &prefix.cloned().unwrap_or_default()).await?;
        self.0.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.inner.copy_opts(from, to, options).await
    }
}
