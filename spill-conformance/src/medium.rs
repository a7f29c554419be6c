//! Trouble in the medium under a store: system calls, an HTTP client, the object store inside.
//!
//! The author of a store wires a [`Medium`] into whatever the store stands on, and asks it at each call what
//! happens to that call. The cases of the group `faults` script it. A store that fails on demand, for tests
//! of a *user* of stores, is [`FaultStore`](crate::FaultStore).

use std::{io, sync::Arc};

use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

/// What a call of the medium does with bytes of blobs: some troubles meet only some calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It brings bytes of a blob.
    Read,
    /// It takes bytes of a blob.
    Write,
    /// Anything else: making, naming, removing, listing, asking.
    Other,
}

/// What goes wrong with one call of the medium.
///
/// An adapter translates it into what its medium says: [`error`](Self::error) and [`status`](Self::status)
/// are the common words for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trouble {
    /// There is no room: ENOSPC, HTTP 507. Nothing is done. Meets writes and others.
    NoSpace,
    /// It fails, and would again: EIO. Nothing is done.
    IoError,
    /// A write takes the first [`part`](Self::part) of the bytes, and says so. No error: a store goes on with
    /// the rest. Only for media whose writes may be short.
    Short,
    /// A write takes the first [`part`](Self::part) of the bytes, and then fails as by
    /// [`IoError`](Self::IoError).
    Torn,
    /// A read brings the first [`part`](Self::part) of the bytes, and then ends as if there were no more.
    Truncated,
    /// A read brings bytes of which one bit is another: see [`flip`](Self::flip).
    BitFlip,
    /// It does not answer. An adapter never sees this: [`Medium::call`] does not return.
    Hang,
    /// Too many requests: HTTP 429. Nothing is done.
    Throttled,
    /// An error of the other side: HTTP 500. Nothing is done.
    ServerError,
    /// The other side can't at the moment: HTTP 503. Nothing is done.
    Unavailable,
    /// The connection is lost before anything is done.
    ResetBefore,
    /// Everything is done, and then the connection is lost: the answer is an error.
    ResetAfter,
}

impl Trouble {
    /// All there are.
    pub const ALL: [Self; 12] = [
        Self::NoSpace,
        Self::IoError,
        Self::Short,
        Self::Torn,
        Self::Truncated,
        Self::BitFlip,
        Self::Hang,
        Self::Throttled,
        Self::ServerError,
        Self::Unavailable,
        Self::ResetBefore,
        Self::ResetAfter,
    ];

    /// Those of a file system: all but the answers of a server.
    pub const OF_FILES: [Self; 7] =
        [Self::NoSpace, Self::IoError, Self::Short, Self::Torn, Self::Truncated, Self::BitFlip, Self::Hang];

    /// Those of a server behind a connection: all but short and torn writes, of which a client knows nothing.
    pub const OF_SERVERS: [Self; 10] = [
        Self::NoSpace,
        Self::IoError,
        Self::Truncated,
        Self::BitFlip,
        Self::Hang,
        Self::Throttled,
        Self::ServerError,
        Self::Unavailable,
        Self::ResetBefore,
        Self::ResetAfter,
    ];

    /// Whether it can happen to calls like this.
    pub fn meets(self, access: Access) -> bool {
        match self {
            Self::NoSpace => access != Access::Read,
            Self::Short | Self::Torn => access == Access::Write,
            Self::Truncated | Self::BitFlip => access == Access::Read,
            _ => true,
        }
    }

    /// Whether the call has its whole effect, and fails only then.
    pub fn is_after_effect(self) -> bool {
        self == Self::ResetAfter
    }

    /// How many of `len` bytes the call moves before the trouble: half of them, where it is about a part, and
    /// one at least for a short write.
    ///
    /// ```
    /// use spill_conformance::Trouble;
    /// assert_eq!(Trouble::Torn.part(100), 50);
    /// assert_eq!((Trouble::Torn.part(1), Trouble::Short.part(1)), (0, 1));
    /// ```
    pub fn part(self, len: usize) -> usize {
        match self {
            Self::Short => len.div_ceil(2),
            _ => len / 2,
        }
    }

