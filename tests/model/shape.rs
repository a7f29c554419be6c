//! A random configuration: small numbers, and those around which things break.

use std::{sync::Arc, time::Duration};

use spill_buffer::{
    Compressor, FixedBudget, OnFull,
    compress::{Lz4, Snappy, Zstd},
    policies,
};

use crate::random::Random;

#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) memory: u64,
    /// Both watermarks at the limit, and no slice for buffers.
    pub(crate) exact: bool,
    pub(crate) on_full: OnFull,
    pub(crate) policy: &'static str,
    pub(crate) keys: u64,
    pub(crate) longest: u64,
    pub(crate) tiers: Vec<TierShape>,
    /// Stores fail now and then.
    pub(crate) faults: bool,
    /// The buffer comes to rest after every so many calls.
    pub(crate) rest_every: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct TierShape {
    pub(crate) max_spill: Option<u64>,
    pub(crate) batch_entries: usize,
    pub(crate) batch_bytes: Option<u64>,
    pub(crate) compress: &'static str,
    /// The share of `max_spill` in thousandths at which blobs are moved on, where that can be.
    pub(crate) demote_at: Option<u16>,
    /// What each call of the store takes.
    pub(crate) latency: Duration,
}

pub(crate) const MEMORY: [u64; 9] = [0, 1, 64, 100, 300, 1000, 1000, 4096, 10_000];
pub(crate) const MAX_SPILL: [Option<u64>; 10] =
    [None, None, None, Some(0), Some(128), Some(192), Some(1000), Some(4096), Some(20_000), Some(100_000)];

impl Shape {
    pub(crate) fn random(random: &mut Random, exact: bool, faults: bool) -> Self {
        let tiers = random.pick(&[0, 1, 1, 1, 2, 2, 3]);
        Self {
            memory: random.pick(&MEMORY),
            exact,
            on_full: random.pick(&[
                OnFull::Reject,
                OnFull::Keep,
                OnFull::Wait(Duration::ZERO),
                OnFull::Wait(Duration::from_millis(20)),
                OnFull::Wait(Duration::from_secs(30)),
            ]),
            policy: random.pick(&policies::NAMES),
            keys: random.pick(&[1, 2, 4, 12, 12, 40, 40, 150]),
            longest: random.pick(&[3, 100, 100, 300, 300, 1500]),
            tiers: (0..tiers).map(|_| TierShape::random(random)).collect(),
            faults,
            rest_every: random.pick(&[1, 1, 5, 50]),
        }
    }

    pub(crate) fn budget(&self) -> FixedBudget {
        if self.exact { FixedBudget::exact() } else { FixedBudget::default() }.when_full(self.on_full)
    }

    /// The slice for buffers as the builder chooses it.
    pub(crate) fn slice(&self) -> u64 {
        if self.exact { 0 } else { self.memory / 8 }
    }
}

impl TierShape {
    fn random(random: &mut Random) -> Self {
        Self {
            max_spill: random.pick(&MAX_SPILL),
            batch_entries: random.pick(&[1, 1, 2, 3, 8, 64]),
            batch_bytes: random.pick(&[Some(128), Some(500), Some(2048), Some(16 << 10), None]),
            compress: random.pick(&["none", "none", "lz4", "snappy", "zstd"]),
            demote_at: random.pick(&[None, Some(500), Some(900)]),
            latency: Duration::from_millis(random.pick(&[0, 0, 1, 3])),
        }
    }

    pub(crate) fn compressor(&self) -> Option<Arc<dyn Compressor>> {
        Some(match self.compress {
            "lz4" => Arc::new(Lz4),
            "snappy" => Arc::new(Snappy::new()),
            "zstd" => Arc::new(Zstd::default()),
            _ => return None,
        })
    }
}
