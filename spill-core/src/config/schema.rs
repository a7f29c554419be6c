//! Every key there is, once: what it is called, what it takes, what it does without, and where its value
//! goes. Parsing, the environment, messages and the reference in `docs/config.md` all follow these tables.

use std::{fmt::Write as _, ops::RangeInclusive, time::Duration};

use super::{
    Amount, Compression, MemoryConfig, StoreUrl, TierConfig, format_bytes_exactly,
    origin::Origins,
    value::{self, MAX_BYTES, Written, Wrong},
};
use crate::{OnFull, Options, Share};

/// One key of a table that fills a `T`.
pub(super) struct Key<T: 'static> {
    pub(super) name: &'static str,
    /// What it is for, in a line.
    about: &'static str,
    /// What holds when it is absent, in words.
    default: &'static str,
    /// As it stands in a file, behind the equals sign.
    pub(super) example: &'static str,
    pub(super) field: Field<T>,
}

/// The type of a key, its limits, and the field it sets.
pub(super) enum Field<T: 'static> {
    Bytes {
        within: RangeInclusive<u64>,
        set: fn(&mut T, u64),
        get: fn(&T) -> Option<u64>,
    },
    Amount {
        set: fn(&mut T, Amount),
        get: fn(&T) -> Option<Amount>,
    },
    Share {
        set: fn(&mut T, Share),
        get: fn(&T) -> Option<Share>,
    },
    Time {
        within: RangeInclusive<Duration>,
        set: fn(&mut T, Duration) -> Result<(), Wrong>,
        get: fn(&T) -> Option<Duration>,
    },
    Count {
        within: RangeInclusive<u32>,
        set: fn(&mut T, u32),
        get: fn(&T) -> Option<u32>,
    },
    Switch {
        set: fn(&mut T, bool),
        get: fn(&T) -> bool,
    },
    Word {
        words: &'static [&'static str],
        set: fn(&mut T, &'static str),
        get: fn(&T) -> &'static str,
    },
    Name {
        limits: &'static str,
        set: fn(&mut T, String),
        get: fn(&T) -> Option<&str>,
    },
    Store {
        set: fn(&mut T, StoreUrl),
        get: fn(&T) -> &StoreUrl,
    },
    Compression {
        set: fn(&mut T, Compression),
        get: fn(&T) -> &Compression,
    },
    Options {
        get: fn(&mut T) -> &mut Options,
    },
}

/// A table of the configuration.
pub(super) trait Section: Sized + 'static {
    /// Its keys in the order they are read: a key that depends on another comes after it.
    fn keys() -> &'static [Key<Self>];
    fn origins(&self) -> &Origins;
    fn origins_mut(&mut self) -> &mut Origins;
    /// The same with every setting that has a default left at it.
    fn untouched(&self) -> Self;
}

impl<T: Section> Key<T> {
    /// Puts what was written where it belongs.
    pub(super) fn set(&self, target: &mut T, written: &Written<'_>) -> Result<(), Wrong> {
        match &self.field {
            Field::Bytes { within, set, .. } => set(target, value::bytes(written, within)?),
            Field::Amount { set, .. } => set(target, value::amount(written)?),
            Field::Share { set, .. } => set(target, value::share(written)?),
            Field::Time { within, set, .. } => set(target, value::time(written, within)?)?,
            Field::Count { within, set, .. } => set(target, value::count(written, within)?),
            Field::Switch { set, .. } => set(target, value::switch(written)?),
            Field::Word { words, set, .. } => set(target, value::word(written, words)?),
            Field::Name { set, .. } => set(target, value::name(written)?),
            Field::Store { set, .. } => set(target, value::store(written)?),
            Field::Compression { set, .. } => set(target, value::compression(written)?),
            Field::Options { .. } => return Err(Wrong::new("not a table of options")),
        }
        Ok(())
    }

    /// Judges a value that may have been set in code, past the checks of reading.
    pub(super) fn check(&self, target: &T) -> Result<(), Wrong> {
        match &self.field {
            Field::Bytes { within, get, .. } => {
                get(target).map_or(Ok(()), |it| value::check_bytes(it, within))
            }
            Field::Amount { get, .. } => match get(target) {
                Some(Amount::Bytes(bytes)) => value::check_bytes(bytes, &(0..=MAX_BYTES)),
                _ => Ok(()),
            },
            Field::Time { within, get, .. } => get(target).map_or(Ok(()), |it| value::check_time(it, within)),
            Field::Count { within, get, .. } => {
                get(target).map_or(Ok(()), |it| value::check_count(it, within))
            }
            Field::Name { get, .. } => get(target).map_or(Ok(()), value::check_name),
            _ => Ok(()),
        }
    }

