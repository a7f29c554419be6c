//! Sessions: heartbeats, the sweep of dead ones, and several processes on one prefix.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

#[path = "../support/clocked.rs"]
mod clocked;
mod heartbeat;
#[path = "../support/polls.rs"]
mod polls;
mod processes;
mod sweep;

use spill_backend_object::ObjectStoreBackend;
use spill_core::{BlobId, Store};

async fn put(store: &ObjectStoreBackend, number: u64) {
    store.put(BlobId::new(number), vec![7; 10].into()).await.unwrap();
}

async fn ids(store: &dyn Store, after: Option<u64>, limit: usize) -> Vec<u64> {
    let listed = store.list(after.map(BlobId::new), limit).await.unwrap();
    listed.iter().map(|blob| blob.id.get()).collect()
}
