//! A buffer, its stores, and a map of what must be in it: carries out calls and holds the answers against the
//! map. What must be true between calls is in `check`, what goes wrong on purpose in `trouble`.

mod check;
mod insert;
mod read;
mod trouble;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use spill_buffer::{Error, InsertError, MemoryStore, PinGuard, Share, SpillBuffer, TierSpec, policies};
use spill_conformance::{FaultStore, Faults};
use tokio::{task::JoinHandle, time::Instant};

use crate::{
    call::Call,
    shape::Shape,
    value::{Picky, Version},
};

pub(crate) type Value = Arc<Vec<u8>>;
pub(crate) type Read = Result<Option<Value>, Error>;
pub(crate) type Weights = Arc<Mutex<HashMap<u64, u64>>>;

/// Longer than anything may take, in virtual time.
const FOR_EVER: Duration = Duration::from_secs(1800);
/// How many of the latest calls a failure shows.
const SHOWN: usize = 40;

pub(crate) struct World {
    pub(crate) shape: Shape,
    buffer: SpillBuffer<u64, Vec<u8>>,
    stores: Vec<MemoryStore>,
    faults: Vec<Faults>,
    /// What the weigher answers.
    weights: Weights,
    /// What must be there.
    model: BTreeMap<u64, Version>,
    last_number: u64,
    pins: Vec<Pin>,
    held: Vec<Held>,
    readers: Vec<Reader>,
    spills: Vec<(u64, JoinHandle<Result<bool, Error>>)>,
    writers: BTreeMap<u64, Writer>,
    /// Something may fail, or has failed and its effects are not over.
    troubled: bool,
    /// When the last gate opens by itself.
    quiet_at: Instant,
    /// What memory may hold at most: the limit, or what it held when the limit was lowered.
    memory_ceiling: u64,
    spill_ceilings: Vec<u64>,
    /// Nothing has moved since the last look.
    rested: bool,
    calls: u64,
    latest: VecDeque<Call>,
}

struct Pin {
    key: u64,
    number: u64,
    #[expect(dead_code, reason = "it is what keeps the entry")]
    guard: PinGuard<u64, Vec<u8>>,
}

struct Held {
    key: u64,
    number: u64,
    value: Value,
}

/// A read in the background, and what it may find.
struct Reader {
    key: u64,
    allowed: Vec<Option<Version>>,
    task: JoinHandle<Read>,
}

/// An insert in the background.
struct Writer {
    version: Version,
    value: Value,
    task: JoinHandle<Result<(), InsertError<Vec<u8>>>>,
}

impl World {
    pub(crate) fn new(shape: &Shape) -> Self {
        let stores: Vec<MemoryStore> = shape.tiers.iter().map(|_| MemoryStore::new()).collect();
        let faults: Vec<Faults> = shape.tiers.iter().map(|_| Faults::new()).collect();
        let weights = Weights::default();
        let answers = weights.clone();
        let builder = SpillBuffer::<u64, Vec<u8>>::builder()
            .memory_limit(shape.memory)
            .capacity(shape.budget())
            .spill_buffers(shape.slice())
            .seed(1)
            .boxed_policy(policies::by_name(shape.policy).unwrap())
            .codec(Picky)
            .weigher(move |key: &u64, _: &Vec<u8>| answers.lock().unwrap()[key]);
        let tiers = shape.tiers.iter().zip(&stores).zip(&faults).enumerate();
        let builder = tiers.fold(builder, |builder, (number, ((tier, store), faults))| {
            let store = FaultStore::new(Arc::new(store.clone()), faults.clone());
            let mut spec = TierSpec::new(store)
                .name(format!("tier {number}"))
                .max_spill(tier.max_spill)
                .batch_entries(tier.batch_entries)
                .compress_with(tier.compressor());
            if let Some(bytes) = tier.batch_bytes {
                spec = spec.batch_bytes(bytes);
            }
            if tier.max_spill.is_some() && number + 1 < shape.tiers.len() {
                spec = spec.demote_at(tier.demote_at.and_then(Share::thousandths));
            }
            builder.tier(spec)
        });
        let world = Self {
            shape: shape.clone(),
            buffer: builder.build().unwrap(),
            weights,
            model: BTreeMap::new(),
            last_number: 0,
            pins: Vec::new(),
            held: Vec::new(),
            readers: Vec::new(),
            spills: Vec::new(),
            writers: BTreeMap::new(),
            troubled: false,
            quiet_at: Instant::now(),
            memory_ceiling: shape.memory - shape.slice(),
            spill_ceilings: vec![0; stores.len()],
            rested: true,
            calls: 0,
            latest: VecDeque::new(),
            stores,
            faults,
        };
        world.set_latencies();
        world
    }

