//! How a tier's values are compressed: one way for all, or whichever of several has turned out to be quickest.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::*},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    Compressor,
    chooser::{Chooser, Plan, Tally},
    frame::Compression,
};

#[derive(Debug)]
pub(crate) struct Compressing {
    ways: Arc<[Compression]>,
    chooser: Option<Mutex<Chooser>>,
    /// Blobs being written.
    writing: AtomicU32,
}

impl Compressing {
    /// Always this one; `None`: values are left as they are.
    pub(crate) fn fixed(compressor: Option<Arc<dyn Compressor>>) -> Self {
        Self { ways: [Compression { compressor }].into(), chooser: None, writing: 0.into() }
    }

    /// One of these, or none of them, as it turns out; `jobs` batches are compressed at once, on so many cores.
    pub(crate) fn learned(compressors: &[Arc<dyn Compressor>], jobs: usize, cores: usize) -> Self {
        let ways = std::iter::once(None).chain(compressors.iter().cloned().map(Some));
        let ways: Arc<[Compression]> = ways.map(|compressor| Compression { compressor }).collect();
        let chooser = Some(Mutex::new(Chooser::new(ways.len(), jobs, cores)));
        Self { ways, chooser, writing: 0.into() }
    }

    pub(crate) fn ways(&self) -> Arc<[Compression]> {
        self.ways.clone()
    }

    /// What to do with the next batch.
    pub(crate) fn plan(&self) -> Plan {
        self.chooser.as_ref().map_or_else(Plan::default, |chooser| chooser.lock().plan())
    }

    /// What was done with it, by way.
    pub(crate) fn compressed(&self, done: &[Tally]) {
        if let Some(chooser) = &self.chooser {
            chooser.lock().compressed(done);
        }
    }

    /// A blob is being written from now on.
    pub(crate) fn write(&self) -> Writing<'_> {
        self.writing.fetch_add(1, Relaxed);
        Writing { compressing: self, started: Instant::now() }
    }
}

/// A blob being written.
#[derive(Debug)]
pub(crate) struct Writing<'a> {
    compressing: &'a Compressing,
    started: Instant,
}

impl Writing<'_> {
    /// It is down: says how long that took.
    pub(crate) fn wrote(&self, stored: u64) -> Duration {
        let took = self.started.elapsed();
        if let Some(chooser) = &self.compressing.chooser {
            let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            chooser.lock().wrote(stored, nanos, self.compressing.writing.load(Relaxed));
        }
        took
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.compressing.writing.fetch_sub(1, Relaxed);
    }
}
