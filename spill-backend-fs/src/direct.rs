//! Writing past the page cache (`O_DIRECT`).
//!
//! Spilled values are not read soon, or they would not have been spilled. So their pages in the cache are of no
//! use, push out those of others, count against the memory of a container, and cost a copy: past the cache a large
//! write takes a quarter of the CPU time, and a steady time. The price is that memory, offsets and lengths must
//! be aligned. Pieces that are not are copied together first, and the end of a blob goes through the cache.

use std::{
    fs::File,
    io::{self, IoSlice},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use parking_lot::Mutex;

use crate::{
    sys::{self, Sys},
    write::{MAX_WRITE, Wanted},
};

/// Memory, offsets and lengths are multiples of this: a page, and no disk's sector is longer.
const ALIGNMENT: usize = 4096;

/// Shorter blobs are not worth the wait for the disk.
pub(crate) const WORTH_IT: usize = 256 << 10;

/// Bytes that are copied together before they are written: one disk needs no more at once to be busy.
const BOUNCE: usize = 1 << 20;

/// Buffers for that which are kept between writes.
const KEPT: usize = 2;

/// Whether files can be written past the cache, and the buffers for it.
#[derive(Debug)]
pub(crate) struct Direct {
    possible: AtomicBool,
    idle: Mutex<Vec<Bounce>>,
}

impl Direct {
    pub(crate) fn new(wanted: bool) -> Self {
        Self { possible: wanted.into(), idle: Mutex::default() }
    }

    /// A writer for this file, unless the file system can't; then that is known from now on.
    pub(crate) fn writer<'a>(
        &'a self,
        sys: &'a dyn Sys,
        file: &'a File,
        wanted: &'a Wanted,
    ) -> Option<Writer<'a>> {
        if !self.possible.load(Relaxed) || sys.set_direct(file, true).is_err() {
            self.possible.store(false, Relaxed);
            return None;
        }
        let bounce = self.idle.lock().pop().unwrap_or_else(Bounce::allocate);
        Some(Writer { sys, file, wanted, direct: true, bounce, pool: self })
    }
}

/// Memory that starts at a multiple of [`ALIGNMENT`].
#[derive(Debug, Default)]
struct Bounce {
    memory: Vec<u8>,
    start: usize,
    /// Bytes in use.
    filled: usize,
}

impl Bounce {
    fn allocate() -> Self {
        let memory = vec![0; BOUNCE + ALIGNMENT];
        let start = memory.as_ptr().addr().wrapping_neg() % ALIGNMENT;
        Self { memory, start, filled: 0 }
    }

    /// Takes as much as there is room for; gives back the rest.
    fn fill<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (now, later) = bytes.split_at(bytes.len().min(BOUNCE - self.filled));
        let at = self.start + self.filled;
        self.memory[at..at + now.len()].copy_from_slice(now);
        self.filled += now.len();
        later
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.filled]
    }
}

/// Writes one file from its beginning, in pieces of any length.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    sys: &'a dyn Sys,
    file: &'a File,
    wanted: &'a Wanted,
    /// Past the cache still.
    direct: bool,
    bounce: Bounce,
    pool: &'a Direct,
}

impl Writer<'_> {
    pub(crate) fn push(&mut self, mut piece: &[u8]) -> io::Result<()> {
        let is_aligned = piece.as_ptr().addr().is_multiple_of(ALIGNMENT);
        if self.bounce.filled == 0 && is_aligned && piece.len() >= WORTH_IT {
            // It can be written from where it lies.
            let (now, later) = piece.split_at(piece.len() / ALIGNMENT * ALIGNMENT);
            self.write(now)?;
            piece = later;
        }
        while !piece.is_empty() {
            piece = self.bounce.fill(piece);
            if self.bounce.filled == BOUNCE {
                self.flush(BOUNCE)?;
            }
        }
        Ok(())
    }

    /// Writes what is left: its end, which is no whole block, through the cache.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.flush(self.bounce.filled / ALIGNMENT * ALIGNMENT)?;
        let end = self.bounce.filled;
        self.through_the_cache()?;
        self.flush(end)
    }

    /// Writes the first bytes that were copied together, and keeps the others.
    fn flush(&mut self, length: usize) -> io::Result<()> {
        let mut bounce = std::mem::take(&mut self.bounce);
        let done = self.write(&bounce.bytes()[..length]);
        let rest = bounce.start + length..bounce.start + bounce.filled;
        bounce.memory.copy_within(rest, bounce.start);
        bounce.filled -= length;
        self.bounce = bounce;
        done
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        for mut piece in bytes.chunks(MAX_WRITE) {
            while !piece.is_empty() {
                self.wanted.check()?;
                match self.sys.write(self.file, &[IoSlice::new(piece)]) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(written) => piece = &piece[written..],
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if self.direct && sys::is_unsupported(&error) => {
                        // It wants more than we align for, or can't after all.
                        self.pool.possible.store(false, Relaxed);
                        self.through_the_cache()?;
                    }
                    Err(error) => return Err(error),
                }
                if !piece.len().is_multiple_of(ALIGNMENT) {
                    // Cut short: what follows starts nowhere.
                    self.through_the_cache()?;
                }
            }
        }
        Ok(())
    }

    fn through_the_cache(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.direct) { self.sys.set_direct(self.file, false) } else { Ok(()) }
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        let mut idle = self.pool.idle.lock();
        if idle.len() < KEPT && !self.bounce.memory.is_empty() {
            idle.push(Bounce { filled: 0, ..std::mem::take(&mut self.bounce) });
        }
    }
}
