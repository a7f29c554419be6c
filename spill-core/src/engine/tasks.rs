//! The tasks of one buffer: spawned on its runtime, owned by it, ended with it.

use std::{
    cell::Cell,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::*},
    },
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;
use tokio::{runtime::Handle, sync::Notify, task::JoinSet};

use super::guarded;

#[derive(Debug)]
pub(crate) struct Tasks {
    runtime: Handle,
    running: Mutex<Running>,
    jobs: Arc<Jobs>,
}

/// Tasks that end by themselves.
#[derive(Debug, Default)]
struct Jobs {
    under_way: AtomicUsize,
    none: Notify,
}

#[derive(Debug, Default)]
struct Running {
    set: JoinSet<()>,
    /// No job is taken on any more; those that were go on.
    closing: bool,
    /// All tasks have been ended.
    over: bool,
}

impl Running {
    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static, runtime: &Handle) {
        // Ended tasks are let go of here, so the set never holds many more than are running.
        while self.set.try_join_next().is_some() {}
        self.set.spawn_on(task, runtime);
    }
}

impl Tasks {
    pub(crate) fn new(runtime: Handle) -> Self {
        Self { runtime, running: Mutex::default(), jobs: Arc::default() }
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Starts a task that runs until the buffer is gone.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.running.lock().spawn(task, &self.runtime);
    }

    /// Starts a task that ends by itself; closing waits for it, and after that it is dropped unstarted.
    pub(crate) fn spawn_job(&self, task: impl Future<Output = ()> + Send + 'static) {
        match self.count_job() {
            Some(job) => self.spawn_counted(job, task),
            None => drop(task),
        }
    }

    /// As [`spawn_job`](Self::spawn_job), but begins it on the spot: what needs no waiting is done when this
    /// returns, and no other thread was woken for it. Not from within another: an observer that reads what it is
    /// told of would go deeper with each.
    pub(crate) fn begin_job(&self, task: impl Future<Output = ()> + Send + 'static) {
        let Some(beginning) = Beginning::new() else { return self.spawn_job(task) };
        let Some(job) = self.count_job() else { return };
        let mut task = Box::pin(task);
        let begun = {
            let _inside = self.runtime.enter();
            // Nobody is woken by this: the task that takes it over polls it again.
            guarded(|| task.as_mut().poll(&mut Context::from_waker(Waker::noop())))
        };
        drop(beginning);
        match begun {
            Ok(Poll::Pending) => self.spawn_counted(job, task),
            Ok(Poll::Ready(())) => {}
            Err(panic) => tracing::error!(panic, "a job of the buffer ended early"),
        }
    }

    /// A job that is under way from now on. `None`: none is taken on any more.
    fn count_job(&self) -> Option<Job> {
        let running = self.running.lock();
        if running.closing {
            return None;
        }
        // Under the lock, so that whoever closes either sees this job or keeps it from starting.
        self.jobs.under_way.fetch_add(1, SeqCst);
        Some(Job(self.jobs.clone()))
    }

    fn spawn_counted(&self, job: Job, task: impl Future<Output = ()> + Send + 'static) {
        let task = async move {
            let _job = job;
            task.await;
        };
        let mut running = self.running.lock();
        if running.over {
            drop(running);
            // Not under the lock: whoever waits for it is woken.
            drop(task);
            return;
        }
        running.spawn(task, &self.runtime);
    }

    /// Waits until no job is under way.
    pub(crate) async fn idle(&self) {
        loop {
            let mut none = std::pin::pin!(self.jobs.none.notified());
            // Before looking, so that the last one wakes this.
            none.as_mut().enable();
            if self.jobs.under_way.load(SeqCst) == 0 {
                return;
            }
            none.await;
        }
    }

    /// Takes on no job from now on.
    pub(crate) fn refuse_jobs(&self) {
        self.running.lock().closing = true;
    }

    /// Ends all tasks where they stand, without waiting for that.
    pub(crate) fn abort(&self) {
        drop(self.take_all());
    }

    /// Ends all tasks where they stand. When this returns nothing of them is left.
    pub(crate) async fn end(&self) {
        self.take_all().shutdown().await;
    }

    fn take_all(&self) -> JoinSet<()> {
        let mut running = self.running.lock();
        running.closing = true;
        running.over = true;
        std::mem::take(&mut running.set)
    }
}

thread_local! {
    static BEGINNING: Cell<bool> = const { Cell::new(false) };
}

/// This thread is beginning a job.
struct Beginning;

impl Beginning {
    /// `None`: it is beginning one already.
    fn new() -> Option<Self> {
        (!BEGINNING.replace(true)).then_some(Self)
    }
}

impl Drop for Beginning {
    fn drop(&mut self) {
        BEGINNING.set(false);
    }
}

/// Counts a job, however it ends.
struct Job(Arc<Jobs>);

impl Drop for Job {
    fn drop(&mut self) {
        if self.0.under_way.fetch_sub(1, SeqCst) == 1 {
            self.0.none.notify_waiters();
        }
    }
}