    /// The value as it would be written; `None` when there is none, and for options.
    pub(super) fn show(&self, target: &T) -> Option<String> {
        match &self.field {
            Field::Bytes { get, .. } => get(target).map(value::show_bytes),
            Field::Amount { get, .. } => get(target).map(|amount| format!("\"{amount}\"")),
            Field::Share { get, .. } => get(target).map(|share| format!("\"{share}\"")),
            Field::Time { get, .. } => get(target).map(value::show_time),
            Field::Count { get, .. } => get(target).map(|count| count.to_string()),
            Field::Switch { get, .. } => Some(get(target).to_string()),
            Field::Word { get, .. } => Some(value::quoted(get(target))),
            Field::Name { get, .. } => get(target).map(value::quoted),
            Field::Store { get, .. } => Some(value::quoted(&get(target).to_string())),
            Field::Compression { get, .. } => Some(value::quoted(&get(target).to_string())),
            Field::Options { .. } => None,
        }
    }

    /// Whether it has no default: the store of a tier.
    pub(super) fn is_required(&self) -> bool {
        matches!(self.field, Field::Store { .. })
    }

    /// What is allowed, in words.
    pub(super) fn limits(&self) -> String {
        match &self.field {
            Field::Bytes { within, .. } => {
                format!(
                    "{} to {}",
                    format_bytes_exactly(*within.start()),
                    format_bytes_exactly(*within.end())
                )
            }
            Field::Amount { .. } => format!("0 B to {}, or 0% to 100%", format_bytes_exactly(MAX_BYTES)),
            Field::Share { .. } => "0% to 100%".to_owned(),
            Field::Time { within, .. } => {
                let [least, most] =
                    [within.start(), within.end()].map(|time| humantime::format_duration(*time));
                format!("{least} to {most}")
            }
            Field::Count { within, .. } => format!("{} to {}", within.start(), within.end()),
            Field::Switch { .. } => "true, false".to_owned(),
            Field::Word { words, .. } => words.join(", "),
            Field::Name { limits, .. } => (*limits).to_owned(),
            Field::Store { .. } => "a URL with a scheme the registry has".to_owned(),
            Field::Compression { .. } => {
                "none, auto, or NAME or NAME:LEVEL of a compressor the registry has".to_owned()
            }
            Field::Options { .. } => {
                "strings, numbers, true, false; which names depends on the store".to_owned()
            }
        }
    }

    fn kind(&self) -> &'static str {
        match &self.field {
            Field::Bytes { .. } => "bytes",
            Field::Amount { .. } => "bytes or percentage",
            Field::Share { .. } => "percentage",
            Field::Time { .. } => "duration",
            Field::Count { .. } => "whole number",
            Field::Switch { .. } => "switch",
            Field::Word { .. } | Field::Name { .. } => "name",
            Field::Store { .. } => "URL",
            Field::Compression { .. } => "compression",
            Field::Options { .. } => "table",
        }
    }

    /// What follows the prefix in the name of its environment variable.
    pub(super) fn variable(&self) -> String {
        self.name.to_uppercase()
    }

    fn info(&self, table: &'static str, prefix: &str) -> KeyInfo {
        let mut environment = format!("{prefix}{}", self.variable());
        if matches!(self.field, Field::Options { .. }) {
            let _ = write!(environment, "_<NAME>");
        }
        KeyInfo {
            table,
            name: self.name,
            kind: self.kind(),
            default: self.default,
            limits: self.limits(),
            environment,
            example: self.example,
            about: self.about,
        }
    }
}

/// A key of the configuration, described for people.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyInfo {
    /// The table it is in: `memory` or `tier`.
    pub table: &'static str,
    /// Its name in that table.
    pub name: &'static str,
    /// The type of its value.
    pub kind: &'static str,
    /// What holds when it is absent.
    pub default: &'static str,
    /// What is allowed.
    pub limits: String,
    /// The environment variable that sets it; `<N>` is the number of the tier, from 0.
    pub environment: String,
    /// A value, as it stands in a file.
    pub example: &'static str,
    /// What it is for.
    pub about: &'static str,
}

/// Every key there is, table by table: for a reference, a `--help`, an editor.
///
/// ```
/// let keys = spill_core::config::keys();
/// let limit = keys.iter().find(|key| key.table == "memory" && key.name == "limit").unwrap();
/// assert_eq!(limit.environment, "SPILL_MEMORY_LIMIT");
/// ```
pub fn keys() -> Vec<KeyInfo> {
    let memory = MEMORY.iter().map(|key| key.info("memory", "SPILL_MEMORY_"));
    let tier = TIER.iter().map(|key| key.info("tier", "SPILL_TIER_<N>_"));
    memory.chain(tier).collect()
}