    /// Carries out one call, and checks what it did.
    pub(crate) async fn step(&mut self, call: &Call) {
        self.calls += 1;
        if self.latest.len() == SHOWN {
            self.latest.pop_front();
        }
        self.latest.push_back(call.clone());
        self.reap().await;
        self.carry_out(call).await;
        self.rested = false;
        self.check();
        if matches!(call, Call::Rest | Call::Heal) || self.calls.is_multiple_of(self.shape.rest_every) {
            self.rest().await;
            self.check_at_rest().await;
        }
    }

    async fn carry_out(&mut self, call: &Call) {
        match call {
            Call::Insert(wanted) => self.insert(wanted).await,
            Call::InsertMeanwhile(wanted) => self.insert_meanwhile(wanted).await,
            Call::InsertDropped(wanted, after) => self.insert_dropped(wanted, *after).await,
            Call::Get(key) => self.get(*key).await,
            Call::GetMeanwhile(key) => self.get_meanwhile(*key),
            Call::GetDropped(key, after) => drop(give_up(*after, self.buffer.get(key)).await),
            Call::GetMany(keys) => self.get_many(keys).await,
            Call::Peek(key) => self.peek(*key),
            Call::Take(key) => self.take(*key).await,
            Call::TakeDropped(key, after) => self.take_dropped(*key, *after).await,
            Call::Remove(key) => self.remove(*key).await,
            Call::Clear => self.clear().await,
            Call::Look(key) => self.look(*key),
            Call::Spill(key) => self.spill(*key).await,
            Call::SpillMeanwhile(key) => {
                let (buffer, key) = (self.buffer.clone(), *key);
                self.spills.push((key, tokio::spawn(async move { buffer.spill(&key).await })));
            }
            Call::EvictOne => self.evict_one().await,
            Call::Reclaim(bytes) => self.reclaim(*bytes).await,
            Call::Prefetch(keys) => {
                let started = self.buffer.prefetch(keys).unwrap();
                assert!(started <= keys.len());
            }
            Call::Pin(key) => self.pin(*key).await,
            Call::PinDropped(key, after) => drop(give_up(*after, self.buffer.pin(key)).await),
            Call::Unpin(index) if !self.pins.is_empty() => {
                drop(self.pins.swap_remove(index % self.pins.len()));
            }
            Call::Hold(key) => self.hold(*key),
            Call::LetGo(index) if !self.held.is_empty() => {
                drop(self.held.swap_remove(index % self.held.len()));
            }
            Call::Unpin(_) | Call::LetGo(_) | Call::Rest => {}
            Call::Reweigh(key, weight) => self.reweigh(*key, *weight).await,
            Call::SetMemoryLimit(bytes) => self.set_memory_limit(*bytes),
            Call::SetMaxSpill(tier, bytes) => self.set_max_spill(*tier, *bytes),
            Call::Trouble(tier, trouble) => self.cause(*tier, trouble),
            Call::Heal => self.heal().await,
        }
    }

    /// What is under a key from now on.
    fn now(&mut self, key: u64, version: Option<Version>) {
        match version {
            Some(version) => self.model.insert(key, version),
            None => self.model.remove(&key),
        };
        for reader in self.readers.iter_mut().filter(|reader| reader.key == key) {
            reader.allowed.push(version);
        }
    }

    /// Some tier takes everything, now and always.
    fn is_roomy(&self) -> bool {
        !self.troubled && self.buffer.usage().tiers.iter().any(|tier| tier.max_spill.is_none())
    }

    /// Everything in memory can leave it.
    fn is_free(&self) -> bool {
        self.is_roomy() && self.pins.is_empty() && !self.model.values().any(Version::is_bad)
    }

    fn limit(&self) -> u64 {
        self.buffer.usage().memory.limit
    }

    /// Nothing of this world's is under way.
    fn is_alone(&self) -> bool {
        self.readers.is_empty() && self.writers.is_empty() && self.spills.is_empty()
    }

    fn set_memory_limit(&mut self, bytes: u64) {
        self.buffer.set_memory_limit(bytes);
        let usage = self.buffer.usage();
        assert_eq!(usage.memory.limit, bytes.saturating_sub(self.shape.slice()));
        let used = usage.memory.resident.weight + usage.memory.restoring;
        self.memory_ceiling = self.memory_ceiling.max(usage.memory.limit).max(used);
    }

    fn set_max_spill(&mut self, tier: usize, bytes: Option<u64>) {
        let tiers = self.shape.tiers.len();
        if tiers == 0 {
            assert!(!self.buffer.set_max_spill(tier, bytes));
            return;
        }
        assert!(self.buffer.set_max_spill(tier % tiers, bytes));
    }
}

/// What a failure shows.
impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("after {} calls of {:?}", self.calls, self.shape);
            self.latest.iter().for_each(|call| eprintln!("    {call:?}"));
            eprintln!("with {:#?}", self.buffer.usage());
        }
    }
}

/// Waits, but not for ever.
async fn sure<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(FOR_EVER, future).await.unwrap_or_else(|_| panic!("{what} hangs"))
}

/// Drops a future after so many milliseconds.
async fn give_up<T>(after: u64, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(Duration::from_millis(after), future).await.ok()
}
