//! The disk by itself: one file, written in blocks of 8 MiB.

use std::{fs::File, io::Write, path::Path};

use anyhow::Result;

/// Bytes of a block.
pub(crate) const BLOCK: usize = 8 << 20;

/// What is done with values besides writing them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// The same block is written again and again.
    Nothing,
    /// Each value is copied into a block, and a checksum made of it: the least that a store has to do.
    CopyAndChecksum,
}

/// A file that blocks are appended to.
#[derive(Debug)]
pub(crate) struct RawFile {
    file: File,
    block: Vec<u8>,
    at: usize,
    effort: Effort,
    checksum: u32,
}

impl RawFile {
    pub(crate) fn create(dir: &Path, effort: Effort, values: &[u8]) -> Result<Self> {
        let block = values.iter().copied().cycle().take(BLOCK).collect();
        Ok(Self { file: File::create(dir.join("raw"))?, block, at: 0, effort, checksum: 0 })
    }

    /// Writes a value, or as much of a block.
    pub(crate) fn append(&mut self, mut value: &[u8]) -> Result<()> {
        if self.effort == Effort::CopyAndChecksum {
            self.checksum ^= crc32c::crc32c(value);
        }
        while !value.is_empty() {
            let (now, later) = value.split_at(value.len().min(BLOCK - self.at));
            if self.effort == Effort::CopyAndChecksum {
                self.block[self.at..self.at + now.len()].copy_from_slice(now);
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
        self.file.write_all(&self.block[..self.at])?;
        self.at = 0;
        Ok(())
    }
}
