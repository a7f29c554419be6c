//! How long a thread of the runtime is kept from its other tasks, while a system is at work on it.
//!
//! tokio tells when a thread parks and when it runs again (`on_thread_park`, `on_thread_unpark`). What lies between
//! is a turn, if nothing else is heard of the thread; a task that signs ([`signing`], [`sign`]) ends one turn and
//! begins the next. A bystander that wants to run whenever others let it signs as well, so that a task which lets them
//! again and again is not taken for one that does not. So a turn is one poll, or a few that came between, of tasks that
//! do not sign: those of the system. It is never shorter than what it stands for, and none is missed but the thread's
//! first.
//!
//! There is one thread: with a second one the bystander would be served there, on time, while the first is blocked.
//! It keeps a core busy, but for what the system does on that thread. Timing each poll would take hooks that tokio
//! has only as unstable ones.
//!
//! A shared machine stops threads too, for tens of milliseconds. A thread that did not go to sleep in its turn was held
//! by nothing but its own work: such a turn counts with its CPU time, in which there is neither what other threads nor
//! what the hypervisor took. One that slept, for a lock or for I/O, counts with all its time but that for which it was
//! ready and had no core (`/proc/…/schedstat`). The latter may still hold what the hypervisor took: so the same is
//! measured, in the same process, of a runtime that has nothing to do while a thread of its own writes to the same disk.

use std::{
    cell::RefCell,
    ffi::c_long,
    fs::File,
    future::Future,
    os::unix::fs::FileExt,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Result;
use hdrhistogram::Histogram;
use tokio::{runtime::Runtime, task::JoinHandle};

use crate::{machine, meter, trial::Figures};

/// What a turn may take.
const MOST: Duration = Duration::from_millis(2);

/// A sign that comes sooner after the last is not worth what it costs; turns are longer by as much, at most.
const SOON: Duration = Duration::from_micros(100);

/// How often the bystander looks by how much it is late.
const TICK: Duration = Duration::from_millis(1);

thread_local! {
    /// Set in the threads of a watched runtime.
    static THREAD: RefCell<Option<Watched>> = const { RefCell::new(None) };
}

/// What was seen, in nanoseconds.
#[derive(Debug)]
struct Seen {
    /// Turns, less what the machine took.
    turns: Histogram<u64>,
    /// Turns with that.
    whole: Histogram<u64>,
    /// By how much the bystander woke up too late.
    late: Histogram<u64>,
    over: u64,
    longest: u64,
    /// Of the longest turn the part that was spent computing, not waiting for something.
    longest_cpu: u64,
    /// From here on only the longest turn is of interest.
    closing: bool,
    longest_closing: u64,
}

impl Seen {
    fn new() -> Result<Self> {
        let [turns, whole, late] = [meter::new_waits()?, meter::new_waits()?, meter::new_waits()?];
        let closing = false;
        Ok(Self { turns, whole, late, over: 0, longest: 0, longest_cpu: 0, closing, longest_closing: 0 })
    }

    fn turn(&mut self, held: Duration, whole: Duration, cpu: Duration) {
        if self.closing {
            self.longest_closing = self.longest_closing.max(nanos(held));
            return;
        }
        self.turns.saturating_record(nanos(held));
        self.whole.saturating_record(nanos(whole));
        self.over += u64::from(held > MOST);
        if nanos(held) > self.longest {
            (self.longest, self.longest_cpu) = (nanos(held), nanos(cpu));
        }
    }
}

/// A thread, and its turn.
struct Watched {
    seen: Arc<Mutex<Seen>>,
    schedstat: Option<File>,
    turn: Option<Turn>,
}

#[derive(Clone, Copy)]
struct Turn {
    began: Instant,
    /// For how long the thread had no core, ever.
    waited: Duration,
    cpu: Duration,
    sleeps: c_long,
}

impl Watched {
    /// The second number of the file. Without it every wait is the system's.
    fn waited(&self) -> Duration {
        let mut text = [0; 64];
        let read = self.schedstat.as_ref().and_then(|file| file.read_at(&mut text, 0).ok());
        let text = std::str::from_utf8(&text[..read.unwrap_or(0)]).unwrap_or_default();
        let number = text.split_ascii_whitespace().nth(1).and_then(|number| number.parse().ok());
        Duration::from_nanos(number.unwrap_or_default())
    }

    fn begin(&mut self) {
        self.turn = Some(Turn {
            began: Instant::now(),
            waited: self.waited(),
            cpu: machine::cpu_time_of_thread(),
            sleeps: machine::sleeps_of_thread(),
        });
    }

    fn end(&mut self) {
        let Some(turn) = self.turn.take() else { return };
        let whole = turn.began.elapsed();
        // Not looked up for short ones, of which there are many.
        let (held, cpu) = if whole < SOON {
            (whole, whole)
        } else {
            let cpu = machine::cpu_time_of_thread().saturating_sub(turn.cpu);
            let slept = machine::sleeps_of_thread() != turn.sleeps;
            let ready = self.waited().saturating_sub(turn.waited);
            (if slept { whole.saturating_sub(ready) } else { cpu }, cpu)
        };
        locked(&self.seen).turn(held, whole, cpu);
    }
}

fn locked(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn in_watched(work: impl FnOnce(&mut Watched)) {
    THREAD.with_borrow_mut(|thread| thread.as_mut().map(work));
}

/// Says that this thread gets on: what it does next is another turn. Nothing, on threads that are not watched.
pub(crate) fn sign() {
    in_watched(|thread| {
        if thread.turn.is_none_or(|turn| turn.began.elapsed() >= SOON) {
            thread.end();
            thread.begin();
        }
    });
}

/// Does something of the bench itself, which belongs to no turn.
pub(crate) fn apart<T>(work: impl FnOnce() -> T) -> T {
    in_watched(Watched::end);
    let result = work();
    in_watched(Watched::begin);
    result
}

/// The same for what takes longer: on a thread that is not watched, so that nobody waits for it.
pub(crate) async fn elsewhere<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    Ok(tokio::task::spawn_blocking(work).await?)
}

/// Says that what follows is the end of a system: its turns are shown by themselves.
pub(crate) fn closing() {
    in_watched(|thread| {
        thread.end();
        locked(&thread.seen).closing = true;
        thread.begin();
    });
}

/// A future that signs whenever it is polled and whenever that has ended.
pub(crate) async fn signing<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    std::future::poll_fn(|context| {
        sign();
        let result = future.as_mut().poll(context);
        sign();
        result
    })
    .await
}

