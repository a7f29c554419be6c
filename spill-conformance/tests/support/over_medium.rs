//! A store in memory as the medium of another: each call on it can meet trouble. The smallest adapter there
//! can be, and the way to test what stands on a store, as a layer does.

use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use spill_conformance::{Access, Medium, Trouble};
use spill_core::{
    BlobId, BlobMeta, MemoryStore, Payload, Store, StoreError, StoreErrorKind, StoreInfo, Stored,
};

/// Answers as a server does that is in trouble.
#[derive(Debug)]
pub(crate) struct OverMedium {
    inner: MemoryStore,
    medium: Medium,
}

impl OverMedium {
    pub(crate) fn new(inner: MemoryStore, medium: Medium) -> Self {
        Self { inner, medium }
    }

    /// Makes a call that may meet trouble.
    async fn call<T>(
        &self,
        access: Access,
        operation: &'static str,
        effect: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<(T, Option<Trouble>), StoreError> {
        let trouble = self.medium.call(access).await;
        let kind = match trouble {
            Some(Trouble::NoSpace) => StoreErrorKind::NoSpace,
            Some(Trouble::IoError) => StoreErrorKind::Other,
            None | Some(Trouble::Truncated | Trouble::BitFlip) => return Ok((effect.await?, trouble)),
            Some(_) => StoreErrorKind::Transient,
        };
        if trouble.is_some_and(Trouble::is_after_effect) {
            effect.await?;
        }
        Err(StoreError::new(kind, operation, "memory:").with_source(format!("injected: {trouble:?}")))
    }
}

#[async_trait]
impl Store for OverMedium {
    fn info(&self) -> &StoreInfo {
        self.inner.info()
    }

    async fn put(&self, id: BlobId, blob: Payload) -> Result<Stored, StoreError> {
        Ok(self.call(Access::Write, "put", self.inner.put(id, blob)).await?.0)
    }

    async fn get(&self, id: BlobId, range: Range<u64>) -> Result<Bytes, StoreError> {
        let (bytes, trouble) = self.call(Access::Read, "get", self.inner.get(id, range)).await?;
        Ok(match trouble {
            Some(trouble @ Trouble::Truncated) => bytes.slice(..trouble.part(bytes.len())),
            Some(Trouble::BitFlip) => {
                let mut flipped = Vec::from(bytes);
                Trouble::flip(&mut flipped);
                flipped.into()
            }
            _ => bytes,
        })
    }

    async fn delete(&self, ids: &[BlobId]) -> Result<(), StoreError> {
        self.call(Access::Other, "delete", self.inner.delete(ids)).await.map(|_| ())
    }

    async fn list(&self, after: Option<BlobId>, limit: usize) -> Result<Vec<BlobMeta>, StoreError> {
        Ok(self.call(Access::Other, "list", self.inner.list(after, limit)).await?.0)
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.call(Access::Other, "close", self.inner.close()).await.map(|_| ())
    }
}
