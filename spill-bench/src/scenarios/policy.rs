//! Who keeps the right values in memory: hits per read, of every policy of Spill, of other systems, and the optimum.

use std::{cell::RefCell, collections::BinaryHeap, path::Path};

use anyhow::{Context, Result};
use spill_buffer::{Arrival, Marks, Policy, Slot, Touch, policies};

use super::Scenario;
use crate::{
    systems::memory::foyer_policy,
    traces::{self, Access, Trace},
    trial::{Figures, Trial},
};

pub(crate) struct Policies;

/// Spill is its default policy; those after it are all it ships.
const SYSTEMS: [&str; 14] = [
    "spill",
    "lru",
    "fifo",
    "clock",
    "s3-fifo",
    "sieve",
    "moka",
    "quick_cache",
    "foyer fifo",
    "foyer lru",
    "foyer s3-fifo",
    "foyer sieve",
    "foyer lfu",
    "optimum",
];

impl Scenario for Policies {
    fn name(&self) -> &'static str {
        "policy"
    }

    fn about(&self) -> &'static str {
        "Hits per read, all values of one weight; writes count as neither. Zipf 0.99: 10^6 reads of 200 000 keys, memory \
         for 5 % of them; with scans, every fifth read belongs to one. Loop: keys that make up the given share of memory, \
         in order, round and round. Waves: each writes the given share of memory, then reads each value once, shuffled \
         unless it says otherwise; overlapping, the next is written while the last is read. Spill is its default policy, \
         played by itself; the caches play as one shard. The optimum knows the future, and must let every value in."
    }

    fn cases(&self, _: bool) -> Vec<String> {
        traces::names().map(Into::into).collect()
    }

    fn systems(&self, _: &str) -> Vec<&'static str> {
        SYSTEMS.to_vec()
    }

    fn main_figure(&self) -> &'static str {
        "hit ratio"
    }

    fn is_exact(&self, _: &str) -> bool {
        true
    }

    fn trial(&self, trial: &Trial, _: &Path) -> Result<Figures> {
        let trace = traces::by_name(&trial.case)?;
        let hits = match trial.system.as_str() {
            "optimum" => optimum(&trace),
            "moka" => moka(&trace),
            "quick_cache" => quick_cache(&trace)?,
            "spill" => played(&trace, policies::DEFAULT)?,
            name if name.starts_with("foyer ") => foyer(&trace, name)?,
            name => played(&trace, name)?,
        };
        Ok(Figures::from([("hit ratio".into(), hits as f64 / trace.reads() as f64)]))
    }
}

/// The marks that reads leave, as the buffer keeps them.
#[derive(Debug)]
struct Table {
    touch: Touch,
    marks: RefCell<Vec<u64>>,
}

impl Table {
    fn read(&self, slot: Slot, tick: u64) {
        let mark = &mut self.marks.borrow_mut()[slot.index()];
        match self.touch {
            Touch::Nothing => {}
            Touch::Count(most) => *mark = (*mark + 1).min(most.into()),
            Touch::Stamp => *mark = tick,
        }
    }

    fn admit(&self, slot: Slot, tick: u64) {
        self.marks.borrow_mut()[slot.index()] = if self.touch == Touch::Stamp { tick } else { 0 };
    }
}

impl Marks for Table {
    fn get(&self, slot: Slot) -> u64 {
        self.marks.borrow()[slot.index()]
    }

    fn reset(&self, slot: Slot, count: u8) {
        if let Touch::Count(_) = self.touch {
            self.marks.borrow_mut()[slot.index()] = count.into();
        }
    }
}

