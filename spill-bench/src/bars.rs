//! What has to come out: the ratios that Spill is held to, and whether it keeps them.

use crate::report::Report;

/// One thing to hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bar {
    pub(crate) scenario: &'static str,
    pub(crate) case: &'static str,
    pub(crate) figure: &'static str,
    /// Systems, the best of which is compared with. None: the figure itself is compared.
    pub(crate) against: &'static [&'static str],
    pub(crate) holds: Holds,
    /// Another figure that is shown with it, and not judged.
    pub(crate) beside: Option<&'static str>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Holds {
    AtLeast(f64),
    AtMost(f64),
    /// At most so much below the best of the others, where ratios say little.
    Below(f64),
    /// At most so many times what the same figure is in another case.
    TimesCase(f64, &'static str),
    /// At least so many times the best of the others or what the other named makes, whichever is lower.
    AtLeastOfLower(f64, &'static str),
    /// At least so many times the best that the same figure is in other cases.
    AtLeastOfCases(f64, &'static [&'static str]),
}

/// A bar, and what came out.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) bar: Bar,
    /// Spill's figure, as a multiple of the other's if there is one, or how far it is below it. None: one is missing.
    pub(crate) value: Option<f64>,
    pub(crate) beside: Option<f64>,
}

impl Outcome {
    /// None: it can't be judged.
    pub(crate) fn held(&self) -> Option<bool> {
        let value = self.value?;
        Some(match self.bar.holds {
            AtLeast(least) | AtLeastOfLower(least, _) | AtLeastOfCases(least, _) => value >= least,
            AtMost(most) | Below(most) | TimesCase(most, _) => value <= most,
        })
    }
}

const fn bar(
    scenario: &'static str,
    case: &'static str,
    figure: &'static str,
    against: &'static [&'static str],
    holds: Holds,
) -> Bar {
    Bar { scenario, case, figure, against, holds, beside: None }
}

/// Of the most memory, in MiB beyond what was allowed. Of small values there are many, and the table of their keys is in
/// it, which has a bar of its own: what it may take is taken off.
const fn memory(scenario: &'static str, case: &'static str, small: bool) -> Bar {
    let whole = "peak MiB over memory";
    let figure = if small { "peak less index MiB over memory" } else { whole };
    let beside = if small { Some(whole) } else { None };
    Bar { scenario, case, figure, against: &[], holds: AtMost(32.0), beside }
}

use Holds::{AtLeast, AtLeastOfCases, AtLeastOfLower, AtMost, Below, TimesCase};

/// The better one. Synced, because what is in the page cache is not written.
const RAW: &[&str] = &["raw", "raw O_DIRECT"];
const QUICK: &[&str] = &["quick_cache"];
const MOKA: &[&str] = &["moka"];
const FOYER: &[&str] = &["foyer fifo", "foyer lru", "foyer s3-fifo", "foyer sieve", "foyer lfu"];
const SHIPPED: &[&str] = &["lru", "fifo", "clock", "s3-fifo", "sieve"];
const CODEC: Holds = AtLeastOfLower(0.85, "bare codec");
/// 1.1 times the time of the best.
const AS_FIXED: f64 = 1.0 / 1.1;
const FIXED_TEXT: Holds =
    AtLeastOfCases(AS_FIXED, &["64 KiB, text, none", "64 KiB, text, lz4", "64 KiB, text, zstd:1"]);
const FIXED_ROWS: Holds = AtLeastOfCases(
    AS_FIXED,
    &["64 KiB, mixed rows, none", "64 KiB, mixed rows, lz4", "64 KiB, mixed rows, zstd:1"],
);
const FIXED_INT64: Holds =
    AtLeastOfCases(AS_FIXED, &["64 KiB, int64, none", "64 KiB, int64, lz4", "64 KiB, int64, zstd:1"]);
const FIXED_RANDOM: Holds =
    AtLeastOfCases(AS_FIXED, &["64 KiB, random, none", "64 KiB, random, lz4", "64 KiB, random, zstd:1"]);
const FIXED_SMALL: Holds =
    AtLeastOfCases(AS_FIXED, &["4 KiB, text, none", "4 KiB, text, lz4", "4 KiB, text, zstd:1"]);
const SMALLER: Holds = TimesCase(1.5, "10^5 keys");

const PACED: &[&str] = &["foyer paced", "foyer paced O_DIRECT"];
const PEERS: &[&str] = &["foyer paced", "foyer paced O_DIRECT", "fjall", "redb", "files"];

