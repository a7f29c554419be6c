//! The store: six methods. What each owes its callers is said at the trait.

use std::{collections::BTreeMap, collections::btree_map::Entry, ops::Bound, ops::Range};

use bytes::Bytes;
use spill_buffer::{BlobId, BlobMeta, Payload, Store, StoreError, StoreErrorKind, StoreInfo, Stored};
use tokio::sync::Mutex;

/// Keeps blobs in a map. Each one is empty and its own.
#[derive(Debug)]
pub(crate) struct Shelf(pub(crate) StoreInfo, pub(crate) Mutex<BTreeMap<BlobId, Bytes>>);

#[async_trait::async_trait]
impl Store for Shelf {
    fn info(&self) -> &StoreInfo {
        &self.0
    }

    async fn put(&self, id: BlobId, blob: Payload) -> Result<Stored, StoreError> {
        // A copy, since the payload may be a piece of a buffer that is used again; and not on a thread of
        // the runtime, since it may be large.
        let copy = tokio::task::spawn_blocking(move || Bytes::from_iter(blob.chunks().flatten().copied()));
        let blob = copy.await.map_err(|error| failed("put", id, StoreErrorKind::Other).with_source(error))?;
        let stored = size(&blob);
        match self.1.lock().await.entry(id) {
            Entry::Vacant(place) => drop(place.insert(blob)),
            Entry::Occupied(_) => return Err(failed("put", id, StoreErrorKind::Other)),
        }
        Ok(stored)
    }

    async fn get(&self, id: BlobId, range: Range<u64>) -> Result<Bytes, StoreError> {
        let blob = self.1.lock().await.get(&id).cloned();
        let blob = blob.ok_or(failed("get", id, StoreErrorKind::NotFound))?;
        let range = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
        let range = range.filter(|(start, end)| start <= end && *end <= blob.len());
        range.map(|(start, end)| blob.slice(start..end)).ok_or(failed("get", id, StoreErrorKind::Corrupt))
    }

    async fn delete(&self, ids: &[BlobId]) -> Result<(), StoreError> {
        self.1.lock().await.retain(|id, _| !ids.contains(id));
        Ok(())
    }

    async fn list(&self, after: Option<BlobId>, limit: usize) -> Result<Vec<BlobMeta>, StoreError> {
        let after = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let blobs = self.1.lock().await;
        Ok(blobs
            .range(after)
            .take(limit)
            .map(|(id, blob)| BlobMeta { id: *id, stored: size(blob) })
            .collect())
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.1.lock().await.clear();
        Ok(())
    }
}

fn failed(operation: &'static str, id: BlobId, kind: StoreErrorKind) -> StoreError {
    StoreError::new(kind, operation, "shelf:").with_blob(id)
}

fn size(blob: &Bytes) -> Stored {
    Stored { bytes: blob.len() as u64, allocated: blob.len() as u64 }
}
