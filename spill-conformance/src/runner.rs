//! Runs checks: as named tests of a test binary, or all of them inside one plain test.
//!
//! Every check runs on a thread of its own under a time limit, so that one that hangs fails alone. What the
//! checks are is in the modules of the suites; the watchdog for blocked runtimes is in `watchdog`.

use std::{
    any::Any,
    fmt,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use libtest_mimic::{Arguments, Completion, Conclusion, Failed, Trial};
use parking_lot::Mutex;
use spill_core::{CodecError, CompressError, StoreError};

use crate::results;

/// Why a check did not pass.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The implementation does something wrong.
    Failed(String),
    /// The author declared that it does not hold, for this reason.
    Waived(String),
    /// There is nothing to check here, or the harness lacks something, for this reason.
    NotApplicable(String),
}

impl Stop {
    /// The same, saying where it happened.
    pub(crate) fn at(self, place: impl fmt::Display) -> Self {
        match self {
            Self::Failed(message) => Self::Failed(format!("{place}: {message}")),
            other => other,
        }
    }
}

/// What a check says.
pub(crate) type Verdict = Result<(), Stop>;

impl From<String> for Stop {
    fn from(message: String) -> Self {
        Self::Failed(message)
    }
}

impl From<&str> for Stop {
    fn from(message: &str) -> Self {
        Self::Failed(message.to_owned())
    }
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self::Failed(format!("unexpected error: {error}"))
    }
}

impl From<CompressError> for Stop {
    fn from(error: CompressError) -> Self {
        Self::Failed(format!("unexpected error: {error}"))
    }
}

impl From<CodecError> for Stop {
    fn from(error: CodecError) -> Self {
        Self::Failed(format!("unexpected error: {error}"))
    }
}

/// Fails the check with a message unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::runner::Stop::Failed(format!($($message)+)));
        }
    };
}
pub(crate) use ensure;

/// Fails the check unless both are equal; the message says what it is that differs.
macro_rules! ensure_eq {
    ($found:expr, $wanted:expr, $($what:tt)+) => {{
        let (found, wanted) = (&$found, &$wanted);
        if *found != *wanted {
            let what = format!($($what)+);
            let (found, wanted) = ($crate::runner::shown(found), $crate::runner::shown(wanted));
            return Err($crate::runner::Stop::Failed(format!("{what}: found {found}, wanted {wanted}")));
        }
    }};
}
pub(crate) use ensure_eq;

/// A value for a message, cut where it gets long.
pub(crate) fn shown<T: fmt::Debug + ?Sized>(value: &T) -> String {
    const MOST: usize = 200;
    let mut text = format!("{value:?}");
    if let Some((at, _)) = text.char_indices().nth(MOST) {
        text.truncate(at);
        text.push('…');
    }
    text
}

type Run = Box<dyn FnOnce() -> Verdict + Send>;

/// Checks by name, ready to run. Made by [`store_suite`](crate::store_suite) and its siblings.
///
/// ```
/// use spill_conformance::codec_suite;
/// use spill_core::BytesCodec;
///
/// let suite = codec_suite("bytes", BytesCodec, vec![String::new(), "text".to_owned()]);
/// assert!(suite.names().any(|name| name == "codec/bytes/what_is_encoded_comes_back"));
/// suite.report().assert_passed();
/// ```
#[must_use = "a suite does nothing until it is run"]
pub struct Suite {
    subject: Arc<Subject>,
    checks: Vec<Check>,
    /// Whether no check was taken out.
    is_whole: bool,
}

/// What a suite is run for: a file of results is about one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Subject {
    /// Which suite: `store`, `compressor`, `codec`, `policy`.
    pub(crate) suite: &'static str,
    pub(crate) name: String,
}

struct Check {
    subject: Arc<Subject>,
    name: String,
    run: Run,
}

