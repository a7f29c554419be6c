//! One random call, or one thing that goes wrong.

use std::time::Duration;

use spill_buffer::StoreErrorKind;
use spill_conformance::{Damage, Operation};

use crate::{
    random::Random,
    shape::{MAX_SPILL, MEMORY, Shape},
    value::Fill,
};

#[derive(Clone, Debug)]
pub(crate) enum Call {
    Insert(Wanted),
    /// In the background, while other calls go on.
    InsertMeanwhile(Wanted),
    /// Given up after so many milliseconds.
    InsertDropped(Wanted, u64),
    Get(u64),
    GetMeanwhile(u64),
    GetDropped(u64, u64),
    GetMany(Vec<u64>),
    Peek(u64),
    Take(u64),
    TakeDropped(u64, u64),
    Remove(u64),
    Clear,
    Look(u64),
    Spill(u64),
    SpillMeanwhile(u64),
    EvictOne,
    Reclaim(u64),
    Prefetch(Vec<u64>),
    Pin(u64),
    PinDropped(u64, u64),
    Unpin(usize),
    /// Holds the value outside.
    Hold(u64),
    LetGo(usize),
    Reweigh(u64, u64),
    SetMemoryLimit(u64),
    SetMaxSpill(usize, Option<u64>),
    Rest,
    Trouble(usize, Trouble),
    Heal,
}

/// What is to be inserted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) key: u64,
    pub(crate) len: usize,
    pub(crate) fill: Fill,
    pub(crate) weight: u64,
}

/// What goes wrong with a store.
#[derive(Clone, Debug)]
pub(crate) enum Trouble {
    Fail { operation: Operation, kind: StoreErrorKind, after_effect: bool, calls: u64 },
    Slow { operation: Operation, by: Duration, calls: u64 },
    Hold { operation: Operation, after_effect: bool, until: Duration },
    Damage { damage: Damage, calls: u64 },
    Quota(u64),
    SpaceLeft(u64),
}

const KINDS: [StoreErrorKind; 6] = [
    StoreErrorKind::NotFound,
    StoreErrorKind::NoSpace,
    StoreErrorKind::Transient,
    StoreErrorKind::Denied,
    StoreErrorKind::Corrupt,
    StoreErrorKind::Other,
];

impl Call {
    /// The call that three numbers stand for: smaller ones are simpler.
    pub(crate) fn of(kind: u32, a: u32, b: u32, shape: &Shape) -> Self {
        let key = u64::from(a) % shape.keys;
        let after = u64::from(b) % 5;
        let index = a as usize;
        match kind % if shape.faults { 1120 } else { 1000 } {
            0..280 => Self::Insert(Wanted::of(key, b, shape)),
            280..310 => Self::InsertMeanwhile(Wanted::of(key, b, shape)),
            310..325 => Self::InsertDropped(Wanted::of(key, b / 5, shape), after),
            325..500 => Self::Get(key),
            500..530 => Self::GetMeanwhile(key),
            530..540 => Self::GetDropped(key, after),
            540..560 => Self::GetMany(some_keys(a, b, shape)),
            560..590 => Self::Peek(key),
            590..630 => Self::Take(key),
            630..635 => Self::TakeDropped(key, after),
            635..740 => Self::Remove(key),
            740..743 => Self::Clear,
            743..755 => Self::Look(key),
            755..800 => Self::Spill(key),
            800..815 => Self::SpillMeanwhile(key),
            815..845 => Self::EvictOne,
            845..870 => Self::Reclaim(u64::from(b) % (2 * shape.memory + 2)),
            870..890 => Self::Prefetch(some_keys(a, b, shape)),
            890..910 => Self::Pin(key),
            910..914 => Self::PinDropped(key, after),
            914..932 => Self::Unpin(index),
            932..942 => Self::Hold(key),
            942..952 => Self::LetGo(index),
            952..964 => Self::Reweigh(key, weight(b, shape)),
            964..972 => Self::SetMemoryLimit(MEMORY[index % MEMORY.len()].max(shape.slice())),
            972..982 => Self::SetMaxSpill(index, MAX_SPILL[b as usize % MAX_SPILL.len()]),
            982..1000 => Self::Rest,
            1000..1090 => Self::Trouble(index, Trouble::of(b)),
            _ => Self::Heal,
        }
    }

    pub(crate) fn random(random: &mut Random, shape: &Shape) -> Self {
        let [kind, a, b] = [(); 3].map(|()| u32::try_from(random.next() >> 32).unwrap());
        Self::of(kind, a, b, shape)
    }
}

fn some_keys(a: u32, b: u32, shape: &Shape) -> Vec<u64> {
    let mut random = Random::new(u64::from(a) << 32 | u64::from(b));
    (0..a % 12).map(|_| random.below(shape.keys)).collect()
}

fn weight(b: u32, shape: &Shape) -> u64 {
    match b % 4 {
        0 => 0,
        1 => shape.memory,
        2 => shape.memory + 1,
        _ => u64::from(b / 4) % (shape.memory / 2 + 2),
    }
}

impl Wanted {
    fn of(key: u64, b: u32, shape: &Shape) -> Self {
        let (kind, rest) = (b % 64, b / 64);
        let len = u64::from(rest) % (shape.longest + 1);
        let fill = match kind {
            0 => Fill::Bad,
            1..25 => Fill::Same,
            _ => Fill::Noise,
        };
        let weight = if kind % 8 == 7 { weight(rest, shape) } else { len };
        Self { key, len: usize::try_from(len).unwrap(), fill, weight }
    }
}

impl Trouble {
    fn of(b: u32) -> Self {
        let operation = [Operation::Put, Operation::Put, Operation::Get, Operation::Delete][b as usize % 4];
        let (kind, rest) = (b / 4 % 12, b / 48);
        let calls = if rest.is_multiple_of(7) { u64::MAX } else { 1 + u64::from(rest % 5) };
        let after_effect = rest / 64 % 3 == 0;
        match kind {
            0..6 => {
                let kind = KINDS[(rest / 256) as usize % KINDS.len()];
                Self::Fail { operation, kind, after_effect, calls }
            }
            6 => Self::Slow { operation, by: Duration::from_millis(1 + u64::from(rest % 300)), calls },
            7 | 8 => {
                let until = Duration::from_millis(1 + u64::from(rest % 5000));
                Self::Hold { operation, after_effect, until }
            }
            9 => {
                let (damage, at) = (rest / 256 % 4, (rest / 1024) as usize % 5000);
                let damage = match damage {
                    0 => Damage::FlipBit(at),
                    1 => Damage::Truncate(at % 70),
                    2 => Damage::Swap(at, at / 3),
                    _ => Damage::Append(at % 70),
                };
                Self::Damage { damage, calls }
            }
            10 => Self::Quota(u64::from(rest) % 5000),
            _ => Self::SpaceLeft(u64::from(rest) % 5000),
        }
    }
}
