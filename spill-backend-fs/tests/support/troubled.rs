//! The system calls of a file store as a medium of the conformance suite: each can meet trouble.

use std::{
    fs::File,
    io::{self, IoSlice},
};

use spill_backend_fs::seam::{Sys, System};
use spill_conformance::{Access, Medium, Trouble};

/// The system, with trouble.
#[derive(Debug)]
pub(crate) struct Troubled(pub(crate) Medium);

impl Troubled {
    /// Makes a call that moves no bytes.
    fn call<T>(&self, effect: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match self.0.call_blocking(Access::Other).and_then(Trouble::error) {
            Some(error) => Err(error),
            None => effect(),
        }
    }
}

impl Sys for Troubled {
    fn create(&self, directory: &File, name: &str) -> io::Result<File> {
        self.call(|| System.create(directory, name))
    }

    fn write(&self, file: &File, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(trouble) = self.0.call_blocking(Access::Write) else { return System.write(file, slices) };
        let part = || {
            let len = slices.iter().map(|slice| slice.len()).sum();
            let some: Vec<u8> =
                slices.iter().flat_map(|slice| slice.iter().copied()).take(trouble.part(len)).collect();
            System.write(file, &[IoSlice::new(&some)])
        };
        match (trouble, trouble.error()) {
            (Trouble::Torn, Some(error)) => part().and(Err(error)),
            (_, Some(error)) => Err(error),
            (_, None) => part(),
        }
    }

    fn sync_file(&self, file: &File) -> io::Result<()> {
        self.call(|| System.sync_file(file))
    }

    fn publish(&self, directory: &File, from: &str, to: &str) -> io::Result<()> {
        self.call(|| System.publish(directory, from, to))
    }

    fn sync_directory(&self, directory: &File) -> io::Result<()> {
        self.call(|| System.sync_directory(directory))
    }

    fn unlink(&self, directory: &File, name: &str) -> io::Result<()> {
        self.call(|| System.unlink(directory, name))
    }

    fn open(&self, directory: &File, name: &str) -> io::Result<File> {
        self.call(|| System.open(directory, name))
    }

    fn read(&self, file: &File, buffer: &mut Vec<u8>, offset: u64) -> io::Result<usize> {
        let Some(trouble) = self.0.call_blocking(Access::Read) else {
            return System.read(file, buffer, offset);
        };
        if let Some(error) = trouble.error() {
            return Err(error);
        }
        let start = buffer.len();
        match trouble {
            // As if the file ended here.
            Trouble::Truncated => Ok(0),
            _ => {
                let read = System.read(file, buffer, offset)?;
                Trouble::flip(&mut buffer[start..]);
                Ok(read)
            }
        }
    }

    fn names(&self, directory: &File, visit: &mut dyn FnMut(&str)) -> io::Result<()> {
        self.call(|| System.names(directory, visit))
    }
}