/// How checks went so far, for the file of results.
type Results = Vec<(Arc<Subject>, CheckResult)>;

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl Suite {
    pub(crate) fn new(suite: &'static str, name: impl Into<String>) -> Self {
        Self { subject: Arc::new(Subject { suite, name: name.into() }), checks: Vec::new(), is_whole: true }
    }

    pub(crate) fn add(&mut self, name: String, run: impl FnOnce() -> Verdict + Send + 'static) {
        self.checks.push(Check { subject: Arc::clone(&self.subject), name, run: Box::new(run) });
    }

    /// Adds a check that runs on a thread of its own, for at most `limit`.
    pub(crate) fn add_bounded(
        &mut self,
        name: String,
        limit: Duration,
        run: impl FnOnce() -> Verdict + Send + 'static,
    ) {
        self.add(name, move || bounded(limit, run));
    }

    /// The names of the checks, in the order they run.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.checks.iter().map(|check| check.name.as_str())
    }

    /// These checks and those of another suite.
    pub fn and(mut self, other: Self) -> Self {
        self.checks.extend(other.checks);
        self.is_whole &= other.is_whole;
        self
    }

    /// Declares that a check does not hold, and why: it is not run, and shown with the reason. A name that is
    /// no check fails the suite. Cases of stores are waived by [`StoreHarness::waive`](crate::StoreHarness::waive),
    /// on both runtimes at once.
    ///
    /// ```
    /// use spill_conformance::codec_suite;
    /// use spill_core::BytesCodec;
    /// let suite = codec_suite("bytes", BytesCodec, vec![vec![1u8]]);
    /// let report = suite.waive("codec/bytes/damage_never_panics", "why it does not hold").report();
    /// assert_eq!(report.skipped().collect::<Vec<_>>(), ["codec/bytes/damage_never_panics"]);
    /// ```
    pub fn waive(mut self, check: &str, reason: impl Into<String>) -> Self {
        match self.checks.iter_mut().find(|known| known.name == check) {
            Some(known) => {
                let reason = reason.into();
                known.run = Box::new(move || Err(Stop::Waived(reason)));
            }
            None => {
                let message = format!("there is no check `{check}`");
                self.add(format!("waivers/{check}"), move || Err(message.into()));
            }
        }
        self
    }

    /// Only those checks whose names pass. What runs is then no longer all there is, so that results are not
    /// written.
    pub fn only(mut self, mut passes: impl FnMut(&str) -> bool) -> Self {
        self.checks.retain(|check| passes(&check.name));
        self.is_whole = false;
        self
    }

    /// Runs every check as a test with a name, several at once, and prints as `cargo test` does. Takes the
    /// usual arguments: filters, `--exact`, `--test-threads`, `--list`. A waived check is shown as ignored
    /// with its reason.
    ///
    /// When [`REPORT_VARIABLE`](crate::REPORT_VARIABLE) is set and no check was left out, the results are
    /// written there, for [`results_table`](crate::results_table). That they can't be counts as a failure.
    #[expect(clippy::print_stderr, reason = "the one place to say why the run failed")]
    pub fn run(self, arguments: &Arguments) -> Conclusion {
        let results: Arc<Mutex<Results>> = Arc::default();
        let (all, is_whole) = (self.checks.len(), self.is_whole);
        let trials = self.checks.into_iter().map(|Check { subject, name, run }| {
            let results = Arc::clone(&results);
            Trial::ignorable_test(name.clone(), move || {
                let verdict = CheckVerdict::from(run());
                results.lock().push((subject, CheckResult { name, verdict: verdict.clone() }));
                match verdict {
                    CheckVerdict::Passed => Ok(Completion::Completed),
                    CheckVerdict::Waived(reason) | CheckVerdict::NotApplicable(reason) => {
                        Ok(Completion::ignored_with(reason))
                    }
                    CheckVerdict::Failed(message) => Err(Failed::from(message)),
                }
            })
        });
        let mut conclusion = libtest_mimic::run(arguments, trials.collect());
        let results = results.lock();
        if is_whole
            && results.len() == all
            && let Err(error) = results::write_if_asked(&results)
        {
            eprintln!("{error}");
            conclusion.num_failed += 1;
        }
        conclusion
    }

    /// Runs every check, one after the other, and says how they went. For use inside a plain `#[test]`.
    ///
    /// Writes the results as [`run`](Self::run) does.
    pub fn report(self) -> Report {
        let mut results: Results = Vec::new();
        for Check { subject, name, run } in self.checks {
            results.push((subject, CheckResult { name, verdict: run().into() }));
        }
        if self.is_whole
            && let Err(error) = results::write_if_asked(&results)
        {
            let name = "the file of results".to_owned();
            results
                .push((self.subject, CheckResult { name, verdict: CheckVerdict::Failed(error.to_string()) }));
        }
        Report { results: results.into_iter().map(|(_, result)| result).collect() }
    }
}

/// How one check went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckVerdict {
    /// As it should.
    Passed,
    /// The author declared that it does not hold, and why.
    Waived(String),
    /// There is nothing to check, or the harness lacks something; with what.
    NotApplicable(String),
    /// The implementation does something wrong; with what.
    Failed(String),
}

impl From<Verdict> for CheckVerdict {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Ok(()) => Self::Passed,
            Err(Stop::Waived(reason)) => Self::Waived(reason),
            Err(Stop::NotApplicable(reason)) => Self::NotApplicable(reason),
            Err(Stop::Failed(message)) => Self::Failed(message),
        }
    }
}

/// One check and how it went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckResult {
    /// The check's name, as in [`Suite::names`].
    pub name: String,
    /// How it went.
    pub verdict: CheckVerdict,
}

