//! The store: six methods. What each owes its callers is said at the trait.

use std::{collections::BTreeMap, ops::Bound, ops::Range};

use bytes::Bytes;
use spill_buffer::{BlobId, BlobMeta, Payload, Store, StoreError, StoreErrorKind, StoreInfo, Stored};
use tokio::sync::Mutex;

/// Keeps blobs in a map. Each one is empty and its own.
#[derive(Debug)]
pub(crate) struct Shelf(pub(crate) StoreInfo, pub(crate) Mutex<BTreeMap<BlobId, (Bytes, Stored)>>);

#[async_trait::async_trait]
impl Store for Shelf {
    fn info(&self) -> &StoreInfo {
        &self.0
    }

    async fn put(&self, id: BlobId, blob: Payload) -> Result<Stored, StoreError> {
        let failed = || StoreError::new(StoreErrorKind::Other, "put", "shelf:").with_blob(id);
        // A copy, since the payload may be a piece of a buffer that is used again; and not on a thread of
        // the runtime, since it may be large.
        let copy = tokio::task::spawn_blocking(move || Bytes::from_iter(blob.chunks().flatten().copied()));
        let blob = copy.await.map_err(|error| failed().with_source(error))?;
        let stored = Stored { bytes: blob.len() as u64, allocated: blob.len() as u64 };
        let mut blobs = self.1.lock().await;
        if blobs.contains_key(&id) {
            return Err(failed().with_source("the id was used before"));
        }
        blobs.insert(id, (blob, stored));
        Ok(stored)
    }

    async fn get(&self, id: BlobId, range: Range<u64>) -> Result<Bytes, StoreError> {
        let failed = |kind| StoreError::new(kind, "get", "shelf:").with_blob(id);
        let (blob, _) = self.1.lock().await.get(&id).cloned().ok_or(failed(StoreErrorKind::NotFound))?;
        match (usize::try_from(range.start), usize::try_from(range.end)) {
            (Ok(start), Ok(end)) if start <= end && end <= blob.len() => Ok(blob.slice(start..end)),
            _ => Err(failed(StoreErrorKind::Corrupt)), // Never fewer bytes than were asked for.
        }
    }

    async fn delete(&self, ids: &[BlobId]) -> Result<(), StoreError> {
        self.1.lock().await.retain(|id, _| !ids.contains(id));
        Ok(())
    }

    async fn list(&self, after: Option<BlobId>, limit: usize) -> Result<Vec<BlobMeta>, StoreError> {
        let after = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let meta = |(id, (_, stored)): (&BlobId, &(_, _))| BlobMeta { id: *id, stored: *stored };
        Ok(self.1.lock().await.range(after).take(limit).map(meta).collect())
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.1.lock().await.clear();
        Ok(())
    }
}
