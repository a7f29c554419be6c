//! What can go wrong, by who can do something about it.
//!
//! [`StoreError`] is what a backend reports, [`CodecError`] and [`CompressError`] what the pieces that
//! compute report, [`Error`] what a caller of the buffer sees, [`InsertError`] the same with the refused
//! value in it. What is wrong with a configuration is a `ConfigError` in the `config` module.

use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

use crate::{BlobId, size::format_bytes};

/// An error of any type, as a source.
pub type BoxError = Box<dyn StdError + Send + Sync + 'static>;

/// What kind of trouble a store is in: it decides what the buffer does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The blob is not there.
    NotFound,
    /// No room: disk full, quota reached, file too big, HTTP 507. Waiting helps, repeating at once does not.
    NoSpace,
    /// A passing fault: a reset, a time-out, throttling. Repeating helps.
    Transient,
    /// Not allowed: permissions, credentials.
    Denied,
    /// What is there is not what was put: too short, too long, a checksum that differs.
    Corrupt,
    /// Anything else; repeating is not expected to help.
    Other,
}

/// A store could not do what it was asked.
///
/// Cheap to clone, because one failed read is reported to everybody who waited for it.
///
/// ```
/// use spill_core::{BlobId, StoreError, StoreErrorKind};
/// let error = StoreError::new(StoreErrorKind::NoSpace, "put", "/var/tmp/app")
///     .with_blob(BlobId::new(7))
///     .with_source(std::io::Error::other("No space left on device"));
/// assert_eq!(error.kind(), StoreErrorKind::NoSpace);
/// assert_eq!(
///     error.to_string(),
///     "put of blob 0000000000000007 in /var/tmp/app failed (no space): No space left on device",
/// );
/// ```
#[derive(Clone)]
pub struct StoreError(Arc<StoreErrorParts>);

#[derive(Clone)]
struct StoreErrorParts {
    kind: StoreErrorKind,
    operation: &'static str,
    target: String,
    blob: Option<BlobId>,
    failed: Vec<BlobId>,
    retry_after: Option<Duration>,
    throttled: bool,
    source: Option<Arc<dyn StdError + Send + Sync + 'static>>,
}

impl StoreError {
    /// An error of `kind` while doing `operation` ("put", "get", "open", …) on `target` (a path or URL,
    /// free of secrets).
    pub fn new(kind: StoreErrorKind, operation: &'static str, target: impl Into<String>) -> Self {
        Self(Arc::new(StoreErrorParts {
            kind,
            operation,
            target: target.into(),
            blob: None,
            failed: Vec::new(),
            retry_after: None,
            throttled: false,
            source: None,
        }))
    }

    fn change(mut self, change: impl FnOnce(&mut StoreErrorParts)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// The same error, naming the blob it was about.
    #[must_use]
    pub fn with_blob(self, blob: BlobId) -> Self {
        self.change(|parts| parts.blob = Some(blob))
    }

    /// The same error, naming the blobs of a batch that failed. The others of the batch succeeded.
    #[must_use]
    pub fn with_failed(self, failed: Vec<BlobId>) -> Self {
        self.change(|parts| parts.failed = failed)
    }

    /// The same error, with the wait the other side asked for.
    #[must_use]
    pub fn with_retry_after(self, wait: Duration) -> Self {
        self.change(|parts| parts.retry_after = Some(wait))
    }

    /// The same error, from a service that has too much to do: fewer calls at once would help.
    #[must_use]
    pub fn with_throttled(self) -> Self {
        self.change(|parts| parts.throttled = true)
    }

    /// The same error, with its cause.
    #[must_use]
    pub fn with_source(self, source: impl Into<BoxError>) -> Self {
        self.change(|parts| parts.source = Some(Arc::from(source.into())))
    }

    /// What kind of trouble this is.
    pub fn kind(&self) -> StoreErrorKind {
        self.0.kind
    }

    /// What was being done.
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// The path or URL it was done on.
    pub fn target(&self) -> &str {
        &self.0.target
    }

    /// The blob it was about, if it was about one.
    pub fn blob(&self) -> Option<BlobId> {
        self.0.blob
    }

    /// The blobs of a batch that failed; empty when the batch failed as a whole.
    pub fn failed(&self) -> &[BlobId] {
        &self.0.failed
    }

    /// How long the other side asked to wait before the next try.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Whether the other side has too much to do (HTTP 429, `SlowDown`): fewer calls at once would help.
    ///
    /// ```
    /// use spill_core::{StoreError, StoreErrorKind};
    /// let busy = StoreError::new(StoreErrorKind::Transient, "put", "s3://bucket/prefix").with_throttled();
    /// assert!(busy.is_throttled());
    /// ```
    pub fn is_throttled(&self) -> bool {
        self.0.throttled
    }
}

impl fmt::Display for StoreErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotFound => "not found",
            Self::NoSpace => "no space",
            Self::Transient => "transient",
            Self::Denied => "denied",
            Self::Corrupt => "corrupt",
            Self::Other => "other",
        })
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = &*self.0;
        f.write_str(parts.operation)?;
        if let Some(blob) = parts.blob {
            write!(f, " of blob {blob}")?;
        }
        write!(f, " in {} failed ({})", parts.target, parts.kind)?;
        if !parts.failed.is_empty() {
            write!(f, " for blobs {:?}", parts.failed)?;
        }
        match &parts.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreError({self})")
    }
}

