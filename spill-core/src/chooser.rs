//! Which of several ways to compress suits a tier, learned from how long compressing and writing take. Pure: it is
//! told what was measured, and says what to do with the next batch. The same measurements lead to the same choices.
//!
//! The time that a byte of input takes is foretold from three numbers: nanoseconds per byte to compress it, the share
//! of it that is stored, nanoseconds per stored byte to write it. Some jobs at a time compress and then write, so a
//! byte costs the longest of: its write (the medium takes one after the other), its compression spread over cores,
//! both spread over the jobs. A little per stored byte comes on top, so that of two that are about as quick the one
//! that saves space is taken.
//!
//! Others than the chosen way are tried on a small part of a batch: each at first, then more and more rarely, never
//! for more than [`ALLOWED`] of all time, and sooner again when one of them has changed.

/// What one way did to some values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Bytes of the values.
    pub(crate) raw: u64,
    /// Bytes of their frames.
    pub(crate) stored: u64,
    /// Time compressing.
    pub(crate) nanos: u64,
}

/// What to do with a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The way for what is left after trying.
    pub(crate) chosen: usize,
    /// Ways to be tried first, each on [`TRIED`] bytes of values.
    pub(crate) tried: Vec<usize>,
}

impl Plan {
    /// The way of the next value, when this much was done with each in this batch.
    pub(crate) fn next(&self, done: &[Tally]) -> usize {
        let has_enough = |way: &usize| done.get(*way).is_none_or(|tally| tally.raw >= TRIED);
        self.tried.iter().copied().find(|way| !has_enough(way)).unwrap_or(self.chosen)
    }
}

/// Bytes of a batch that a way is tried on: as many as a timer measures well, a small part of most batches.
const TRIED: u64 = 128 << 10;
/// Fewer bytes are put together before they count as measured.
const MEASURED: u64 = 32 << 10;
/// The cost of a stored byte beyond that of writing it, as a part of that.
const SPACE: f64 = 0.1;
/// Another way has to be better by this part.
const BETTER: f64 = 0.03;
/// The part of all time that trying may cost.
const ALLOWED: f64 = 0.03;
/// Batches between two tries, at first and at most.
const FIRST_WAIT: u32 = 4;
const LONGEST_WAIT: u32 = 16;
/// Samples before a way counts as known: the first one pays for its buffers as well.
const KNOWN: u32 = 2;
/// What a new sample counts against all before it.
const NEW: f64 = 0.3;

/// Learns which way is best. The first way is to leave values as they are, which needs no trying.
#[derive(Debug)]
pub(crate) struct Chooser {
    ways: Vec<Way>,
    /// Nanoseconds per stored byte, when nothing else is written at the time.
    write: Average,
    chosen: usize,
    /// Jobs that compress and write at the same time, and cores that they share.
    jobs: f64,
    cores: f64,
    /// Batches since the last try, and how many there have to be.
    waited: u32,
    wait: u32,
    /// The last one that was tried.
    tried: usize,
    /// Nanoseconds that trying cost more than the chosen way would have, and those of everything.
    spent: f64,
    total: f64,
}

#[derive(Debug, Default)]
struct Way {
    /// Nanoseconds per byte of values.
    time: Average,
    /// Stored bytes per byte of values.
    ratio: Average,
    /// Too few to count yet.
    pending: Tally,
}

impl Chooser {
    /// For so many ways, one at least; of so many jobs at once, on so many cores.
    pub(crate) fn new(ways: usize, jobs: usize, cores: usize) -> Self {
        let mut ways: Vec<Way> = std::iter::repeat_with(Way::default).take(ways.max(1)).collect();
        ways[0] = Way { time: Average::of(0.0), ratio: Average::of(1.0), pending: Tally::default() };
        let whole = |count: usize| u32::try_from(count.max(1)).map_or(1.0, f64::from);
        Self {
            // Until something was measured, what costs little and saves much everywhere.
            chosen: 1.min(ways.len() - 1),
            ways,
            write: Average::default(),
            jobs: whole(jobs),
            cores: whole(cores.min(jobs)),
            waited: 0,
            wait: FIRST_WAIT,
            tried: 0,
            spent: 0.0,
            total: 0.0,
        }
    }

    /// What to do with the next batch.
    pub(crate) fn plan(&mut self) -> Plan {
        let unknown: Vec<usize> = (0..self.ways.len()).filter(|way| !self.ways[*way].is_known()).collect();
        if !unknown.is_empty() {
            return Plan { chosen: self.chosen, tried: unknown };
        }
        self.waited = self.waited.saturating_add(1);
        Plan { chosen: self.chosen, tried: self.due().into_iter().collect() }
    }

