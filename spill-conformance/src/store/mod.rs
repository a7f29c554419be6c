//! The suite for stores: what an author hands in, and how a case runs. The cases are in `cases`, by group.

mod cases;
mod child;
mod harness;
mod place;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use libtest_mimic::{Arguments, Conclusion};

pub use self::harness::{Need, StoreHarness};
use self::place::{Place, Wrap};
use crate::{
    runner::{Stop, Suite, Verdict, bounded},
    watchdog::Watchdog,
};

/// A blocked runtime is reported from here on. The contract says 100 ms; the rest is for machines under
/// load.
const BLOCKED: Duration = Duration::from_millis(300);
/// A case whose runtime was blocked runs again, and fails when it is blocked each time.
const BLOCKED_RUNS: u32 = 3;

/// What a case is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Group {
    /// What was put comes back; what was not is missing.
    Basics,
    /// Blobs of every size around boundaries.
    Sizes,
    /// Reads of parts.
    Ranges,
    /// Pages, order, change while listing.
    Listing,
    /// Removal: idempotent, in batches.
    Delete,
    /// An id is put once.
    Ids,
    /// Many calls at once, several runtimes.
    Concurrency,
    /// Futures dropped at every poll.
    Cancel,
    /// Sizes told are sizes kept.
    Usage,
    /// Two sessions of one place.
    Sessions,
    /// What is left after closing.
    Close,
    /// Payloads in many pieces.
    Payloads,
    /// Space given back from within a blob.
    Punch,
    /// Trouble in the medium, at every call of it.
    Faults,
    /// What dead sessions left is removed, and nothing else.
    Sweep,
    /// Several processes in one place, and killed ones.
    Processes,
}

impl Group {
    /// Its name in the names of checks.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Basics => "basics",
            Self::Sizes => "sizes",
            Self::Ranges => "ranges",
            Self::Listing => "listing",
            Self::Delete => "delete",
            Self::Ids => "ids",
            Self::Concurrency => "concurrency",
            Self::Cancel => "cancel",
            Self::Usage => "usage",
            Self::Sessions => "sessions",
            Self::Close => "close",
            Self::Payloads => "payloads",
            Self::Punch => "punch",
            Self::Faults => "faults",
            Self::Sweep => "sweep",
            Self::Processes => "processes",
        }
    }
}

/// One thing that every store must do.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name within the group.
    pub name: &'static str,
    /// What it is about.
    pub group: Group,
    /// What it needs beyond an open store.
    pub needs: &'static [Need],
    run: fn(Arc<Place>) -> BoxFuture<'static, Verdict>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("name", &self.full_name()).field("needs", &self.needs).finish()
    }
}

impl Case {
    /// `group/name`, what a waiver names.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.group.name(), self.name)
    }
}

/// All cases for stores, by group.
///
/// ```
/// let cases = spill_conformance::store_cases();
/// assert!(cases.len() >= 70);
/// ```
pub fn store_cases() -> Vec<Case> {
    cases::GROUPS.concat()
}

/// The kind of runtime a case runs on.
#[derive(Clone, Copy, Debug)]
enum Flavour {
    CurrentThread,
    MultiThread,
}

impl Flavour {
    fn name(self) -> &'static str {
        match self {
            Self::CurrentThread => "current_thread",
            Self::MultiThread => "multi_thread",
        }
    }

    fn build(self) -> Result<tokio::runtime::Runtime, Stop> {
        let mut builder = match self {
            Self::CurrentThread => tokio::runtime::Builder::new_current_thread(),
            Self::MultiThread => tokio::runtime::Builder::new_multi_thread(),
        };
        builder.worker_threads(4).enable_all().build().map_err(|error| format!("no runtime: {error}").into())
    }
}

/// The cases for one store as a suite: each on both kinds of runtime.
pub fn store_suite(harness: StoreHarness) -> Suite {
    let mut suite = Suite::new("store", &harness.name);
    let cases = store_cases();
    for (waived, _) in &harness.waivers {
        if cases.iter().all(|case| case.full_name() != *waived) {
            let message = format!("there is no case `{waived}`: a waiver names a case as `group/name`");
            suite.add(format!("waivers/{waived}"), move || Err(message.into()));
        }
    }
    let harness = Arc::new(harness);
    for case in cases {
        for flavour in [Flavour::CurrentThread, Flavour::MultiThread] {
            let (name, harness) = (format!("{}/{}", case.full_name(), flavour.name()), Arc::clone(&harness));
            suite.add(name, move || match harness.reason_to_skip(&case) {
                Some(reason) => Err(reason),
                None => run_case(case, &harness, flavour),
            });
        }
    }
    suite
}

/// Runs the cases for one store as named tests: all that the `main` of a test binary has to call.
///
/// When the binary was started by a case of the group `processes`, this does what the case asks, and then
/// ends the process.
pub fn run_store_suite(arguments: &Arguments, mut harness: StoreHarness) -> Conclusion {
    if let Some(order) = child::Order::from_environment() {
        order.obey(&harness);
    }
    harness.can_start_again = true;
    store_suite(harness).run(arguments)
}

fn run_case(case: Case, harness: &Arc<StoreHarness>, flavour: Flavour) -> Verdict {
    let mut blocked = Duration::MAX;
    for _ in 0..BLOCKED_RUNS {
        let own = Arc::clone(harness);
        blocked = blocked.min(bounded(harness.time_limit, move || run_once(case, own, flavour))?);
        if blocked < BLOCKED {
            return Ok(());
        }
    }
    Err(format!("blocked the runtime for {blocked:?} or more in each of {BLOCKED_RUNS} runs").into())
}

/// Runs a case in a namespace of its own, and says how long it blocked the runtime.
fn run_once(case: Case, harness: Arc<StoreHarness>, flavour: Flavour) -> Result<Duration, Stop> {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    let (group, process) = (case.group.name(), std::process::id());
    let namespace = format!("{group}-{}-{process}-{run}", case.name);
    let runtime = flavour.build()?;
    // On several threads the beat goes on while one is blocked: the other flavour sees those.
    let watchdog = match flavour {
        Flavour::CurrentThread => Watchdog::start(),
        Flavour::MultiThread => None,
    };
    let wrap: Wrap = match &watchdog {
        Some(watchdog) => Arc::new(watchdog.watched()),
        None => Arc::new(|store| store),
    };
    let place = Arc::new(Place::new(harness, namespace, wrap));
    let verdict = runtime.block_on(async {
        let beat = watchdog.as_ref().map(|watchdog| tokio::spawn(watchdog.beat()));
        // The first beat comes before the first call.
        tokio::task::yield_now().await;
        let verdict = tokio::spawn((case.run)(Arc::clone(&place))).await;
        place.clean_up().await;
        if let Some(beat) = beat {
            beat.abort();
        }
        verdict
    });
    let blocked = watchdog.map_or(Duration::ZERO, Watchdog::stop);
    match verdict {
        Ok(verdict) => verdict.map(|()| blocked),
        Err(error) => Err(format!("the case ended early: {error}").into()),
    }
}
