//! A store over files in memory that can meet trouble, right or with one bug. A session's directory is a
//! prefix of names; it is dead when nobody holds its life any more.

use std::{
    collections::{BTreeMap, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    ops::Range,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use spill_conformance::{Access, Medium, StoreHarness, Trouble};
use spill_core::{BlobId, BlobMeta, BoxError, Payload, Store, StoreError, StoreErrorKind, StoreInfo, Stored};

/// Bytes that one call of the medium moves at most.
const STEP: usize = 20_000;

/// What a store does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    None,
    NoSpaceIsOther,
    ThrottledIsOther,
    ResetIsOther,
    IgnoresErrorsOfWrites,
    TakesShortWritesForWhole,
    PublishesTornBlobs,
    PassesTruncatedReadsOn,
    PassesFlippedBitsOn,
    SwallowsErrorsOfDeletes,
    NamesTheWrongInDeletes,
    StopsDeletingAtAnError,
    ListsNothingOnErrors,
    AHangBlocksAll,
    AFailedPutBurnsTheId,
    GivesUpClosing,
    AnErrorPoisons,
    FailsToOpenTwice,
    SweepTakesTheLiving,
    SweepLeavesBlobs,
    SweepCountsTheLiving,
    SweepTakesForeignThings,
    SweepFailsWhereNothingIs,
    SweepsCountEachOther,
}

/// The files of a namespace.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    files: Mutex<BTreeMap<String, Vec<u8>>>,
    lives: Mutex<BTreeMap<String, Weak<()>>>,
    opened: AtomicU64,
    was_refused: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct MediumStore {
    bug: Bug,
    info: StoreInfo,
    disk: Arc<Disk>,
    medium: Medium,
    session: String,
    _life: Arc<()>,
    sums: Mutex<BTreeMap<BlobId, (usize, u64)>>,
    burnt: Mutex<Vec<BlobId>>,
    busy: AtomicBool,
    poisoned: AtomicBool,
    closed: AtomicBool,
}

/// A blob being written: gone when it is dropped before it was published.
struct Part<'a>(&'a Disk, String);

impl Drop for Part<'_> {
    fn drop(&mut self) {
        self.0.files.lock().remove(&self.1);
    }
}

