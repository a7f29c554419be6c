//! What is written and read in which order, to see which values a system keeps in memory.

use anyhow::{Context, Result};
use rand::{Rng, SeedableRng, rngs::SmallRng, seq::SliceRandom};

use crate::data;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// The first of a key.
    Write(u64),
    Read(u64),
}

impl Access {
    pub(crate) fn key(self) -> u64 {
        match self {
            Self::Write(key) | Self::Read(key) => key,
        }
    }
}

/// A number of accesses, by a system that has memory for `room` values.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    pub(crate) room: usize,
    pub(crate) accesses: Vec<Access>,
}

impl Trace {
    /// All keys are below.
    pub(crate) fn keys(&self) -> usize {
        let most = self.accesses.iter().map(|access| access.key()).max();
        most.map_or(0, |key| usize::try_from(key + 1).unwrap_or(usize::MAX))
    }

    pub(crate) fn reads(&self) -> usize {
        self.accesses.iter().filter(|access| matches!(access, Access::Read(_))).count()
    }
}

const SEED: u64 = 1;
/// Of skewed reads: of so many keys, with memory for one in twenty.
const KEYS: u64 = 200_000;
const READS: usize = 1_000_000;
/// Memory in the traces that are not skewed.
const ROOM: u64 = 20_000;

/// How the values of a wave are read.
#[derive(Clone, Copy, Debug)]
enum Order {
    Shuffled,
    AsWritten,
    NewestFirst,
}

#[derive(Clone, Copy, Debug)]
enum Shape {
    Skewed,
    /// One read in five belongs to a scan that goes over all keys in order.
    SkewedWithScans,
    /// Reads keys that make up so many percent of memory in order, round and round.
    Loop(u64),
    /// Writes values that make up so many percent of memory, then reads each once and never again.
    Waves(u64, Order),
    /// The same, and while one wave is read the next is written.
    OverlappingWaves(u64),
}

const SHAPES: [(&str, Shape); 15] = [
    ("zipf", Shape::Skewed),
    ("zipf + 20 % scans", Shape::SkewedWithScans),
    ("loop over 110 %", Shape::Loop(110)),
    ("loop over 150 %", Shape::Loop(150)),
    ("loop over 200 %", Shape::Loop(200)),
    ("waves of 50 %", Shape::Waves(50, Order::Shuffled)),
    ("waves of 90 %", Shape::Waves(90, Order::Shuffled)),
    ("waves of 125 %", Shape::Waves(125, Order::Shuffled)),
    ("waves of 200 %", Shape::Waves(200, Order::Shuffled)),
    ("waves of 400 %", Shape::Waves(400, Order::Shuffled)),
    ("overlapping waves of 50 %", Shape::OverlappingWaves(50)),
    ("overlapping waves of 90 %", Shape::OverlappingWaves(90)),
    ("waves of 100 %, as written", Shape::Waves(100, Order::AsWritten)),
    ("waves of 125 %, newest first", Shape::Waves(125, Order::NewestFirst)),
    ("waves of 200 %, newest first", Shape::Waves(200, Order::NewestFirst)),
];

pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    SHAPES.iter().map(|(name, _)| *name)
}

pub(crate) fn by_name(name: &str) -> Result<Trace> {
    let (_, shape) = SHAPES.iter().find(|(known, _)| *known == name).context("there is no such trace")?;
    let room = usize::try_from(match shape {
        Shape::Skewed | Shape::SkewedWithScans => KEYS / 20,
        _ => ROOM,
    })?;
    let accesses = match *shape {
        Shape::Skewed => skewed()?.into_iter().map(Access::Read).collect(),
        Shape::SkewedWithScans => with_scans(skewed()?),
        Shape::Loop(percent) => (0..30).flat_map(|_| (0..of_room(percent)).map(Access::Read)).collect(),
        Shape::Waves(percent, order) => waves(of_room(percent), order),
        Shape::OverlappingWaves(percent) => overlapping_waves(of_room(percent)),
    };
    Ok(Trace { room, accesses })
}

fn of_room(percent: u64) -> u64 {
    ROOM * percent / 100
}

fn skewed() -> Result<Vec<u64>> {
    data::zipf(KEYS, 0.99, READS, SEED)
}

fn with_scans(skewed: Vec<u64>) -> Vec<Access> {
    let mut random = SmallRng::seed_from_u64(SEED);
    let mut scan = (0..KEYS).cycle();
    let one = |key| if random.random_ratio(1, 5) { scan.next().unwrap_or(key) } else { key };
    skewed.into_iter().map(one).map(Access::Read).collect()
}

fn waves(length: u64, order: Order) -> Vec<Access> {
    let mut random = SmallRng::seed_from_u64(SEED);
    let mut accesses = Vec::new();
    for wave in 0..20 {
        let mut keys: Vec<u64> = (wave * length..(wave + 1) * length).collect();
        accesses.extend(keys.iter().copied().map(Access::Write));
        match order {
            Order::Shuffled => keys.shuffle(&mut random),
            Order::AsWritten => {}
            Order::NewestFirst => keys.reverse(),
        }
        accesses.extend(keys.into_iter().map(Access::Read));
    }
    accesses
}

fn overlapping_waves(length: u64) -> Vec<Access> {
    let mut random = SmallRng::seed_from_u64(SEED);
    let mut accesses = Vec::new();
    let mut last: Vec<u64> = Vec::new();
    for wave in 0..20 {
        let mut keys: Vec<u64> = (wave * length..(wave + 1) * length).collect();
        for (at, key) in keys.iter().enumerate() {
            accesses.push(Access::Write(*key));
            accesses.extend(last.get(at).copied().map(Access::Read));
        }
        keys.shuffle(&mut random);
        last = keys;
    }
    accesses
}
