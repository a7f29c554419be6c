//! Calls that read, remove and move.

use std::sync::Arc;

use spill_buffer::{Error, Location};

use super::{Held, Pin, Read, Reader, World, give_up, sure};
use crate::value::Version;

impl World {
    /// What a read may find: what is there, or what is just being put there.
    fn allowed(&self, key: u64) -> Vec<Option<Version>> {
        let mut allowed = vec![self.model.get(&key).copied()];
        allowed.extend(self.writers.get(&key).map(|writer| Some(writer.version)));
        allowed
    }

    pub(super) fn check_read(&self, key: u64, read: &Read, allowed: &[Option<Version>]) {
        match read {
            Ok(None) => assert!(allowed.contains(&None), "key {key} is absent, not one of {allowed:?}"),
            Ok(Some(value)) => {
                // A key that was weighed again meanwhile has the same bytes.
                let right = allowed.iter().flatten().any(|version| version.bytes() == **value);
                assert!(right, "key {key} has {} bytes of something else than {allowed:?}", value.len());
            }
            Err(error @ (Error::Store { .. } | Error::Corrupt { .. })) => {
                assert!(self.troubled, "key {key}: {error}");
            }
            Err(error) => panic!("key {key}: {error}"),
        }
    }

    pub(super) async fn get(&mut self, key: u64) {
        let allowed = self.allowed(key);
        let read = sure("get", self.buffer.get(&key)).await;
        self.check_read(key, &read, &allowed);
        let (Ok(Some(value)), [Some(version)]) = (read, &allowed[..]) else { return };
        let held = self.held.iter().find(|held| held.key == key && held.number == version.number);
        if let Some(held) = held {
            assert!(Arc::ptr_eq(&held.value, &value), "key {key}: a copy of a value that is alive");
        }
    }

    pub(super) fn get_meanwhile(&mut self, key: u64) {
        let (buffer, allowed) = (self.buffer.clone(), self.allowed(key));
        self.readers.push(Reader { key, allowed, task: tokio::spawn(async move { buffer.get(&key).await }) });
    }

    pub(super) async fn get_many(&mut self, keys: &[u64]) {
        let allowed: Vec<_> = keys.iter().map(|key| self.allowed(*key)).collect();
        let reads = sure("get_many", self.buffer.get_many(keys)).await;
        assert_eq!(reads.len(), keys.len());
        for ((key, read), allowed) in keys.iter().zip(&reads).zip(&allowed) {
            self.check_read(*key, read, allowed);
        }
    }

    pub(super) fn peek(&self, key: u64) {
        if let Some(value) = self.buffer.peek(&key) {
            self.check_read(key, &Ok(Some(value)), &self.allowed(key));
        }
    }

    pub(super) fn hold(&mut self, key: u64) {
        if let Some(value) = self.buffer.peek(&key).filter(|_| !self.writers.contains_key(&key)) {
            self.held.push(Held { key, number: self.model[&key].number, value });
        }
    }

    pub(super) async fn take(&mut self, key: u64) {
        self.join_writer(key).await;
        let allowed = self.allowed(key);
        for reader in self.readers.iter_mut().filter(|reader| reader.key == key) {
            reader.allowed.push(None);
        }
        let read = sure("take", self.buffer.take(&key)).await;
        self.check_read(key, &read, &allowed);
        if let Ok(Some(_)) = read {
            self.now(key, None);
        }
        assert_eq!(self.buffer.contains_key(&key), self.model.contains_key(&key), "after a take of {key}");
    }

    /// Afterwards it is there still, or gone with the future.
    pub(super) async fn take_dropped(&mut self, key: u64, after: u64) {
        self.join_writer(key).await;
        for reader in self.readers.iter_mut().filter(|reader| reader.key == key) {
            reader.allowed.push(None);
        }
        drop(give_up(after, self.buffer.take(&key)).await);
        if !self.buffer.contains_key(&key) {
            self.now(key, None);
        }
    }

    pub(super) async fn remove(&mut self, key: u64) {
        self.join_writer(key).await;
        let there = self.buffer.remove(&key).unwrap();
        assert_eq!(there, self.model.contains_key(&key), "remove of {key}");
        self.now(key, None);
    }

    pub(super) async fn clear(&mut self) {
        self.join_writers().await;
        self.buffer.clear().unwrap();
        for key in self.model.keys().copied().collect::<Vec<_>>() {
            self.now(key, None);
        }
        assert!(self.buffer.is_empty());
    }

