//! Opens stores from URLs and options: what the factories of the services share.
//!
//! A service is a table of options, what of the environment stands in for them, and a builder of
//! `object_store`. Everything is checked before a request is made: the builder drops what it does not know.

#[cfg(feature = "az")]
pub(crate) mod azure;
#[cfg(feature = "file")]
pub(crate) mod file;
#[cfg(feature = "gs")]
pub(crate) mod gcs;
#[cfg(feature = "memory")]
pub(crate) mod memory;
#[cfg(feature = "service")]
pub(crate) mod opening;
#[cfg(feature = "service")]
#[cfg_attr(
    not(all(feature = "s3", feature = "gs", feature = "az")),
    allow(dead_code, reason = "not every service needs all of it")
)]
pub(crate) mod options;
#[cfg(all(test, feature = "s3", feature = "gs", feature = "az"))]
mod page;
#[cfg(feature = "s3")]
pub(crate) mod s3;
#[cfg(feature = "service")]
mod wrapped;

use std::sync::Arc;

use object_store::ObjectStore;
use spill_core::{Options, Store, StoreError};

use crate::ObjectStoreBackend;

/// The options that every factory takes, because the store has them whatever service is below it: add them
/// here.
#[derive(Clone, Debug)]
pub(crate) struct StoreOptions {}

impl StoreOptions {
    /// Takes them out. What nobody has taken by then is a mistake, so this comes last.
    pub(crate) fn take(options: Options, target: &str) -> Result<Self, StoreError> {
        options.finish("open", target)?;
        Ok(Self {})
    }

    /// A new session under a prefix of this object store.
    pub(crate) fn open(
        self,
        inner: Arc<dyn ObjectStore>,
        prefix: &str,
    ) -> Result<Arc<dyn Store>, StoreError> {
        Ok(Arc::new(ObjectStoreBackend::new(inner, prefix)?))
    }
}
