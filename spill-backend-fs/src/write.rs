//! Putting a blob: written under a provisional name, then renamed, or not there at all.

use std::{
    fs::File,
    io::{self, IoSlice},
    os::unix::fs::MetadataExt,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
};

use spill_core::Payload;

use crate::{
    direct::{self, Direct},
    sys::{self, Sys},
};

/// The most slices that one call takes (`IOV_MAX` on every system we know).
const MAX_SLICES: usize = 1024;

/// Bytes after which a write looks whether anybody still waits for it.
pub(crate) const MAX_WRITE: usize = 8 << 20;

/// Whether somebody still waits for a put: shared by its future and the job that does it.
///
/// Exactly one of the two settles it. When the future is dropped first, the job undoes what it did.
#[derive(Debug)]
pub(crate) struct Wanted(Arc<AtomicU8>);

/// Dropped with the future: from then on the blob is not wanted, unless the job was done before.
#[derive(Debug)]
pub(crate) struct Waiting(Arc<AtomicU8>);

const WANTED: u8 = 0;
const DONE: u8 = 1;
const ABANDONED: u8 = 2;

impl Wanted {
    pub(crate) fn new() -> (Waiting, Self) {
        let state = Arc::new(AtomicU8::new(WANTED));
        (Waiting(Arc::clone(&state)), Self(state))
    }

    pub(crate) fn check(&self) -> io::Result<()> {
        match self.0.load(Ordering::Acquire) {
            ABANDONED => Err(abandoned()),
            _ => Ok(()),
        }
    }

    fn done(&self) -> io::Result<()> {
        let settled = self.0.compare_exchange(WANTED, DONE, Ordering::AcqRel, Ordering::Acquire);
        settled.map(drop).map_err(|_| abandoned())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.compare_exchange(WANTED, ABANDONED, Ordering::AcqRel, Ordering::Acquire);
    }
}

fn abandoned() -> io::Error {
    io::Error::other("nobody waits for it any more")
}

/// A file being made: removed again when it is dropped before it was kept.
#[derive(Debug)]
pub(crate) struct NewFile<'a> {
    sys: &'a dyn Sys,
    directory: &'a File,
    file: File,
    name: String,
    kept: bool,
}

impl<'a> NewFile<'a> {
    /// Makes the file. The caller sees to it that nobody else writes one of this name: one that is there is
    /// what an earlier put could not remove, and is replaced.
    pub(crate) fn create(sys: &'a dyn Sys, directory: &'a File, name: String) -> io::Result<Self> {
        let file = match sys.create(directory, &name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                sys.unlink(directory, &name)?;
                sys.create(directory, &name)?
            }
            created => created?,
        };
        Ok(Self { sys, directory, file, name, kept: false })
    }

    /// Writes the blob, gives it its final name, and says how many bytes of the file system it takes.
    ///
    /// That is at least its length in whole blocks of `block_size`: some file systems choose blocks only
    /// when they write to the disk, and count none before.
    pub(crate) fn fill(
        mut self,
        blob: &Payload,
        name: String,
        options: Durability,
        direct: &Direct,
        wanted: &Wanted,
    ) -> io::Result<u64> {
        let past_the_cache = blob.len() >= direct::WORTH_IT;
        match past_the_cache.then(|| direct.writer(self.sys, &self.file, wanted)).flatten() {
            Some(mut writer) => {
                blob.chunks().try_for_each(|chunk| writer.push(chunk))?;
                writer.finish()?;
            }
            None => write_all(self.sys, &self.file, blob, wanted)?,
        }
        if options.durable {
            self.sys.sync_file(&self.file)?;
        }
        let metadata = self.file.metadata()?;
        if metadata.len() != blob.len() as u64 {
            let message = format!("{} bytes were written, the file has {}", blob.len(), metadata.len());
            return Err(io::Error::other(message));
        }
        wanted.check()?;
        self.sys.publish(self.directory, &self.name, &name)?;
        self.name = name;
        if options.durable {
            self.sys.sync_directory(self.directory)?;
        }
        wanted.done()?;
        self.kept = true;
        let whole_blocks = metadata.len().next_multiple_of(options.block_size);
        Ok(whole_blocks.max(metadata.blocks() * sys::BLOCK))
    }
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        if let Err(error) = self.sys.unlink(self.directory, &self.name)
            && !sys::is_missing(&error)
        {
            tracing::warn!(file = self.name, %error, "can't remove an unfinished blob; closing the store tries again");
        }
    }
}

/// How much a finished put promises, and the file system's block size in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Durability {
    pub(crate) durable: bool,
    pub(crate) block_size: u64,
}

fn write_all(sys: &dyn Sys, file: &File, blob: &Payload, wanted: &Wanted) -> io::Result<()> {
    let mut pieces = blob.chunks().flat_map(|chunk| chunk.chunks(MAX_WRITE));
    let mut slices = Vec::new();
    loop {
        let mut bytes = 0;
        slices.clear();
        while slices.len() < MAX_SLICES && bytes < MAX_WRITE {
            let Some(piece) = pieces.next() else { break };
            bytes += piece.len();
            slices.push(IoSlice::new(piece));
        }
        if slices.is_empty() {
            return Ok(());
        }
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            wanted.check()?;
            match sys.write(file, rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => IoSlice::advance_slices(&mut rest, written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
