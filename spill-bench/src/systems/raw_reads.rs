//! Reading from the disk by itself: values of one length at random places of one file.

use std::{
    fs::{File, OpenOptions},
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, OpenOptionsExt},
    },
    path::Path,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Instant,
};

use anyhow::{Context, Result, anyhow, ensure};
use hdrhistogram::Histogram;
use io_uring::{IoUring, opcode, types};

use crate::{data::Values, meter};

/// Which of the values in the file are read.
#[derive(Debug)]
pub(crate) struct Reads<'a> {
    pub(crate) path: &'a Path,
    pub(crate) keys: &'a [u64],
    pub(crate) length: usize,
    pub(crate) values: &'a Values,
}

impl Reads<'_> {
    fn place(&self, key: u64) -> u64 {
        key * self.length as u64
    }
}

/// Reads with `pread`, on so many threads.
pub(crate) fn on_threads(reads: &Reads<'_>, threads: usize) -> Result<Histogram<u64>> {
    let file = File::open(reads.path)?;
    let next = AtomicUsize::new(0);
    let one = || -> Result<Histogram<u64>> {
        let mut waits = meter::new_waits()?;
        let mut buffer = vec![0; reads.length];
        while let Some(key) = reads.keys.get(next.fetch_add(1, Relaxed)) {
            let began = Instant::now();
            file.read_exact_at(&mut buffer, reads.place(*key))?;
            meter::record(&mut waits, began);
            reads.values.check(*key, &buffer)?;
        }
        Ok(waits)
    };
    let mut all = one_each(threads, &one)?.into_iter();
    let mut waits = all.next().context("no threads, no reads")?;
    for more in all {
        waits.add(&more)?;
    }
    Ok(waits)
}

fn one_each<T: Send>(threads: usize, work: &(dyn Fn() -> Result<T> + Sync)) -> Result<Vec<T>> {
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let ended = started.into_iter().map(|thread| thread.join());
        ended.map(|result| result.map_err(|_| anyhow!("a thread panicked"))?).collect()
    })
}

/// What `O_DIRECT` wants memory and lengths to be multiples of.
const ALIGNED: usize = 4096;

/// A buffer that a read may be on its way into.
struct Slot {
    key: u64,
    began: Instant,
    buffer: Vec<u8>,
    /// Where the part begins that is aligned.
    start: usize,
}

impl Slot {
    fn new(length: usize) -> Self {
        let buffer = vec![0; length + ALIGNED];
        let start = buffer.as_ptr().align_offset(ALIGNED);
        Self { key: 0, began: Instant::now(), buffer, start }
    }

    /// Whether a read that ended with this result brought the value.
    fn check(&self, reads: &Reads<'_>, result: i32) -> Result<()> {
        ensure!(
            usize::try_from(result) == Ok(reads.length),
            "a read of {} ended with {result}",
            reads.length
        );
        reads.values.check(self.key, &self.buffer[self.start..self.start + reads.length])
    }
}

/// Reads with `O_DIRECT` and `io_uring`, so many at once, on one thread.
pub(crate) fn on_ring(reads: &Reads<'_>, at_once: usize) -> Result<Histogram<u64>> {
    ensure!(reads.length.is_multiple_of(ALIGNED), "direct reads are of whole pages");
    let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(direct).open(reads.path)?;
    let mut ring = IoUring::new(u32::try_from(at_once)?)?;
    let mut slots: Vec<Slot> = (0..at_once).map(|_| Slot::new(reads.length)).collect();
    let mut waits = meter::new_waits()?;
    let mut keys = reads.keys.iter().copied();
    let mut failure = None;
    let mut in_flight = 0;
    for (number, (slot, key)) in slots.iter_mut().zip(keys.by_ref()).enumerate() {
        in_flight += start(&mut ring, &file, reads, slot, number, key);
    }
    // Whatever fails, all reads have to end before the buffers may go.
    while in_flight > 0 {
        match ring.submit_and_wait(1) {
            Err(error) if error.kind() != std::io::ErrorKind::Interrupted => {
                std::mem::forget(slots);
                return Err(error).context("io_uring");
            }
            _ => {}
        }
        let ended: Vec<_> = ring.completion().collect();
        in_flight -= ended.len();
        for (slot, read) in ended.iter().map(|read| (read.user_data(), read)) {
            let number = usize::try_from(slot).unwrap_or(usize::MAX);
            let Some(slot) = slots.get_mut(number) else { continue };
            meter::record(&mut waits, slot.began);
            match slot.check(reads, read.result()) {
                Err(error) => failure = Some(error),
                Ok(()) if failure.is_some() => {}
                Ok(()) => {
                    if let Some(key) = keys.next() {
                        in_flight += start(&mut ring, &file, reads, slot, number, key);
                    }
                }
            }
        }
    }
    failure.map_or(Ok(waits), Err)
}

/// Puts one read into the queue, which has a place for each slot. Returns how many are on their way for it.
#[expect(unsafe_code, reason = "the ring writes into the buffer after this has returned")]
fn start(
    ring: &mut IoUring,
    file: &File,
    reads: &Reads<'_>,
    slot: &mut Slot,
    number: usize,
    key: u64,
) -> usize {
    (slot.key, slot.began) = (key, Instant::now());
    let part = &mut slot.buffer[slot.start..slot.start + reads.length];
    let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
    let read = opcode::Read::new(types::Fd(file.as_raw_fd()), part.as_mut_ptr(), length)
        .offset(reads.place(key))
        .build()
        .user_data(number as u64);
    // SAFETY: The file stays open, and the buffer where it is and unused, until the ring has said that the read
    // ended: `on_ring`, the only caller, waits for each read before it touches or frees its slot.
    let pushed = unsafe { ring.submission().push(&read) };
    usize::from(pushed.is_ok())
}
