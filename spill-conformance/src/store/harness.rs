//! What an author of a store hands in: [`StoreHarness`]. How a case runs with it is in the module above.

use std::{ffi::OsString, fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use spill_core::{BoxError, Store, StoreError};

use super::Case;
use crate::{
    medium::{Medium, Trouble},
    runner::Stop,
};

pub(super) type OpenFuture = BoxFuture<'static, Result<Arc<dyn Store>, StoreError>>;
type LeftoversFuture = BoxFuture<'static, Result<Vec<String>, BoxError>>;
type ForeignFuture = BoxFuture<'static, Result<(), BoxError>>;
type SweepFuture = BoxFuture<'static, Result<u64, BoxError>>;

/// What an author hands in: how to open a store, what else the suite may do, and what is waived.
#[derive(Clone)]
pub struct StoreHarness {
    pub(super) name: String,
    pub(super) open: Arc<dyn Fn(String) -> OpenFuture + Send + Sync>,
    pub(super) leftovers: Option<Arc<dyn Fn(String) -> LeftoversFuture + Send + Sync>>,
    pub(super) foreign: Option<Arc<dyn Fn(String) -> ForeignFuture + Send + Sync>>,
    pub(super) faults: Option<FaultPlan>,
    pub(super) sweep: Option<Arc<dyn Fn(String) -> SweepFuture + Send + Sync>>,
    pub(super) processes: bool,
    /// Of other processes, beyond those of this one.
    pub(super) child_variables: Vec<(String, OsString)>,
    /// Whether this binary serves as another process when it is started again.
    pub(super) can_start_again: bool,
    pub(super) waivers: Vec<(String, String)>,
    pub(super) time_limit: Duration,
    pub(super) settle_limit: Duration,
    pub(super) large_blob: u64,
}

/// How to open a store over a medium with trouble, and which troubles that can be.
#[derive(Clone)]
pub(super) struct FaultPlan {
    pub(super) troubles: Vec<Trouble>,
    pub(super) open: Arc<dyn Fn(String, Medium) -> OpenFuture + Send + Sync>,
}

impl fmt::Debug for StoreHarness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreHarness")
            .field("name", &self.name)
            .field("waivers", &self.waivers)
            .field("time_limit", &self.time_limit)
            .finish_non_exhaustive()
    }
}

