//! The last steps of opening a service: building its client, and one request that shows whether it works.

use std::{str::FromStr, sync::Arc, time::Duration};

use object_store::{
    ObjectStore, Result,
    list::{PaginatedListOptions, PaginatedListStore},
};
use spill_core::{Options, Store, StoreError, StoreErrorKind};
use url::Url;

use super::{
    StoreOptions,
    options::{Connection, Environment, Place, Setting, Values, refused},
    wrapped::Wrapped,
};
use crate::error::{lists_nothing, store_error};

/// For the first request, that for credentials included, unless the connection's own time-outs are longer.
const OPEN_LIMIT: Duration = Duration::from_secs(30);

/// How often the first request is tried, as long as its trouble may pass.
const TRIES: u32 = 3;

/// Between two of them, times the number of the one that failed.
const WAIT: Duration = Duration::from_millis(200);

/// What a URL, options and the environment ask for, checked as far as services have it in common.
pub(crate) struct Opening {
    scheme: &'static str,
    settings: &'static [Setting],
    pub(crate) place: Place,
    /// What messages call it.
    pub(crate) target: String,
    pub(crate) connection: Connection,
    pub(crate) values: Values,
    options: StoreOptions,
}

impl Opening {
    pub(crate) fn take(
        scheme: &'static str,
        settings: &'static [Setting],
        environment: &Environment,
        url: &Url,
        mut options: Options,
    ) -> Result<Self, StoreError> {
        let place = Place::parse(url, scheme)?;
        let target = place.target(scheme);
        let connection = Connection::take(&mut options, &target)?;
        let values = Values::take(settings, &mut options, environment, &target)?;
        let options = StoreOptions::take(options, &target)?;
        Ok(Self { scheme, settings, place, target, connection, values, options })
    }

    /// Whether nothing says who asks.
    #[cfg(any(feature = "gs", feature = "az"))]
    pub(crate) fn is_by_nobody(&self) -> bool {
        !self.settings.iter().any(|setting| setting.credential && self.values.has(setting.name))
    }

    /// A builder that was told all that is particular to the service.
    pub(crate) fn fill<B, K: FromStr>(
        &self,
        builder: B,
        with: impl Fn(B, K, &str) -> B,
    ) -> Result<B, StoreError> {
        self.values.fill(self.settings, builder, with)
    }

    /// Builds clients off the runtime's threads: that reads certificates, and maybe files with credentials.
    pub(crate) async fn build<T: Send + 'static>(
        &self,
        build: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let built = tokio::task::spawn_blocking(build).await;
        let built = built.map_err(|error| refused(&self.target, error))?;
        built.map_err(|error| store_error(&self.target, "open", error))
    }

    /// Asks for one name, and makes a store of the service when it answers. `single_deletes` is a client
    /// without deletes of many objects at once, for a service that may not know them; `no_credentials` says
    /// what to do when none were given and there is none to be had.
    pub(crate) async fn open<T: ObjectStore + PaginatedListStore>(
        self,
        client: Arc<T>,
        single_deletes: Option<Arc<dyn ObjectStore>>,
        no_credentials: Option<&'static str>,
    ) -> Result<Arc<dyn Store>, StoreError> {
        self.try_out(&*client, no_credentials).await?;
        let mut store = Wrapped::new(format!("{}://{}", self.scheme, self.place.bucket), client);
        if let Some(single) = single_deletes {
            store = store.with_single_deletes(single);
        }
        // S3, GCS and Azure promise it.
        let sorted = true;
        self.options.open(Arc::new(store), &self.place.prefix, sorted).await
    }

    async fn try_out(
        &self,
        client: &impl PaginatedListStore,
        no_credentials: Option<&'static str>,
    ) -> Result<(), StoreError> {
        let (target, connector) = (self.target.as_str(), &self.connection.connector);
        let limit = OPEN_LIMIT.max(connector.connect_timeout + connector.read_timeout);
        let tried = tokio::time::timeout(limit, self.list_one(client)).await;
        let error = match tried {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error,
            Err(_) => {
                let message = format!("no answer within {}", humantime::format_duration(limit));
                StoreError::new(StoreErrorKind::Transient, "open", target).with_source(message)
            }
        };
        Err(match no_credentials {
            Some(fix) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                error.with_source(format!("{cause}; {fix}"))
            }
            None => error,
        })
    }

    async fn list_one(&self, client: &impl PaginatedListStore) -> Result<(), StoreError> {
        let prefix = &self.place.prefix;
        let prefix = (!prefix.is_empty()).then(|| format!("{prefix}/"));
        for tries in 1.. {
            let options = PaginatedListOptions { max_keys: Some(1), ..PaginatedListOptions::default() };
            let Err(error) = client.list_paginated(prefix.as_deref(), options).await else { break };
            if lists_nothing(&error) {
                break;
            }
            let error = store_error(&self.target, "open", error);
            if tries == TRIES || error.kind() != StoreErrorKind::Transient {
                return Err(error);
            }
            let wait = error.retry_after().unwrap_or_default().max(WAIT * tries);
            tokio::time::sleep(wait).await;
        }
        Ok(())
    }
}
