//! Counters that only grow: what a buffer has done so far.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::stripe::Striped;

/// What every read bumps.
#[derive(Debug, Default)]
struct Line {
    resident: AtomicU64,
    clean: AtomicU64,
    misses: AtomicU64,
}

/// See [`Stats`](crate::Stats) for what each one means.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    lines: Striped<Line>,
    alive: AtomicU64,
    restored: AtomicU64,
    spilled: AtomicU64,
    written: AtomicU64,
    blobs: AtomicU64,
    read: AtomicU64,
    reads: AtomicU64,
    write_failures: AtomicU64,
    restore_failures: AtomicU64,
    reclaimed: AtomicU64,
    compacted: AtomicU64,
    demoted: AtomicU64,
    demoted_bytes: AtomicU64,
    encode: AtomicU64,
    compress: AtomicU64,
    write: AtomicU64,
    read_time: AtomicU64,
    decompress: AtomicU64,
    decode: AtomicU64,
}

impl Counters {
    pub(crate) fn hit(&self, clean: bool) {
        let line = self.lines.own();
        if clean { &line.clean } else { &line.resident }.fetch_add(1, Relaxed);
    }

    pub(crate) fn miss(&self) {
        self.lines.own().misses.fetch_add(1, Relaxed);
    }

    pub(crate) fn hit_alive(&self) {
        self.alive.fetch_add(1, Relaxed);
    }

    pub(crate) fn hit_restored(&self) {
        self.restored.fetch_add(1, Relaxed);
    }

    pub(crate) fn wrote(&self, entries: u64, bytes: u64, took: Duration) {
        self.blobs.fetch_add(1, Relaxed);
        self.spilled.fetch_add(entries, Relaxed);
        self.written.fetch_add(bytes, Relaxed);
        add(&self.write, took);
    }

    pub(crate) fn read(&self, bytes: u64, took: Duration) {
        self.reads.fetch_add(1, Relaxed);
        self.read.fetch_add(bytes, Relaxed);
        add(&self.read_time, took);
    }

    pub(crate) fn write_failed(&self) {
        self.write_failures.fetch_add(1, Relaxed);
    }

    pub(crate) fn restore_failed(&self) {
        self.restore_failures.fetch_add(1, Relaxed);
    }

    pub(crate) fn reclaimed(&self, freed: u64, copied: u64) {
        self.reclaimed.fetch_add(freed, Relaxed);
        self.compacted.fetch_add(copied, Relaxed);
    }

    pub(crate) fn demoted(&self, entries: u64, bytes: u64) {
        self.demoted.fetch_add(entries, Relaxed);
        self.demoted_bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn encode(&self, took: Duration) {
        add(&self.encode, took);
    }

    pub(crate) fn compress(&self, took: Duration) {
        add(&self.compress, took);
    }

    pub(crate) fn decompress(&self, took: Duration) {
        add(&self.decompress, took);
    }

    pub(crate) fn decode(&self, took: Duration) {
        add(&self.decode, took);
    }

    pub(crate) fn stats(&self) -> Stats {
        let sum =
            |field: fn(&Line) -> &AtomicU64| self.lines.iter().map(|line| field(line).load(Relaxed)).sum();
        let time = |nanos: &AtomicU64| Duration::from_nanos(nanos.load(Relaxed));
        Stats {
            hits_resident: sum(|line| &line.resident),
            hits_clean: sum(|line| &line.clean),
            hits_alive: self.alive.load(Relaxed),
            hits_restored: self.restored.load(Relaxed),
            misses: sum(|line| &line.misses),
            entries_spilled: self.spilled.load(Relaxed),
            blobs_written: self.blobs.load(Relaxed),
            bytes_written: self.written.load(Relaxed),
            reads: self.reads.load(Relaxed),
            bytes_read: self.read.load(Relaxed),
            write_failures: self.write_failures.load(Relaxed),
            restore_failures: self.restore_failures.load(Relaxed),
            bytes_reclaimed: self.reclaimed.load(Relaxed),
            bytes_compacted: self.compacted.load(Relaxed),
            entries_demoted: self.demoted.load(Relaxed),
            bytes_demoted: self.demoted_bytes.load(Relaxed),
            encode: time(&self.encode),
            compress: time(&self.compress),
            write: time(&self.write),
            read: time(&self.read_time),
            decompress: time(&self.decompress),
            decode: time(&self.decode),
        }
    }
}

fn add(total: &AtomicU64, took: Duration) {
    total.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
}

/// What a buffer has done since it was built. Every number only grows.
///
/// Times are summed over all tasks, so they can exceed the time that has passed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Reads answered from memory, of entries that are only there.
    pub hits_resident: u64,
    /// Reads answered from memory, of entries that are in a tier as well.
    pub hits_clean: u64,
    /// Reads of spilled entries whose value somebody still held: answered without I/O.
    pub hits_alive: u64,
    /// Reads answered by reading a tier.
    pub hits_restored: u64,
    /// Reads of keys that are not there.
    pub misses: u64,
    /// Entries written to a tier; one that was written twice counts twice.
    pub entries_spilled: u64,
    /// Blobs written by spilling.
    pub blobs_written: u64,
    /// Bytes of those blobs.
    pub bytes_written: u64,
    /// Reads of a store by restores. Neighbours that are read together are one read.
    pub reads: u64,
    /// Bytes of those reads.
    pub bytes_read: u64,
    /// Writes that a store refused. They count no bytes.
    pub write_failures: u64,
    /// Entries that could not be read back when asked for.
    pub restore_failures: u64,
    /// Bytes given back by compacting and punching.
    pub bytes_reclaimed: u64,
    /// Bytes copied for that.
    pub bytes_compacted: u64,
    /// Entries moved from a tier that ran short to one behind it.
    pub entries_demoted: u64,
    /// Bytes of their frames.
    pub bytes_demoted: u64,
    /// Time in the codec's `encode`.
    pub encode: Duration,
    /// Time compressing.
    pub compress: Duration,
    /// Time writing blobs.
    pub write: Duration,
    /// Time reading.
    pub read: Duration,
    /// Time verifying and decompressing.
    pub decompress: Duration,
    /// Time in the codec's `decode`.
    pub decode: Duration,
}