/// One policy of Spill by itself. Room is made before a value comes in, as in the buffer; one that is not in memory is
/// restored when it is read, which admits it again.
fn played(trace: &Trace, name: &str) -> Result<usize> {
    let mut policy: Box<dyn Policy> =
        policies::by_name(name).with_context(|| format!("there is no system {name:?}"))?;
    let table = Table { touch: policy.touch(), marks: RefCell::new(vec![0; trace.room]) };
    let mut key_of = vec![0; trace.room];
    let mut slot_of: Vec<Option<Slot>> = vec![None; trace.keys()];
    let mut free: Vec<Slot> = (0..u32::try_from(trace.room)?).rev().map(Slot::new).collect();
    let mut hits = 0;
    for (tick, access) in (1..).zip(&trace.accesses) {
        let key = usize::try_from(access.key())?;
        if let Some(slot) = slot_of[key] {
            hits += 1;
            table.read(slot, tick);
            continue;
        }
        if free.is_empty() {
            let victim = policy.victim(&table).context("a policy found no victim")?;
            let left: usize = key_of[victim.index()];
            slot_of[left] = None;
            free.push(victim);
        }
        let slot = free.pop().context("no slot is free")?;
        (slot_of[key], key_of[slot.index()]) = (Some(slot), key);
        table.admit(slot, tick);
        policy.admit(&Arrival { slot, weight: 1, fingerprint: scattered(access.key()), tick });
    }
    Ok(hits)
}

/// A hash of a key: the generator known as split-mix.
fn scattered(key: u64) -> u64 {
    let mut z = key.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Belady: whoever is needed last leaves first; every arrival must be let in.
fn optimum(trace: &Trace) -> usize {
    const NEVER: usize = usize::MAX;
    let index = |access: &Access| usize::try_from(access.key()).unwrap_or_default();
    let mut next = vec![NEVER; trace.accesses.len()];
    let mut later = vec![NEVER; trace.keys()];
    for (at, access) in trace.accesses.iter().enumerate().rev() {
        next[at] = std::mem::replace(&mut later[index(access)], at);
    }
    let mut needed: Vec<Option<usize>> = vec![None; trace.keys()];
    let mut queue = BinaryHeap::new();
    let (mut hits, mut resident) = (0, 0);
    for (access, next) in trace.accesses.iter().zip(next) {
        let key = index(access);
        if needed[key].is_some() {
            hits += 1;
        } else if resident < trace.room {
            resident += 1;
        } else {
            // What the queue says of a key that was needed since is out of date.
            while let Some((at, victim)) = queue.pop() {
                if needed[victim] == Some(at) {
                    needed[victim] = None;
                    break;
                }
            }
        }
        needed[key] = Some(next);
        queue.push((next, key));
    }
    hits
}

/// A cache is asked, and given what it did not have.
fn asked(trace: &Trace, get: impl Fn(u64) -> bool, insert: impl Fn(u64)) -> usize {
    let mut hits = 0;
    for access in &trace.accesses {
        match *access {
            Access::Read(key) if get(key) => hits += 1,
            Access::Read(key) | Access::Write(key) => insert(key),
        }
    }
    hits
}

fn moka(trace: &Trace) -> usize {
    let cache = moka::sync::Cache::<u64, ()>::new(trace.room as u64);
    // It puts its work off, so that for a moment it holds more than it has room for: not here.
    let settled = |key| {
        cache.insert(key, ());
        cache.run_pending_tasks();
    };
    asked(trace, |key| cache.get(&key).is_some(), settled)
}

fn quick_cache(trace: &Trace) -> Result<usize> {
    let mut options = quick_cache::OptionsBuilder::new();
    options.estimated_items_capacity(trace.room).weight_capacity(trace.room as u64).shards(1);
    let cache = quick_cache::sync::Cache::<u64, ()>::with_options(
        options.build()?,
        quick_cache::UnitWeighter,
        quick_cache::DefaultHashBuilder::default(),
        quick_cache::sync::DefaultLifecycle::default(),
    );
    Ok(asked(trace, |key| cache.get(&key).is_some(), |key| cache.insert(key, ())))
}

fn foyer(trace: &Trace, name: &str) -> Result<usize> {
    let builder =
        foyer::CacheBuilder::new(trace.room).with_shards(1).with_eviction_config(foyer_policy(name)?);
    let cache: foyer::Cache<u64, ()> = builder.build();
    Ok(asked(trace, |key| cache.get(&key).is_some(), |key| drop(cache.insert(key, ()))))
}
