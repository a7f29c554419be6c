//! The contract of a backend: [`Store`] keeps blobs by id, [`StoreFactory`] opens one from a URL.
//!
//! A store knows nothing of keys, values or compression. How to write one, and the suite that proves it
//! right, are in the `spill-conformance` crate. Retries, time-outs and limits are [`Layer`](crate::Layer)s.

use std::{collections::BTreeMap, fmt, ops::Range, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use url::Url;

use crate::{BlobId, BoxError, Payload, StoreError};

/// What a store is like.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoreInfo {
    /// Shown in messages and metrics: a path or a URL, without secrets.
    pub name: String,
    /// The largest blob it takes, in bytes.
    pub max_blob: u64,
    /// The blob size it is fastest with, in bytes. Batches grow towards it.
    pub preferred_blob: u64,
    /// Whether [`Store::punch`] gives space back.
    pub can_punch: bool,
    /// Two parts of a blob with no more than this many bytes between them are faster read with one call.
    pub read_gap: u64,
}

impl StoreInfo {
    /// A store with this name, no limit to a blob, a preferred blob of 8 MiB, no hole punching, and a gap of
    /// 64 KiB that is read rather than left out.
    ///
    /// ```
    /// let info = spill_core::StoreInfo::new("memory:");
    /// assert_eq!(info.preferred_blob, 8 << 20);
    /// ```
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            max_blob: u64::MAX,
            preferred_blob: 8 << 20,
            can_punch: false,
            read_gap: 64 << 10,
        }
    }

    /// The same with this limit to a blob, in bytes.
    #[must_use]
    pub fn max_blob(mut self, bytes: u64) -> Self {
        self.max_blob = bytes;
        self
    }

    /// The same with this preferred size of a blob, in bytes.
    #[must_use]
    pub fn preferred_blob(mut self, bytes: u64) -> Self {
        self.preferred_blob = bytes;
        self
    }

    /// The same with hole punching.
    #[must_use]
    pub fn can_punch(mut self, can: bool) -> Self {
        self.can_punch = can;
        self
    }

    /// The same, reading over gaps of up to this many bytes: what moves in the time that one more call takes.
    #[must_use]
    pub fn read_gap(mut self, bytes: u64) -> Self {
        self.read_gap = bytes;
        self
    }
}

/// What keeping a blob costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// The blob's length in bytes: what was put, to the byte.
    pub bytes: u64,
    /// Bytes the medium really uses for it (file blocks, say). Equals `bytes` where nobody can tell.
    pub allocated: u64,
}

/// A blob in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobMeta {
    /// Its name.
    pub id: BlobId,
    /// Its size.
    pub stored: Stored,
}

/// A backend: keeps immutable blobs by id.
///
/// What every implementation owes its callers, and the conformance suite checks:
///
/// - Blobs are put whole or not at all, also when the future of `put` is dropped at any await, or the
///   process dies. A blob that was reported as put can be read.
/// - An id is put at most once in the life of a store, unless an unanswered put is undone by `delete` and
///   repeated with the same bytes. There is no overwriting.
/// - Reads return exactly the bytes asked for, or an error; never fewer, never others.
/// - Methods work on every tokio runtime flavour and never block a runtime thread.
/// - What one opened store keeps is invisible to, and untouched by, any other.
///
/// # Errors
/// Every method answers with a [`StoreError`] whose kind tells the caller what to do: out of space is
/// `NoSpace` (ENOSPC, EDQUOT, EFBIG, HTTP 507), what may pass is `Transient`.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// What this store is like. Cheap, and the same every time.
    fn info(&self) -> &StoreInfo;

    /// Keeps `blob` under `id`, and says what that costs.
    ///
    /// # Cancel safety
    /// When the future is dropped the blob is there whole or, soon after, not at all. What is cleaned up in
    /// the background is that call's own: it never touches what is put under the same id later.
    async fn put(&self, id: BlobId, blob: Payload) -> Result<Stored, StoreError>;

    /// The bytes `range` of a blob.
    ///
    /// An empty range is an empty answer if the blob is there.
    ///
    /// # Errors
    /// `NotFound` for a missing blob, `Corrupt` for a range past the end, or fewer bytes than asked for.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    async fn get(&self, id: BlobId, range: Range<u64>) -> Result<Bytes, StoreError>;

    /// Removes blobs. Idempotent: one that is not there counts as removed.
    ///
    /// # Errors
    /// When some could not be removed, [`StoreError::failed`] names them and the others are gone. An
    /// error that names none means that any of them may still be there.
    ///
    /// # Cancel safety
    /// Any subset may have been removed when the future is dropped.
    async fn delete(&self, ids: &[BlobId]) -> Result<(), StoreError>;

    /// Gives the space of `ranges` back and says how many bytes that really were; the blob keeps its
    /// length, and what is read from a punched range is undefined. The default gives nothing back.
    async fn punch(&self, id: BlobId, ranges: &[Range<u64>]) -> Result<u64, StoreError> {
        let _ = (id, ranges);
        Ok(0)
    }

    /// Up to `limit` blobs in the order of their ids, those after `after` only.
    ///
    /// Foreign and unfinished things are left out. An answer shorter than `limit` is the last page. What
    /// was there throughout appears exactly once over all pages.
    async fn list(&self, after: Option<BlobId>, limit: usize) -> Result<Vec<BlobMeta>, StoreError>;

    /// Removes everything this opened store keeps, and what it set up for itself. No other call follows.
    ///
    /// A store that is dropped without this leaves only what a sweep removes.
    async fn close(&self) -> Result<(), StoreError>;
}

