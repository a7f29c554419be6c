//! Puts a buffer together from parts.

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::{
    CapacityPolicy, Codec, Compressor, FixedBudget, Layer, Observer, OnFull, Policy, Share, SpillBuffer,
    Store, Weigher,
    chance::random,
    engine::{SPILLS_AT_ONCE, Shared, Tasks, Watchers},
    format_bytes,
    frame::frame_len,
    ledger::Memory,
    policies::S3Fifo,
    queue::Queue,
    table::{Key, MAX_FRAMES, MAX_TIERS, Table},
    tier::{Compressing, Tier, TierLimits},
};

/// The most the slice for buffers has unless it is set.
const SPILL_BUFFERS: u64 = 64 << 20;
/// The smallest batch that is chosen by itself.
const SMALLEST_BATCH: u64 = 64 << 10;
/// The batch when the slice for buffers is set to nothing, and buffers come on top of the limit.
const BATCH_ON_TOP: u64 = 1 << 20;
/// Values in one blob unless it is set.
const BATCH_ENTRIES: usize = 4096;

/// Why a buffer could not be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A part that has no default was not given.
    #[error("the buffer has no {part}: call `{fix}` on the builder")]
    Missing {
        /// What is missing.
        part: &'static str,
        /// The method that sets it.
        fix: &'static str,
    },
    /// There is no tokio runtime to carry the buffer's work.
    #[error(
        "no tokio runtime: build the buffer inside one, or give one to `Builder::runtime`, or use the blocking facade"
    )]
    NoRuntime,
    /// The slice for buffers leaves nothing for entries.
    #[error("spill buffers of {} leave nothing of a memory limit of {}: lower `spill_buffers` or raise `memory_limit`",
        format_bytes(*buffers), format_bytes(*limit))]
    NoRoomForEntries {
        /// Bytes of the slice.
        buffers: u64,
        /// The memory limit in bytes.
        limit: u64,
    },
    /// More tiers than a buffer can have.
    #[error("{tiers} tiers, the most is 16")]
    TooManyTiers {
        /// How many were given.
        tiers: usize,
    },
    /// Two tiers have one name.
    #[error("two tiers are named {name:?}: give one another name with `TierSpec::name`")]
    SameName {
        /// The name.
        name: String,
    },
    /// A batch that holds nothing, or more than a blob can.
    #[error("tier {tier:?}: a batch of {value} {unit} is not between {least} and {most}")]
    Batch {
        /// The tier's name.
        tier: String,
        /// What was asked for.
        value: u64,
        /// "bytes" or "entries".
        unit: &'static str,
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },
    /// A tier is to move blobs on, and has no tier to move them to, or no cap.
    #[error("tier {tier:?} can't demote: {problem}; {fix}")]
    Demotion {
        /// The tier's name.
        tier: String,
        /// What it lacks.
        problem: &'static str,
        /// What to do.
        fix: &'static str,
    },
    /// Two compressors use one tag, so that frames could not be told apart.
    #[error("compressors {first:?} and {second:?} both use tag {tag}: frames could not be told apart")]
    SameTag {
        /// One of them.
        first: &'static str,
        /// The other.
        second: &'static str,
        /// Their tag.
        tag: u8,
    },
}

/// One tier, to be given to a [`Builder`].
///
/// ```
/// use spill_core::{MemoryStore, TierSpec};
/// let tier = TierSpec::new(MemoryStore::new()).name("near").max_spill(20 << 30);
/// assert_eq!(tier.to_string(), "near");
/// ```
#[derive(Clone, Debug)]
pub struct TierSpec {
    store: Arc<dyn Store>,
    name: Option<String>,
    max_spill: Option<u64>,
    demote_at: Option<Share>,
    compress: Compress,
    batch_bytes: Option<u64>,
    batch_entries: Option<usize>,
}

/// How values are to be compressed.
#[derive(Clone, Debug)]
enum Compress {
    Fixed(Option<Arc<dyn Compressor>>),
    Learned(Vec<Arc<dyn Compressor>>),
}

impl Compress {
    fn compressors(&self) -> &[Arc<dyn Compressor>] {
        match self {
            Self::Fixed(compressor) => compressor.as_slice(),
            Self::Learned(compressors) => compressors,
        }
    }

    fn open(&self) -> Compressing {
        match self {
            Self::Fixed(compressor) => Compressing::fixed(compressor.clone()),
            Self::Learned(compressors) => {
                let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
                Compressing::learned(compressors, SPILLS_AT_ONCE, cores)
            }
        }
    }
}

impl TierSpec {
    /// A tier over this store: no cap, no compression, batches as large as the store prefers.
    pub fn new(store: impl Store) -> Self {
        Self::from_arc(Arc::new(store))
    }