impl StoreHarness {
    /// Opens stores by `open(namespace)`.
    ///
    /// A namespace is a name of letters, digits, `-` and `_` that no other case and no other run uses: make it a
    /// directory or a prefix. Opening one twice must give two sessions of the same place.
    pub fn new<F>(open: impl Fn(String) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Arc<dyn Store>, StoreError>> + Send + 'static,
    {
        Self {
            name: "unnamed".to_owned(),
            open: Arc::new(move |namespace| Box::pin(open(namespace))),
            leftovers: None,
            foreign: None,
            faults: None,
            sweep: None,
            processes: false,
            child_variables: Vec::new(),
            can_start_again: false,
            waivers: Vec::new(),
            time_limit: Duration::from_secs(60),
            settle_limit: Duration::from_secs(5),
            large_blob: (8 << 20) + 1,
        }
    }

    /// The store's name in results: see [`results_table`](crate::results_table).
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Lets the suite look past the store at what is really in a namespace: `leftovers(namespace)` lists
    /// files, objects, unfinished uploads, and directories but the place itself, each by a name for messages
    /// that ends in `/` for a directory. Unlocks the cases that need [`Need::Leftovers`].
    #[must_use]
    pub fn with_leftovers<F>(mut self, leftovers: impl Fn(String) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Vec<String>, BoxError>> + Send + 'static,
    {
        self.leftovers = Some(Arc::new(move |namespace| Box::pin(leftovers(namespace))));
        self
    }

    /// Lets the suite plant things that are not the store's: `plant(namespace)` is called while a session
    /// is open and puts foreign things beside its blobs, with names of many kinds. Unlocks the cases that
    /// need [`Need::Foreign`].
    #[must_use]
    pub fn with_foreign<F>(mut self, plant: impl Fn(String) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        self.foreign = Some(Arc::new(move |namespace| Box::pin(plant(namespace))));
        self
    }

    /// Lets the suite make trouble in the medium under the store: `open(namespace, medium)` opens a session as
    /// [`new`](Self::new) does, over a medium that asks [`Medium::call`] (or
    /// [`call_blocking`](Medium::call_blocking)) what happens to each call. `troubles` are those that the
    /// adapter translates. Unlocks the group `faults`, for these troubles.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use spill_conformance::{Medium, StoreHarness, Trouble};
    /// use spill_core::{MemoryStore, Store, StoreError};
    ///
    /// # fn open_over(_medium: Option<Medium>) -> Result<Arc<dyn Store>, StoreError> {
    /// #     Ok(Arc::new(MemoryStore::new()))
    /// # }
    /// StoreHarness::new(|_namespace| async { open_over(None) })
    ///     .with_faults(Trouble::OF_FILES, |_namespace, medium| async { open_over(Some(medium)) });
    /// ```
    #[must_use]
    pub fn with_faults<F>(
        mut self,
        troubles: impl IntoIterator<Item = Trouble>,
        open: impl Fn(String, Medium) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Arc<dyn Store>, StoreError>> + Send + 'static,
    {
        self.faults = Some(FaultPlan {
            troubles: troubles.into_iter().collect(),
            open: Arc::new(move |namespace, medium| Box::pin(open(namespace, medium))),
        });
        self
    }

    /// Lets the suite sweep: `sweep(namespace)` removes what dead sessions left in it, and says how many of
    /// them it removed. A session is dead when its store was dropped without being closed, or its process
    /// died. A store that tells the dead by their age has to be opened, and swept, with one below half of the
    /// [`settle_limit`](Self::settle_limit). Unlocks the group `sweep`.
    #[must_use]
    pub fn with_sweep<F>(mut self, sweep: impl Fn(String) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<u64, BoxError>> + Send + 'static,
    {
        self.sweep = Some(Arc::new(move |namespace| Box::pin(sweep(namespace))));
        self
    }

    /// Promises that a namespace means the same place in another process that runs the same binary: nothing
    /// of its path or prefix is random or made for one process. Unlocks the group `processes`.
    ///
    /// The cases start this test binary again, without arguments, so they run only under
    /// [`run_store_suite`](crate::run_store_suite), which serves as the other process when it finds itself
    /// started like that. What `main` does before is done in each process.
    #[must_use]
    pub fn with_processes(mut self) -> Self {
        self.processes = true;
        self
    }

    /// Sets a variable in the environment of each process that the group `processes` starts: for what only this one
    /// can know, like the port of a server that `main` started. When it is set, `main` starts none.
    #[must_use]
    pub fn child_variable(mut self, name: impl Into<String>, value: impl Into<OsString>) -> Self {
        self.child_variables.push((name.into(), value.into()));
        self
    }

    /// The bytes of the large blob in cases about faults, 8 MiB + 1 unless set: more than the store writes or
    /// uploads at once, so that trouble meets it in the middle. Taken as the store's limit when it is more.
    #[must_use]
    pub fn large_blob(mut self, bytes: u64) -> Self {
        self.large_blob = bytes;
        self
    }

    /// Declares that a case (`group/name`) does not hold for this store, and why. It is not run, and shown
    /// with the reason. A name that is no case fails the suite.
    #[must_use]
    pub fn waive(mut self, case: impl Into<String>, reason: impl Into<String>) -> Self {
        self.waivers.push((case.into(), reason.into()));
        self
    }

    /// The most a case may take, 60 seconds unless set. Raise it for a store that is far away.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// The most that may pass until what a store does *soon after* a call is done, 5 seconds unless set:
    /// clearing away a put that was cancelled.
    #[must_use]
    pub fn settle_limit(mut self, limit: Duration) -> Self {
        self.settle_limit = limit;
        self
    }

    /// Why a case is not to be run: waived, or something is missing.
    pub(super) fn reason_to_skip(&self, case: &Case) -> Option<Stop> {
        let name = case.full_name();
        if let Some((_, reason)) = self.waivers.iter().find(|(waived, _)| *waived == name) {
            return Some(Stop::Waived(reason.clone()));
        }
        case.needs.iter().find_map(|need| self.lacks(*need)).map(Stop::NotApplicable)
    }

    /// What is missing for this need.
    fn lacks(&self, need: Need) -> Option<String> {
        let given = match need {
            Need::Leftovers => self.leftovers.is_some(),
            Need::Foreign => self.foreign.is_some(),
            Need::Sweep => self.sweep.is_some(),
            Need::Processes => self.processes,
            Need::Trouble(_) => self.faults.is_some(),
        };
        if !given {
            return Some(format!("needs `StoreHarness::{}`", need.method()));
        }
        match (need, &self.faults) {
            (Need::Processes, _) if !self.can_start_again => {
                Some("needs `run_store_suite` in a test binary of its own".to_owned())
            }
            (Need::Trouble(trouble), Some(plan)) if !plan.troubles.contains(&trouble) => {
                Some(format!("needs `Trouble::{trouble:?}`, which this medium does not have"))
            }
            _ => None,
        }
    }
}

/// What a case needs beyond an open store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Need {
    /// [`StoreHarness::with_leftovers`].
    Leftovers,
    /// [`StoreHarness::with_foreign`].
    Foreign,
    /// [`StoreHarness::with_sweep`].
    Sweep,
    /// [`StoreHarness::with_processes`], and [`run_store_suite`](crate::run_store_suite).
    Processes,
    /// [`StoreHarness::with_faults`] with this trouble.
    Trouble(Trouble),
}

impl Need {
    fn method(self) -> &'static str {
        match self {
            Self::Leftovers => "with_leftovers",
            Self::Foreign => "with_foreign",
            Self::Sweep => "with_sweep",
            Self::Processes => "with_processes",
            Self::Trouble(_) => "with_faults",
        }
    }
}
