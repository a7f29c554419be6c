//! The last steps of opening a service: building its client, and one request that shows whether it works.

use std::{sync::Arc, time::Duration};

use object_store::{
    ObjectStore, Result,
    list::{PaginatedListOptions, PaginatedListStore},
};
use spill_core::{Store, StoreError, StoreErrorKind};

use super::{
    StoreOptions,
    options::{Connection, Place, refused},
    wrapped::Wrapped,
};
use crate::error::{lists_nothing, store_error};

/// For the first request, that for credentials included, unless the connection's own time-outs are longer.
const OPEN_LIMIT: Duration = Duration::from_secs(30);

/// How often the first request is tried, as long as its trouble may pass.
const TRIES: u32 = 3;

/// Between two of them, times the number of the one that failed.
const WAIT: Duration = Duration::from_millis(200);

/// Builds a client off the runtime's threads: it reads certificates, and maybe files with credentials.
pub(crate) async fn build<T: Send + 'static>(
    target: &str,
    build: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T, StoreError> {
    let built = tokio::task::spawn_blocking(build).await;
    built.map_err(|error| refused(target, error))?.map_err(|error| store_error(target, "open", error))
}

/// A service whose client is built.
pub(crate) struct Opened<T> {
    pub(crate) client: Arc<T>,
    /// The same without deletes of many objects at once, for a service that may not know them.
    pub(crate) single_deletes: Option<Arc<dyn ObjectStore>>,
    /// What to do when no credentials were given and there is none to be had.
    pub(crate) no_credentials: Option<&'static str>,
}

impl<T: ObjectStore + PaginatedListStore> Opened<T> {
    /// Asks for one name, and makes a store of the service when it answers.
    pub(crate) async fn open(
        self,
        scheme: &str,
        place: &Place,
        connection: &Connection,
        options: StoreOptions,
    ) -> Result<Arc<dyn Store>, StoreError> {
        let target = place.target(scheme);
        self.try_out(&target, place, connection).await?;
        let mut store = Wrapped::new(format!("{scheme}://{}", place.bucket), self.client);
        if let Some(single) = self.single_deletes {
            store = store.with_single_deletes(single);
        }
        // S3, GCS and Azure promise it.
        let sorted = true;
        options.open(Arc::new(store), &place.prefix, sorted).await
    }

    async fn try_out(&self, target: &str, place: &Place, connection: &Connection) -> Result<(), StoreError> {
        let connector = &connection.connector;
        let limit = OPEN_LIMIT.max(connector.connect_timeout + connector.read_timeout);
        let tried = tokio::time::timeout(limit, self.list_one(target, &place.prefix)).await;
        let error = match tried {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error,
            Err(_) => {
                let message = format!("no answer within {}", humantime::format_duration(limit));
                StoreError::new(StoreErrorKind::Transient, "open", target).with_source(message)
            }
        };
        Err(match self.no_credentials {
            Some(fix) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                error.with_source(format!("{cause}; {fix}"))
            }
            None => error,
        })
    }

    async fn list_one(&self, target: &str, prefix: &str) -> Result<(), StoreError> {
        let prefix = (!prefix.is_empty()).then(|| format!("{prefix}/"));
        for tries in 1.. {
            let options = PaginatedListOptions { max_keys: Some(1), ..PaginatedListOptions::default() };
            let Err(error) = self.client.list_paginated(prefix.as_deref(), options).await else { break };
            if lists_nothing(&error) {
                break;
            }
            let error = store_error(target, "open", error);
            if tries == TRIES || error.kind() != StoreErrorKind::Transient {
                return Err(error);
            }
            let wait = error.retry_after().unwrap_or_default().max(WAIT * tries);
            tokio::time::sleep(wait).await;
        }
        Ok(())
    }
}