fn sum(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

impl MediumStore {
    async fn open(bug: Bug, disk: Arc<Disk>, medium: Medium) -> Result<Self, StoreError> {
        if let Some(error) =
            medium.call(Access::Other).await.and_then(|trouble| Self::error(bug, trouble, "open"))
        {
            disk.was_refused.store(true, Ordering::Relaxed);
            return Err(error);
        }
        if bug == Bug::FailsToOpenTwice && disk.was_refused.load(Ordering::Relaxed) {
            return Err(StoreError::new(StoreErrorKind::Other, "open", "disk:"));
        }
        let session = format!("session-{}/", disk.opened.fetch_add(1, Ordering::Relaxed));
        let life = Arc::new(());
        disk.files.lock().insert(session.clone(), Vec::new());
        disk.lives.lock().insert(session.clone(), Arc::downgrade(&life));
        Ok(Self {
            bug,
            info: StoreInfo::new("disk:"),
            disk,
            medium,
            session,
            _life: life,
            sums: Mutex::default(),
            burnt: Mutex::default(),
            busy: AtomicBool::new(false),
            poisoned: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        })
    }

    fn error(bug: Bug, trouble: Trouble, operation: &'static str) -> Option<StoreError> {
        let kind = match trouble {
            Trouble::NoSpace if bug == Bug::NoSpaceIsOther => StoreErrorKind::Other,
            Trouble::NoSpace => StoreErrorKind::NoSpace,
            Trouble::IoError | Trouble::Torn => StoreErrorKind::Other,
            Trouble::Throttled if bug == Bug::ThrottledIsOther => StoreErrorKind::Other,
            Trouble::ResetBefore | Trouble::ResetAfter if bug == Bug::ResetIsOther => StoreErrorKind::Other,
            Trouble::Short | Trouble::Truncated | Trouble::BitFlip | Trouble::Hang => return None,
            _ => StoreErrorKind::Transient,
        };
        Some(StoreError::new(kind, operation, "disk:").with_source(format!("injected: {trouble:?}")))
    }

    fn file(&self, id: BlobId) -> String {
        format!("{}{id}.blob", self.session)
    }

    /// Makes a call of the medium; the effect gets the trouble that is no error of its own.
    async fn call<T>(
        &self,
        access: Access,
        operation: &'static str,
        effect: impl FnOnce(&mut BTreeMap<String, Vec<u8>>, Option<Trouble>) -> T,
    ) -> Result<T, StoreError> {
        if self.bug == Bug::AHangBlocksAll {
            while self.busy.swap(true, Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        let trouble = self.medium.call(access).await;
        self.busy.store(false, Ordering::Relaxed);
        let error = trouble.and_then(|trouble| Self::error(self.bug, trouble, operation));
        if error.is_some() && self.bug == Bug::AnErrorPoisons {
            self.poisoned.store(true, Ordering::Relaxed);
        }
        match error {
            Some(error)
                if !trouble.is_some_and(Trouble::is_after_effect) && trouble != Some(Trouble::Torn) =>
            {
                Err(error)
            }
            Some(error) => {
                effect(&mut self.disk.files.lock(), trouble);
                Err(error)
            }
            None => Ok(effect(&mut self.disk.files.lock(), trouble)),
        }
    }

    fn refused(&self, operation: &'static str) -> Result<(), StoreError> {
        if self.poisoned.load(Ordering::Relaxed) {
            return Err(StoreError::new(StoreErrorKind::Other, operation, "disk:").with_source("poisoned"));
        }
        Ok(())
    }

    async fn write(&self, part: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let step = &rest[..rest.len().min(STEP)];
            let written = self.call(Access::Write, "put", |files, trouble| {
                let len = match trouble {
                    Some(trouble @ (Trouble::Short | Trouble::Torn)) => trouble.part(step.len()),
                    _ => step.len(),
                };
                files.entry(part.to_owned()).or_default().extend_from_slice(&step[..len]);
                len
            });
            let len = match (written.await, self.bug) {
                (Err(_), Bug::IgnoresErrorsOfWrites) | (Ok(_), Bug::TakesShortWritesForWhole) => step.len(),
                (written, _) => written?,
            };
            rest = &rest[len..];
        }
        Ok(())
    }

    async fn put_whole(&self, id: BlobId, bytes: &[u8]) -> Result<(), StoreError> {
        let part = Part(&self.disk, format!("{}{id}.part", self.session));
        self.call(Access::Other, "put", |files, _| files.insert(part.1.clone(), Vec::new())).await?;
        let written = self.write(&part.1, bytes).await;
        let publish = |files: &mut BTreeMap<String, Vec<u8>>| {
            let whole = files.remove(&part.1).unwrap_or_default();
            files.insert(self.file(id), whole);
        };
        // From here on it may be there, so it can be read.
        self.sums.lock().insert(id, (bytes.len(), sum(bytes)));
        if let Err(error) = written {
            if self.bug == Bug::PublishesTornBlobs && error.to_string().contains("Torn") {
                publish(&mut self.disk.files.lock());
            }
            return Err(error);
        }
        self.call(Access::Other, "put", |files, _| publish(files)).await
    }

    /// The whole blob, verified.
    async fn read(&self, id: BlobId) -> Result<Vec<u8>, StoreError> {
        let error = |kind| StoreError::new(kind, "get", "disk:").with_blob(id);
        let file = self.file(id);
        let len = self.call(Access::Other, "get", |files, _| files.get(&file).map(Vec::len)).await?;
        let len = len.ok_or_else(|| error(StoreErrorKind::NotFound))?;
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let range = bytes.len()..len.min(bytes.len() + STEP);
            let step = self.call(Access::Read, "get", |files, trouble| {
                let mut step = files.get(&file)?.get(range.clone())?.to_vec();
                match trouble {
                    Some(Trouble::Truncated) => step.truncate(step.len() / 2),
                    Some(Trouble::BitFlip) => Trouble::flip(&mut step),
                    _ => {}
                }
                Some(step)
            });
            let step = step.await?.ok_or_else(|| error(StoreErrorKind::NotFound))?;
            let is_short = step.len() < range.len();
            bytes.extend(step);
            if is_short {
                break;
            }
        }
        let (wanted, sum_wanted) = self.sums.lock().get(&id).copied().unwrap_or((0, sum(&[])));
        let is_right = match self.bug {
            Bug::PassesTruncatedReadsOn => bytes.len() < wanted || sum(&bytes) == sum_wanted,
            Bug::PassesFlippedBitsOn => bytes.len() == wanted,
            _ => sum(&bytes) == sum_wanted,
        };
        if is_right { Ok(bytes) } else { Err(error(StoreErrorKind::Corrupt)) }
    }

    async fn names(&self, operation: &'static str) -> Result<Vec<(BlobId, usize)>, StoreError> {
        let names = self.call(Access::Other, operation, |files, _| {
            let own = files.iter().filter_map(|(name, bytes)| {
                let id = name.strip_prefix(&self.session)?.strip_suffix(".blob")?.parse().ok()?;
                Some((id, bytes.len()))
            });
            own.collect()
        });
        match names.await {
            Err(_) if self.bug == Bug::ListsNothingOnErrors && operation == "list" => Ok(Vec::new()),
            names => names,
        }
    }
}

#[async_trait]
impl Store for MediumStore {
    fn info(&self) -> &StoreInfo {
        &self.info
    }

    async fn put(&self, id: BlobId, blob: Payload) -> Result<Stored, StoreError> {
        self.refused("put")?;
        let is_there = self.disk.files.lock().contains_key(&self.file(id));
        if is_there || self.burnt.lock().contains(&id) {
            let error = StoreError::new(StoreErrorKind::Other, "put", "disk:").with_blob(id);
            return Err(error.with_source("the id was used before"));
        }
        let bytes = blob.to_bytes();
        let put = self.put_whole(id, &bytes).await;
        if put.is_err() && self.bug == Bug::AFailedPutBurnsTheId {
            self.burnt.lock().push(id);
        }
        put.map(|()| Stored { bytes: bytes.len() as u64, allocated: bytes.len() as u64 })
    }

    async fn get(&self, id: BlobId, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.refused("get")?;
        let bytes = Bytes::from(self.read(id).await?);
        let len = bytes.len() as u64;
        if self.bug == Bug::PassesTruncatedReadsOn && range.start <= range.end && range.end > len {
            let wanted = self.sums.lock().get(&id).map_or(0, |(len, _)| *len as u64);
            if range.end <= wanted {
                return Ok(bytes.slice(usize::try_from(range.start.min(len)).unwrap()..));
            }
        }
        if range.start > range.end || range.end > len {
            return Err(StoreError::new(StoreErrorKind::Corrupt, "get", "disk:").with_blob(id));
        }
        Ok(bytes.slice(usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()))
    }

    async fn delete(&self, ids: &[BlobId]) -> Result<(), StoreError> {
        self.refused("delete")?;
        let (mut failed, mut first) = (Vec::new(), None);
        for id in ids {
            let file = self.file(*id);
            if let Err(error) = self.call(Access::Other, "delete", |files, _| files.remove(&file)).await {
                failed.push(*id);
                first.get_or_insert(error);
                if self.bug == Bug::StopsDeletingAtAnError {
                    break;
                }
            }
        }
        match first {
            Some(_) if self.bug == Bug::SwallowsErrorsOfDeletes => Ok(()),
            Some(error) if self.bug == Bug::NamesTheWrongInDeletes => {
                let others: Vec<_> = ids.iter().copied().filter(|id| !failed.contains(id)).collect();
                Err(error.with_failed(others))
            }
            Some(error) => Err(error.with_failed(failed)),
            None => Ok(()),
        }
    }

    async fn list(&self, after: Option<BlobId>, limit: usize) -> Result<Vec<BlobMeta>, StoreError> {
        self.refused("list")?;
        let mut all = self.names("list").await?;
        all.retain(|(id, _)| after.is_none_or(|after| *id > after));
        all.truncate(limit);
        let meta = |(id, len): (BlobId, usize)| BlobMeta {
            id,
            stored: Stored { bytes: len as u64, allocated: len as u64 },
        };
        Ok(all.into_iter().map(meta).collect())
    }

    async fn close(&self) -> Result<(), StoreError> {
        if self.bug == Bug::GivesUpClosing && self.closed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        for (id, _) in self.names("close").await? {
            let file = self.file(id);
            self.call(Access::Other, "close", |files, _| files.remove(&file)).await?;
        }
        self.disk.files.lock().remove(&self.session);
        self.disk.lives.lock().remove(&self.session);
        Ok(())
    }
}

/// Removes the dead sessions of a namespace; how many.
async fn sweep(bug: Bug, disk: &Disk) -> Result<u64, BoxError> {
    let dead = |life: &Weak<()>| life.strong_count() == 0 || bug == Bug::SweepTakesTheLiving;
    let lives = disk.lives.lock().clone();
    if lives.is_empty() && bug == Bug::SweepFailsWhereNothingIs {
        return Err("there is nothing here".into());
    }
    let mut swept = 0;
    for (session, life) in &lives {
        swept += u64::from(bug == Bug::SweepCountsTheLiving && !dead(life));
        if !dead(life) {
            continue;
        }
        if bug == Bug::SweepsCountEachOther {
            tokio::task::yield_now().await;
            swept += 1;
        }
        if disk.lives.lock().remove(session).is_some() && bug != Bug::SweepsCountEachOther {
            swept += 1;
        }
        disk.files.lock().retain(|name, _| {
            let is_ours = name == session || name.ends_with(".blob") || bug == Bug::SweepTakesForeignThings;
            !name.starts_with(session) || !is_ours || (bug == Bug::SweepLeavesBlobs && name != session)
        });
    }
    Ok(swept)
}

/// A harness over stores with this bug, with everything unlocked that one process can have.
pub(crate) fn harness(bug: Bug) -> StoreHarness {
    let disks: Arc<Mutex<BTreeMap<String, Arc<Disk>>>> = Arc::default();
    let disk = move |namespace: String| Arc::clone(disks.lock().entry(namespace).or_default());
    let (opened, faulty, looked_at, planted, swept) =
        (disk.clone(), disk.clone(), disk.clone(), disk.clone(), disk);
    StoreHarness::new(move |namespace| {
        let disk = opened(namespace);
        async move { Ok(Arc::new(MediumStore::open(bug, disk, Medium::new()).await?) as Arc<dyn Store>) }
    })
    .with_faults(Trouble::ALL, move |namespace, medium| {
        let disk = faulty(namespace);
        async move { Ok(Arc::new(MediumStore::open(bug, disk, medium).await?) as Arc<dyn Store>) }
    })
    .with_leftovers(move |namespace| {
        let names = looked_at(namespace).files.lock().keys().cloned().collect();
        async { Ok(names) }
    })
    .with_foreign(move |namespace| {
        let disk = planted(namespace);
        let mut files = disk.files.lock();
        let sessions: Vec<String> = files.keys().filter(|name| name.ends_with('/')).cloned().collect();
        for place in sessions.iter().map(String::as_str).chain([""]) {
            files.insert(format!("{place}notes.txt"), b"foreign".to_vec());
        }
        async { Ok(()) }
    })
    .with_sweep(move |namespace| {
        let disk = swept(namespace);
        async move { sweep(bug, &disk).await }
    })
    .large_blob(3 * STEP as u64 + 1)
}
