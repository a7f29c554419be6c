//! The conformance suite over the in-memory store of `object_store`, with trouble at every request.

use std::{
    collections::HashMap,
    process::ExitCode,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use object_store::{ObjectStore, memory::InMemory};
use spill_conformance::{Arguments, Medium, Trouble, run_store_suite};
use spill_core::{BoxError, Store, StoreError};

#[path = "support/aged.rs"]
mod aged;
#[path = "support/bucket.rs"]
mod bucket;
#[path = "support/days.rs"]
mod days;
#[path = "support/faulty.rs"]
mod faulty;

use faulty::FaultyObjectStore;

/// All objects, and how many uploads are unfinished in each namespace.
#[derive(Clone, Default)]
struct Memory {
    objects: Arc<InMemory>,
    unfinished: Arc<Mutex<HashMap<String, Arc<AtomicUsize>>>>,
}

impl Memory {
    fn unfinished(&self, namespace: &str) -> Arc<AtomicUsize> {
        let mut all = self.unfinished.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(namespace.to_owned()).or_default())
    }

    async fn open(self, namespace: String, medium: Medium) -> Result<Arc<dyn Store>, StoreError> {
        let unfinished = self.unfinished(&namespace);
        let bucket = FaultyObjectStore::new(self.objects, medium).counting(unfinished);
        bucket::session(Arc::new(bucket), namespace, true).await
    }

    async fn leftovers(self, namespace: String) -> Result<Vec<String>, BoxError> {
        let mut left = bucket::names(&*self.objects, &namespace).await?;
        let unfinished = self.unfinished(&namespace).load(Ordering::Relaxed);
        left.extend((0..unfinished).map(|_| "an unfinished upload".to_owned()));
        Ok(left)
    }
}

fn main() -> ExitCode {
    let Ok(root) = bucket::Root::new() else { return ExitCode::FAILURE };
    let memory = Memory::default();
    let (opened, faulty, looked_at, objects) =
        (memory.clone(), memory.clone(), memory.clone(), memory.objects);
    let open = move |namespace| opened.clone().open(namespace, Medium::new());
    let harness = bucket::harness(&root, open, move |_| Ok(objects.clone() as Arc<dyn ObjectStore>))
        .named("object: memory")
        .with_leftovers(move |namespace| looked_at.clone().leftovers(namespace))
        .with_faults(Trouble::OF_SERVERS, move |namespace, medium| faulty.clone().open(namespace, medium))
        // One byte more than a part of an upload.
        .large_blob((16 << 20) + 1);
    run_store_suite(&Arguments::from_args(), harness).exit_code()
}
