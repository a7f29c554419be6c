//! The phases of a run. At most one file's bytes are held outside the buffer, and a hash per entry.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use blake3::Hash;
use bytes::Bytes;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};
use spill_buffer::{Location, Usage, blocking};
use tokio::runtime::Handle;

use crate::{
    Fault,
    files::{Files, Key},
    process,
    report::{Held, Phase, Report, rounded},
};

/// The same order in every run.
const SEED: u64 = 0x5b1117;
/// Things that went wrong are told in words up to here.
const PROBLEMS: usize = 10;
/// How long the buffer's tasks may take to come to rest.
const REST_WITHIN: Duration = Duration::from_secs(30);
/// How long a call that may succeed later is repeated: a server that is started again comes back within that.
const PATIENCE: Duration = Duration::from_secs(120);
/// The wait between two tries of such a call.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Sets the contents of an overwrite apart from those of all copies.
const OVERWRITTEN: u64 = 1 << 32;

/// What should be under a key.
struct Entry {
    file: usize,
    copy: u32,
    /// `None`: nothing.
    hash: Option<Hash>,
}

/// A run under way.
pub(crate) struct Run<'a> {
    buffer: &'a blocking::SpillBuffer<Key, Bytes>,
    runtime: &'a Handle,
    files: &'a Files,
    entries: Vec<Entry>,
    /// Weight that left memory so far, as the buffer's events say.
    spilled: Arc<AtomicU64>,
    /// Calls that failed and were made again.
    repeated: Cell<u64>,
    report: Report,
}

/// Measures one phase.
struct Meter {
    name: &'static str,
    started: Instant,
    in_calls: Duration,
    entries: u64,
    bytes: u64,
    bar: ProgressBar,
}

impl Meter {
    fn start(name: &'static str, steps: usize) -> Result<Self, Fault> {
        // Draws nothing where there is no terminal.
        let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
        bar.set_style(ProgressStyle::with_template("{msg:10} {wide_bar} {pos}/{len} {elapsed}")?);
        bar.set_message(name);
        Ok(Self { name, started: Instant::now(), in_calls: Duration::ZERO, entries: 0, bytes: 0, bar })
    }

    /// Measures one call of the buffer.
    fn call<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let result = call();
        self.in_calls += started.elapsed();
        result
    }

    fn step(&mut self, bytes: u64) {
        self.entries += 1;
        self.bytes += bytes;
        self.bar.inc(1);
    }

    fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    fn finish(self, phases: &mut Vec<Phase>) {
        self.bar.finish_and_clear();
        let phase = Phase {
            name: self.name,
            entries: self.entries,
            bytes: self.bytes,
            seconds: rounded(self.seconds()),
            in_calls: rounded(self.in_calls.as_secs_f64()),
            peak_rss: process::peak(),
        };
        crate::tell(&format!("{:<10} {phase}", phase.name));
        phases.push(phase);
    }
}

impl<'a> Run<'a> {
    pub(crate) fn new(
        buffer: &'a blocking::SpillBuffer<Key, Bytes>,
        runtime: &'a Handle,
        files: &'a Files,
        spilled: Arc<AtomicU64>,
        report: Report,
    ) -> Self {
        Self { buffer, runtime, files, entries: Vec::new(), spilled, repeated: Cell::new(0), report }
    }

    /// Runs all phases.
    pub(crate) fn run(mut self) -> Result<Report, Fault> {
        process::reset_peak();
        self.report.baseline_rss = process::resident();
        self.report.malloc_arena_max = process::arenas();
        self.insert_all()?;
        self.entries.shuffle(&mut StdRng::seed_from_u64(SEED));
        self.report.restore_mb_s = self.read_all("read")?;
        self.remove_half()?;
        self.overwrite_some()?;
        self.read_all("read again")?;
        self.audit("after the second read")?;
        self.remove_rest()?;
        self.audit("after removing all")?;
        self.close()?;
        // The system counts in batches, so a later look may show a little less.
        self.report.peak_rss = self.report.phases.iter().filter_map(|phase| phase.peak_rss).max();
        self.report.repeated = self.repeated.get();
        self.report.count(&self.buffer.inner().stats());
        Ok(self.report)
    }

