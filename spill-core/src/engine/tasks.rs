//! The tasks of one buffer: spawned on its runtime, owned by it, ended with it.

use std::future::Future;

use parking_lot::Mutex;
use tokio::{runtime::Handle, sync::watch, task::JoinSet};

#[derive(Debug)]
pub(crate) struct Tasks {
    runtime: Handle,
    set: Mutex<JoinSet<()>>,
    /// Jobs under way: tasks that end by themselves.
    jobs: watch::Sender<usize>,
}

impl Tasks {
    pub(crate) fn new(runtime: Handle) -> Self {
        Self { runtime, set: Mutex::default(), jobs: watch::channel(0).0 }
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Starts a task that runs until the buffer is gone.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut set = self.set.lock();
        // Ended tasks are let go of here, so the set never holds many more than are running.
        while set.try_join_next().is_some() {}
        set.spawn_on(task, &self.runtime);
    }

    /// Starts a task that ends by itself; closing waits for it.
    pub(crate) fn spawn_job(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.jobs.send_modify(|jobs| *jobs += 1);
        let job = Job(self.jobs.clone());
        self.spawn(async move {
            let _job = job;
            task.await;
        });
    }

    /// Waits until no job is under way.
    pub(crate) async fn idle(&self) {
        // The sender is ours, so waiting can't fail.
        drop(self.jobs.subscribe().wait_for(|jobs| *jobs == 0).await);
    }

    /// Ends all tasks where they stand, without waiting for them.
    pub(crate) fn abort(&self) {
        // Dropping the set aborts its tasks.
        drop(std::mem::take(&mut *self.set.lock()));
    }

    /// Ends all tasks where they stand, and waits until they have let go of everything.
    pub(crate) async fn shutdown(&self) {
        let mut set = std::mem::take(&mut *self.set.lock());
        set.shutdown().await;
    }
}

/// Counts a job, however it ends.
struct Job(watch::Sender<usize>);

impl Drop for Job {
    fn drop(&mut self) {
        self.0.send_modify(|jobs| *jobs -= 1);
    }
}
