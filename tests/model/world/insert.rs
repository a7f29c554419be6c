//! Calls that put values in, in order and in between.

use std::{sync::Arc, time::Duration};

use spill_buffer::{Error, InsertError, OnFull};

use super::{Value, World, Writer, give_up, sure};
use crate::{call::Wanted, value::Version};

impl World {
    /// The next version of a key, with its bytes.
    fn version(&mut self, wanted: &Wanted) -> (Version, Value) {
        self.last_number += 1;
        let Wanted { len, fill, weight, .. } = *wanted;
        let version = Version { number: self.last_number, len, fill, weight };
        self.weights.lock().unwrap().insert(wanted.key, weight);
        (version, Arc::new(version.bytes()))
    }

    pub(super) async fn insert(&mut self, wanted: &Wanted) {
        self.join_writer(wanted.key).await;
        let (version, value) = self.version(wanted);
        for reader in self.readers.iter_mut().filter(|reader| reader.key == wanted.key) {
            reader.allowed.push(Some(version));
        }
        let answer = sure("insert", self.buffer.insert(wanted.key, value.clone())).await;
        let strict = self.is_alone();
        self.inserted(wanted.key, version, &value, answer, strict);
    }

    pub(super) async fn insert_meanwhile(&mut self, wanted: &Wanted) {
        self.join_writer(wanted.key).await;
        let (version, value) = self.version(wanted);
        for reader in self.readers.iter_mut().filter(|reader| reader.key == wanted.key) {
            reader.allowed.push(Some(version));
        }
        let (buffer, key, given) = (self.buffer.clone(), wanted.key, value.clone());
        let task = tokio::spawn(async move { buffer.insert(key, given).await });
        self.writers.insert(wanted.key, Writer { version, value, task });
    }

    /// Afterwards the old value is there, or the new one.
    pub(super) async fn insert_dropped(&mut self, wanted: &Wanted, after: u64) {
        if self.troubled {
            return self.insert(wanted).await;
        }
        self.rest().await;
        let (key, old) = (wanted.key, self.model.get(&wanted.key).copied());
        // A weight of its own, so that the sums tell which it is.
        let weight = if old.is_some_and(|old| old.weight == wanted.weight) {
            wanted.weight + 1
        } else {
            wanted.weight
        };
        let (version, value) = self.version(&Wanted { weight, ..*wanted });
        if let Some(answer) = give_up(after, self.buffer.insert(key, value.clone())).await {
            return self.inserted(key, version, &value, answer, true);
        }
        self.rest().await;
        let usage = self.buffer.usage();
        let total = usage.memory.resident.weight + usage.spilled.weight;
        let others: u64 =
            self.model.iter().filter(|(other, _)| **other != key).map(|(_, version)| version.weight).sum();
        if self.buffer.contains_key(&key)
            && total == others + weight
            && !(old.is_none() && usage.entries == self.model.len() as u64)
        {
            self.now(key, Some(version));
        }
    }

    pub(super) fn inserted(
        &mut self,
        key: u64,
        version: Version,
        value: &Value,
        answer: Result<(), InsertError<Vec<u8>>>,
        strict: bool,
    ) {
        match answer {
            Ok(()) => self.now(key, Some(version)),
            Err(InsertError { value: back, error }) => {
                assert!(Arc::ptr_eq(&back, value), "another value comes back");
                self.check_refusal(version, &error, strict);
            }
        }
    }

    fn check_refusal(&self, version: Version, error: &Error, strict: bool) {
        let heavy = version.weight > self.limit();
        match error {
            Error::Encode { .. } => assert!(version.is_bad(), "{error} for {version:?}"),
            Error::TooHeavy { .. } => assert!(self.shape.tiers.is_empty() && (heavy || !strict), "{error}"),
            Error::Full { .. } => {
                assert!(self.shape.on_full != OnFull::Keep, "{error} although it is kept");
                // Spilling takes time, which some do not give it.
                let patient = match self.shape.on_full {
                    OnFull::Wait(wait) => wait >= Duration::from_secs(30),
                    OnFull::Reject | OnFull::Keep => true,
                };
                let must_fit = strict && patient && self.is_roomy() && !version.is_bad();
                assert!(!must_fit, "{error} although there is room: {version:?}");
            }
            _ => panic!("{error}"),
        }
    }

    /// Waits for the background insert of a key.
    pub(super) async fn join_writer(&mut self, key: u64) {
        if let Some(Writer { version, value, task }) = self.writers.remove(&key) {
            let answer = sure("a background insert", task).await.unwrap();
            self.inserted(key, version, &value, answer, false);
        }
    }

    pub(super) async fn join_writers(&mut self) {
        while let Some(key) = self.writers.keys().next().copied() {
            self.join_writer(key).await;
        }
    }

    pub(super) async fn reweigh(&mut self, key: u64, weight: u64) {
        self.join_writer(key).await;
        self.weights.lock().unwrap().insert(key, weight);
        if let Some(new) = self.buffer.reweigh(&key).unwrap() {
            assert_eq!(new, weight);
            let version = self.model[&key];
            self.model.insert(key, Version { weight, ..version });
            let usage = self.buffer.usage();
            self.memory_ceiling =
                self.memory_ceiling.max(usage.memory.resident.weight + usage.memory.restoring);
        }
    }
}
