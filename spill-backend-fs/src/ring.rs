//! Cold reads without threads: who may use the kernel's ring, and who waits for it. The ring itself is in `uring`.
//!
//! A read is begun in the call that asks for it. When it has ended the kernel writes to an event, for which the
//! runtime waits as it does for sockets: so one read in flight costs one thread that is woken, as `pread` does,
//! where handing it to a thread costs two.
//!
//! A ring belongs to the runtime that made it: a task there takes notice of what has ended. It is a task of its own
//! because any of those who wait may go away; it ends with the last read after the ring was given up. Readers on
//! another runtime take the ring over when nothing is on its way in it, and use threads until then; so do all when
//! the runtime was shut down in the middle of their reads, or has no I/O driver.

use std::{
    fs::File,
    future::poll_fn,
    io,
    os::fd::OwnedFd,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::Poll,
};

use parking_lot::Mutex;
use tokio::{
    io::{Interest, unix::AsyncFd},
    runtime::{Handle, Id},
    sync::OwnedSemaphorePermit,
};

use crate::{buffers::Buffer, files::OpenFile, uring::Uring};

/// Runtimes without an I/O driver that are remembered; with more there is no ring at all.
const REFUSED: usize = 16;

/// A place among those who read.
pub(crate) type Place = Arc<OwnedSemaphorePermit>;

/// A read to be begun.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) file: Arc<OpenFile>,
    /// Past the page cache, where that can be.
    pub(crate) past_cache: bool,
    pub(crate) offset: u64,
    pub(crate) length: usize,
    pub(crate) buffer: Buffer,
    /// Where in the buffer, counted from where it is aligned.
    pub(crate) shift: usize,
    pub(crate) place: Place,
}

impl Wanted {
    /// What is read from.
    pub(crate) fn descriptor(&self) -> &File {
        let direct = self.file.direct().filter(|_| self.past_cache);
        direct.map_or(&self.file, |direct| &direct.file)
    }
}

/// The ring of one store, if it has one.
#[derive(Debug)]
pub(crate) struct Ring {
    depth: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    held: Held,
    /// Runtimes on which nobody can wait for a ring.
    refused: Vec<Id>,
}

#[derive(Debug, Default)]
enum Held {
    #[default]
    ByNobody,
    /// Somebody is making one.
    InTheMaking,
    By(Id, Arc<Uring>),
    /// There is none, and will be none.
    Never,
}

impl Ring {
    /// A ring for at most so many reads at once. It is made when it is first used.
    pub(crate) fn new(depth: usize) -> Self {
        // A program that ends at a panic can't ask a runtime whether it can wait for a ring.
        let held = if depth == 0 || cfg!(panic = "abort") { Held::Never } else { Held::ByNobody };
        Self { depth, state: Mutex::new(State { held, refused: Vec::new() }) }
    }

    /// The ring, if this runtime may use it now.
    pub(crate) fn here(&self) -> Option<Arc<Uring>> {
        let runtime = Handle::try_current().ok()?;
        let id = runtime.id();
        let last = {
            let state = self.state.lock();
            match &state.held {
                Held::Never | Held::InTheMaking => return None,
                Held::By(holder, ring) if *holder == id && ring.is_open() => return Some(Arc::clone(ring)),
                Held::By(_, ring) => Some(Arc::clone(ring)),
                Held::ByNobody => None,
            }
        };
        if let Some(last) = last {
            last.drain();
            // One that is broken never comes to rest: then there is no other one.
            if last.in_flight() > 0 {
                return None;
            }
        }
        self.take_over(&runtime)
    }

    fn take_over(&self, runtime: &Handle) -> Option<Arc<Uring>> {
        let last = {
            let mut state = self.state.lock();
            if matches!(state.held, Held::Never | Held::InTheMaking) || state.refused.contains(&runtime.id())
            {
                return None;
            }
            std::mem::replace(&mut state.held, Held::InTheMaking)
        };
        if let Held::By(_, last) = last {
            last.end();
        }
        let made = make(runtime, self.depth);
        let mut state = self.state.lock();
        let (held, ring) = match made {
            Ok(Some(ring)) => (Held::By(runtime.id(), Arc::clone(&ring)), Some(ring)),
            Ok(None) => {
                state.refused.push(runtime.id());
                tracing::debug!("this runtime has no I/O driver: what is not cached is read by threads");
                (if state.refused.len() < REFUSED { Held::ByNobody } else { Held::Never }, None)
            }
            Err(error) => {
                tracing::debug!(%error, "no io_uring here: what is not cached is read by threads");
                (Held::Never, None)
            }
        };
        if matches!(state.held, Held::Never) {
            // It was stopped meanwhile.
            drop(state);
            ring.inspect(|ring| ring.end());
            return None;
        }
        state.held = held;
        ring
    }

