//! Tasks on many threads, each with keys and a model of its own, that share one small buffer.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use spill_buffer::{
    Error, FixedBudget, InsertError, MemoryStore, OnFull, PinGuard, Share, SpillBuffer, Store,
    StoreErrorKind, TierSpec, compress::Lz4, policies,
};
use spill_conformance::{Calls, Fault, FaultStore, Faults, Operation};

use crate::{
    random::{Random, seed_or},
    value::{Fill, Picky, Version},
};

const TASKS: u64 = 8;
/// Of one task, with each policy.
const CALLS: u64 = 5000;
/// Fewer where stores fail: a failing tier is left alone for real time.
const CALLS_WITH_FAULTS: u64 = 2500;
const KEYS: u64 = 40;
const MEMORY: u64 = 4000;

type Buffer = SpillBuffer<u64, Vec<u8>>;

struct Task {
    number: u64,
    buffer: Buffer,
    weights: Arc<Vec<Mutex<HashMap<u64, u64>>>>,
    model: BTreeMap<u64, Version>,
    pins: Vec<PinGuard<u64, Vec<u8>>>,
    random: Random,
    /// Stores may fail.
    troubled: bool,
    versions: u64,
}

impl Task {
    async fn step(&mut self) {
        let key = self.number + TASKS * self.random.below(KEYS);
        match self.random.below(100) {
            0..35 => self.insert(key).await,
            35..60 => {
                let read = self.buffer.get(&key).await;
                self.check(key, &read);
            }
            60..63 => {
                let keys: Vec<u64> = (0..5).map(|_| self.number + TASKS * self.random.below(KEYS)).collect();
                let reads = self.buffer.get_many(&keys).await;
                keys.iter().zip(&reads).for_each(|(key, read)| self.check(*key, read));
            }
            63..70 => {
                let read = self.buffer.take(&key).await;
                self.check(key, &read);
                if read.is_ok() {
                    self.model.remove(&key);
                }
            }
            70..80 => {
                let there = self.buffer.remove(&key).unwrap();
                assert_eq!(there, self.model.remove(&key).is_some(), "remove of {key}");
            }
            80..85 => drop(self.buffer.spill(&key).await),
            85..87 => drop(self.buffer.evict_one().await),
            87..88 => drop(self.buffer.reclaim(self.random.below(1000)).await),
            88..90 => drop(self.buffer.prefetch(&[key, key + TASKS, key])),
            90..92 => {
                if let Ok(guard) = self.buffer.pin(&key).await {
                    assert_eq!(guard.is_some(), self.model.contains_key(&key), "pin of {key}");
                    self.pins.extend(guard);
                }
            }
            92..94 => self.pins.clear(),
            94..95 => drop(tokio::time::timeout(Duration::ZERO, self.buffer.get(&key)).await),
            95..96 => self.reweigh(key),
            _ => {
                assert_eq!(self.buffer.contains_key(&key), self.model.contains_key(&key), "key {key}");
                assert_eq!(self.buffer.location(&key).is_some(), self.model.contains_key(&key));
                if let Some(value) = self.buffer.peek(&key) {
                    self.check(key, &Ok(Some(value)));
                }
            }
        }
        // So that all memory is never pinned.
        self.pins.truncate(1);
    }

    fn weigh(&self, key: u64, weight: u64) {
        self.weights[usize::try_from(self.number).unwrap()].lock().unwrap().insert(key, weight);
    }

    async fn insert(&mut self, key: u64) {
        self.versions += 1;
        let number = self.versions * TASKS + self.number;
        let len = if self.random.below(50) == 0 { MEMORY + 1 } else { self.random.below(300) };
        let weight = if self.random.below(20) == 0 { 0 } else { len };
        let fill = if self.random.below(2) == 0 { Fill::Same } else { Fill::Noise };
        let version = Version { number, len: usize::try_from(len).unwrap(), fill, weight };
        self.weigh(key, weight);
        match self.buffer.insert(key, version.bytes()).await {
            Ok(()) => drop(self.model.insert(key, version)),
            Err(InsertError { error: Error::Full { .. }, .. }) if self.troubled => {}
            Err(InsertError { error, .. }) => panic!("{error}"),
        }
    }

    fn reweigh(&mut self, key: u64) {
        let Some(version) = self.model.get_mut(&key) else { return };
        let weight = self.random.below(300);
        self.weights[usize::try_from(self.number).unwrap()].lock().unwrap().insert(key, weight);
        if self.buffer.reweigh(&key).unwrap().is_some() {
            version.weight = weight;
        }
    }

    fn check(&self, key: u64, read: &Result<Option<Arc<Vec<u8>>>, Error>) {
        match read {
            Ok(value) => {
                let right = self.model.get(&key).map(Version::bytes);
                assert!(value.as_deref() == right.as_ref(), "key {key}: not {:?}", self.model.get(&key));
            }
            Err(Error::Store { .. } | Error::Corrupt { .. }) if self.troubled => {}
            Err(error) => panic!("key {key}: {error}"),
        }
    }
}

