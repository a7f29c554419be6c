//! The conformance suite over the in-memory store of `object_store`, with trouble at every request.

use std::{
    collections::HashMap,
    process::ExitCode,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures_util::TryStreamExt;
use object_store::{ObjectStore, memory::InMemory};
use spill_backend_object::ObjectStoreBackend;
use spill_conformance::{Arguments, Medium, StoreHarness, Trouble, run_store_suite};
use spill_core::{BoxError, Store, StoreError};

#[path = "support/faulty.rs"]
mod faulty;

use faulty::FaultyObjectStore;

/// What is in one bucket, and how many uploads to it are unfinished.
#[derive(Clone, Default)]
struct Bucket {
    objects: Arc<InMemory>,
    unfinished: Arc<AtomicUsize>,
}

impl Bucket {
    fn open(&self, medium: Medium) -> Result<Arc<dyn Store>, StoreError> {
        let bucket =
            FaultyObjectStore::new(self.objects.clone(), medium).counting(Arc::clone(&self.unfinished));
        Ok(Arc::new(ObjectStoreBackend::new(Arc::new(bucket), "prefix")?))
    }

    async fn leftovers(&self) -> Result<Vec<String>, BoxError> {
        let objects = self.objects.list(None).map_ok(|object| object.location.to_string());
        let mut left: Vec<_> = objects.try_collect().await?;
        left.extend((0..self.unfinished.load(Ordering::Relaxed)).map(|_| "an unfinished upload".to_owned()));
        Ok(left)
    }
}

/// One bucket per namespace.
#[derive(Clone, Default)]
struct Buckets(Arc<Mutex<HashMap<String, Bucket>>>);

impl Buckets {
    fn get(&self, namespace: String) -> Bucket {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.entry(namespace).or_default().clone()
    }
}

fn main() -> ExitCode {
    let buckets = Buckets::default();
    let (faulty, looked_at) = (buckets.clone(), buckets.clone());
    let mut harness = StoreHarness::new(move |namespace| {
        let bucket = buckets.get(namespace);
        async move { bucket.open(Medium::new()) }
    })
    .named("object, in memory with faults")
    .with_leftovers(move |namespace| {
        let bucket = looked_at.get(namespace);
        async move { bucket.leftovers().await }
    })
    .with_faults(Trouble::OF_SERVERS, move |namespace, medium| {
        let bucket = faulty.get(namespace);
        async move { bucket.open(medium) }
    })
    // One byte more than a part of an upload.
    .large_blob((16 << 20) + 1)
    .waive(
        "ids/a_second_put_is_refused",
        "an object store can refuse it only by conditional puts, which not every server has",
    )
    .waive("faults/get_has_a_flipped_bit", "bytes are verified by the frames above the store, not by it");
    for case in [
        "put_meets_no_space_that_lasts",
        "put_meets_io_errors_that_last",
        "put_meets_a_server_that_stays_unavailable",
    ] {
        harness = harness.waive(
            format!("faults/{case}"),
            "an upload that can't be aborted either is left to the bucket's rule that expires unfinished ones",
        );
    }
    run_store_suite(&Arguments::from_args(), harness).exit_code()
}