    /// There is no ring from now on. Returns the one there was: reads may be on their way in it.
    pub(crate) fn stop(&self) -> Option<Arc<Uring>> {
        let held = std::mem::replace(&mut self.state.lock().held, Held::Never);
        let Held::By(_, ring) = held else { return None };
        ring.end();
        Some(ring)
    }

    /// Reads. `None`: it is to be read another way. Else the buffer, and the bytes that were read or the number of an
    /// error, below zero.
    ///
    /// # Cancel safety
    /// When the future is dropped, the read goes on, and its memory, file and place are free when it has ended.
    pub(crate) async fn read(ring: &Arc<Uring>, wanted: Wanted) -> Option<(Buffer, i32)> {
        let home = Handle::try_current().ok()?.id();
        let mut ticket = ring.begin(wanted)?;
        poll_fn(|context| {
            let ended = ticket.poll(context);
            let is_away = || Handle::try_current().map_or(true, |runtime| runtime.id() != home);
            if ended.is_pending() && is_away() {
                // The future was taken elsewhere; nobody may drive the runtime that it came from.
                ticket.ring().drain();
                return Poll::Ready(match ticket.poll(context) {
                    Poll::Ready(ended) => ended,
                    Poll::Pending => None,
                });
            }
            ended
        })
        .await
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A ring and the task that drives it. `None`: there can be none on this runtime.
fn make(runtime: &Handle, depth: usize) -> io::Result<Option<Arc<Uring>>> {
    let ring = Arc::new(Uring::new(depth)?);
    let Some(events) = listen(ring.event()?) else { return Ok(None) };
    let task = drive(Driver(Arc::clone(&ring)), events?);
    drop(runtime.spawn(task));
    Ok(Some(ring))
}

/// `None`: the runtime has no I/O driver. It says so by a panic only.
#[allow(
    deprecated,
    reason = "what replaces it is unsafe, and not in all versions; an `OwnedFd` is all it asks for"
)]
fn listen(event: OwnedFd) -> Option<io::Result<AsyncFd<OwnedFd>>> {
    catch_unwind(AssertUnwindSafe(|| AsyncFd::with_interest(event, Interest::READABLE))).ok()
}

/// Takes notice of what has ended, until the ring has ended.
async fn drive(driver: Driver, events: AsyncFd<OwnedFd>) {
    loop {
        let drained = driver.0.drain_and_hold();
        if drained.holds {
            // Those who were woken are asked first.
            tokio::task::yield_now().await;
            driver.0.release();
        }
        if !drained.goes_on {
            return;
        }
        match events.readable().await {
            // Before looking, so that what ends from now on is seen the next time. The count in it is of no use:
            // each write tells the runtime.
            Ok(mut ready) => ready.clear_ready(),
            // The runtime is being shut down.
            Err(_) => return,
        }
    }
}

/// Tells those who wait when the task that drives the ring is gone.
struct Driver(Arc<Uring>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    }

    /// The system has no `io_uring`, or does not allow it: nothing to test.
    fn is_impossible() -> bool {
        Uring::new(4).is_err()
    }

    #[test]
    fn a_ring_goes_to_who_asks_when_nothing_is_on_its_way() {
        if is_impossible() {
            return;
        }
        let (ring, first, second) = (Ring::new(4), runtime(), runtime());
        let on = |runtime: &tokio::runtime::Runtime| runtime.block_on(async { ring.here() });
        let one = on(&first).unwrap();
        assert!(Arc::ptr_eq(&one, &on(&first).unwrap()));
        let other = on(&second).unwrap();
        assert!(!Arc::ptr_eq(&one, &other) && !one.is_open() && other.is_open());
        drop(second);
        assert!(!other.is_open());
        assert!(on(&first).unwrap().is_open());
        ring.stop();
        assert!(on(&first).is_none());
        assert!(ring.here().is_none());
    }

    #[test]
    fn a_runtime_without_an_io_driver_gets_no_ring_and_others_do() {
        if is_impossible() {
            return;
        }
        let ring = Ring::new(4);
        let bare = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for _ in 0..2 {
            assert!(bare.block_on(async { ring.here() }).is_none());
        }
        assert!(runtime().block_on(async { ring.here() }).is_some());
        assert!(Ring::new(0).here().is_none());
    }
}