/// Opens stores of one URL scheme; what a third party adds to a registry.
///
/// ```
/// use std::sync::Arc;
/// use spill_core::{Options, Store, StoreError, StoreFactory, MemoryStore};
///
/// #[derive(Debug)]
/// struct Factory;
///
/// #[async_trait::async_trait]
/// impl StoreFactory for Factory {
///     async fn open(&self, _url: &url::Url, mut options: Options) -> Result<Arc<dyn Store>, StoreError> {
///         let region = options.take("region").unwrap_or_else(|| "here".into());
///         options.finish("open", "mine:")?; // whatever was not taken is a spelling mistake
///         assert_eq!(region, "here");
///         Ok(Arc::new(MemoryStore::new()))
///     }
/// }
/// ```
#[async_trait]
pub trait StoreFactory: fmt::Debug + Send + Sync + 'static {
    /// Opens a store at `url`.
    ///
    /// Each opened store is a session of its own: it never touches what another one keeps.
    ///
    /// # Errors
    /// Whatever would make the first `put` fail for good: a missing directory that can't be made, wrong
    /// credentials, an option that is unknown or makes no sense here. The error names the path or URL.
    async fn open(&self, url: &Url, options: Options) -> Result<Arc<dyn Store>, StoreError>;
}

/// Settings for a store, by name. A factory takes the ones it knows; what is left over is a mistake.
///
/// `Debug` shows the names only: values may be secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Options {
    values: BTreeMap<String, String>,
    known: Vec<&'static str>,
}

impl Options {
    /// No settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with one more setting.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.values.insert(name.into(), value.into());
        self
    }

    /// Takes a setting out, and remembers its name as one that is known.
    pub fn take(&mut self, name: &'static str) -> Option<String> {
        self.known.push(name);
        self.values.remove(name)
    }

    /// Takes a setting out and parses it.
    ///
    /// # Errors
    /// When it is there and does not parse: names the option, its value and what `parse` said of it.
    pub fn take_parsed<T, E: Into<BoxError>>(
        &mut self,
        name: &'static str,
        target: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, StoreError> {
        let Some(text) = self.take(name) else { return Ok(None) };
        parse(&text)
            .map(Some)
            .map_err(|error| refused("open", target, format!("option `{name}` = {text:?}: {}", error.into())))
    }

    /// Names of the settings nobody has taken.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// Refuses what is left over.
    ///
    /// # Errors
    /// When a setting was not taken: names it, and lists the ones that are known.
    pub fn finish(mut self, operation: &'static str, target: &str) -> Result<(), StoreError> {
        let Some(unknown) = self.values.keys().next() else { return Ok(()) };
        self.known.sort_unstable();
        let allowed = match self.known.len() {
            0 => "this store takes no options; remove it".to_owned(),
            _ => format!("known options: {}", self.known.join(", ")),
        };
        Err(refused(operation, target, format!("unknown option `{unknown}`; {allowed}")))
    }
}

fn refused(operation: &'static str, target: &str, message: String) -> StoreError {
    StoreError::new(crate::StoreErrorKind::Other, operation, target).with_source(message)
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.values.keys()).finish()
    }
}

impl<N: Into<String>, T: Into<String>> FromIterator<(N, T)> for Options {
    fn from_iter<I: IntoIterator<Item = (N, T)>>(settings: I) -> Self {
        settings.into_iter().fold(Self::new(), |options, (name, value)| options.with(name, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftover_options_are_refused_with_the_known_ones() {
        let mut options = Options::new().with("regoin", "eu");
        assert_eq!(options.take("region"), None);
        let error = options.finish("open", "s3://bucket").unwrap_err();
        assert!(error.to_string().contains("unknown option `regoin`; known options: region"), "{error}");
    }

    #[test]
    fn debug_hides_values() {
        let options = Options::new().with("secret", "hunter2");
        assert_eq!(format!("{options:?}"), r#"{"secret"}"#);
    }
}
