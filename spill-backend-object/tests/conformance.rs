//! The conformance suite over object storage: the in-memory one of `object_store`.

use std::{
    collections::HashMap,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
};

use object_store::{ObjectStore, ObjectStoreExt, PutPayload, memory::InMemory, path::Path};
use spill_backend_object::ObjectStoreBackend;
use spill_conformance::{Arguments, StoreHarness, run_store_suite};
use spill_core::{BoxError, Store};

/// One bucket per namespace.
#[derive(Clone, Default)]
struct Buckets(Arc<Mutex<HashMap<String, Arc<InMemory>>>>);

impl Buckets {
    fn get(&self, namespace: &str) -> Arc<InMemory> {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.entry(namespace.to_owned()).or_default().clone()
    }
}

fn main() -> ExitCode {
    let buckets = Buckets::default();
    let (look, plant) = (buckets.clone(), buckets.clone());
    let harness = StoreHarness::new(move |namespace| {
        let bucket = buckets.get(&namespace);
        async move { Ok(Arc::new(ObjectStoreBackend::new(bucket, "prefix")?) as Arc<dyn Store>) }
    })
    .with_leftovers(move |namespace| {
        let bucket = look.get(&namespace);
        async move { names(&bucket).await }
    })
    .with_foreign(move |namespace| {
        let bucket = plant.get(&namespace);
        async move {
            for name in ["prefix/0", "prefix/notes.txt", "prefixed/0000000000000001", "elsewhere"] {
                bucket.put(&Path::from(name), PutPayload::from_static(b"not a blob")).await?;
            }
            Ok(())
        }
    });
    // Ids are never used twice by the buffer; here nothing stands in the way of it.
    let harness = harness.waive(
        "ids/a_second_put_is_refused",
        "an object store can refuse it only by conditional puts, which not every server has",
    );
    run_store_suite(&Arguments::from_args(), harness).exit_code()
}

async fn names(bucket: &InMemory) -> Result<Vec<String>, BoxError> {
    let mut listed = bucket.list(None);
    let mut names = Vec::new();
    while let Some(object) = futures_util::StreamExt::next(&mut listed).await {
        names.push(object?.location.to_string());
    }
    Ok(names)
}