    /// The way whose turn it is to be tried, if it is time and there is some to spare.
    fn due(&mut self) -> Option<usize> {
        if self.waited < self.wait {
            return None;
        }
        let count = self.ways.len();
        let mut others = (1..=count).map(|step| (self.tried + step) % count);
        let left = self.total * ALLOWED - self.spent;
        let way = others
            .find(|way| *way != 0 && *way != self.chosen && self.lost_by(*way) * as_float(TRIED) <= left)?;
        (self.tried, self.waited) = (way, 0);
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
        Some(way)
    }

    /// A batch was compressed: what was done with each way.
    pub(crate) fn compressed(&mut self, done: &[Tally]) {
        for (index, tally) in done.iter().enumerate().take(self.ways.len()).filter(|(_, tally)| tally.raw > 0)
        {
            let raw = as_float(tally.raw);
            self.total += raw * self.expected(self.chosen);
            if index != self.chosen {
                self.spent += raw * self.lost_by(index);
                self.total += raw * self.lost_by(index);
            }
            let changed = self.ways[index].measured(*tally);
            if changed && index != self.chosen {
                // To be sure of it soon.
                (self.wait, self.tried) = (FIRST_WAIT, index.saturating_sub(1));
            }
        }
        self.choose();
    }

    /// A blob was written, when so many were at the same time, itself included.
    pub(crate) fn wrote(&mut self, stored: u64, nanos: u64, at_once: u32) {
        if stored > 0 {
            self.write.push(as_float(nanos) / as_float(stored) / f64::from(at_once.max(1)));
            self.choose();
        }
    }

    fn choose(&mut self) {
        if self.write.seen == 0 {
            return;
        }
        let known = (0..self.ways.len()).filter(|way| self.ways[*way].is_known());
        let costs = known.map(|way| (way, self.expected(way)));
        let Some((best, cost)) = costs.min_by(|one, other| one.1.total_cmp(&other.1)) else { return };
        let is_better = cost < self.expected(self.chosen) * (1.0 - BETTER);
        if best != self.chosen && (is_better || !self.ways[self.chosen].is_known()) {
            (self.chosen, self.wait) = (best, FIRST_WAIT);
        }
    }

    /// Nanoseconds that a byte takes.
    fn expected(&self, way: usize) -> f64 {
        let Way { time, ratio, .. } = &self.ways[way];
        let write = ratio.mean * self.write.mean;
        write.max(time.mean / self.cores).max((time.mean + write) / self.jobs) + SPACE * write
    }

    /// Nanoseconds per byte that this way takes longer than the chosen one.
    fn lost_by(&self, way: usize) -> f64 {
        (self.expected(way) - self.expected(self.chosen)).max(0.0)
    }
}

impl Way {
    fn is_known(&self) -> bool {
        self.time.seen >= KNOWN
    }

    /// `true`: it is not what it was.
    fn measured(&mut self, tally: Tally) -> bool {
        let pending = &mut self.pending;
        pending.raw += tally.raw;
        pending.stored += tally.stored;
        pending.nanos += tally.nanos;
        if pending.raw < MEASURED {
            return false;
        }
        let done = std::mem::take(pending);
        let (time, ratio) =
            (as_float(done.nanos) / as_float(done.raw), as_float(done.stored) / as_float(done.raw));
        let has_changed = self.is_known()
            && ((ratio - self.ratio.mean).abs() > 0.1
                || time > 2.0 * self.time.mean
                || time < self.time.mean / 2.0);
        self.time.push(time);
        self.ratio.push(ratio);
        has_changed
    }
}

/// A mean that forgets, of the middle one of three samples each: one that is far off changes nothing.
#[derive(Debug, Default)]
struct Average {
    last: [f64; 3],
    seen: u32,
    mean: f64,
}

impl Average {
    /// As if that had been seen often.
    fn of(value: f64) -> Self {
        Self { last: [value; 3], seen: u32::MAX, mean: value }
    }

    fn push(&mut self, sample: f64) {
        self.last.rotate_left(1);
        self.last[2] = sample;
        self.seen = self.seen.saturating_add(1);
        let [first, second, third] = self.last;
        self.mean = match self.seen {
            1 => third,
            // What is wrong with the first one makes it longer.
            2 => second.min(third),
            _ => {
                let middle = first.max(second).min(first.min(second).max(third));
                self.mean + (middle - self.mean) * if self.seen == 3 { 1.0 } else { NEW }
            }
        };
    }
}

#[expect(clippy::cast_precision_loss, reason = "beyond 2^53 nothing here is exact anyhow")]
fn as_float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests;