    /// Flips one bit in the middle.
    pub fn flip(bytes: &mut [u8]) {
        let middle = bytes.len() / 2;
        if let Some(byte) = bytes.get_mut(middle) {
            *byte ^= 1;
        }
    }

    /// The error of the system that says this: of the kind `StorageFull`, `ConnectionReset` or `TimedOut`, and
    /// EIO (without a kind of its own) for the rest. Troubles that are no errors have none.
    ///
    /// ```
    /// use std::io::ErrorKind;
    /// use spill_conformance::Trouble;
    /// assert_eq!(Trouble::NoSpace.error().map(|error| error.kind()), Some(ErrorKind::StorageFull));
    /// assert!(Trouble::Short.error().is_none());
    /// ```
    pub fn error(self) -> Option<io::Error> {
        /// The same number on every Unix.
        const EIO: i32 = 5;
        const ENOSPC: i32 = 28;
        match self {
            Self::NoSpace => Some(io::Error::from_raw_os_error(ENOSPC)),
            Self::IoError | Self::Torn => Some(io::Error::from_raw_os_error(EIO)),
            Self::ResetBefore | Self::ResetAfter => Some(io::ErrorKind::ConnectionReset.into()),
            Self::Throttled | Self::ServerError | Self::Unavailable => Some(io::ErrorKind::TimedOut.into()),
            Self::Short | Self::Truncated | Self::BitFlip | Self::Hang => None,
        }
    }

    /// The HTTP status that says this, for those that are an answer of a server.
    ///
    /// ```
    /// use spill_conformance::Trouble;
    /// assert_eq!((Trouble::NoSpace.status(), Trouble::ResetBefore.status()), (Some(507), None));
    /// ```
    pub fn status(self) -> Option<u16> {
        match self {
            Self::NoSpace => Some(507),
            Self::Throttled => Some(429),
            Self::ServerError => Some(500),
            Self::Unavailable => Some(503),
            _ => None,
        }
    }
}

/// The script of one medium. Clones are the same handle.
///
/// The adapter asks before each call what happens to it, by [`call`](Self::call), or by
/// [`call_blocking`](Self::call_blocking) where the medium is used from blocking threads:
///
/// ```
/// use std::io;
/// use spill_conformance::{Access, Medium, Trouble};
///
/// fn remove(medium: &Medium, path: &str) -> io::Result<()> {
///     let trouble = medium.call_blocking(Access::Other);
///     if let Some(error) = trouble.filter(|trouble| !trouble.is_after_effect()).and_then(Trouble::error) {
///         return Err(error);
///     }
///     let removed = std::fs::remove_file(path);
///     trouble.and_then(Trouble::error).map_or(removed, Err)
/// }
///
/// let medium = Medium::new();
/// medium.arm(Trouble::IoError, 0);
/// assert_eq!(remove(&medium, "/nowhere").unwrap_err().raw_os_error(), Some(5));
/// assert_eq!(remove(&medium, "/nowhere").unwrap_err().kind(), io::ErrorKind::NotFound);
/// assert_eq!(medium.heal(), 1);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Medium(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    script: Mutex<Script>,
    /// For calls that hang on a thread.
    healed: Condvar,
    /// For calls that hang in a task, and for those who wait until trouble was met.
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Script {
    armed: Option<Armed>,
    /// Counts healings: a call that hangs goes on after the next one.
    healings: u64,
    calls: u64,
}

#[derive(Debug)]
struct Armed {
    trouble: Trouble,
    /// Calls it can happen to that still go well.
    before: u64,
    lasting: bool,
    met: u64,
}

impl Medium {
    /// One without trouble.
    pub fn new() -> Self {
        Self::default()
    }

    /// The trouble of this call, if it meets one. Ask once per call, right before it.
    ///
    /// A call that hangs waits here until the medium is healed, and is then one without trouble.
    ///
    /// # Cancel safety
    /// Dropping the future ends the call: it counts, and does nothing.
    pub async fn call(&self, access: Access) -> Option<Trouble> {
        let mut changed = self.0.changed.subscribe();
        let (trouble, healings) = self.next(access)?;
        if trouble != Trouble::Hang {
            return Some(trouble);
        }
        while self.0.script.lock().healings == healings {
            // The sender lives as long as the handle.
            let _ = changed.changed().await;
        }
        None
    }