/// How the checks of a suite went. `Display` shows those that did not pass, and the sums.
#[derive(Clone, Debug)]
#[must_use = "a report says what failed: assert on it"]
pub struct Report {
    results: Vec<CheckResult>,
}

impl Report {
    /// All checks in the order they ran.
    pub fn results(&self) -> &[CheckResult] {
        &self.results
    }

    /// The names of the checks that failed.
    pub fn failed(&self) -> impl Iterator<Item = &str> {
        self.named(|verdict| matches!(verdict, CheckVerdict::Failed(_)))
    }

    /// The names of the checks that were not run: waived or not applicable.
    pub fn skipped(&self) -> impl Iterator<Item = &str> {
        self.named(|verdict| matches!(verdict, CheckVerdict::Waived(_) | CheckVerdict::NotApplicable(_)))
    }

    /// How many checks passed.
    pub fn passed(&self) -> usize {
        self.named(|verdict| *verdict == CheckVerdict::Passed).count()
    }

    fn named(&self, wanted: fn(&CheckVerdict) -> bool) -> impl Iterator<Item = &str> {
        self.results.iter().filter(move |result| wanted(&result.verdict)).map(|result| result.name.as_str())
    }

    /// Prints what was skipped and why, for the record.
    ///
    /// # Panics
    /// When a check failed: the message says which, and why. Also when none passed, as an empty suite
    /// proves nothing.
    #[track_caller]
    #[expect(
        clippy::print_stdout,
        reason = "a waiver is declared in the open: its reason belongs to the test's output"
    )]
    pub fn assert_passed(&self) {
        println!("{self}");
        assert!(self.failed().next().is_none(), "the conformance suite failed:\n{self}");
        assert!(self.passed() > 0, "no check of the conformance suite ran:\n{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for CheckResult { name, verdict } in &self.results {
            match verdict {
                CheckVerdict::Passed => {}
                CheckVerdict::Waived(reason) => writeln!(f, "waived {name}: {reason}")?,
                CheckVerdict::NotApplicable(reason) => writeln!(f, "skipped {name}: {reason}")?,
                CheckVerdict::Failed(message) => writeln!(f, "FAILED {name}: {message}")?,
            }
        }
        let (failed, skipped) = (self.failed().count(), self.skipped().count());
        write!(f, "{} passed, {failed} failed, {skipped} skipped", self.passed())
    }
}

/// Runs `work` on a thread of its own and waits at most `limit`. A thread that takes longer is left behind.
pub(crate) fn bounded<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> Result<T, Stop> + Send + 'static,
) -> Result<T, Stop> {
    let (done, answer) = mpsc::sync_channel(1);
    let worker = thread::Builder::new()
        .name("conformance".into())
        .spawn(move || {
            let answer = work();
            // Nobody listens any more once the limit has passed.
            let _ = done.send(answer);
        })
        .map_err(|error| format!("no thread to run the check on: {error}"))?;
    match answer.recv_timeout(limit) {
        Ok(answer) => answer,
        Err(RecvTimeoutError::Timeout) => {
            Err(format!("not done after {limit:?}: it hangs, or raise the time limit").into())
        }
        Err(RecvTimeoutError::Disconnected) => {
            let panic = worker.join().err();
            Err(format!("panicked: {}", panic.as_deref().map_or("no message", message_of)).into())
        }
    }
}

fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(limit: Duration, run: impl FnOnce() -> Verdict + Send + 'static) -> CheckVerdict {
        let mut suite = Suite::new("store", "one");
        suite.add_bounded("one".into(), limit, run);
        suite.report().results()[0].verdict.clone()
    }

    #[test]
    fn a_panic_and_a_hang_fail() {
        let CheckVerdict::Failed(message) = one(Duration::from_secs(60), || panic!("on {}", "fire")) else {
            panic!("it passed")
        };
        assert_eq!(message, "panicked: on fire");
        let (keep, hang) = mpsc::channel::<()>();
        let verdict = one(Duration::from_millis(50), move || {
            let _ = hang.recv();
            Ok(())
        });
        drop(keep);
        assert!(
            matches!(&verdict, CheckVerdict::Failed(message) if message.contains("not done")),
            "{verdict:?}"
        );
    }

    #[test]
    fn a_report_tells_what_failed_and_what_was_skipped() {
        let mut suite = Suite::new("store", "mine");
        suite.add("fine".into(), || Ok(()));
        suite.add("bad".into(), || Err("wrong".into()));
        suite.add("other".into(), || Err(Stop::Waived("not here".into())));
        suite.add("none".into(), || Err(Stop::NotApplicable("needs more".into())));
        let report = suite.report();
        assert_eq!(
            report.to_string(),
            "FAILED bad: wrong\nwaived other: not here\nskipped none: needs more\n1 passed, 1 failed, 2 skipped"
        );
    }
}
