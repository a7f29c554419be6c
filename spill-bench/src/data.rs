//! The values and the order of keys: the same for every system, made from a seed.

use std::fmt;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use rand::{Rng, RngCore, SeedableRng, rngs::SmallRng, seq::SliceRandom};
use rand_distr::{Distribution, Zipf};

/// Values are pieces of a pool of this many bytes.
const POOL: usize = 32 << 20;

const SEED: u64 = 0x5b11;

/// What values are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Bytes that no codec makes shorter.
    Random,
    /// English-like text.
    Text,
    /// 64-bit integers from one range, in order.
    Int64,
    /// Rows of several columns, as Arrow lays them out: each column by itself, for some rows at a time.
    Mixed,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Random, Self::Text, Self::Int64, Self::Mixed];

    pub(crate) fn parse(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.to_string() == name)
            .with_context(|| format!("no kind {name:?}"))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Random => "random",
            Self::Text => "text",
            Self::Int64 => "int64",
            Self::Mixed => "mixed rows",
        })
    }
}

/// Values of one kind and length, by key.
#[derive(Debug)]
pub(crate) struct Values {
    pool: Vec<u8>,
    length: usize,
}

impl Values {
    pub(crate) fn new(kind: Kind, length: usize) -> Self {
        let mut random = SmallRng::seed_from_u64(SEED);
        let mut pool = Vec::with_capacity(POOL + length);
        while pool.len() < POOL + length {
            match kind {
                Kind::Random => pool.extend_from_slice(&random.next_u64().to_le_bytes()),
                Kind::Text => text(&mut random, &mut pool),
                Kind::Int64 => int64(&mut random, &mut pool),
                Kind::Mixed => rows(&mut random, &mut pool),
            }
        }
        Self { pool, length }
    }

    /// The value of a key, but for its first bytes.
    pub(crate) fn at(&self, key: u64) -> &[u8] {
        // An odd step visits other places for many keys; multiples of 8, so that integers stay whole.
        let start =
            usize::try_from(key.wrapping_mul(0x9E37_79B9_7F4A_7C15) % (POOL as u64 / 8)).unwrap_or(0) * 8;
        &self.pool[start..start + self.length]
    }

    /// The value of a key: a fresh copy, which begins with the key.
    pub(crate) fn make(&self, key: u64) -> Vec<u8> {
        let mut value = self.at(key).to_vec();
        if let Some(head) = value.first_chunk_mut() {
            *head = key.to_le_bytes();
        }
        value
    }

    /// Whether this is the value of the key, by its ends and its length: reading all of it would be measured as well.
    pub(crate) fn check(&self, key: u64, value: &[u8]) -> Result<()> {
        let all = self.at(key);
        ensure!(value.len() == all.len(), "key {key}: {} bytes instead of {}", value.len(), all.len());
        let head = value.first_chunk().copied().map(u64::from_le_bytes);
        ensure!(head == Some(key), "key {key}: the value of key {head:?}");
        ensure!(
            value[8..].last_chunk::<8>() == all[8..].last_chunk(),
            "key {key}: the end is another value's"
        );
        Ok(())
    }

    /// All bytes of it.
    pub(crate) fn whole(&self) -> Bytes {
        Bytes::copy_from_slice(&self.pool)
    }
}

/// Words of a vocabulary whose frequencies fall as those of English do.
fn text(random: &mut SmallRng, pool: &mut Vec<u8>) {
    let mut spelling = SmallRng::seed_from_u64(SEED + 1);
    let letters = b"etaoinshrdlucmfwypvbgkjqxz";
    let mut word = || -> Vec<u8> {
        let length = 2 + spelling.random_range(0..4) + spelling.random_range(0..5);
        (0..length)
            .map(|_| letters[spelling.random_range(0..26_usize).min(spelling.random_range(0..26))])
            .collect()
    };
    let vocabulary: Vec<Vec<u8>> = (0..8000).map(|_| word()).collect();
    let frequent = Zipf::new(vocabulary.len() as f64, 1.0).ok();
    let until = pool.len() + (1 << 20);
    while pool.len() < until {
        let rank = frequent.as_ref().map_or(0, |zipf| rank(zipf, random));
        pool.extend_from_slice(&vocabulary[rank]);
        pool.extend_from_slice(if random.random_ratio(1, 12) { b". " } else { b" " });
    }
}

fn int64(random: &mut SmallRng, pool: &mut Vec<u8>) {
    let mut value = random.random_range(0..1u64 << 40);
    for _ in 0..4096 {
        value += random.random_range(0..200);
        pool.extend_from_slice(&value.to_le_bytes());
    }
}

/// 512 rows: an ascending id, a price, a small category, a flag, a short code.
fn rows(random: &mut SmallRng, pool: &mut Vec<u8>) {
    const ROWS: usize = 512;
    let first = random.random_range(0..1u64 << 32);
    for row in 0..ROWS as u64 {
        pool.extend_from_slice(&(first + row).to_le_bytes());
    }
    for _ in 0..ROWS {
        let price = f64::from(random.random_range(1..1_000_000)) / 100.0;
        pool.extend_from_slice(&price.to_le_bytes());
    }
    for _ in 0..ROWS {
        pool.extend_from_slice(&random.random_range(0..50u32).to_le_bytes());
    }
    for _ in 0..ROWS / 8 {
        pool.push(random.random());
    }
    for _ in 0..ROWS {
        let code = [(); 8].map(|()| b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"[random.random_range(0..26)]);
        pool.extend_from_slice(&code);
    }
}

/// All keys below `count`, in random order.
pub(crate) fn shuffled(count: u64) -> Vec<u64> {
    let mut keys: Vec<u64> = (0..count).collect();
    keys.shuffle(&mut SmallRng::seed_from_u64(SEED));
    keys
}

/// Keys below `count` of which a few are asked for often: zipf with this exponent, the frequent ones scattered.
pub(crate) fn zipf(count: u64, exponent: f64, samples: usize, seed: u64) -> Result<Vec<u64>> {
    let zipf = Zipf::new(count as f64, exponent)?;
    let scattered = shuffled(count);
    let mut random = SmallRng::seed_from_u64(SEED ^ seed);
    Ok((0..samples).map(|_| scattered[rank(&zipf, &mut random)]).collect())
}

/// From 0, the most frequent.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a whole number from 1 to the number of keys"
)]
fn rank(zipf: &Zipf<f64>, random: &mut SmallRng) -> usize {
    zipf.sample(random) as usize - 1
}