    pub(super) fn look(&self, key: u64) {
        let (there, location, peek) =
            (self.buffer.contains_key(&key), self.buffer.location(&key), self.buffer.peek(&key));
        assert_eq!(location.is_some(), there);
        match location {
            None | Some(Location::Tier(_)) => assert!(peek.is_none(), "{location:?}"),
            _ => assert!(peek.is_some(), "{location:?}"),
        }
        if !self.writers.contains_key(&key) {
            assert_eq!(there, self.model.contains_key(&key), "key {key}");
        }
    }

    pub(super) async fn spill(&mut self, key: u64) {
        let before = self.buffer.location(&key);
        let pinned = self.pins.iter().any(|pin| pin.key == key && self.is_current(key, pin.number));
        let (calm, alone) = (!self.troubled, self.rested && self.is_alone());
        let answer = sure("spill", self.buffer.spill(&key)).await;
        match answer {
            Ok(true) if calm && alone => {
                assert!(
                    matches!(self.buffer.location(&key), Some(Location::Tier(_))),
                    "spilled, but not there"
                );
            }
            Ok(false) if calm && alone => {
                let away = matches!(before, None | Some(Location::Tier(_)));
                assert!(away || pinned, "key {key} at {before:?} was not spilled");
            }
            Ok(_) => {}
            Err(error) => self.check_unspilled(key, &error, calm && alone),
        }
    }

    pub(super) fn check_unspilled(&self, key: u64, error: &Error, strict: bool) {
        let bad = self.model.get(&key).is_some_and(Version::is_bad);
        match error {
            Error::Encode { .. } => assert!(bad || !strict, "{error}"),
            Error::Full { .. } => {
                assert!(bad || !strict || !self.is_roomy(), "{error} although there is room");
            }
            _ => panic!("{error}"),
        }
    }

    pub(super) async fn evict_one(&mut self) {
        let before = self.buffer.usage().memory;
        let strict = !self.troubled && self.rested && self.is_alone();
        match sure("evict_one", self.buffer.evict_one()).await {
            Ok(None) if strict => {
                let pinned = self.pinned().entries;
                assert!(before.resident.entries <= pinned, "nothing to evict, of {before:?}");
            }
            Ok(Some(eviction)) if strict => {
                let after = self.buffer.usage().memory.resident;
                assert!(
                    after.weight + eviction.weight <= before.resident.weight,
                    "{eviction:?} of {before:?}"
                );
            }
            Ok(_) => {}
            Err(Error::Encode { .. }) => assert!(self.model.values().any(Version::is_bad)),
            Err(error @ Error::Full { .. }) => {
                assert!(!strict || !self.is_roomy() || self.model.values().any(Version::is_bad), "{error}");
            }
            Err(error) => panic!("{error}"),
        }
    }

    pub(super) async fn reclaim(&mut self, bytes: u64) {
        let strict = !self.troubled && self.rested && self.is_alone();
        let before = self.buffer.usage().memory.resident.weight;
        let freed = sure("reclaim", self.buffer.reclaim(bytes)).await.unwrap();
        let after = self.buffer.usage().memory.resident.weight;
        if strict {
            assert!(before - after >= freed, "{freed} freed, from {before} to {after}");
            assert!(
                !self.is_free() || freed >= bytes.min(before),
                "{freed} of {bytes} freed, from {before} to {after}"
            );
        }
    }

    pub(super) async fn pin(&mut self, key: u64) {
        self.join_writer(key).await;
        let weight = self.model.get(&key).map(|version| version.weight);
        // A read that nobody waits for any more may have the room for now.
        let free = self.is_free() && self.rested && self.is_alone();
        match sure("pin", self.buffer.pin(&key)).await {
            Ok(None) => assert_eq!(weight, None, "no key {key} to pin"),
            Ok(Some(guard)) => {
                let version = self.model[&key];
                assert_eq!(*guard, version.bytes(), "key {key}");
                self.pins.push(Pin { key, number: version.number, guard });
            }
            Err(error @ Error::TooHeavy { .. }) => assert!(weight > Some(self.limit()), "{error}"),
            Err(error @ Error::Full { .. }) => assert!(!free, "{error} although all can leave"),
            Err(error) => self.check_read(key, &Err(error), &[]),
        }
    }

    fn is_current(&self, key: u64, number: u64) -> bool {
        self.model.get(&key).is_some_and(|version| version.number == number)
    }
}