    fn insert_all(&mut self) -> Result<(), Fault> {
        let repeat = self.report.repeat;
        let mut meter = Meter::start("insert", self.files.len() * repeat as usize)?;
        for copy in 0..repeat {
            for file in 0..self.files.len() {
                let hash = self.insert(&mut meter, (file, copy), file, u64::from(copy))?;
                self.entries.push(Entry { file, copy, hash: Some(hash) });
            }
        }
        let usage = self.rest();
        self.report.entries = meter.entries;
        self.report.bytes = meter.bytes;
        self.report.held = Held::from(&usage);
        self.report.spill_mb_s = megabytes_per_second(self.spilled.load(Relaxed), meter.seconds());
        meter.finish(&mut self.report.phases);
        self.audit("after the inserts")
    }

    /// Puts the content of a file, changed by a mark, under the key of `at`.
    fn insert(&self, meter: &mut Meter, at: (usize, u32), content: usize, mark: u64) -> Result<Hash, Fault> {
        let bytes = self.files.read(content, mark)?;
        let (hash, len) = (blake3::hash(&bytes), bytes.len() as u64);
        let key = self.files.key(at.0, at.1);
        let mut value = Arc::new(Bytes::from(bytes));
        let started = Instant::now();
        while let Err(refused) = meter.call(|| self.buffer.insert(key.clone(), value)) {
            if !self.may_pass(&refused.error, started) {
                return Err(refused.into());
            }
            value = refused.value;
        }
        meter.step(len);
        Ok(hash)
    }

    /// Whether a call that failed just now is to be repeated: waits a little if so.
    fn may_pass(&self, error: &spill_buffer::Error, started: Instant) -> bool {
        let again = error.is_retryable() && started.elapsed() < PATIENCE;
        if again {
            self.repeated.set(self.repeated.get() + 1);
            std::thread::sleep(TRY_AGAIN_AFTER);
        }
        again
    }

    /// A value, or why it is not to be had, after trying again for a while if that may help.
    fn get(&self, meter: &mut Meter, key: &Key) -> Result<Option<Arc<Bytes>>, spill_buffer::Error> {
        let started = Instant::now();
        loop {
            match meter.call(|| self.buffer.get(key)) {
                Err(error) if self.may_pass(&error, started) => {}
                found => return found,
            }
        }
    }

    /// Reads every key and checks what comes; how fast what had to be restored came.
    fn read_all(&mut self, name: &'static str) -> Result<Option<f64>, Fault> {
        let mut meter = Meter::start(name, self.entries.len())?;
        let (mut restored, mut restoring) = (0, Duration::ZERO);
        for index in 0..self.entries.len() {
            let key = self.key(index);
            let away = matches!(self.buffer.inner().location(&key), Some(Location::Tier(_)));
            let before = meter.in_calls;
            let found = self.get(&mut meter, &key);
            let len = found.as_ref().ok().and_then(Option::as_ref).map_or(0, |value| value.len() as u64);
            if away {
                restored += len;
                restoring += meter.in_calls - before;
            }
            meter.step(len);
            self.check(index, found);
        }
        meter.finish(&mut self.report.phases);
        Ok(megabytes_per_second(restored, restoring.as_secs_f64()))
    }

    fn check(&mut self, index: usize, found: Result<Option<Arc<Bytes>>, spill_buffer::Error>) {
        let problem = match (found, self.entries[index].hash) {
            (Ok(Some(value)), Some(hash)) if blake3::hash(&value) == hash => {
                self.report.verified += 1;
                return;
            }
            (Ok(None), None) => return,
            (Ok(Some(_)), _) => {
                self.report.wrong += 1;
                "came back changed, or was removed before".to_owned()
            }
            (Ok(None), Some(_)) => {
                self.report.lost += 1;
                "is not there".to_owned()
            }
            (Err(error), _) => {
                self.report.lost += 1;
                error.to_string()
            }
        };
        self.note(index, &problem);
    }