/// A runtime of one thread that is watched.
#[derive(Debug)]
pub(crate) struct Watchdog {
    runtime: Runtime,
    seen: Arc<Mutex<Seen>>,
}

impl Watchdog {
    pub(crate) fn new() -> Result<Self> {
        let seen = Arc::new(Mutex::new(Seen::new()?));
        let watched = Arc::clone(&seen);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .on_thread_start(move || {
                let schedstat = File::open("/proc/thread-self/schedstat").ok();
                let watched = Watched { seen: Arc::clone(&watched), schedstat, turn: None };
                THREAD.set(Some(watched));
            })
            .on_thread_unpark(|| in_watched(Watched::begin))
            .on_thread_park(|| in_watched(Watched::end))
            .build()?;
        Ok(Self { runtime, seen })
    }

    /// Runs this on the threads that are watched, and says what was seen of them under names that begin like this.
    pub(crate) fn watch<F>(&self, name: &str, work: F, figures: &mut Figures) -> Result<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        *locked(&self.seen) = Seen::new()?;
        let bystander = Bystander(self.runtime.spawn(tick(Arc::clone(&self.seen))));
        let output = self.runtime.block_on(self.runtime.spawn(signing(work)))?;
        drop(bystander);
        let seen = std::mem::replace(&mut *locked(&self.seen), Seen::new()?);
        let whole = seen.whole.max() as f64 / 1e3;
        figures.insert(format!("{name}turn with waits max µs"), whole);
        figures.insert(format!("{name}turns > 2 ms"), seen.over as f64);
        figures.insert(format!("{name}CPU of longest turn µs"), seen.longest_cpu as f64 / 1e3);
        if seen.closing {
            figures.insert("closing turn max µs".into(), seen.longest_closing as f64 / 1e3);
        }
        for (what, histogram) in [("turn", &seen.turns), ("tick late", &seen.late)] {
            for (quantile, at) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)] {
                let value = histogram.value_at_quantile(at) as f64 / 1e3;
                figures.insert(format!("{name}{what} {quantile} µs"), value);
            }
        }
        Ok(output)
    }
}

/// Ends with what it belongs to.
struct Bystander(JoinHandle<()>);

impl Drop for Bystander {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Not an interval, which would come sooner after it was late.
async fn tick(seen: Arc<Mutex<Seen>>) {
    loop {
        let due = Instant::now() + TICK;
        while Instant::now() < due {
            tokio::task::yield_now().await;
            sign();
        }
        let mut seen = locked(&seen);
        if !seen.closing {
            seen.late.saturating_record(nanos(due.elapsed()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKED: Duration = Duration::from_millis(30);

    #[test]
    fn a_task_of_the_system_that_blocks_is_seen() {
        let watchdog = Watchdog::new().unwrap();
        let mut figures = Figures::new();
        let work = async { tokio::spawn(async { std::thread::sleep(BLOCKED) }).await.unwrap() };
        watchdog.watch("", work, &mut figures).unwrap();
        assert!(figures["turn max µs"] >= 30_000.0, "{figures:?}");
        assert!(figures["turns > 2 ms"] >= 1.0, "{figures:?}");
    }

    #[test]
    fn a_task_of_the_system_that_lets_others_run_is_not() {
        let watchdog = Watchdog::new().unwrap();
        let mut figures = Figures::new();
        let work = async {
            let long = async {
                let began = Instant::now();
                while began.elapsed() < Duration::from_secs(2) {
                    tokio::task::yield_now().await;
                }
            };
            tokio::spawn(long).await.unwrap();
        };
        watchdog.watch("", work, &mut figures).unwrap();
        assert!(figures["turn max µs"] < 2e6, "{figures:?}");
    }

    #[test]
    fn work_of_the_bench_is_no_turn() {
        // Longer than a loaded machine stops a thread for, so that it can only be this.
        let long = Duration::from_secs(2);
        let watchdog = Watchdog::new().unwrap();
        let mut figures = Figures::new();
        let work = async move {
            apart(|| std::thread::sleep(long));
            elsewhere(move || std::thread::sleep(long)).await.unwrap();
        };
        watchdog.watch("", work, &mut figures).unwrap();
        assert!(figures["turn with waits max µs"] < 2e6, "{figures:?}");
    }
}
