//! A store in memory: for tests, examples, and as the model of what a store is.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    ops::{Bound, Range},
    sync::Arc,
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::{BlobId, BlobMeta, Payload, Store, StoreError, StoreErrorKind, StoreInfo, Stored};

/// Keeps blobs in a map. Clones share the map, so that a test can look into what a buffer has put there.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), spill_core::StoreError> {
/// use spill_core::{BlobId, MemoryStore, Store};
/// let store = MemoryStore::new();
/// store.put(BlobId::new(1), b"payload".to_vec().into()).await?;
/// assert_eq!(store.get(BlobId::new(1), 0..3).await?, "pay");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MemoryStore {
    info: StoreInfo,
    blobs: Arc<Mutex<BTreeMap<BlobId, Bytes>>>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self { info: StoreInfo::new("memory:"), blobs: Arc::default() }
    }

    /// An empty store that is described like this.
    pub fn with_info(info: StoreInfo) -> Self {
        Self { info, blobs: Arc::default() }
    }

    /// Changes a blob behind the back of whoever uses the store, for tests; `None` removes it.
    pub fn tamper(&self, id: BlobId, change: impl FnOnce(Vec<u8>) -> Option<Vec<u8>>) {
        let mut blobs = self.blobs.lock();
        if let Some(blob) = blobs.remove(&id)
            && let Some(changed) = change(blob.into())
        {
            blobs.insert(id, changed.into());
        }
    }

    fn error(&self, kind: StoreErrorKind, operation: &'static str, id: BlobId) -> StoreError {
        StoreError::new(kind, operation, self.info.name.clone()).with_blob(id)
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn info(&self) -> &StoreInfo {
        &self.info
    }

    async fn put(&self, id: BlobId, blob: Payload) -> Result<Stored, StoreError> {
        let bytes = blob.len() as u64;
        if bytes > self.info.max_blob {
            let source = format!("the blob has {bytes} bytes, the most is {}", self.info.max_blob);
            return Err(self.error(StoreErrorKind::Other, "put", id).with_source(source));
        }
        // A copy of its own: the payload may be a window into a much larger buffer.
        let mut own = vec![0; blob.len()];
        blob.copy_to_slice(&mut own);
        match self.blobs.lock().entry(id) {
            Entry::Vacant(free) => free.insert(own.into()),
            Entry::Occupied(_) => {
                return Err(self
                    .error(StoreErrorKind::Other, "put", id)
                    .with_source("the id was used before"));
            }
        };
        Ok(Stored { bytes, allocated: bytes })
    }

    async fn get(&self, id: BlobId, range: Range<u64>) -> Result<Bytes, StoreError> {
        let blob = self.blobs.lock().get(&id).cloned();
        let blob = blob.ok_or_else(|| self.error(StoreErrorKind::NotFound, "get", id))?;
        let (start, end) = (usize::try_from(range.start), usize::try_from(range.end));
        match (start, end) {
            (Ok(start), Ok(end)) if start <= end && end <= blob.len() => {
                // A copy of its own, as from any medium: a slice would keep the whole blob alive.
                Ok(Bytes::copy_from_slice(&blob[start..end]))
            }
            _ => {
                let source = format!("bytes {range:?} of a blob of {}", blob.len());
                Err(self.error(StoreErrorKind::Corrupt, "get", id).with_source(source))
            }
        }
    }

    async fn delete(&self, ids: &[BlobId]) -> Result<(), StoreError> {
        let mut blobs = self.blobs.lock();
        for id in ids {
            blobs.remove(id);
        }
        Ok(())
    }

    async fn list(&self, after: Option<BlobId>, limit: usize) -> Result<Vec<BlobMeta>, StoreError> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let blobs = self.blobs.lock();
        let page = blobs.range((from, Bound::Unbounded)).take(limit).map(|(id, blob)| {
            let bytes = blob.len() as u64;
            BlobMeta { id: *id, stored: Stored { bytes, allocated: bytes } }
        });
        Ok(page.collect())
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.blobs.lock().clear();
        Ok(())
    }
}
