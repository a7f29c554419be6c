//! The tasks of one buffer: spawned on its runtime, owned by it, ended with it.

use std::future::Future;

use parking_lot::Mutex;
use tokio::{runtime::Handle, sync::watch, task::JoinSet};

#[derive(Debug)]
pub(crate) struct Tasks {
    runtime: Handle,
    running: Mutex<Running>,
    /// Jobs under way: tasks that end by themselves.
    jobs: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Running {
    set: JoinSet<()>,
    /// No job is taken on any more.
    closing: bool,
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
        Self { runtime, running: Mutex::default(), jobs: watch::channel(0).0 }
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
        let mut running = self.running.lock();
        if running.closing {
            drop(running);
            // Not under the lock: whoever waits for it is woken.
            drop(task);
            return;
        }
        // Under the lock, so that whoever closes either sees this job or keeps it from starting.
        self.jobs.send_modify(|jobs| *jobs += 1);
        let job = Job(self.jobs.clone());
        let task = async move {
            let _job = job;
            task.await;
        };
        running.spawn(task, &self.runtime);
    }

    /// Waits until no job is under way.
    pub(crate) async fn idle(&self) {
        // The sender is ours, so waiting can't fail.
        drop(self.jobs.subscribe().wait_for(|jobs| *jobs == 0).await);
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
        std::mem::take(&mut running.set)
    }
}

/// Counts a job, however it ends.
struct Job(watch::Sender<usize>);

impl Drop for Job {
    fn drop(&mut self) {
        self.0.send_modify(|jobs| *jobs -= 1);
    }
}
