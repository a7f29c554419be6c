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

use std::{sync::Arc, time::Duration};

use object_store::ObjectStore;
use spill_core::{Options, Store, StoreError, StoreErrorKind};

use crate::ObjectOptions;

/// The options that the store takes whatever service is below it, as they were given.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoreOptions {
    owner: Option<String>,
    heartbeat: Option<Duration>,
    /// `Some(None)`: never.
    dead_after: Option<Option<Duration>>,
}

impl StoreOptions {
    #[cfg_attr(
        not(any(feature = "file", feature = "service")),
        allow(dead_code, reason = "a store in memory takes no options")
    )]
    /// Takes them out. What nobody has taken by then is a mistake, so this comes last.
    pub(crate) fn take(mut options: Options, target: &str) -> Result<Self, StoreError> {
        let taken = Self {
            owner: options.take("owner"),
            heartbeat: options.take_parsed("heartbeat", target, humantime::parse_duration)?,
            dead_after: options.take_parsed("dead_after", target, |text| match text {
                "never" => Ok(None),
                text => humantime::parse_duration(text)
                    .map(Some)
                    .map_err(|error| format!("{error}; write a time like `1day`, or `never`")),
            })?,
        };
        options.finish("open", target)?;
        Ok(taken)
    }

    /// A new session under a prefix of this object store, which lists names in ascending order if `sorted`:
    /// announced by its first heartbeat, and sweeping dead sessions in the background.
    ///
    /// # Cancel safety
    /// A heartbeat may be left, which a later sweep removes.
    pub(crate) async fn open(
        self,
        inner: Arc<dyn ObjectStore>,
        prefix: &str,
        sorted: bool,
    ) -> Result<Arc<dyn Store>, StoreError> {
        let mut options = ObjectOptions::new(inner, prefix).sorted(sorted);
        if let Some(owner) = self.owner {
            options = options.owner(owner);
        }
        if let Some(every) = self.heartbeat {
            options = options.heartbeat(every);
        }
        if let Some(age) = self.dead_after {
            options = options.dead_after(age);
        }
        let store = options.open()?;
        match store.announce().await {
            // It is tried again in the background; whether the service is there was seen before.
            Err(error) if error.kind() != StoreErrorKind::Transient => return Err(error),
            _ => store.spawn_upkeep(),
        }
        Ok(Arc::new(store))
    }
}
