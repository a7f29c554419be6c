//! What must be true after every call, at rest, and at the end.

use std::time::Duration;

use spill_buffer::{Error, OnFull, Share, Store, Tally};
use tokio::time::sleep;

use super::{Reader, World, sure};
use crate::random::Random;

/// Long enough for anything that waits for no timer of its own.
const MOMENT: Duration = Duration::from_millis(10);

impl World {
    /// Books that balance at every moment.
    pub(super) fn check(&mut self) {
        let usage = self.buffer.usage();
        let memory = usage.memory;
        if self.writers.is_empty() {
            let weight: u64 = self.model.values().map(|version| version.weight).sum();
            assert_eq!(usage.entries, self.model.len() as u64, "entries");
            assert_eq!(memory.resident.weight + usage.spilled.weight, weight, "weight of all");
            assert_eq!(memory.pinned, self.pinned(), "pinned");
        }
        let used = memory.resident.weight + memory.restoring;
        if self.shape.on_full != OnFull::Keep {
            self.memory_ceiling = memory.limit.max(self.memory_ceiling);
            assert!(used <= self.memory_ceiling, "{used} in memory, the limit is {memory:?}");
            self.memory_ceiling = memory.limit.max(used);
        }
        let in_tiers: u64 = usage.tiers.iter().map(|tier| tier.entries).sum();
        assert_eq!(in_tiers, usage.spilled.entries + memory.clean.entries, "entries in tiers");
        for (tier, ceiling) in usage.tiers.iter().zip(&mut self.spill_ceilings) {
            let used = tier.stored + tier.garbage + tier.in_flight;
            let limit = tier.max_spill.unwrap_or(u64::MAX);
            assert!(used <= limit.max(*ceiling), "{used} in {tier:?}");
            *ceiling = used;
        }
        let mut random = Random::new(self.calls);
        (0..3).for_each(|_| self.look(random.below(self.shape.keys)));
        self.peek(random.below(self.shape.keys));
    }

    /// Entries that a guard keeps in memory.
    pub(super) fn pinned(&self) -> Tally {
        let mut keys: Vec<u64> = self
            .pins
            .iter()
            .filter(|pin| self.model.get(&pin.key).is_some_and(|version| version.number == pin.number))
            .map(|pin| pin.key)
            .collect();
        keys.sort_unstable();
        keys.dedup();
        for key in &keys {
            assert!(self.buffer.peek(key).is_some(), "key {key} is pinned and not in memory");
        }
        Tally { entries: keys.len() as u64, weight: keys.iter().map(|key| self.model[key].weight).sum() }
    }

    /// Looks at background calls that have ended.
    pub(super) async fn reap(&mut self) {
        let (ended, running): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.readers).into_iter().partition(|reader| reader.task.is_finished());
        self.readers = running;
        for Reader { key, allowed, task } in ended {
            self.check_read(key, &task.await.unwrap(), &allowed);
        }
        let (ended, running): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.spills).into_iter().partition(|(_, task)| task.is_finished());
        self.spills = running;
        for (key, task) in ended {
            if let Err(error) = task.await.unwrap() {
                self.check_unspilled(key, &error, false);
            }
        }
        let ended: Vec<u64> = self
            .writers
            .iter()
            .filter(|(_, writer)| writer.task.is_finished())
            .map(|(key, _)| *key)
            .collect();
        for key in ended {
            self.join_writer(key).await;
        }
    }

    /// Waits for all background calls.
    pub(super) async fn join_all(&mut self) {
        self.join_writers().await;
        let ended = async {
            while !(self.readers.iter().all(|reader| reader.task.is_finished())
                && self.spills.iter().all(|(_, task)| task.is_finished()))
            {
                sleep(MOMENT).await;
            }
        };
        sure("a background call", ended).await;
        self.reap().await;
    }

    /// Waits until nothing moves any more; with stores that fail, for a while.
    pub(super) async fn rest(&mut self) {
        if self.troubled {
            sleep(MOMENT).await;
            return self.reap().await;
        }
        self.join_all().await;
        let mut before = self.buffer.usage();
        for _ in 0..10_000 {
            sleep(MOMENT).await;
            let now = self.buffer.usage();
            let in_flight: u64 = now.tiers.iter().map(|tier| tier.in_flight).sum();
            if now == before
                && [now.memory.spilling.entries, now.memory.restoring, now.memory.buffers, in_flight]
                    == [0; 4]
            {
                self.rested = true;
                return;
            }
            before = now;
        }
        panic!("it never comes to rest");
    }

    pub(super) async fn check_at_rest(&mut self) {
        self.check();
        let mut found = self.buffer.audit().await.unwrap();
        if self.troubled {
            // What a failed write has left, and what is being written, is only known afterwards.
            let vague = ["blobs in", "bytes ", "memory in use"];
            found.retain(|line| !vague.iter().any(|start| line.starts_with(start)));
        }
        assert_eq!(found, Vec::<String>::new(), "audit");
        if self.writers.is_empty() {
            let mut keys = self.buffer.keys();
            keys.sort_unstable();
            assert!(keys.iter().eq(self.model.keys()), "keys {keys:?}");
            assert_eq!(self.buffer.len(), keys.len() as u64);
            self.model.keys().for_each(|key| self.peek(*key));
        }
        let memory = self.buffer.usage().memory;
        if self.rested && self.is_free() {
            let share = if self.shape.exact { Share::WHOLE } else { Share::thousandths(875).unwrap() };
            assert!(memory.resident.weight <= share.of(memory.limit), "not drained: {memory:?}");
        }
    }

    /// Everything is there; then it goes, and nothing is left.
    pub(crate) async fn finish(&mut self) {
        self.pins.clear();
        self.held.clear();
        self.heal().await;
        self.rest().await;
        self.check_at_rest().await;
        for key in self.model.keys().copied().collect::<Vec<_>>() {
            self.get(key).await;
        }
        self.rest().await;
        self.check_at_rest().await;
        self.remove_all().await;
        self.rest().await;
        self.check_at_rest().await;
        let usage = self.buffer.usage();
        assert!(usage.is_empty() && usage.alive_elsewhere == 0, "{usage:#?}");
        self.assert_stores_empty().await;
        self.buffer.close().await.unwrap();
        assert!(self.buffer.usage().is_empty(), "{:#?}", self.buffer.usage());
        self.assert_stores_empty().await;
        assert!(matches!(self.buffer.get(&0).await, Err(Error::Closed { .. })));
    }

    async fn remove_all(&mut self) {
        for key in self.model.keys().copied().collect::<Vec<_>>() {
            match self.calls % 3 {
                0 => self.remove(key).await,
                1 => self.take(key).await,
                _ => return self.clear().await,
            }
        }
    }

    async fn assert_stores_empty(&self) {
        for (store, faults) in self.stores.iter().zip(&self.faults) {
            assert_eq!(store.list(None, 10).await.unwrap(), Vec::new());
            assert_eq!(faults.used(), 0);
        }
    }
}