fn set_off(faults: &Faults, random: &mut Random) {
    let operation = random.pick(&[Operation::Put, Operation::Get, Operation::Delete]);
    let kind = random.pick(&[StoreErrorKind::NoSpace, StoreErrorKind::Transient, StoreErrorKind::Other]);
    let fault = Fault::new(kind);
    let fault = if random.below(2) == 0 { fault.after_effect() } else { fault };
    faults.fail(Calls::of(operation).skip(random.below(50)).next(1), fault);
}

async fn run(policy: &str, fails: bool, seed: u64) {
    let stores = [MemoryStore::new(), MemoryStore::new()];
    let faults = Faults::new();
    let weights: Arc<Vec<_>> = Arc::new((0..TASKS).map(|_| Mutex::new(HashMap::new())).collect());
    let answers = weights.clone();
    let [near, far] = stores.clone().map(|store| FaultStore::new(Arc::new(store), faults.clone()));
    let demote_at = Share::thousandths(600).filter(|_| seed.is_multiple_of(2));
    let buffer = Buffer::builder()
        .memory_limit(MEMORY)
        .spill_buffers(0)
        .capacity(FixedBudget::default().when_full(OnFull::Wait(Duration::from_secs(60))))
        .boxed_policy(policies::by_name(policy).unwrap())
        .codec(Picky)
        .weigher(move |key: &u64, _: &Vec<u8>| {
            answers[usize::try_from(key % TASKS).unwrap()].lock().unwrap()[key]
        })
        // With every other policy blobs move on before the tier is full.
        .tier(
            TierSpec::new(near)
                .name("near")
                .max_spill(6000)
                .batch_bytes(1000)
                .batch_entries(5)
                .demote_at(demote_at),
        )
        .tier(TierSpec::new(far).name("far").batch_bytes(2000).compress(Lz4))
        .build()
        .unwrap();
    let mut tasks = Vec::new();
    for number in 0..TASKS {
        let mut task = Task {
            number,
            buffer: buffer.clone(),
            weights: weights.clone(),
            model: BTreeMap::new(),
            pins: Vec::new(),
            random: Random::new(seed * TASKS + number),
            troubled: fails,
            versions: 0,
        };
        let faults = faults.clone();
        tasks.push(tokio::spawn(async move {
            for call in 0..if fails { CALLS_WITH_FAULTS } else { CALLS } {
                if fails && call.is_multiple_of(250) {
                    set_off(&faults, &mut task.random);
                }
                task.step().await;
            }
            task.pins.clear();
            task
        }));
    }
    let mut ended = Vec::new();
    for task in tasks {
        ended.push(task.await.unwrap());
    }
    faults.heal();
    finish(&buffer, ended).await;
    for store in stores {
        assert_eq!(store.list(None, 1).await.unwrap(), Vec::new());
    }
}

/// Waits until something is so, which must happen, in whatever time.
async fn wait_until(what: &str, buffer: &Buffer, is_so: impl Fn() -> bool) {
    for _ in 0..60_000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("never {what}: {:#?}", buffer.usage());
}

async fn finish(buffer: &Buffer, mut tasks: Vec<Task>) {
    let is_at_rest = || {
        let usage = buffer.usage();
        let in_flight = usage.total().in_flight;
        let memory = usage.memory;
        memory.spilling.entries + memory.restoring + memory.buffers + in_flight == 0
            && memory.resident.weight <= MEMORY
    };
    wait_until("at rest", buffer, is_at_rest).await;
    let usage = buffer.usage();
    let weight: u64 = tasks.iter().flat_map(|task| task.model.values()).map(|version| version.weight).sum();
    assert_eq!(usage.memory.resident.weight + usage.spilled.weight, weight);
    for task in &mut tasks {
        task.troubled = false;
        for key in task.model.keys() {
            let read = buffer.get(key).await;
            task.check(*key, &read);
        }
    }
    let mut keys = buffer.keys();
    keys.sort_unstable();
    let mut expected: Vec<u64> = tasks.iter().flat_map(|task| task.model.keys()).copied().collect();
    expected.sort_unstable();
    assert_eq!(keys, expected);
    for key in keys {
        assert!(buffer.remove(&key).unwrap());
    }
    wait_until("empty", buffer, || buffer.usage().is_empty()).await;
    assert_eq!(buffer.audit().await.unwrap(), Vec::<String>::new());
    buffer.close().await.unwrap();
    assert!(buffer.usage().is_empty(), "{:#?}", buffer.usage());
}

fn run_all(fails: bool) {
    let seed = seed_or(1);
    for (number, policy) in (0..).zip(policies::NAMES) {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_time().build().unwrap();
        let task = runtime.spawn(run(policy, fails, seed + number));
        let result = runtime.block_on(task);
        assert!(result.is_ok(), "with {policy}; other schedules may differ; SPILL_SEED={seed}: {result:?}");
    }
}

#[test]
fn a05_tasks_that_share_a_buffer_equal_their_models() {
    run_all(false);
}

#[test]
fn a05_tasks_that_share_a_buffer_whose_stores_fail_equal_their_models() {
    run_all(true);
}
