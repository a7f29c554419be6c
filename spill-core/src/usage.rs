//! What a buffer holds, and where.

use crate::{OnFull, format_bytes};

/// What a buffer holds. Each number is what is there, not an estimate; at rest they agree with the sum over
/// all entries and with what the stores list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Keys, wherever their values are.
    pub entries: u64,
    /// What is in memory.
    pub memory: MemoryUsage,
    /// Entries whose value is only in a tier, those being read back included, with what they weighed in
    /// memory.
    pub spilled: Tally,
    /// Spilled values that somebody outside still holds: reading them costs no I/O.
    pub alive_elsewhere: u64,
    /// One per tier, in order.
    pub tiers: Vec<TierUsage>,
}

/// A number of entries and their weight in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many.
    pub entries: u64,
    /// What they weigh together, as weighed at insert.
    pub weight: u64,
}

impl std::ops::Add for Tally {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { entries: self.entries + other.entries, weight: self.weight + other.weight }
    }
}

/// What a buffer holds in memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryUsage {
    /// What entries may weigh together: the memory limit less the slice for the spill path's buffers.
    pub limit: u64,
    /// Entries whose value is in memory, those being spilled and clean ones included.
    pub resident: Tally,
    /// Of these: on their way to a tier.
    pub spilling: Tally,
    /// Of these: in a tier as well, so that leaving memory costs nothing.
    pub clean: Tally,
    /// Of these: kept in memory by a pin.
    pub pinned: Tally,
    /// Bytes held for values that are being read back.
    pub restoring: u64,
    /// Bytes of buffers in use by spills, restores and compactions; they come out of the slice.
    pub buffers: u64,
}

/// What one tier holds, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TierUsage {
    /// Its name.
    pub name: String,
    /// Entries with a frame here, clean ones included.
    pub entries: u64,
    /// What they weigh in memory.
    pub weight: u64,
    /// Their values as the codec wrote them.
    pub encoded: u64,
    /// Their frames: compressed, with headers and padding.
    pub stored: u64,
    /// What the medium really uses, garbage included.
    pub allocated: u64,
    /// Dead frames and undeleted blobs.
    pub garbage: u64,
    /// Being written.
    pub in_flight: u64,
    /// Blobs.
    pub blobs: u64,
    /// What stored, garbage and in flight may be together; `None`: no cap.
    pub max_spill: Option<u64>,
}

impl Usage {
    /// Weight of all resident entries: the memory that the buffer manages.
    pub fn managed(&self) -> u64 {
        self.memory.resident.weight
    }

    /// Memory of the process that the buffer does not manage: `process` less what it manages, never
    /// negative.
    ///
    /// ```
    /// assert_eq!(spill_core::Usage::default().unmanaged(100), 100);
    /// ```
    pub fn unmanaged(&self, process: u64) -> u64 {
        process.saturating_sub(self.managed())
    }

    /// All tiers together; named "total".
    pub fn total(&self) -> TierUsage {
        let mut total = TierUsage { name: "total".into(), max_spill: Some(0), ..TierUsage::default() };
        for tier in &self.tiers {
            total.entries += tier.entries;
            total.weight += tier.weight;
            total.encoded += tier.encoded;
            total.stored += tier.stored;
            total.allocated += tier.allocated;
            total.garbage += tier.garbage;
            total.in_flight += tier.in_flight;
            total.blobs += tier.blobs;
            total.max_spill = total.max_spill.zip(tier.max_spill).map(|(sum, more)| sum.saturating_add(more));
        }
        total
    }

    /// Whether nothing is held at all: no entry, no byte in memory, none in a tier.
    pub fn is_empty(&self) -> bool {
        let TierUsage { stored, allocated, garbage, in_flight, blobs, .. } = self.total();
        let memory = self.memory.resident.weight + self.memory.restoring + self.memory.buffers;
        self.entries == 0 && memory == 0 && [stored, allocated, garbage, in_flight, blobs] == [0; 5]
    }
}

/// How hard memory is pressed: what a service reads to slow down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Pressure {
    /// Inserts come in at once.
    #[default]
    Normal,
    /// Entries are being spilled; inserts may have to wait for that.
    Spilling,
    /// Memory is full and nothing more can leave. Inserts wait, are refused, or go above the limit, as
    /// [`OnFull`] says.
    Paused,
}

/// Where an entry's value is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Location {
    /// Only in memory.
    Memory,
    /// Only in the tier of this name.
    Tier(String),
    /// In memory and in the tier of this name.
    Both(String),
}

impl std::fmt::Display for OnFull {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Wait(limit) => write!(f, "wait (at most {})", humantime::format_duration(*limit)),
            Self::Reject => f.write_str("reject"),
            Self::Keep => f.write_str("keep"),
        }
    }
}

impl std::fmt::Display for TierUsage {
    /// One line for people.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}: {} entries in {} blobs, weight {}, encoded {}, stored {}, allocated {}, garbage {}",
            self.name,
            self.entries,
            self.blobs,
            format_bytes(self.weight),
            format_bytes(self.encoded),
            format_bytes(self.stored),
            format_bytes(self.allocated),
            format_bytes(self.garbage),
        )
    }
}
