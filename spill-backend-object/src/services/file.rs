//! Local files through `object_store`, for comparing and for trying things out.

use std::sync::Arc;

use async_trait::async_trait;
use object_store::local::LocalFileSystem;
use spill_core::{Options, Store, StoreError, StoreErrorKind, StoreFactory};
use url::Url;

use super::StoreOptions;
use crate::error::store_error;

/// Opens directories at URLs like `file:///var/tmp/app`, through `object_store`. The options are
/// `owner`, `heartbeat` and `dead_after`, with the meaning they have for a bucket.
///
/// Not what spilling to files is for: `FsFactory` of `spill-backend-fs` is faster, and none of these holds
/// for it. What `LocalFileSystem` of `object_store` 0.14 does:
///
/// - a read of a file that was cut short does not end;
/// - an upload in parts is published although one of them met a full disk, shorter than it should be;
/// - a put whose future was dropped goes on in the background, and may appear later;
/// - files it writes to first stay behind when the process is killed, and nothing sweeps them;
/// - there is no cap on the space it takes of the file system.
///
/// The directory is made when it is missing.
///
/// ```
/// use spill_backend_object::LocalFactory;
/// use spill_core::{BlobId, Options, StoreFactory};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let root = tempfile::tempdir()?;
/// let url = url::Url::from_directory_path(root.path()).unwrap();
/// let store = LocalFactory.open(&url, Options::new()).await?;
/// store.put(BlobId::new(1), b"payload".to_vec().into()).await?;
/// assert_eq!(store.get(BlobId::new(1), 3..7).await?, "load");
/// store.close().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalFactory;

#[async_trait]
impl StoreFactory for LocalFactory {
    async fn open(&self, url: &Url, options: Options) -> Result<Arc<dyn Store>, StoreError> {
        let target = format!("{}://{}", url.scheme(), url.path());
        let options = StoreOptions::take(options, &target)?;
        let refused = |source: &str| {
            StoreError::new(StoreErrorKind::Other, "open", target.clone()).with_source(source.to_owned())
        };
        let plain = url.scheme() == "file" && url.query().is_none() && url.fragment().is_none();
        let root = url.to_file_path().ok().filter(|_| plain);
        let root = root.ok_or_else(|| refused("write an absolute path, like \"file:///var/tmp/app\""))?;
        let opened = tokio::task::spawn_blocking(move || {
            std::fs::create_dir_all(&root).map_err(|error| object_store::Error::Generic {
                store: "LocalFileSystem",
                source: Box::new(error),
            })?;
            LocalFileSystem::new_with_prefix(&root)
        });
        let files = opened.await.map_err(|error| refused(&error.to_string()))?;
        let files = files.map_err(|error| store_error(&target, "open", error))?;
        options.open(Arc::new(files.with_automatic_cleanup(true)), "", false).await
    }
}