    fn note(&mut self, index: usize, problem: &str) {
        if self.report.problems.len() < PROBLEMS {
            let key = self.key(index);
            self.report.problems.push(format!("{key:?}: {problem}"));
        }
    }

    fn key(&self, index: usize) -> Key {
        let Entry { file, copy, .. } = self.entries[index];
        self.files.key(file, copy)
    }

    /// Every other entry, in the random order.
    fn remove_half(&mut self) -> Result<(), Fault> {
        self.remove("remove", |index| index % 2 == 0)
    }

    fn remove_rest(&mut self) -> Result<(), Fault> {
        self.remove("remove all", |_| true)
    }

    fn remove(&mut self, name: &'static str, which: fn(usize) -> bool) -> Result<(), Fault> {
        let mut meter = Meter::start(name, self.entries.len())?;
        for index in (0..self.entries.len()).filter(|index| which(*index)) {
            if self.entries[index].hash.is_none() {
                continue;
            }
            let key = self.key(index);
            if !meter.call(|| self.buffer.inner().remove(&key))? {
                self.report.lost += 1;
                self.note(index, "was not there to be removed");
            }
            self.entries[index].hash = None;
            meter.step(0);
        }
        meter.finish(&mut self.report.phases);
        Ok(())
    }

    /// A quarter of what is left gets the content of another file: longer ones, shorter ones.
    fn overwrite_some(&mut self) -> Result<(), Fault> {
        let which: Vec<_> = (0..self.entries.len()).filter(|index| index % 8 == 1).collect();
        let mut meter = Meter::start("overwrite", which.len())?;
        for index in which {
            let Entry { file, copy, .. } = self.entries[index];
            let other = (file + 1) % self.files.len();
            let hash = self.insert(&mut meter, (file, copy), other, OVERWRITTEN + u64::from(copy))?;
            self.entries[index].hash = Some(hash);
        }
        meter.finish(&mut self.report.phases);
        Ok(())
    }

    /// Waits until the buffer's tasks are done with what they were given.
    fn rest(&self) -> Usage {
        let started = Instant::now();
        let mut last = self.buffer.inner().usage();
        loop {
            std::thread::sleep(Duration::from_millis(5));
            let usage = self.buffer.inner().usage();
            let moving = usage.memory.spilling.entries + usage.memory.restoring + usage.total().in_flight;
            if (moving == 0 && usage == last) || started.elapsed() > REST_WITHIN {
                return usage;
            }
            last = usage;
        }
    }

    /// Recomputes the books. Space is given back in the background: what differs only meanwhile is no fault.
    fn audit(&mut self, when: &str) -> Result<(), Fault> {
        let started = Instant::now();
        loop {
            self.rest();
            let differences = self.runtime.block_on(self.buffer.inner().audit())?;
            if differences.is_empty() {
                return Ok(());
            }
            if started.elapsed() > REST_WITHIN {
                let differences = differences.into_iter().map(|difference| format!("{when}: {difference}"));
                self.report.unbalanced.extend(differences);
                return Ok(());
            }
        }
    }

    fn close(&mut self) -> Result<(), Fault> {
        let mut meter = Meter::start("close", 0)?;
        // What went well before is still worth a report.
        if let Err(error) = meter.call(|| self.buffer.close()) {
            self.report.unbalanced.push(error.to_string());
        }
        meter.finish(&mut self.report.phases);
        let usage = self.buffer.inner().usage();
        if !usage.is_empty() {
            self.report.unbalanced.push(format!("after closing: {usage:?}"));
        }
        Ok(())
    }
}

fn megabytes_per_second(bytes: u64, seconds: f64) -> Option<f64> {
    (bytes > 0 && seconds > 0.0).then(|| rounded(bytes as f64 / 1e6 / seconds))
}