impl StdError for StoreError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// A value could not be turned into bytes, or bytes into a value.
///
/// ```
/// use spill_core::CodecError;
/// let error = CodecError::new("not UTF-8");
/// assert_eq!(error.to_string(), "not UTF-8");
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct CodecError {
    message: String,
    #[source]
    source: Option<Arc<dyn StdError + Send + Sync + 'static>>,
}

impl CodecError {
    /// An error that says what is wrong with the value or the bytes.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), source: None }
    }

    /// An error caused by another.
    pub fn from_source(source: impl Into<BoxError>) -> Self {
        let source: Arc<dyn StdError + Send + Sync> = Arc::from(source.into());
        Self { message: source.to_string(), source: Some(source) }
    }
}

/// Bytes could not be compressed, or are not what this compressor wrote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{compressor}: {message}")]
pub struct CompressError {
    compressor: &'static str,
    message: String,
}

impl CompressError {
    /// An error of the compressor with this name.
    pub fn new(compressor: &'static str, message: impl Into<String>) -> Self {
        Self { compressor, message: message.into() }
    }
}

/// What ran out, in an [`Error::Full`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resource {
    /// The memory budget is used up and no tier takes anything.
    Memory,
    /// Every tier refuses: over its `max_spill`, out of space, or failing.
    Spill,
}

impl Resource {
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Spill => "the tiers",
        }
    }

    fn fix(self) -> &'static str {
        match self {
            Self::Memory => "raise `memory.limit`, or `max_spill` of a tier, or remove entries",
            Self::Spill => "raise `max_spill` of a tier, add a tier, or remove entries",
        }
    }
}

/// Why a call on a buffer failed. Nothing of it loses an entry.
///
/// Cheap to clone: one failed restore is reported to everybody who waited for it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The buffer was closed.
    #[error("{operation}: the buffer is closed")]
    Closed {
        /// The call that was refused.
        operation: &'static str,
    },
    /// There is no room, and none came within the time allowed.
    #[error("{operation} of {key}: no room in {}{}: {} needed, {} of {} used{}; {}{}",
        resource.name(), after(*waited), format_bytes(*need), format_bytes(*used),
        limit.map_or_else(|| "no limit".into(), format_bytes), each(tiers), resource.fix(),
        because(source.as_deref()))]
    Full {
        /// The call that was refused.
        operation: &'static str,
        /// The key, as its `Debug` shows it.
        key: String,
        /// What ran out.
        resource: Resource,
        /// Bytes asked for.
        need: u64,
        /// Bytes in use.
        used: u64,
        /// The limit in bytes, if there is one.
        limit: Option<u64>,
        /// How every tier stood, in order.
        tiers: Arc<Vec<TierLevel>>,
        /// How long the call waited for room.
        waited: Duration,
        /// What the last tier that was tried answered.
        #[source]
        source: Option<Arc<StoreError>>,
    },
    /// A store failed; the entry is still there and the call can be repeated.
    #[error("{operation} of {key}: {source}")]
    Store {
        /// The call that failed.
        operation: &'static str,
        /// The key, as its `Debug` shows it.
        key: String,
        /// What the store said.
        #[source]
        source: StoreError,
    },
    /// The bytes of this entry are damaged. Other entries are not affected.
    #[error(
        "restore of {key}: blob {blob} of tier {tier:?} is damaged: {reason}; the entry can still be removed"
    )]
    Corrupt {
        /// The key, as its `Debug` shows it.
        key: String,
        /// The tier the blob is in.
        tier: String,
        /// The damaged blob.
        blob: BlobId,
        /// What differs.
        reason: String,
    },
    /// The codec could not encode the value.
    #[error("encode of {key}: {source}")]
    Encode {
        /// The key, as its `Debug` shows it.
        key: String,
        /// What the codec said.
        #[source]
        source: CodecError,
    },
    /// The codec could not decode what it once encoded.
    #[error("decode of {key}: {source}")]
    Decode {
        /// The key, as its `Debug` shows it.
        key: String,
        /// What the codec said.
        #[source]
        source: CodecError,
    },
    /// The weigher panicked or answered with a weight no value can have.
    #[error("weighing {key}: {reason}")]
    Weigh {
        /// The key, as its `Debug` shows it.
        key: String,
        /// What the weigher did.
        reason: String,
    },
    /// The value weighs more than the memory limit and so can't be kept resident.
    #[error("{operation} of {key}: it weighs {}, memory holds {}; raise `memory.limit`", format_bytes(*weight), format_bytes(*limit))]
    TooHeavy {
        /// The call that was refused.
        operation: &'static str,
        /// The key, as its `Debug` shows it.
        key: String,
        /// The entry's weight in bytes.
        weight: u64,
        /// The bytes memory holds.
        limit: u64,
    },
    /// The runtime that carries the buffer's tasks was shut down. Resident entries can still be read.
    #[error("{operation}: the runtime that the buffer was built on is gone")]
    RuntimeGone {
        /// The call that failed.
        operation: &'static str,
    },
    /// Closing took longer than the deadline; what was left stays for a sweep.
    #[error("close: not done after {}", humantime::format_duration(*deadline))]
    CloseTimeout {
        /// The time allowed.
        deadline: Duration,
    },
}

