//! One file per value, by `tokio::fs`: what a program writes that has no store.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use anyhow::{Result, bail};
use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::Semaphore;

use super::{Keeper, Setup};

/// Directories that the files are spread over.
const DIRECTORIES: u64 = 256;

/// Values written at once: more gained nothing on two cores.
const AT_ONCE: u32 = 8;

pub(super) const SETTINGS: &str = "`tokio::fs`, a file for each value in 256 directories, 8 written at once.";

pub(crate) struct Files {
    dir: PathBuf,
    writing: Arc<Semaphore>,
    failure: Arc<OnceLock<std::io::Error>>,
}

impl Files {
    pub(crate) fn open(setup: &Setup<'_>) -> Result<Self> {
        let files = Self {
            dir: setup.dir.to_path_buf(),
            writing: Arc::new(Semaphore::new(AT_ONCE as usize)),
            failure: Arc::default(),
        };
        for directory in 0..DIRECTORIES {
            std::fs::create_dir(directory_of(&files.dir, directory))?;
        }
        Ok(files)
    }

    fn path(&self, key: u64) -> PathBuf {
        directory_of(&self.dir, key % DIRECTORIES).join(format!("{key:x}"))
    }

    fn check(&self) -> Result<()> {
        match self.failure.get() {
            Some(failure) => bail!("a write failed: {failure}"),
            None => Ok(()),
        }
    }
}

fn directory_of(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:02x}"))
}

#[async_trait]
impl Keeper for Files {
    async fn insert(&self, key: u64, value: Vec<u8>) -> Result<()> {
        self.check()?;
        let permit = Arc::clone(&self.writing).acquire_owned().await?;
        let (path, failure) = (self.path(key), Arc::clone(&self.failure));
        tokio::spawn(async move {
            if let Err(error) = tokio::fs::write(path, value).await {
                // The first is enough.
                _ = failure.set(error);
            }
            drop(permit);
        });
        Ok(())
    }

    async fn get(&self, key: u64) -> Result<Option<Bytes>> {
        match tokio::fs::read(self.path(key)).await {
            Ok(value) => Ok(Some(value.into())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn settle(&self) -> Result<()> {
        drop(self.writing.acquire_many(AT_ONCE).await?);
        self.check()
    }
}
