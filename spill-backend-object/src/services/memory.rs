//! Opens a store in memory, behind the full contract of one in a bucket.

use std::sync::Arc;

use async_trait::async_trait;
use object_store::memory::InMemory;
use spill_core::{Options, Store, StoreError, StoreErrorKind, StoreFactory};
use url::Url;

use super::StoreOptions;

/// Opens `memory:` URLs: an object store in this process's memory, for trying a configuration out.
///
/// Each opened store is empty and its own. A path (`memory:/some/prefix`) becomes the prefix. There are no
/// options. What it keeps is not part of any memory budget.
///
/// ```
/// use spill_backend_object::MemoryFactory;
/// use spill_core::{BlobId, Options, StoreFactory};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let url = "memory:".parse()?;
/// let store = MemoryFactory.open(&url, Options::new()).await?;
/// store.put(BlobId::new(1), b"payload".to_vec().into()).await?;
/// assert_eq!(store.get(BlobId::new(1), 0..3).await?, "pay");
///
/// let refused = MemoryFactory.open(&url, Options::new().with("region", "here")).await.unwrap_err();
/// assert!(refused.to_string().ends_with("unknown option `region`; this store takes no options; remove it"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryFactory;

#[async_trait]
impl StoreFactory for MemoryFactory {
    async fn open(&self, url: &Url, options: Options) -> Result<Arc<dyn Store>, StoreError> {
        // Not the URL itself: an authority may hold a password.
        let target = format!("{}:", url.scheme());
        options.finish("open", &target)?;
        let plain = url.scheme() == "memory" && url.host_str().is_none_or(str::is_empty);
        if !plain || url.query().is_some() || url.fragment().is_some() {
            return Err(StoreError::new(StoreErrorKind::Other, "open", target)
                .with_source("write `memory:`, or `memory:/prefix`, with nothing else"));
        }
        StoreOptions::default().open(Arc::new(InMemory::new()), url.path(), true).await
    }
}
