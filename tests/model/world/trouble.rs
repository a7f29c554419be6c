//! What goes wrong with the stores, and how it ends.

use std::time::Duration;

use spill_conformance::{Calls, Fault, Operation};
use tokio::time::{Instant, sleep, sleep_until};

use super::World;
use crate::call::Trouble;

/// The longest a failing tier is left alone, and then some.
const BACK_OFF: Duration = Duration::from_secs(61);

impl World {
    pub(super) fn set_latencies(&self) {
        for (tier, faults) in
            self.shape.tiers.iter().zip(&self.faults).filter(|(tier, _)| !tier.latency.is_zero())
        {
            for operation in [Operation::Put, Operation::Get, Operation::Delete] {
                faults.delay(operation, tier.latency);
            }
        }
    }

    pub(super) fn cause(&mut self, tier: usize, trouble: &Trouble) {
        if self.faults.is_empty() {
            return;
        }
        self.troubled = true;
        let faults = &self.faults[tier % self.faults.len()];
        match *trouble {
            Trouble::Fail { operation, kind, after_effect, calls } => {
                let fault = Fault::new(kind);
                let fault = if after_effect { fault.after_effect() } else { fault };
                faults.fail(Calls::of(operation).next(calls), fault);
            }
            Trouble::Slow { operation, by, calls } => faults.delay(Calls::of(operation).next(calls), by),
            Trouble::Hold { operation, after_effect, until } => {
                let gate =
                    if after_effect { faults.hold_after_effect(operation) } else { faults.hold(operation) };
                self.quiet_at = self.quiet_at.max(Instant::now() + until);
                tokio::spawn(async move {
                    sleep(until).await;
                    gate.release();
                });
            }
            Trouble::Damage { damage, calls } => faults.damage(Calls::of(Operation::Get).next(calls), damage),
            Trouble::Quota(bytes) => faults.set_quota(Some(bytes)),
            Trouble::SpaceLeft(bytes) => faults.set_space_left(Some(bytes)),
        }
    }

    /// Everything works again, and has had time to notice.
    pub(super) async fn heal(&mut self) {
        for faults in &self.faults {
            faults.heal();
        }
        self.set_latencies();
        sleep_until(self.quiet_at.max(Instant::now() + BACK_OFF)).await;
        self.join_all().await;
        sleep(BACK_OFF).await;
        self.troubled = false;
    }
}
