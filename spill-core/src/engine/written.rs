//! A blob on its way into a tier, from the room that was reserved for it to the tier's books: what spilling,
//! compacting and demoting share.

use super::Shared;
use crate::{
    BlobId, Payload, StoreError, Stored,
    blobs::{Blob, FrameLen, Worn},
    ledger::Reservation,
    table::Key,
    tier::Tier,
};

/// A blob that its store has taken, and that is not in the books yet.
#[derive(Debug)]
pub(crate) struct Written {
    id: BlobId,
    pub(crate) stored: Stored,
    reservation: Reservation,
}

impl<K: Key, V: Send + Sync + 'static> Shared<K, V> {
    /// Puts a blob into the room that is reserved for it.
    ///
    /// When that fails it may be there all the same, if only the answer was lost: it is deleted like a dead
    /// blob, and counted until that is done.
    pub(crate) async fn write(
        &self,
        tier: &Tier<K>,
        payload: Payload,
        reservation: Reservation,
    ) -> Result<Written, StoreError> {
        let id = tier.new_blob_id();
        let bytes = payload.len() as u64;
        match tier.write(id, payload).await {
            Ok(stored) => Ok(Written { id, stored: Stored { bytes, ..stored }, reservation }),
            Err(error) => {
                reservation.abandon();
                tier.stray(id, Stored { bytes, allocated: 0 });
                self.write_failed(tier, &error);
                Err(error)
            }
        }
    }
}

impl Written {
    /// Enters it in the books, all of its frames alive and as old as those of the blob they were copied from;
    /// says at which index. `None`: the books are full (2^28 blobs in one tier), and it is deleted.
    pub(crate) fn enter<K>(
        self,
        tier: &Tier<K>,
        keys: Vec<K>,
        frames: &[FrameLen],
        weight: u64,
        copied: Option<&Worn<K>>,
    ) -> Option<u32> {
        let blob = Blob::new(self.id, keys, frames, weight, self.stored).map(|blob| match copied {
            Some(worn) => blob.with_age_of(worn),
            None => blob,
        });
        let entered = blob.and_then(|blob| tier.enter(blob));
        if entered.is_some() {
            self.reservation.settle();
        } else {
            self.reservation.abandon();
            tier.stray(self.id, self.stored);
        }
        entered
    }
}
