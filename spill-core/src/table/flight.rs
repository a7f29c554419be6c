//! One read of one entry, and everybody who waits for it.

use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

use crate::Error;

/// How a read ended. `None`: the entry was removed or replaced before it could be read; look again.
pub(crate) type Landing<V> = Result<Option<Arc<V>>, Error>;

/// What those have who wait.
#[derive(Debug)]
pub(crate) struct Flight<V> {
    landing: OnceLock<Landing<V>>,
    landed: Notify,
}

impl<V> Flight<V> {
    /// How it ended.
    ///
    /// # Cancel safety
    /// When the future is dropped, the read goes on.
    pub(crate) async fn landing(&self) -> Landing<V> {
        let mut landed = std::pin::pin!(self.landed.notified());
        // Before looking, so that what lands from now on wakes this one.
        landed.as_mut().enable();
        if self.landing.get().is_none() {
            landed.await;
        }
        self.landing.get().cloned().unwrap_or(Err(Error::RuntimeGone { operation: "get" }))
    }
}

/// What the one has who reads. Dropped, it has landed without the value.
#[derive(Debug)]
pub(crate) struct Pilot<V>(Arc<Flight<V>>);

impl<V> Pilot<V> {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Flight { landing: OnceLock::new(), landed: Notify::new() }))
    }

    pub(crate) fn flight(&self) -> Arc<Flight<V>> {
        Arc::clone(&self.0)
    }

    /// Everybody who waits gets this.
    pub(crate) fn land(self, landing: Landing<V>) {
        // The first one counts, and there is no other.
        drop(self.0.landing.set(landing));
    }
}

impl<V> Drop for Pilot<V> {
    fn drop(&mut self) {
        self.0.landing.get_or_init(|| Err(Error::RuntimeGone { operation: "get" }));
        self.0.landed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn everybody_gets_what_landed_early_or_late() {
        let pilot = Pilot::new();
        let waits = |flight: Arc<Flight<u64>>| tokio::spawn(async move { flight.landing().await });
        let (flight, early) = (pilot.flight(), [waits(pilot.flight()), waits(pilot.flight())]);
        tokio::task::yield_now().await;
        assert!(tokio::time::timeout(Duration::ZERO, flight.landing()).await.is_err());
        pilot.land(Ok(Some(Arc::new(7))));
        for task in early {
            assert_eq!(task.await.unwrap().unwrap().as_deref(), Some(&7));
        }
        assert_eq!(flight.landing().await.unwrap().as_deref(), Some(&7));
    }

    #[tokio::test]
    async fn nobody_waits_for_one_that_was_given_up() {
        let pilot = Pilot::<u64>::new();
        let flight = pilot.flight();
        let waits = tokio::spawn({
            let flight = pilot.flight();
            async move { flight.landing().await }
        });
        tokio::task::yield_now().await;
        drop(pilot);
        assert!(matches!(waits.await.unwrap(), Err(Error::RuntimeGone { .. })));
        assert!(matches!(flight.landing().await, Err(Error::RuntimeGone { .. })));
    }
}
