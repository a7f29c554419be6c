//! Blocking threads for many short jobs: one that is done with a job takes the next, instead of ending and being
//! woken again for it. Waking a thread costs more than reading 4 KiB.

use std::{
    collections::VecDeque,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::{runtime::Handle, sync::oneshot};

/// Jobs that one thread does before it goes to the end of the line for threads.
const IN_A_ROW: usize = 64;

type Job = Box<dyn FnOnce() + Send>;

/// A bounded number of blocking threads, and the jobs that wait for one of them, first come, first served.
#[derive(Clone)]
pub(crate) struct Crew {
    most: usize,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    /// Threads that are at work, or asked for.
    workers: usize,
}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        let (workers, waiting) = (state.workers, state.waiting.len());
        f.debug_struct("Crew").field("workers", &workers).field("waiting", &waiting).finish()
    }
}

impl Crew {
    /// At most this many threads. How many jobs wait is for the caller to bound.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, state: Arc::default() }
    }

    /// Does a job on a thread of this runtime, or of one that does others already. `None`: that runtime was shut
    /// down before it was this job's turn, or the job panicked.
    ///
    /// # Cancel safety
    /// When the future is dropped, a job that has not begun is not done.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        runtime: &Handle,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (send, done) = oneshot::channel();
        let job = Box::new(move || {
            if !send.is_closed() {
                // Fails when the caller has gone away meanwhile.
                drop(send.send(job()));
            }
        });
        let needs_thread = {
            let mut state = self.state.lock();
            state.waiting.push_back(job);
            let needs_thread = state.workers < self.most;
            state.workers += usize::from(needs_thread);
            needs_thread
        };
        if needs_thread {
            Worker { runtime: runtime.clone(), state: self.state.clone(), retired: false }.start();
        }
        done.await.ok()
    }
}

/// One thread, from being asked for to the end of its work.
struct Worker {
    runtime: Handle,
    state: Arc<Mutex<State>>,
    /// It found nothing more to do, and is not counted any more.
    retired: bool,
}

impl Worker {
    fn start(self) {
        let runtime = self.runtime.clone();
        drop(runtime.spawn_blocking(move || self.work()));
    }

    fn work(mut self) {
        for _ in 0..IN_A_ROW {
            let Some(job) = self.next() else { return };
            // Its caller is told by the answer that never comes; others have nothing to do with it.
            drop(catch_unwind(AssertUnwindSafe(job)));
        }
        // Others of the runtime get their turn, and one that is being shut down ends.
        self.start();
    }

    fn next(&mut self) -> Option<Job> {
        let mut state = self.state.lock();
        let job = state.waiting.pop_front();
        if job.is_none() {
            // Under the same lock: whoever comes next asks for another thread.
            state.workers -= 1;
            self.retired = true;
        }
        job
    }
}

impl Drop for Worker {
    /// The runtime was shut down before the thread began.
    fn drop(&mut self) {
        if self.retired {
            return;
        }
        let mut state = self.state.lock();
        state.workers -= 1;
        // Nobody is left to do these: their callers are told.
        let orphans = if state.workers == 0 { std::mem::take(&mut state.waiting) } else { VecDeque::new() };
        drop(state);
        drop(orphans);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    };

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap()
    }

    #[test]
    fn no_more_threads_than_allowed_do_all_jobs() {
        let (crew, runtime) = (Crew::new(3), runtime());
        let (now, most, done) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let counts = Arc::new((now, most, done));
        let jobs = (0..1000).map(|number| {
            let (crew, counts) = (crew.clone(), counts.clone());
            let job = move || {
                counts.1.fetch_max(counts.0.fetch_add(1, Relaxed) + 1, Relaxed);
                counts.2.fetch_add(1, Relaxed);
                counts.0.fetch_sub(1, Relaxed);
                number
            };
            runtime.spawn(async move { crew.run(&Handle::current(), job).await })
        });
        let answers: Vec<_> = jobs.collect::<Vec<_>>().into_iter().map(|job| runtime.block_on(job)).collect();
        assert!(answers.iter().enumerate().all(|(number, answer)| *answer.as_ref().unwrap() == Some(number)));
        assert!((1..=3).contains(&counts.1.load(Relaxed)));
        assert_eq!(counts.2.load(Relaxed), 1000);
    }

    #[test]
    fn a_job_nobody_waits_for_is_not_done() {
        let (crew, runtime) = (Crew::new(1), runtime());
        let (go, wait) = mpsc::channel::<()>();
        let first = crew.clone();
        let first = runtime.spawn(async move { first.run(&Handle::current(), move || wait.recv()).await });
        while crew.state.lock().workers == 0 {
            std::thread::yield_now();
        }
        let done = Arc::new(AtomicUsize::new(0));
        for wanted in [true, false, true] {
            let (counted, second) = (done.clone(), crew.clone());
            let handle = runtime.handle().clone();
            let mut run =
                Box::pin(async move { second.run(&handle, move || counted.fetch_add(1, Relaxed)).await });
            let waker = std::task::Waker::noop();
            assert!(run.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending());
            if wanted {
                runtime.spawn(run);
            }
        }
        go.send(()).unwrap();
        runtime.block_on(first).unwrap().unwrap().unwrap();
        assert_eq!(runtime.block_on(crew.run(runtime.handle(), || 7)), Some(7));
        assert_eq!(done.load(Relaxed), 2);
    }

    #[test]
    fn a_panic_or_a_runtime_that_ends_is_told_and_others_go_on() {
        let (crew, ending) = (Crew::new(1), runtime());
        let handle = ending.handle().clone();
        drop(ending);
        let other = runtime();
        assert_eq!(other.block_on(crew.run(&handle, || 1)), None);
        assert_eq!(other.block_on(crew.run(other.handle(), || -> i32 { panic!("on purpose") })), None);
        assert_eq!(other.block_on(crew.run(other.handle(), || 2)), Some(2));
    }
}
