//! What the conformance suite needs to know about any object store: how to open a session in it, what is
//! really there, and what foreign things look like.

use std::sync::Arc;

use futures_util::TryStreamExt;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload, path::Path};
use spill_backend_object::ObjectOptions;
use spill_conformance::StoreHarness;
use spill_core::{BoxError, Store, StoreError};

/// Sessions in the buckets that `bucket` gives: a namespace is a prefix.
///
/// They are opened as what opens a store from a URL does it: with a heartbeat from the start, and a sweep.
#[allow(dead_code, reason = "servers are opened by their factory")]
pub(crate) fn sessions(
    sorted: bool,
    bucket: impl Fn() -> Result<Arc<dyn ObjectStore>, BoxError> + Clone + Send + Sync + 'static,
) -> StoreHarness {
    let open_in = bucket.clone();
    let open = move |namespace| {
        let bucket = open_in();
        async move {
            let refused = |error| {
                spill_core::StoreError::new(spill_core::StoreErrorKind::Other, "open", "the bucket")
                    .with_source(error)
            };
            let options = ObjectOptions::new(bucket.map_err(refused)?, namespace).sorted(sorted);
            let store = options.open()?;
            store.announce().await?;
            store.spawn_upkeep();
            Ok(Arc::new(store) as Arc<dyn Store>)
        }
    };
    harness(open, bucket)
}

/// Sessions that `open` opens, in the bucket that `bucket` gives: a namespace is a prefix.
pub(crate) fn harness<F>(
    open: impl Fn(String) -> F + Send + Sync + 'static,
    bucket: impl Fn() -> Result<Arc<dyn ObjectStore>, BoxError> + Clone + Send + Sync + 'static,
) -> StoreHarness
where
    F: Future<Output = Result<Arc<dyn Store>, StoreError>> + Send + 'static,
{
    let (look_in, plant_in) = (bucket.clone(), bucket);
    let harness = StoreHarness::new(open)
        .with_leftovers(move |namespace| {
            let bucket = look_in();
            async move { names(&*bucket?, &namespace).await }
        })
        .with_foreign(move |namespace| {
            let bucket = plant_in();
            async move { plant(&*bucket?, &namespace).await }
        });
    harness.waive(
        "ids/a_second_put_is_refused",
        "an object store can refuse it only by conditional puts, which not every service has; the buffer never \
         uses an id twice",
    )
}

/// All objects of a namespace. Object stores have no directories.
pub(crate) async fn names(bucket: &dyn ObjectStore, namespace: &str) -> Result<Vec<String>, BoxError> {
    let objects = bucket.list(Some(&Path::from(namespace)));
    Ok(objects.map_ok(|object| object.location.to_string()).try_collect().await?)
}

/// Foreign things beside the blobs, beside the sessions, and beside the owners.
async fn plant(bucket: &dyn ObjectStore, namespace: &str) -> Result<(), BoxError> {
    let mut places = vec![namespace.to_owned()];
    for name in names(bucket, namespace).await? {
        places.extend(name.match_indices('/').map(|(end, _)| name[..end].to_owned()));
    }
    places.sort_unstable();
    places.dedup();
    for place in places {
        for name in [
            "0",
            "00000000000000FF",
            "notes.txt",
            "000000000000000b.bak",
            "000000000000000c/part",
            ".hidden",
            "alive.bak",
        ] {
            let path = Path::parse(format!("{place}/{name}"))?;
            bucket.put(&path, PutPayload::from_static(b"not a blob")).await?;
        }
    }
    Ok(())
}
