//! The numbers of a run, as a table and as JSON.

use std::fmt::{self, Display};

use serde::Serialize;
use spill_buffer::{Stats, TierUsage, Usage, format_bytes};

/// Everything a run has measured, in bytes and seconds.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) directory: String,
    pub(crate) files: u64,
    pub(crate) repeat: u32,
    pub(crate) compress: String,
    pub(crate) entries: u64,
    /// Weight of all entries, when all are in.
    pub(crate) bytes: u64,
    /// Values that came back as they went in.
    pub(crate) verified: u64,
    /// Values that did not come back.
    pub(crate) lost: u64,
    /// Values that came back changed, or should not have come back at all.
    pub(crate) wrong: u64,
    pub(crate) memory_limit: u64,
    pub(crate) peak_rss: Option<u64>,
    pub(crate) baseline_rss: Option<u64>,
    /// Arenas that glibc was told to use.
    pub(crate) malloc_arena_max: Option<String>,
    #[serde(flatten)]
    pub(crate) held: Held,
    pub(crate) spill_mb_s: Option<f64>,
    pub(crate) restore_mb_s: Option<f64>,
    /// Calls that failed in passing and were made again.
    pub(crate) repeated: u64,
    pub(crate) reads: Reads,
    pub(crate) phases: Vec<Phase>,
    pub(crate) work: Work,
    /// What an audit of the books found, or was not empty after all was removed.
    pub(crate) unbalanced: Vec<String>,
    /// What is left of the session directories.
    pub(crate) left_behind: Vec<String>,
    /// The first few things that went wrong, in words.
    pub(crate) problems: Vec<String>,
}

/// What the buffer held when everything was in.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Held {
    pub(crate) resident_entries: u64,
    pub(crate) resident_weight: u64,
    pub(crate) spilled_entries: u64,
    pub(crate) spilled_weight: u64,
    pub(crate) encoded: u64,
    pub(crate) stored: u64,
    pub(crate) allocated: u64,
    pub(crate) blobs: u64,
    /// Bytes from the codec per byte stored.
    pub(crate) ratio: Option<f64>,
    pub(crate) tiers: Vec<Tier>,
}

/// What one tier held when everything was in.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Tier {
    pub(crate) name: String,
    pub(crate) entries: u64,
    pub(crate) weight: u64,
    pub(crate) stored: u64,
    pub(crate) garbage: u64,
    pub(crate) blobs: u64,
}

impl From<&Usage> for Held {
    fn from(usage: &Usage) -> Self {
        let total = usage.total();
        Self {
            resident_entries: usage.memory.resident.entries,
            resident_weight: usage.memory.resident.weight,
            spilled_entries: usage.spilled.entries,
            spilled_weight: usage.spilled.weight,
            encoded: total.encoded,
            stored: total.stored,
            allocated: total.allocated,
            blobs: total.blobs,
            ratio: (total.stored > 0).then(|| rounded(total.encoded as f64 / total.stored as f64)),
            tiers: usage.tiers.iter().map(Tier::from).collect(),
        }
    }
}

impl From<&TierUsage> for Tier {
    fn from(tier: &TierUsage) -> Self {
        let &TierUsage { entries, weight, stored, garbage, blobs, .. } = tier;
        Self { name: tier.name.clone(), entries, weight, stored, garbage, blobs }
    }
}

impl Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, entries, weight, stored, blobs, .. } = self;
        let (weight, stored) = (format_bytes(*weight), format_bytes(*stored));
        write!(f, "{weight} in {entries} entries, {stored} stored in {blobs} blobs: {name}")
    }
}

/// Reads of the whole run by kind.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Reads {
    pub(crate) resident: u64,
    pub(crate) clean: u64,
    pub(crate) alive: u64,
    pub(crate) restored: u64,
    pub(crate) absent: u64,
    pub(crate) store_reads: u64,
    pub(crate) store_bytes: u64,
}

/// Seconds that the buffer's tasks spent on each kind of work, in the whole run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Work {
    pub(crate) encode: f64,
    pub(crate) compress: f64,
    pub(crate) write: f64,
    pub(crate) read: f64,
    pub(crate) decompress: f64,
    pub(crate) decode: f64,
    pub(crate) blobs_written: u64,
    pub(crate) bytes_written: u64,
    pub(crate) bytes_compacted: u64,
    pub(crate) write_failures: u64,
    pub(crate) restore_failures: u64,
}