pub(crate) const BARS: &[Bar] = &[
    bar("hot", "peek, u64, 1 thread", "M ops/s", QUICK, AtLeast(1.2)),
    bar("hot", "peek, u64, 1 thread", "M ops/s", MOKA, AtLeast(3.0)),
    bar("hot", "peek, u64, 2 threads", "M ops/s", QUICK, AtLeast(1.2)),
    bar("hot", "peek, u64, 2 threads", "M ops/s", MOKA, AtLeast(3.0)),
    bar("hot", "peek, String, 1 thread", "M ops/s", QUICK, AtLeast(1.2)),
    bar("hot", "peek, String, 1 thread", "M ops/s", MOKA, AtLeast(3.0)),
    bar("hot", "peek, String, 2 threads", "M ops/s", QUICK, AtLeast(1.2)),
    bar("hot", "peek, String, 2 threads", "M ops/s", MOKA, AtLeast(3.0)),
    bar("hot", "get, u64, 1 thread", "M ops/s", QUICK, AtLeast(1.0)),
    bar("hot", "get, u64, 2 threads", "M ops/s", QUICK, AtLeast(1.0)),
    bar("hot", "get, String, 1 thread", "M ops/s", QUICK, AtLeast(1.0)),
    bar("hot", "get, String, 2 threads", "M ops/s", QUICK, AtLeast(1.0)),
    bar("hot", "peek, u64, counted", "allocations/op", &[], AtMost(0.001)),
    bar("hot", "get, u64, counted", "allocations/op", &[], AtMost(0.001)),
    bar("hot", "peek, String, counted", "allocations/op", &[], AtMost(0.001)),
    bar("hot", "get, String, counted", "allocations/op", &[], AtMost(0.001)),
    bar("hot", "churn, u64, 1 thread", "M ops/s", QUICK, AtLeast(1.0)),
    bar("hot", "churn, u64, 1 thread", "M ops/s", FOYER, AtLeast(2.0)),
    bar("hot", "churn, u64, 2 threads", "M ops/s", QUICK, AtLeast(1.0)),
    bar("hot", "churn, u64, 2 threads", "M ops/s", FOYER, AtLeast(2.0)),
    bar("hot", "churn, String, 1 thread", "M ops/s", QUICK, AtLeast(1.0)),
    bar("hot", "churn, String, 1 thread", "M ops/s", FOYER, AtLeast(2.0)),
    bar("hot", "churn, String, 2 threads", "M ops/s", QUICK, AtLeast(1.0)),
    bar("hot", "churn, String, 2 threads", "M ops/s", FOYER, AtLeast(2.0)),
    bar("spill", "4 KiB, random, none", "MB/s synced", RAW, AtLeast(0.8)),
    bar("spill", "64 KiB, random, none", "MB/s synced", RAW, AtLeast(0.85)),
    bar("spill", "1 MiB, random, none", "MB/s synced", RAW, AtLeast(0.9)),
    bar("spill", "16 MiB, random, none", "MB/s synced", RAW, AtLeast(0.9)),
    bar("spill", "64 KiB, random, none", "CPU s/GiB", &["raw+copy+checksum"], AtMost(1.3)),
    bar("spill", "1 MiB, random, none", "CPU s/GiB", &["raw+copy+checksum"], AtMost(1.3)),
    bar("spill", "16 MiB, random, none", "CPU s/GiB", &["raw+copy+checksum"], AtMost(1.3)),
    memory("spill", "512 B, random, none", true),
    memory("spill", "4 KiB, random, none", true),
    memory("spill", "64 KiB, random, none", false),
    memory("spill", "1 MiB, random, none", false),
    memory("spill", "16 MiB, random, none", false),
    bar("spill", "4 KiB, random, none", "insert p99 µs", &[], AtMost(200.0)),
    bar("spill", "4 KiB, random, none", "allocated/stored", &[], AtMost(1.05)),
    bar("object", "4 KiB", "MB/s", &["8 uploads"], AtLeast(0.7)),
    bar("object", "64 KiB", "MB/s", &["8 uploads"], AtLeast(0.7)),
    bar("object", "1 MiB", "MB/s", &["8 uploads"], AtLeast(0.7)),
    bar("spill", "64 KiB, text, lz4", "MB/s synced", RAW, CODEC),
    bar("spill", "64 KiB, text, zstd:1", "MB/s synced", RAW, CODEC),
    bar("spill", "64 KiB, mixed rows, lz4", "MB/s synced", RAW, CODEC),
    bar("spill", "64 KiB, mixed rows, zstd:1", "MB/s synced", RAW, CODEC),
    bar("spill", "4 KiB, text, lz4", "MB/s synced", RAW, CODEC),
    bar("spill", "4 KiB, text, zstd:1", "MB/s synced", RAW, CODEC),
    bar("spill", "64 KiB, text, auto", "MB/s synced", &[], FIXED_TEXT),
    bar("spill", "64 KiB, mixed rows, auto", "MB/s synced", &[], FIXED_ROWS),
    bar("spill", "64 KiB, int64, auto", "MB/s synced", &[], FIXED_INT64),
    bar("spill", "64 KiB, random, auto", "MB/s synced", &[], FIXED_RANDOM),
    bar("spill", "4 KiB, text, auto", "MB/s synced", &[], FIXED_SMALL),
    memory("spill", "64 KiB, text, lz4", false),
    memory("spill", "64 KiB, text, zstd:1", false),
    memory("object", "4 KiB", true),
    memory("object", "64 KiB", false),
    memory("object", "1 MiB", false),
    // For waves read as written or newest first the documentation of the policies says what to choose instead.
    bar("policy", "zipf", "hit ratio", SHIPPED, Below(0.03)),
    bar("policy", "zipf + 20 % scans", "hit ratio", SHIPPED, Below(0.03)),
    bar("policy", "loop over 110 %", "hit ratio", SHIPPED, Below(0.03)),
    bar("policy", "loop over 150 %", "hit ratio", SHIPPED, Below(0.03)),
    bar("policy", "loop over 200 %", "hit ratio", SHIPPED, Below(0.03)),
    bar("policy", "waves of 50 %", "hit ratio", SHIPPED, Below(0.03)),
    bar("policy", "waves of 90 %", "hit ratio", SHIPPED, Below(0.03)),
    bar("policy", "waves of 125 %", "hit ratio", SHIPPED, Below(0.03)),
    bar("policy", "waves of 200 %", "hit ratio", SHIPPED, Below(0.03)),
    bar("policy", "waves of 400 %", "hit ratio", SHIPPED, Below(0.03)),
    bar("policy", "overlapping waves of 50 %", "hit ratio", SHIPPED, Below(0.03)),
    bar("policy", "overlapping waves of 90 %", "hit ratio", SHIPPED, Below(0.03)),
    bar("scale", "10^7 keys", "ns/insert resident", &[], SMALLER),
    bar("scale", "10^7 keys", "ns/get resident", &[], SMALLER),
    bar("scale", "10^7 keys", "ns/remove resident", &[], SMALLER),
    bar("scale", "10^7 keys", "ns/insert spilled", &[], SMALLER),
    bar("scale", "10^7 keys", "ns/get spilled", &[], SMALLER),
    bar("scale", "10^7 keys", "ns/remove spilled", &[], SMALLER),
    bar("scale", "10^7 keys", "bytes/spilled key", &[], AtMost(120.0)),
    bar("spill", "4 KiB, random, none", "MB/s", &["fjall"], AtLeast(1.5)),
    bar("spill", "4 KiB, random, none", "MB/s", PACED, AtLeast(1.0)),
    bar("spill", "4 KiB, random, none", "allocated/value bytes", PACED, AtMost(0.6)),
    bar("spill", "4 KiB, random, none", "MB/s", &["dask"], AtLeast(50.0)),
    bar("spill", "64 KiB, random, none", "MB/s", PEERS, AtLeast(1.3)),
    bar("spill", "1 MiB, random, none", "MB/s", PEERS, AtLeast(1.3)),
    bar("spill", "16 MiB, random, none", "MB/s", PEERS, AtLeast(1.3)),
    bar("spill", "64 KiB, random, none", "MB/s", &["dask"], AtLeast(5.0)),
    bar("spill", "1 MiB, random, none", "MB/s", &["dask"], AtLeast(2.0)),
    bar("restore", "4 KiB, cold, 1 in flight", "MB/s", &["pread"], AtLeast(0.85)),
    bar("restore", "4 KiB, cold, 32 in flight", "MB/s", &["io_uring O_DIRECT"], AtLeast(0.8)),
    bar("restore", "4 KiB, cold, 1 in flight", "MB/s", &["fjall"], AtLeast(1.5)),
    bar("restore", "4 KiB, cold, 32 in flight", "MB/s", &["fjall"], AtLeast(1.5)),
    bar("restore", "4 KiB, cold, get_many of 16", "MB/s", &["spill singly"], AtLeast(5.0)),
    bar("restore", "64 KiB, cold, 1 in flight", "MB/s", &["pread"], AtLeast(0.9)),
    bar(
        "restore",
        "64 KiB, cold, 32 in flight",
        "MB/s",
        &["pread on threads", "io_uring O_DIRECT"],
        AtLeast(0.9),
    ),
    bar("restore", "64 KiB, cold, 1 in flight", "MB/s", PEERS, AtLeast(1.2)),
    bar("restore", "64 KiB, cold, 32 in flight", "MB/s", PEERS, AtLeast(1.2)),
    bar("restore", "64 KiB, warm, 1 in flight", "MB/s", &["pread"], AtLeast(0.9)),
    bar("restore", "64 KiB, warm, 32 in flight", "MB/s", &["pread on threads"], AtLeast(0.9)),
    bar("restore", "64 KiB, warm, 1 in flight", "MB/s", PEERS, AtLeast(1.2)),
    bar("restore", "64 KiB, warm, 32 in flight", "MB/s", PEERS, AtLeast(1.2)),
    bar("restore", "1 MiB, cold, 1 in flight", "MB/s", &["pread"], AtLeast(0.9)),
    bar(
        "restore",
        "1 MiB, cold, 32 in flight",
        "MB/s",
        &["pread on threads", "io_uring O_DIRECT"],
        AtLeast(0.9),
    ),
    bar("restore", "1 MiB, cold, 1 in flight", "MB/s", PEERS, AtLeast(1.2)),
    bar("restore", "1 MiB, cold, 32 in flight", "MB/s", PEERS, AtLeast(1.2)),
    bar("restore", "1 MiB, warm, 1 in flight", "MB/s", &["pread"], AtLeast(0.9)),
    bar("restore", "1 MiB, warm, 32 in flight", "MB/s", &["pread on threads"], AtLeast(0.9)),
    bar("restore", "1 MiB, warm, 1 in flight", "MB/s", PEERS, AtLeast(1.2)),
    bar("restore", "1 MiB, warm, 32 in flight", "MB/s", PEERS, AtLeast(1.2)),
    memory("restore", "4 KiB, cold, 32 in flight", true),
    memory("restore", "64 KiB, cold, 32 in flight", false),
    memory("restore", "1 MiB, cold, 32 in flight", false),
    bar("mixed", "4 KiB", "allocated/live at most", &[], AtMost(1.5)),
    memory("mixed", "4 KiB", true),
    bar("mixed", "4 KiB", "stale", &[], AtMost(0.0)),
    bar("stalls", "spill, 4 KiB, random, none", "turn max µs", &[], AtMost(2000.0)),
    bar("stalls", "spill, 64 KiB, random, none", "turn max µs", &[], AtMost(2000.0)),
    bar("stalls", "spill, 1 MiB, random, none", "turn max µs", &[], AtMost(2000.0)),
    bar("stalls", "spill, 64 KiB, text, zstd:1", "turn max µs", &[], AtMost(2000.0)),
    bar("stalls", "mixed, 4 KiB", "turn max µs", &[], AtMost(2000.0)),
    memory("lost", "65 536 values of 4 KiB", true),
    memory("lost", "16 384 values of 64 KiB", false),
    bar("lost", "65 536 values of 4 KiB", "lost", &[], AtMost(0.0)),
    bar("lost", "16 384 values of 64 KiB", "lost", &[], AtMost(0.0)),
];

