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
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Holds {
    AtLeast(f64),
    AtMost(f64),
}

/// A bar, and what came out.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) bar: Bar,
    /// Spill's figure, as a multiple of the other's if there is one.
    pub(crate) value: f64,
    pub(crate) held: bool,
}

const fn bar(
    scenario: &'static str,
    case: &'static str,
    figure: &'static str,
    against: &'static [&'static str],
    holds: Holds,
) -> Bar {
    Bar { scenario, case, figure, against, holds }
}

use Holds::{AtLeast, AtMost};

pub(crate) const BARS: &[Bar] = &[
    bar("spill", "4 KiB, random, none", "MB/s", &["raw"], AtLeast(0.8)),
    bar("spill", "64 KiB, random, none", "MB/s", &["raw"], AtLeast(0.85)),
    bar("spill", "1 MiB, random, none", "MB/s", &["raw"], AtLeast(0.9)),
    bar("spill", "16 MiB, random, none", "MB/s", &["raw"], AtLeast(0.9)),
    bar("spill", "64 KiB, random, none", "CPU s/GiB", &["raw+copy+checksum"], AtMost(1.3)),
    bar("spill", "1 MiB, random, none", "CPU s/GiB", &["raw+copy+checksum"], AtMost(1.3)),
    bar("spill", "16 MiB, random, none", "CPU s/GiB", &["raw+copy+checksum"], AtMost(1.3)),
    bar("spill", "512 B, random, none", "peak MiB over memory", &[], AtMost(32.0)),
    bar("spill", "4 KiB, random, none", "peak MiB over memory", &[], AtMost(32.0)),
    bar("spill", "64 KiB, random, none", "peak MiB over memory", &[], AtMost(32.0)),
    bar("spill", "1 MiB, random, none", "peak MiB over memory", &[], AtMost(32.0)),
    bar("spill", "16 MiB, random, none", "peak MiB over memory", &[], AtMost(32.0)),
    bar("spill", "4 KiB, random, none", "insert p99 µs", &[], AtMost(200.0)),
    bar("spill", "4 KiB, random, none", "allocated/stored", &[], AtMost(1.05)),
];

/// The bars that the runs of a report have figures for.
pub(crate) fn outcomes(report: &Report) -> Vec<Outcome> {
    BARS.iter().filter_map(|bar| outcome(report, *bar)).collect()
}

fn outcome(report: &Report, bar: Bar) -> Option<Outcome> {
    let median = |system| report.median(bar.scenario, bar.case, system, bar.figure);
    let others: Vec<f64> = bar.against.iter().filter_map(|system| median(system)).collect();
    let best = match bar.holds {
        Holds::AtLeast(_) => others.iter().copied().reduce(f64::max),
        Holds::AtMost(_) => others.iter().copied().reduce(f64::min),
    };
    if best.is_none() && !bar.against.is_empty() {
        return None;
    }
    let value = median("spill")? / best.unwrap_or(1.0);
    let held = match bar.holds {
        Holds::AtLeast(least) => value >= least,
        Holds::AtMost(most) => value <= most,
    };
    Some(Outcome { bar, value, held })
}