impl Section for MemoryConfig {
    fn keys() -> &'static [Key<Self>] {
        &MEMORY
    }
    fn origins(&self) -> &Origins {
        &self.origins
    }
    fn origins_mut(&mut self) -> &mut Origins {
        &mut self.origins
    }
    fn untouched(&self) -> Self {
        Self::default()
    }
}

impl Section for TierConfig {
    fn keys() -> &'static [Key<Self>] {
        &TIER
    }
    fn origins(&self) -> &Origins {
        &self.origins
    }
    fn origins_mut(&mut self) -> &mut Origins {
        &mut self.origins
    }
    fn untouched(&self) -> Self {
        Self::new(self.store.clone())
    }
}

const MAX_WAIT: Duration = Duration::from_secs(30 * 24 * 3600);
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);
const SHORTEST: Duration = Duration::from_millis(1);

fn set_on_full(memory: &mut MemoryConfig, word: &str) {
    memory.on_full = match (word, memory.on_full) {
        ("reject", _) => OnFull::Reject,
        ("keep", _) => OnFull::Keep,
        (_, OnFull::Wait(timeout)) => OnFull::Wait(timeout),
        _ => OnFull::default(),
    };
}

fn on_full(memory: &MemoryConfig) -> &'static str {
    match memory.on_full {
        OnFull::Wait(_) => "wait",
        OnFull::Reject => "reject",
        OnFull::Keep => "keep",
    }
}

fn set_wait_timeout(memory: &mut MemoryConfig, timeout: Duration) -> Result<(), Wrong> {
    match memory.on_full {
        OnFull::Wait(_) => memory.on_full = OnFull::Wait(timeout),
        _ => {
            let problem = format!("nothing waits when memory.on_full = \"{}\"", on_full(memory));
            return Err(Wrong::new(problem).with_fix("remove it, or set memory.on_full = \"wait\""));
        }
    }
    Ok(())
}

static MEMORY: [Key<MemoryConfig>; 7] = [
    Key {
        name: "limit",
        about: "The memory the buffer may use, or the share of the container's (else the machine's) memory.",
        default: "none: it has to be set",
        example: "\"512 MiB\"",
        field: Field::Amount { set: |memory, limit| memory.limit = Some(limit), get: |memory| memory.limit },
    },
    Key {
        name: "policy",
        about: "Decides who leaves memory next.",
        default: "\"s3-fifo\"",
        example: "\"s3-fifo\"",
        field: Field::Name {
            limits: "a victim policy the registry has: lru, fifo, clock, s3-fifo, sieve, or one that was added",
            set: |memory, name| memory.policy = name,
            get: |memory| Some(&memory.policy),
        },
    },
    Key {
        name: "on_full",
        about: "What an insert gets when there is no room anywhere: it waits, comes back at once, or is kept above the limit.",
        default: "\"wait\"",
        example: "\"wait\"",
        field: Field::Word { words: &["wait", "reject", "keep"], set: set_on_full, get: on_full },
    },
    Key {
        name: "wait_timeout",
        about: "How long such an insert waits before the value comes back. Only with `on_full = \"wait\"`.",
        default: "\"30s\"",
        example: "\"30s\"",
        field: Field::Time {
            within: SHORTEST..=MAX_WAIT,
            set: set_wait_timeout,
            get: |memory| match memory.on_full {
                OnFull::Wait(timeout) => Some(timeout),
                _ => None,
            },
        },
    },
    Key {
        name: "spill_buffers",
        about: "The part of `limit` that is kept for the spill path's own buffers. Has to be less than `limit`.",
        default: "an eighth of `limit`, at most 64 MiB",
        example: "\"32 MiB\"",
        field: Field::Bytes {
            within: 0..=MAX_BYTES,
            set: |memory, bytes| memory.spill_buffers = Some(bytes),
            get: |memory| memory.spill_buffers,
        },
    },
    Key {
        name: "high_watermark",
        about: "Spilling starts above this share of what entries may weigh.",
        default: "\"87.5%\"",
        example: "\"87.5%\"",
        field: Field::Share {
            set: |memory, share| memory.high_watermark = share,
            get: |memory| Some(memory.high_watermark),
        },
    },
    Key {
        name: "low_watermark",
        about: "Spilling stops at this share. At most `high_watermark`; with both at 100% nothing moves early.",
        default: "\"75%\"",
        example: "\"75%\"",
        field: Field::Share {
            set: |memory, share| memory.low_watermark = share,
            get: |memory| Some(memory.low_watermark),
        },
    },
];

