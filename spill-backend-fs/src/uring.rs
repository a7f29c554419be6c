//! One `io_uring` of the kernel with the reads that are on their way in it. Whom it belongs to and who asks for its
//! reads is in `ring`.
//!
//! The memory of a read belongs to its slot here until the kernel is done with it, whatever becomes of the future
//! that asked for it.

use std::{
    fmt, io, mem,
    os::fd::{AsRawFd, OwnedFd},
    sync::Arc,
    task::{Context, Poll, Waker},
};

use io_uring::{IoUring, opcode, types};
use parking_lot::Mutex;
use rustix::{event::EventfdFlags, io::Errno};

use crate::{
    buffers::Buffer,
    files::OpenFile,
    ring::{Place, Wanted},
};

/// Reads that are handed to the kernel together, at most: the disk must not wait for those who are asked last.
const MOST_HELD: usize = 4;

/// A ring, and its slots: one for each read that can be on its way.
pub(crate) struct Uring {
    ring: IoUring,
    /// Written to by the kernel with each read that ends.
    event: OwnedFd,
    state: Mutex<State>,
}

struct State {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// No more reads are begun, and whoever drives it ends with the last one.
    ending: bool,
    /// Nobody drives it any more.
    undriven: bool,
    /// The kernel took no read.
    broken: bool,
    /// Reads that are begun wait to be handed to the kernel together: each time the disk is told costs a few µs.
    holding: bool,
    /// Reads that wait for that.
    held: usize,
}

/// What was found when the ring was looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drained {
    /// `false`: the last read has ended, and there will be no other.
    pub(crate) goes_on: bool,
    /// Several were woken, who are likely to begin reads now: those are held back until [`Uring::release`].
    pub(crate) holds: bool,
}

enum Slot {
    Free,
    Reading(Reading),
    /// The bytes that were read, or an error's number below zero.
    Ended(Buffer, i32),
}

struct Reading {
    buffer: Buffer,
    /// Open until the read has ended, and a place among the reads taken until then.
    file: Arc<OpenFile>,
    place: Option<Place>,
    /// `None`: nobody waits for it, or not yet.
    waker: Option<Waker>,
    abandoned: bool,
}

impl fmt::Debug for Uring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uring").field("in_flight", &self.in_flight()).finish_non_exhaustive()
    }
}