    /// The same for a store that is shared already.
    pub fn from_arc(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            name: None,
            max_spill: None,
            demote_at: None,
            compress: Compress::Fixed(None),
            batch_bytes: None,
            batch_entries: None,
        }
    }

    /// Sets the name in messages and statistics; otherwise it is the store's.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets what the tier may hold, in bytes: live frames, garbage and writes in flight together.
    #[must_use]
    pub fn max_spill(mut self, bytes: impl Into<Option<u64>>) -> Self {
        self.max_spill = bytes.into();
        self
    }

    /// Moves the coldest blobs on to the next tier that takes them when live ones take more than this share of
    /// `max_spill`, down to a sixteenth of the cap below it. Otherwise a tier that is full stays so, and what is
    /// new goes to the next one. Frames move as they are; values come back from where they are by then. Room
    /// for writing comes free earlier the lower the share is. Not on the last tier, and only with `max_spill`.
    ///
    /// ```
    /// use spill_core::{MemoryStore, Share, TierSpec};
    /// let near = TierSpec::new(MemoryStore::new()).max_spill(20 << 30).demote_at("90%".parse::<Share>()?);
    /// # Ok::<(), spill_core::ParseShareError>(())
    /// ```
    #[must_use]
    pub fn demote_at(mut self, share: impl Into<Option<Share>>) -> Self {
        self.demote_at = share.into();
        self
    }

    /// Compresses values with this. Those that are not worth it are stored as they are.
    #[must_use]
    pub fn compress(self, compressor: impl Compressor) -> Self {
        self.compress_with(Some(Arc::new(compressor)))
    }

    /// The same for a compressor that is shared already; `None`: no compression.
    #[must_use]
    pub fn compress_with(mut self, compressor: Option<Arc<dyn Compressor>>) -> Self {
        self.compress = Compress::Fixed(compressor);
        self
    }

    /// Compresses values with whichever of these, or none of them, has turned out to spill most bytes of values in
    /// a second, by how long compressing and writing take here. Of two that are about as quick the one that stores
    /// less is taken. At most about 3 % of the time goes into trying the others. With none of them, nothing is
    /// compressed.
    ///
    /// The choice is made anew with each blob. Until something was measured it is the first of these, so put one
    /// of little cost in front.
    ///
    /// ```
    /// use spill_core::{MemoryStore, TierSpec};
    /// # #[derive(Debug)]
    /// # struct Quick;
    /// # impl spill_core::Compressor for Quick {
    /// #     fn tag(&self) -> spill_core::Tag { spill_core::Tag(200) }
    /// #     fn name(&self) -> &'static str { "quick" }
    /// #     fn bound(&self, raw: usize) -> usize { raw }
    /// #     fn compress(&self, _: &[u8], _: &mut [u8]) -> Result<usize, spill_core::CompressError> { Ok(0) }
    /// #     fn decompress(&self, _: &[u8], _: &mut [u8]) -> Result<(), spill_core::CompressError> { Ok(()) }
    /// # }
    /// let tier = TierSpec::new(MemoryStore::new()).compress_auto([std::sync::Arc::new(Quick) as _]);
    /// ```
    #[must_use]
    pub fn compress_auto(mut self, compressors: impl IntoIterator<Item = Arc<dyn Compressor>>) -> Self {
        self.compress = Compress::Learned(compressors.into_iter().collect());
        self
    }

    /// Sets the bytes of frames in one blob. A value that has more by itself is a blob of its own.
    #[must_use]
    pub fn batch_bytes(mut self, bytes: u64) -> Self {
        self.batch_bytes = Some(bytes);
        self
    }

    /// Sets the most values in one blob. `1`: a blob per value.
    #[must_use]
    pub fn batch_entries(mut self, entries: usize) -> Self {
        self.batch_entries = Some(entries);
        self
    }

    /// Puts a layer around the store.
    #[must_use]
    pub fn layer(mut self, layer: &dyn Layer) -> Self {
        self.store = layer.layer(self.store);
        self
    }

    fn check_demotion(&self, is_last: bool) -> Result<(), BuildError> {
        let (problem, fix) = match self.demote_at {
            Some(_) if is_last => ("no tier is behind it", "add one, or remove `demote_at`"),
            Some(_) if self.max_spill.is_none() => {
                ("it has no cap", "set `max_spill`, or remove `demote_at`")
            }
            _ => return Ok(()),
        };
        Err(BuildError::Demotion { tier: self.to_string(), problem, fix })
    }

    fn limits(&self, spill_buffers: u64, seed: u64) -> Result<TierLimits, BuildError> {
        let wrong = |value, unit, least, most| {
            Err(BuildError::Batch { tier: self.to_string(), value, unit, least, most })
        };
        let entries = self.batch_entries.unwrap_or(BATCH_ENTRIES);
        if !(1..=MAX_FRAMES).contains(&entries) {
            return wrong(entries as u64, "entries", 1, MAX_FRAMES as u64);
        }
        let preferred = self.store.info().preferred_blob.min(self.store.info().max_blob);
        // A quarter of the slice: two batches are made and written at once, the rest is for reading.
        let affordable =
            if spill_buffers == 0 { BATCH_ON_TOP } else { (spill_buffers / 4).max(SMALLEST_BATCH) };
        // A batch is a small part of what the tier may hold, so that compaction finds room to copy to.
        let fine = self.max_spill.map_or(u64::MAX, |max_spill| (max_spill / 16).max(SMALLEST_BATCH));
        let bytes = self.batch_bytes.unwrap_or_else(|| preferred.min(affordable).min(fine));
        // Offsets in a blob of many frames have 32 bits.
        let most = u64::from(u32::MAX / 2).min(self.store.info().max_blob);
        match usize::try_from(bytes) {
            Ok(batch_bytes) if (frame_len(1)..=most).contains(&bytes) => Ok(TierLimits {
                max_spill: self.max_spill,
                batch_bytes,
                batch_entries: entries,
                demote_at: self.demote_at,
                seed,
            }),
            _ => wrong(bytes, "bytes", frame_len(1), most),
        }
    }
}