    /// The same on a thread that may block; a call that hangs blocks it until the medium is healed.
    pub fn call_blocking(&self, access: Access) -> Option<Trouble> {
        let (trouble, healings) = self.next(access)?;
        if trouble != Trouble::Hang {
            return Some(trouble);
        }
        let mut script = self.0.script.lock();
        while script.healings == healings {
            self.0.healed.wait(&mut script);
        }
        None
    }

    fn next(&self, access: Access) -> Option<(Trouble, u64)> {
        let mut script = self.0.script.lock();
        script.calls += 1;
        let healings = script.healings;
        let armed = script.armed.as_mut().filter(|armed| armed.trouble.meets(access))?;
        if armed.before > 0 {
            armed.before -= 1;
            return None;
        }
        if armed.met > 0 && !armed.lasting {
            return None;
        }
        armed.met += 1;
        let trouble = armed.trouble;
        drop(script);
        self.0.changed.send_replace(());
        Some((trouble, healings))
    }

    /// Lets one call meet trouble: of those from now on that it [can happen](Trouble::meets) to, the one
    /// after `before` others. Replaces what was armed before.
    pub fn arm(&self, trouble: Trouble, before: u64) {
        self.0.script.lock().armed = Some(Armed { trouble, before, lasting: false, met: 0 });
    }

    /// The same, for that call and all after it: a disk that stays full, a server that stays down.
    pub fn arm_lasting(&self, trouble: Trouble, before: u64) {
        self.0.script.lock().armed = Some(Armed { trouble, before, lasting: true, met: 0 });
    }

    /// Ends all trouble, and lets calls that hang go on. How many calls met some since it was armed.
    pub fn heal(&self) -> u64 {
        let mut script = self.0.script.lock();
        script.healings += 1;
        let met = script.armed.take().map_or(0, |armed| armed.met);
        drop(script);
        self.0.healed.notify_all();
        self.0.changed.send_replace(());
        met
    }

    /// How many calls were asked about in all.
    pub fn calls(&self) -> u64 {
        self.0.script.lock().calls
    }

    /// Waits until a call meets trouble.
    pub(crate) async fn met(&self) {
        let mut changed = self.0.changed.subscribe();
        while self.0.script.lock().armed.as_ref().is_none_or(|armed| armed.met == 0) {
            let _ = changed.changed().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn trouble_meets_the_call_it_is_armed_for() {
        let medium = Medium::new();
        assert_eq!(medium.call_blocking(Access::Write), None);
        medium.arm(Trouble::Torn, 1);
        let calls = [Access::Write, Access::Other, Access::Read, Access::Write, Access::Write];
        let met: Vec<_> = calls.iter().map(|access| medium.call_blocking(*access)).collect();
        assert_eq!(met, [None, None, None, Some(Trouble::Torn), None]);
        assert_eq!((medium.heal(), medium.heal(), medium.calls()), (1, 0, 6));
        medium.arm_lasting(Trouble::NoSpace, 1);
        let met: Vec<_> = calls.iter().map(|access| medium.call_blocking(*access)).collect();
        let full = Some(Trouble::NoSpace);
        assert_eq!(met, [None, full, None, full, full]);
    }

    #[tokio::test]
    async fn a_call_hangs_until_the_medium_is_healed() {
        let medium = Medium::new();
        medium.arm(Trouble::Hang, 0);
        let mut call = pin!(medium.call(Access::Read));
        assert!((&mut call).now_or_never().is_none());
        medium.met().await;
        assert_eq!(medium.call(Access::Read).await, None, "only one hangs");
        assert!((&mut call).now_or_never().is_none());
        assert_eq!(medium.heal(), 1);
        assert_eq!(call.await, None);
        medium.arm(Trouble::Hang, 0);
        let other = medium.clone();
        let thread = std::thread::spawn(move || other.call_blocking(Access::Write));
        medium.met().await;
        medium.heal();
        assert_eq!(thread.join().unwrap(), None);
    }
}
