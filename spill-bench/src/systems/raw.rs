//! The disk by itself: one file, written in blocks of 8 MiB.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use anyhow::Result;

/// Bytes of a block.
pub(crate) const BLOCK: usize = 8 << 20;

const PAGE: usize = 4096;

pub(super) const SETTINGS: &str = "One file, one thread, blocks of 8 MiB: the same block again and again, through the page \
    cache or past it (`O_DIRECT`); `+copy+checksum` copies each value into the block and makes a CRC32C of it. Reads: \
    `pread`, on as many threads as there are reads in flight, or `io_uring` with `O_DIRECT`, without checksums.";

/// What is done with values besides writing them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// The same block is written again and again.
    Nothing,
    /// The same, past the page cache (`O_DIRECT`).
    PastTheCache,
    /// Each value is copied into a block, and a checksum made of it: the least that a store has to do.
    CopyAndChecksum,
}

/// A file that blocks are appended to.
#[derive(Debug)]
pub(crate) struct RawFile {
    file: File,
    memory: Vec<u8>,
    /// Where the block begins in memory: at a page.
    start: usize,
    at: usize,
    effort: Effort,
    checksum: u32,
}

impl RawFile {
    pub(crate) fn create(dir: &Path, effort: Effort, values: &[u8]) -> Result<Self> {
        let mut memory = vec![0; BLOCK + PAGE];
        let start = memory.as_ptr().align_offset(PAGE);
        memory.iter_mut().zip(values.iter().cycle()).for_each(|(to, from)| *to = *from);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        if effort == Effort::PastTheCache {
            options.custom_flags(rustix::fs::OFlags::DIRECT.bits().cast_signed());
        }
        Ok(Self { file: options.open(dir.join("raw"))?, memory, start, at: 0, effort, checksum: 0 })
    }

    /// Writes a value, or as much of a block.
    pub(crate) fn append(&mut self, mut value: &[u8]) -> Result<()> {
        if self.effort == Effort::CopyAndChecksum {
            self.checksum ^= crc32c::crc32c(value);
        }
        while !value.is_empty() {
            let (now, later) = value.split_at(value.len().min(BLOCK - self.at));
            if self.effort == Effort::CopyAndChecksum {
                let at = self.start + self.at;
                self.memory[at..at + now.len()].copy_from_slice(now);
            }
            (self.at, value) = (self.at + now.len(), later);
            if self.at == BLOCK {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Writes what is left.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.file.write_all(&self.memory[self.start..self.start + self.at])?;
        self.at = 0;
        Ok(())
    }
}