/// Its name.
impl std::fmt::Display for TierSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name.as_deref().unwrap_or(&self.store.info().name))
    }
}

/// Puts a [`SpillBuffer`] together. What has no default: a memory limit, a codec and a weigher.
pub struct Builder<K: Key, V: Send + Sync + 'static> {
    memory_limit: Option<u64>,
    spill_buffers: Option<u64>,
    capacity: Arc<dyn CapacityPolicy>,
    policy: Option<Box<dyn Policy>>,
    codec: Option<Arc<dyn Codec<V>>>,
    weigher: Option<Arc<dyn Weigher<K, V>>>,
    tiers: Vec<TierSpec>,
    compressors: Vec<Arc<dyn Compressor>>,
    observers: Vec<Arc<dyn Observer>>,
    runtime: Option<Handle>,
    seed: Option<u64>,
}

impl<K: Key, V: Send + Sync + 'static> std::fmt::Debug for Builder<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("memory_limit", &self.memory_limit)
            .field("tiers", &self.tiers)
            .finish_non_exhaustive()
    }
}

impl<K: Key, V: Send + Sync + 'static> Builder<K, V> {
    pub(crate) fn new() -> Self {
        Self {
            memory_limit: None,
            spill_buffers: None,
            capacity: Arc::new(FixedBudget::default()),
            policy: None,
            codec: None,
            weigher: None,
            tiers: Vec::new(),
            compressors: Vec::new(),
            observers: Vec::new(),
            runtime: None,
            seed: None,
        }
    }

    /// Sets the memory limit, in bytes: entries and the spill path's buffers together.
    #[must_use]
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.memory_limit = Some(bytes);
        self
    }

    /// Sets the slice of the memory limit that is kept for the spill path's buffers, in bytes, so that
    /// spilling can always make progress. Otherwise it is an eighth of the limit, at most 64 MiB. With `0`
    /// entries get the whole limit, and the buffers (a few MiB) come on top of it.
    #[must_use]
    pub fn spill_buffers(mut self, bytes: u64) -> Self {
        self.spill_buffers = Some(bytes);
        self
    }

    /// Sets when memory shrinks and what an insert gets at the limit. Otherwise
    /// [`FixedBudget::default`].
    #[must_use]
    pub fn capacity(mut self, policy: impl CapacityPolicy) -> Self {
        self.capacity = Arc::new(policy);
        self
    }

    /// Entries get the whole limit and not a byte more leaves than has to: [`FixedBudget::exact`] with
    /// `on_full`, and no slice for buffers. For tests, and for small buffers of large values.
    #[must_use]
    pub fn exact(self, on_full: OnFull) -> Self {
        self.capacity(FixedBudget::exact().when_full(on_full)).spill_buffers(0)
    }

    /// Sets the victim policy. Otherwise it is [`policies::DEFAULT`](crate::policies::DEFAULT).
    #[must_use]
    pub fn policy(self, policy: impl Policy) -> Self {
        self.boxed_policy(Box::new(policy))
    }

    /// The same for a policy that is boxed already.
    #[must_use]
    pub fn boxed_policy(mut self, policy: Box<dyn Policy>) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Sets what turns values into bytes and back.
    #[must_use]
    pub fn codec(mut self, codec: impl Codec<V>) -> Self {
        self.codec = Some(Arc::new(codec));
        self
    }

    /// Sets what weighs entries.
    #[must_use]
    pub fn weigher(mut self, weigher: impl Weigher<K, V>) -> Self {
        self.weigher = Some(Arc::new(weigher));
        self
    }

    /// Adds a tier behind those there are. At most 16. With none, nothing can be spilled.
    #[must_use]
    pub fn tier(mut self, tier: TierSpec) -> Self {
        self.tiers.push(tier);
        self
    }

    /// Adds a compressor for reading only. Those of the tiers are known already.
    #[must_use]
    pub fn compressor(mut self, compressor: Arc<dyn Compressor>) -> Self {
        self.compressors.push(compressor);
        self
    }

    /// Adds somebody who is told of every event.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observers.push(Arc::new(observer));
        self
    }

    /// Sets the runtime that carries the buffer's work. Otherwise it is the current one.
    #[must_use]
    pub fn runtime(mut self, runtime: Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Sets the seed of chance, which spreads the tries of tiers that fail. Otherwise it is random, so that
    /// buffers whose stores failed together do not try again together. For tests that have to repeat.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Builds the buffer and starts its tasks.
    ///
    /// The runtime needs its timer (`enable_time`), and so does any other from which inserts may have to wait.
    ///
    /// # Errors
    /// A [`BuildError`] that says what is missing or does not go together.
    pub fn build(self) -> Result<SpillBuffer<K, V>, BuildError> {
        let missing = |part, fix| BuildError::Missing { part, fix };
        let limit = self.memory_limit.ok_or(missing("memory limit", "memory_limit"))?;
        let codec = self.codec.ok_or(missing("codec", "codec"))?;
        let weigher = self.weigher.ok_or(missing("weigher", "weigher"))?;
        let runtime = self.runtime.or_else(|| Handle::try_current().ok()).ok_or(BuildError::NoRuntime)?;
        let buffers = self.spill_buffers.unwrap_or((limit / 8).min(SPILL_BUFFERS));
        let for_entries = limit.checked_sub(buffers).filter(|rest| *rest > 0 || limit == 0);
        let for_entries = for_entries.ok_or(BuildError::NoRoomForEntries { buffers, limit })?;
        let tiers = tiers(&self.tiers, buffers, self.seed.unwrap_or_else(random))?;
        let of_tiers = self.tiers.iter().flat_map(|tier| tier.compress.compressors()).cloned();
        let compressors = compressors(of_tiers.chain(self.compressors))?;
        let policy = self.policy.unwrap_or_else(|| Box::new(S3Fifo::default()));
        let memory = Memory::new(for_entries, self.capacity);
        let table = Table::new(policy.touch(), memory.clone());
        let shared = Shared::new(
            table,
            Queue::new(policy),
            memory,
            tiers,
            codec,
            weigher,
            compressors,
            Tasks::new(runtime),
            Watchers::new(self.observers),
            buffers,
        );
        Ok(SpillBuffer::from_shared(shared))
    }
}