static TIER: [Key<TierConfig>; 13] = [
    Key {
        name: "store",
        about: "Where the store is. Two tiers can't have the same.",
        default: "none: it has to be set",
        example: "\"file:///var/tmp/myapp\"",
        field: Field::Store { set: |tier, store| tier.store = store, get: |tier| &tier.store },
    },
    Key {
        name: "name",
        about: "What the tier is called in messages and statistics. Two tiers can't have the same.",
        default: "`store`, without secrets",
        example: "\"local\"",
        field: Field::Name {
            limits: "1 to 64 characters, no control characters",
            set: |tier, name| tier.name = Some(name),
            get: |tier| tier.name.as_deref(),
        },
    },
    Key {
        name: "max_spill",
        about: "The most bytes the store may hold, garbage and writes in flight included. Zero: nothing is spilled to it.",
        default: "no cap",
        example: "\"20 GiB\"",
        field: Field::Bytes {
            within: 0..=MAX_BYTES,
            set: |tier, bytes| tier.max_spill = Some(bytes),
            get: |tier| tier.max_spill,
        },
    },
    Key {
        name: "demote_at",
        about: "Above this share of max_spill the coldest blobs are moved on to the next tier that takes them. Not on the last tier, and only with max_spill.",
        default: "nothing is moved on",
        example: "\"90%\"",
        field: Field::Share { set: |tier, share| tier.demote_at = Some(share), get: |tier| tier.demote_at },
    },
    Key {
        name: "reserve_free",
        about: "What is left to others on the file system, or the share of its size. Only for stores on a file system.",
        default: "nothing",
        example: "\"5%\"",
        field: Field::Amount {
            set: |tier, amount| tier.reserve_free = Some(amount),
            get: |tier| tier.reserve_free,
        },
    },
    Key {
        name: "compress",
        about: "How values are compressed. `auto` takes what spills most of them in a second, and learns it from how \
                long compressing and writing to this tier take: `none`, `lz4` or `zstd:1`, as far as they are compiled in.",
        default: "\"none\"",
        example: "\"lz4\"",
        field: Field::Compression {
            set: |tier, compress| tier.compress = compress,
            get: |tier| &tier.compress,
        },
    },
    Key {
        name: "batch_bytes",
        about: "The size a batch of values grows to before it is written.",
        default: "what the store is fastest with, at most a quarter of spill_buffers and a sixteenth of max_spill",
        example: "\"8 MiB\"",
        field: Field::Bytes {
            within: 128..=(2 << 30) - 1,
            set: |tier, bytes| tier.batch_bytes = Some(bytes),
            get: |tier| tier.batch_bytes,
        },
    },
    Key {
        name: "batch_entries",
        about: "The most values in a batch.",
        default: "4096",
        example: "4096",
        field: Field::Count {
            within: 1..=65_536,
            set: |tier, count| tier.batch_entries = count,
            get: |tier| Some(tier.batch_entries),
        },
    },
    Key {
        name: "retries",
        about: "How often a request that failed in passing is repeated.",
        default: "3",
        example: "3",
        field: Field::Count {
            within: 0..=100,
            set: |tier, count| tier.retries = count,
            get: |tier| Some(tier.retries),
        },
    },
    Key {
        name: "timeout",
        about: "The longest one request may take; one that moves bytes has 8 seconds more for each MiB (128 KiB/s).",
        default: "\"30s\"",
        example: "\"30s\"",
        field: Field::Time {
            within: SHORTEST..=MAX_TIMEOUT,
            set: |tier, time| {
                tier.timeout = time;
                Ok(())
            },
            get: |tier| Some(tier.timeout),
        },
    },
    Key {
        name: "concurrency",
        about: "The most requests of a kind (writes, reads, deletes) at once; fewer as long as the other side says that it has too much to do.",
        default: "64; a store on a file system has bounds of its own",
        example: "64",
        field: Field::Count {
            within: 1..=4096,
            set: |tier, count| tier.concurrency = Some(count),
            get: |tier| tier.concurrency,
        },
    },
    Key {
        name: "durable",
        about: "Whether a blob is forced to the medium (fsync) before it counts as spilled. Slow. Only for stores on a file system.",
        default: "false",
        example: "false",
        field: Field::Switch { set: |tier, switch| tier.durable = switch, get: |tier| tier.durable },
    },
    Key {
        name: "options",
        about: "What only this kind of store knows. Values are never shown.",
        default: "none",
        example: "{}",
        field: Field::Options { get: |tier| &mut tier.options },
    },
];