/// One phase, by the clock on the wall.
#[derive(Debug, Serialize)]
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    /// Of these, in calls of the buffer. The rest is reading and hashing files.
    pub(crate) in_calls: f64,
    /// Of the process so far.
    pub(crate) peak_rss: Option<u64>,
}

impl Report {
    /// Whether nothing at all went wrong.
    pub(crate) fn is_good(&self) -> bool {
        let Self { lost, wrong, unbalanced, left_behind, .. } = self;
        (*lost, *wrong) == (0, 0) && unbalanced.is_empty() && left_behind.is_empty()
    }

    /// Takes over what the buffer counted.
    pub(crate) fn count(&mut self, stats: &Stats) {
        self.reads = Reads {
            resident: stats.hits_resident,
            clean: stats.hits_clean,
            alive: stats.hits_alive,
            restored: stats.hits_restored,
            absent: stats.misses,
            store_reads: stats.reads,
            store_bytes: stats.bytes_read,
        };
        self.work = Work {
            encode: rounded(stats.encode.as_secs_f64()),
            compress: rounded(stats.compress.as_secs_f64()),
            write: rounded(stats.write.as_secs_f64()),
            read: rounded(stats.read.as_secs_f64()),
            decompress: rounded(stats.decompress.as_secs_f64()),
            decode: rounded(stats.decode.as_secs_f64()),
            blobs_written: stats.blobs_written,
            bytes_written: stats.bytes_written,
            bytes_compacted: stats.bytes_compacted,
            write_failures: stats.write_failures,
            restore_failures: stats.restore_failures,
        };
    }
}

/// To a thousandth.
pub(crate) fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

/// The table.
impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (held, reads) = (&self.held, &self.reads);
        let speed = |speed: Option<f64>| speed.map_or("nothing moved".into(), |mb| format!("{mb:.0} MB/s"));
        let bytes = |bytes: Option<u64>| bytes.map_or("unknown".into(), format_bytes);
        row(f, "files", format_args!("{} × {} in {}", self.files, self.repeat, self.directory))?;
        row(f, "entries", format_args!("{}", self.entries))?;
        row(f, "bytes in", format_bytes(self.bytes))?;
        row(f, "memory limit", format_bytes(self.memory_limit))?;
        row(f, "resident", weight(held.resident_weight, held.resident_entries))?;
        row(f, "spilled", weight(held.spilled_weight, held.spilled_entries))?;
        row(f, "  encoded", format_bytes(held.encoded))?;
        row(f, "  stored", format_args!("{}, compress = {}", format_bytes(held.stored), self.compress))?;
        row(f, "  allocated", format_args!("{} in {} blobs", format_bytes(held.allocated), held.blobs))?;
        row(f, "  ratio", held.ratio.map_or("nothing spilled".into(), |ratio| format!("{ratio:.2}")))?;
        for tier in held.tiers.iter().filter(|_| held.tiers.len() > 1) {
            row(f, "  tier", tier)?;
        }
        row(
            f,
            "reads",
            format_args!(
                "{} resident, {} clean, {} alive elsewhere, {} restored, {} absent",
                reads.resident, reads.clean, reads.alive, reads.restored, reads.absent
            ),
        )?;
        let work = &self.work;
        row(
            f,
            "requests",
            format_args!(
                "{} blobs written ({} failures), {} reads ({} failures), {} calls made again",
                work.blobs_written,
                work.write_failures,
                reads.store_reads,
                work.restore_failures,
                self.repeated
            ),
        )?;
        row(f, "spill", speed(self.spill_mb_s))?;
        row(f, "restore", speed(self.restore_mb_s))?;
        row(
            f,
            "peak memory",
            format_args!("{}, before the first insert {}", bytes(self.peak_rss), bytes(self.baseline_rss)),
        )?;
        for phase in &self.phases {
            row(f, phase.name, phase)?;
        }
        row(
            f,
            "result",
            format_args!("{} verified, {} lost, {} wrong", self.verified, self.lost, self.wrong),
        )?;
        let wrong = [&self.unbalanced, &self.left_behind, &self.problems];
        wrong.into_iter().flatten().try_for_each(|line| row(f, "!", line))
    }
}

impl Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entries, bytes, seconds, in_calls, .. } = self;
        write!(f, "{seconds:.2} s ({in_calls:.2} s in calls), {entries} entries, {}", format_bytes(*bytes))
    }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, value: impl Display) -> fmt::Result {
    writeln!(f, "{name:<14} {value}")
}

fn weight(weight: u64, entries: u64) -> String {
    format!("{} in {entries} entries", format_bytes(weight))
}