impl Uring {
    /// A ring for so many reads at once. Fails where the system has or allows none.
    pub(crate) fn new(depth: usize) -> io::Result<Self> {
        let entries = u32::try_from(depth).map_err(|_| io::ErrorKind::InvalidInput)?;
        let ring = IoUring::builder().setup_clamp().dontfork().build(entries)?;
        if (ring.params().sq_entries() as usize) < depth {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        let state = State {
            slots: (0..depth).map(|_| Slot::Free).collect(),
            free: (0..depth).collect(),
            ending: false,
            undriven: false,
            broken: false,
            holding: false,
            held: 0,
        };
        Ok(Self { ring, event, state: Mutex::new(state) })
    }

    /// Becomes readable with each read that ends.
    pub(crate) fn event(&self) -> io::Result<OwnedFd> {
        self.event.try_clone()
    }

    /// Reads that are on their way.
    pub(crate) fn in_flight(&self) -> usize {
        let state = self.state.lock();
        state.slots.iter().filter(|slot| matches!(slot, Slot::Reading(_))).count()
    }

    /// Begins a read, without waiting for anything. `None`: it can't be begun now.
    #[expect(unsafe_code, reason = "the kernel writes into the buffer after this has returned")]
    pub(crate) fn begin(self: &Arc<Self>, mut wanted: Wanted) -> Option<Ticket> {
        let length = u32::try_from(wanted.length).ok()?;
        let fd = types::Fd(wanted.descriptor().as_raw_fd());
        let memory = wanted.buffer.aligned().get_mut(wanted.shift..)?;
        if memory.len() < wanted.length {
            return None;
        }
        let read = opcode::Read::new(fd, memory.as_mut_ptr(), length).offset(wanted.offset).build();
        let mut state = self.state.lock();
        if state.ending || state.broken || state.undriven {
            return None;
        }
        let number = state.free.pop()?;
        // SAFETY: The file is open and the buffer, whose `length` bytes from `memory` on were checked above, is
        // neither touched, moved in memory nor freed until the kernel has said that the read ended: both go into
        // the slot, where nothing looks at them before `drain` has seen that; a ring that is dropped before keeps
        // its slots for ever. The queue is only used under the lock of `state`.
        let pushed = unsafe { self.ring.submission_shared().push(&read.user_data(number as u64)) };
        if pushed.is_err() {
            state.free.push(number);
            return None;
        }
        state.slots[number] = Slot::Reading(Reading {
            buffer: wanted.buffer,
            file: wanted.file,
            place: Some(wanted.place),
            waker: None,
            abandoned: false,
        });
        state.held += 1;
        let hands_over = !state.holding || state.held == MOST_HELD;
        if hands_over {
            state.held = 0;
        }
        drop(state);
        // From here on the slot is this ticket's.
        let ticket = Ticket { ring: Arc::clone(self), slot: Some(number) };
        if hands_over {
            self.submit();
        }
        Some(ticket)
    }

    /// Hands the queue to the kernel. Not under the lock: it starts the disk.
    fn submit(&self) {
        loop {
            match self.ring.submit() {
                Ok(_) => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return self.give_up(),
            }
        }
    }

    /// The kernel does not take what is in the queue, and it can't be taken out: no more reads here. Those who wait
    /// find another way, and the memory of what is in the queue stays.
    fn give_up(&self) {
        let mut state = self.state.lock();
        state.broken = true;
        let gone = state.take_wakers(|reading| drop(reading.place.take()));
        drop(state);
        gone.into_iter().for_each(Waker::wake);
    }

    /// Takes notice of the reads that have ended, and wakes those who wait for them.
    pub(crate) fn drain(&self) {
        self.look(false);
    }

    /// The same for whoever drives the ring, and calls `release` soon when reads are held back.
    pub(crate) fn drain_and_hold(&self) -> Drained {
        self.look(true)
    }

    /// Hands the reads that were held back to the kernel.
    pub(crate) fn release(&self) {
        let mut state = self.state.lock();
        state.holding = false;
        let held = mem::take(&mut state.held);
        drop(state);
        if held > 0 {
            self.submit();
        }
    }

    #[expect(unsafe_code, reason = "the queue is shared with the kernel")]
    fn look(&self, may_hold: bool) -> Drained {
        let (mut done, mut wakers) = (Vec::new(), Vec::new());
        let mut state = self.state.lock();
        // SAFETY: Only used here, under the lock of `state`.
        for ended in unsafe { self.ring.completion_shared() } {
            let Ok(number) = usize::try_from(ended.user_data()) else { continue };
            let Some(slot) = state.slots.get_mut(number) else { continue };
            let Slot::Reading(reading) = mem::replace(slot, Slot::Free) else { continue };
            let Reading { buffer, file, place, waker, abandoned } = reading;
            wakers.extend(waker);
            let unwanted = if abandoned {
                state.free.push(number);
                Some(buffer)
            } else {
                state.slots[number] = Slot::Ended(buffer, ended.result());
                None
            };
            // Without the lock: whoever waits for a place is woken, and the last reader of a file closes it.
            done.push((unwanted, file, place));
        }
        let goes_on = !state.ending || state.slots.iter().any(|slot| matches!(slot, Slot::Reading(_)));
        let holds = may_hold && wakers.len() > 1;
        state.holding |= holds;
        drop(state);
        drop(done);
        wakers.into_iter().for_each(Waker::wake);
        Drained { goes_on, holds }
    }

    /// Begins no more reads.
    pub(crate) fn end(&self) {
        self.state.lock().ending = true;
        // Only wakes whoever drives it; a full counter has done so already.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Nobody drives it any more: whoever waits finds another way.
    pub(crate) fn leave(&self) {
        let mut state = self.state.lock();
        state.undriven = true;
        let gone = state.take_wakers(|_| ());
        drop(state);
        // So that they end, and others can have the ring.
        self.release();
        gone.into_iter().for_each(Waker::wake);
    }

    /// Whether reads can be begun.
    pub(crate) fn is_open(&self) -> bool {
        let state = self.state.lock();
        !(state.ending || state.undriven || state.broken)
    }

    /// Waits until no read is on its way. Blocks.
    pub(crate) fn wait(&self) -> io::Result<()> {
        loop {
            self.drain();
            if self.in_flight() == 0 || self.state.lock().broken {
                return Ok(());
            }
            // Another thread may have taken the last one meanwhile: so not for ever.
            let moment = types::Timespec::new().nsec(10_000_000);
            let arguments = types::SubmitArgs::new().timespec(&moment);
            match self.ring.submitter().submit_with_args(1, &arguments) {
                Ok(_) => {}
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether it was only the wait that ended.
fn is_passing(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::INTR | Errno::TIME | Errno::AGAIN | Errno::BUSY))
}

impl State {
    fn take_wakers(&mut self, mut also: impl FnMut(&mut Reading)) -> Vec<Waker> {
        let readings = self.slots.iter_mut().filter_map(|slot| match slot {
            Slot::Reading(reading) => Some(reading),
            Slot::Free | Slot::Ended(..) => None,
        });
        readings
            .filter_map(|reading| {
                also(reading);
                reading.waker.take()
            })
            .collect()
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let reading = |slot: &Slot| matches!(slot, Slot::Reading(_));
        if state.slots.iter().any(reading) {
            // Nobody could wait for the kernel: the runtime went before its reads ended, and the store as well. It
            // may still write there.
            mem::forget(mem::take(&mut state.slots));
        }
    }
}

/// A read that was begun. Dropped before it ended, it leaves its memory to the ring.
#[derive(Debug)]
pub(crate) struct Ticket {
    ring: Arc<Uring>,
    /// `None`: it is over.
    slot: Option<usize>,
}

impl Ticket {
    /// The bytes that were read, or an error's number below zero, with the buffer. `None`: nobody will ever know.
    pub(crate) fn poll(&mut self, context: &Context<'_>) -> Poll<Option<(Buffer, i32)>> {
        let Some(number) = self.slot else { return Poll::Ready(None) };
        let mut state = self.ring.state.lock();
        let is_lost = state.undriven || state.broken;
        match &mut state.slots[number] {
            Slot::Reading(_) if is_lost => {
                drop(state);
                self.abandon();
                Poll::Ready(None)
            }
            Slot::Reading(reading) => {
                match &mut reading.waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    none => *none = Some(context.waker().clone()),
                }
                Poll::Pending
            }
            slot => {
                let ended = mem::replace(slot, Slot::Free);
                state.free.push(number);
                drop(state);
                self.slot = None;
                match ended {
                    Slot::Ended(buffer, result) => Poll::Ready(Some((buffer, result))),
                    Slot::Free | Slot::Reading(_) => Poll::Ready(None),
                }
            }
        }
    }

    pub(crate) fn ring(&self) -> &Arc<Uring> {
        &self.ring
    }

    /// Nobody waits for it any more.
    fn abandon(&mut self) {
        let Some(number) = self.slot.take() else { return };
        let mut state = self.ring.state.lock();
        match &mut state.slots[number] {
            Slot::Reading(reading) => {
                reading.abandoned = true;
                let waker = reading.waker.take();
                drop(state);
                drop(waker);
            }
            slot => {
                let ended = mem::replace(slot, Slot::Free);
                state.free.push(number);
                drop(state);
                drop(ended);
            }
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.abandon();
    }
}