/// The bars on cases that Spill ran in.
pub(crate) fn outcomes(report: &Report) -> Vec<Outcome> {
    let ran = |bar: &&Bar| report.of(bar.scenario, bar.case, "spill").next().is_some();
    let outcome = |bar: &Bar| {
        let beside = bar.beside.and_then(|figure| report.median(bar.scenario, bar.case, "spill", figure));
        Outcome { bar: *bar, value: value(report, *bar), beside }
    };
    BARS.iter().filter(ran).map(outcome).collect()
}

fn value(report: &Report, bar: Bar) -> Option<f64> {
    let median = |system| report.median(bar.scenario, bar.case, system, bar.figure);
    let others: Vec<f64> = bar.against.iter().filter_map(|system| median(system)).collect();
    let highest = others.iter().copied().reduce(f64::max);
    let other = match bar.holds {
        AtLeast(_) | AtMost(_) if bar.against.is_empty() => 1.0,
        AtLeast(_) | Below(_) => highest?,
        AtMost(_) => others.iter().copied().reduce(f64::min)?,
        TimesCase(_, case) => report.median(bar.scenario, case, "spill", bar.figure)?,
        AtLeastOfLower(_, other) => highest?.min(median(other)?),
        AtLeastOfCases(_, cases) => {
            let of_cases = cases.iter().map(|case| report.median(bar.scenario, case, "spill", bar.figure));
            of_cases.collect::<Option<Vec<f64>>>()?.into_iter().reduce(f64::max)?
        }
    };
    let own = median("spill")?;
    Some(if matches!(bar.holds, Below(_)) { other - own } else { own / other })
}
