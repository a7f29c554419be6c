//! What the conformance suite needs to know about any object store: how to open a session in it, what is really
//! there, what foreign things look like, and how the dead are swept.

use std::{env, fs, io, path::PathBuf, sync::Arc, time::Duration};

use futures_util::TryStreamExt;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload, path::Path};
use spill_backend_object::ObjectOptions;
use spill_conformance::StoreHarness;
use spill_core::{BoxError, Store, StoreError, StoreErrorKind};

use crate::days::{Days, OWNER};

/// Names the directory of a run, in the processes that it starts.
const ROOT_VARIABLE: &str = "SPILL_TEST_ROOT";

/// The directory of this run: of this process, or of the one that started it. It goes with what is given back.
pub(crate) struct Root {
    pub(crate) path: PathBuf,
    _own: Option<tempfile::TempDir>,
}

impl Root {
    pub(crate) fn new() -> io::Result<Self> {
        let (path, own) = match env::var_os(ROOT_VARIABLE) {
            Some(path) => (path.into(), None),
            None => {
                let own = tempfile::tempdir()?;
                (own.path().to_owned(), Some(own))
            }
        };
        fs::create_dir_all(path.join("notes"))?;
        Ok(Self { path, _own: own })
    }
}

pub(crate) fn refused(error: impl Into<BoxError>) -> StoreError {
    StoreError::new(StoreErrorKind::Other, "open", "the bucket").with_source(error)
}

/// A session in this bucket, as what opens a store from a URL does it: with a heartbeat from the start. It sweeps
/// nothing by itself, so that each case meets the same calls in each run.
#[allow(dead_code, reason = "servers are opened by their factory")]
pub(crate) async fn session(
    bucket: Arc<dyn ObjectStore>,
    namespace: String,
    sorted: bool,
) -> Result<Arc<dyn Store>, StoreError> {
    let options = ObjectOptions::new(bucket, namespace).owner(OWNER).sorted(sorted);
    let store = options.heartbeat(Duration::from_secs(1)).open()?;
    store.announce().await?;
    Ok(Arc::new(store))
}

/// Sessions that `open` opens, in the bucket that `bucket` gives for a namespace, which is a prefix there.
pub(crate) fn harness<F>(
    root: &Root,
    open: impl Fn(String) -> F + Send + Sync + 'static,
    bucket: impl Fn(&str) -> Result<Arc<dyn ObjectStore>, BoxError> + Clone + Send + Sync + 'static,
) -> StoreHarness
where
    F: Future<Output = Result<Arc<dyn Store>, StoreError>> + Send + 'static,
{
    let (look_in, plant_in, sweep_in) = (bucket.clone(), bucket.clone(), bucket);
    let days = Days::new(root.path.join("notes"));
    let noted = days.clone();
    let open = move |namespace: String| {
        let (opening, days) = (open(namespace.clone()), noted.clone());
        async move {
            let store = opening.await?;
            days.note(&namespace, &store).map_err(refused)?;
            Ok(store)
        }
    };
    let harness = StoreHarness::new(open)
        .child_variable(ROOT_VARIABLE, root.path.clone())
        .with_leftovers(move |namespace| {
            let bucket = look_in(&namespace);
            async move { names(&*bucket?, &namespace).await }
        })
        .with_foreign(move |namespace| {
            let bucket = plant_in(&namespace);
            async move { plant(&*bucket?, &namespace).await }
        })
        .with_sweep(move |namespace| {
            let (bucket, days) = (sweep_in(&namespace), days.clone());
            async move { days.sweep(bucket?, namespace).await }
        });
    harness
        .waive(
            "ids/a_second_put_is_refused",
            "an object store can refuse it only by conditional puts, which not every service has; the buffer never \
             uses an id twice",
        )
        .waive(
            "sweep/two_sweeps_at_once_are_one",
            "of two sweeps at once both may say that they removed a session: an object store does not tell whose \
             delete came first",
        )
        .waive(
            "faults/get_has_a_flipped_bit",
            "bytes are verified by the frames above the store, not by it",
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
