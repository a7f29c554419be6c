//! A small store over files that several processes share, right or with one bug. A session is a directory
//! with the number of its process in the name; it is dead when that process is.

use std::{
    collections::BTreeSet,
    fs, io,
    ops::Range,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use spill_conformance::StoreHarness;
use spill_core::{BlobId, BlobMeta, BoxError, Payload, Store, StoreError, StoreErrorKind, StoreInfo, Stored};
use std::sync::Arc;

/// What a store does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    None,
    OneSessionForAll,
    OpeningTakesTheLiving,
    SweepTakesTheLiving,
    SweepMissesTheKilled,
}

/// Where all namespaces are.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("broken-processes")
}

#[derive(Debug)]
struct FileStore {
    info: StoreInfo,
    session: PathBuf,
}

impl FileStore {
    fn open(bug: Bug, place: &Path) -> io::Result<Self> {
        static OPENED: AtomicU64 = AtomicU64::new(0);
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        if bug == Bug::OpeningTakesTheLiving {
            for session in sessions(place)? {
                let _ = fs::remove_dir_all(session);
            }
        }
        let session = match bug {
            Bug::OneSessionForAll => "session".to_owned(),
            _ => format!("{}-{number}", std::process::id()),
        };
        let session = place.join(session);
        fs::create_dir_all(&session)?;
        Ok(Self { info: StoreInfo::new("files:"), session })
    }

    fn blob(&self, id: BlobId) -> PathBuf {
        self.session.join(format!("{id}.blob"))
    }

    fn put_file(&self, id: BlobId, bytes: &[u8]) -> io::Result<()> {
        let part = self.session.join(format!("{id}.{}.part", std::process::id()));
        fs::write(&part, bytes)?;
        fs::rename(part, self.blob(id))
    }

    fn ids(&self) -> io::Result<BTreeSet<BlobId>> {
        let mut ids = BTreeSet::new();
        for entry in fs::read_dir(&self.session)? {
            let name = entry?.file_name().into_string().unwrap();
            ids.extend(name.strip_suffix(".blob").and_then(|id| id.parse::<BlobId>().ok()));
        }
        Ok(ids)
    }
}

fn failed(operation: &'static str) -> impl Fn(io::Error) -> StoreError {
    move |error| {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => StoreErrorKind::NotFound,
            _ => StoreErrorKind::Other,
        };
        StoreError::new(kind, operation, "files:").with_source(error)
    }
}

#[async_trait]
impl Store for FileStore {
    fn info(&self) -> &StoreInfo {
        &self.info
    }

    async fn put(&self, id: BlobId, blob: Payload) -> Result<Stored, StoreError> {
        self.put_file(id, &blob.to_bytes()).map_err(failed("put"))?;
        Ok(Stored { bytes: blob.len() as u64, allocated: blob.len() as u64 })
    }

    async fn get(&self, id: BlobId, range: Range<u64>) -> Result<Bytes, StoreError> {
        let bytes = Bytes::from(fs::read(self.blob(id)).map_err(failed("get"))?);
        let (start, end) = (usize::try_from(range.start).unwrap(), usize::try_from(range.end).unwrap());
        if end > bytes.len() {
            return Err(StoreError::new(StoreErrorKind::Corrupt, "get", "files:"));
        }
        Ok(bytes.slice(start..end))
    }

    async fn delete(&self, ids: &[BlobId]) -> Result<(), StoreError> {
        for id in ids {
            match fs::remove_file(self.blob(*id)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("delete")(error)),
                _ => {}
            }
        }
        Ok(())
    }

    async fn list(&self, after: Option<BlobId>, limit: usize) -> Result<Vec<BlobMeta>, StoreError> {
        let ids = self.ids().map_err(failed("list"))?;
        let page = ids.into_iter().filter(|id| after.is_none_or(|after| *id > after)).take(limit);
        Ok(page.map(|id| BlobMeta { id, stored: Stored::default() }).collect())
    }

    async fn close(&self) -> Result<(), StoreError> {
        fs::remove_dir_all(&self.session).map_err(failed("close"))
    }
}

/// The directories of sessions in a place; none when it is not there.
fn sessions(place: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(place) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn is_alive(session: &Path) -> bool {
    let name = session.file_name().unwrap().to_str().unwrap();
    let process = name.split('-').next().unwrap();
    Path::new("/proc").join(process).join("exe").exists()
}

fn sweep(bug: Bug, place: &Path) -> Result<u64, BoxError> {
    let mut swept = 0;
    for session in sessions(place)? {
        let is_dead = match bug {
            Bug::SweepTakesTheLiving => true,
            Bug::SweepMissesTheKilled => false,
            _ => !is_alive(&session),
        };
        if is_dead {
            fs::remove_dir_all(session)?;
            swept += 1;
        }
    }
    Ok(swept)
}

/// A harness over stores with this bug; one at a time, as they race with themselves.
pub(crate) fn harness(bug: Bug) -> StoreHarness {
    static OPENING: Mutex<()> = Mutex::new(());
    let place = |namespace: String| root().join(namespace);
    StoreHarness::new(move |namespace| async move {
        let opened = {
            let _one = OPENING.lock();
            FileStore::open(bug, &place(namespace))
        };
        Ok(Arc::new(opened.map_err(failed("open"))?) as Arc<dyn Store>)
    })
    .with_leftovers(move |namespace| async move {
        let mut left = Vec::new();
        for session in sessions(&place(namespace))? {
            let blobs = fs::read_dir(&session)?.map(|entry| Ok(entry?.path().display().to_string()));
            left.extend(blobs.collect::<io::Result<Vec<_>>>()?);
            left.push(format!("{}/", session.display()));
        }
        Ok(left)
    })
    .with_sweep(move |namespace| async move { sweep(bug, &place(namespace)) })
    .with_processes()
    .settle_limit(Duration::from_millis(500))
}