fn tiers<K>(specs: &[TierSpec], spill_buffers: u64, seed: u64) -> Result<Vec<Arc<Tier<K>>>, BuildError> {
    if specs.len() > MAX_TIERS {
        return Err(BuildError::TooManyTiers { tiers: specs.len() });
    }
    let mut tiers: Vec<Arc<Tier<K>>> = Vec::with_capacity(specs.len());
    for (index, spec) in (0..).zip(specs) {
        let name: Arc<str> = spec.to_string().into();
        if tiers.iter().any(|tier| tier.name == name) {
            return Err(BuildError::SameName { name: name.to_string() });
        }
        spec.check_demotion(usize::from(index) + 1 == specs.len())?;
        let limits = spec.limits(spill_buffers, seed)?;
        tiers.push(Arc::new(Tier::new(index, name, spec.store.clone(), limits, spec.compress.open())));
    }
    Ok(tiers)
}

/// One of each tag. The same compressor twice (two levels, say) is fine: both read what either wrote.
fn compressors(
    given: impl Iterator<Item = Arc<dyn Compressor>>,
) -> Result<Arc<[Arc<dyn Compressor>]>, BuildError> {
    let mut known: Vec<Arc<dyn Compressor>> = Vec::new();
    for compressor in given {
        match known.iter().find(|other| other.tag() == compressor.tag()) {
            None => known.push(compressor),
            Some(other) if other.name() == compressor.name() => {}
            Some(other) => {
                let (first, second) = (other.name(), compressor.name());
                return Err(BuildError::SameTag { first, second, tag: compressor.tag().0 });
            }
        }
    }
    Ok(known.into())
}