/// How a tier stood when a call was refused, in an [`Error::Full`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TierLevel {
    /// Its name.
    pub name: String,
    /// Bytes of live frames, garbage and writes in flight.
    pub used: u64,
    /// Its `max_spill` in bytes, if it has one.
    pub limit: Option<u64>,
    /// A write failed, and it was not to be tried again yet.
    pub failing: bool,
}

impl TierLevel {
    pub(crate) fn new(name: &str, used: u64, limit: Option<u64>, failing: bool) -> Self {
        Self { name: name.to_owned(), used, limit, failing }
    }
}

/// `near: 384 B of 448 B used, failing`
impl fmt::Display for TierLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, format_bytes(self.used))?;
        if let Some(limit) = self.limit {
            write!(f, " of {}", format_bytes(limit))?;
        }
        f.write_str(if self.failing { " used, failing" } else { " used" })
    }
}

fn after(waited: Duration) -> String {
    // A wait that nobody would notice is none.
    let waited = Duration::from_millis(u64::try_from(waited.as_millis()).unwrap_or(u64::MAX));
    if waited.is_zero() { String::new() } else { format!(" after {}", humantime::format_duration(waited)) }
}

/// With one tier its figures are there already.
fn each(tiers: &[TierLevel]) -> String {
    if tiers.len() < 2 {
        return String::new();
    }
    let each: Vec<String> = tiers.iter().map(TierLevel::to_string).collect();
    format!(" ({})", each.join("; "))
}

fn because(source: Option<&StoreError>) -> String {
    source.map_or_else(String::new, |source| format!(" (last answer of a tier: {source})"))
}

impl Error {
    /// The same error of a call that waited this long for room.
    pub(crate) fn after(mut self, time: Duration) -> Self {
        if let Self::Full { waited, .. } = &mut self {
            *waited = time;
        }
        self
    }

    /// Whether the same call may succeed later without anything being changed.
    ///
    /// ```
    /// use spill_core::Error;
    /// assert!(!Error::Closed { operation: "get" }.is_retryable());
    /// ```
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Full { .. } => true,
            Self::Store { source, .. } => {
                matches!(source.kind(), StoreErrorKind::Transient | StoreErrorKind::NoSpace)
            }
            _ => false,
        }
    }
}

/// An insert was refused: the value comes back, and what was under the key before is still there.
///
/// ```
/// use std::sync::Arc;
/// use spill_core::{Error, InsertError};
/// let refused = InsertError { value: Arc::new("kept"), error: Error::Closed { operation: "insert" } };
/// assert_eq!(refused.to_string(), "insert: the buffer is closed");
/// assert_eq!(*refused.value, "kept");
/// ```
pub struct InsertError<V: ?Sized> {
    /// The value that was not taken.
    pub value: Arc<V>,
    /// Why.
    pub error: Error,
}

impl<V: ?Sized> fmt::Debug for InsertError<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InsertError").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<V: ?Sized> fmt::Display for InsertError<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<V: ?Sized> StdError for InsertError<V> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.error)
    }
}

impl<V: ?Sized> From<InsertError<V>> for Error {
    fn from(refused: InsertError<V>) -> Self {
        refused.error
    }
}
