//! Finds components by the names that a configuration gives them.
//!
//! A [`Registry`] is a value that is handed around: nothing registers itself behind your back, and two
//! buffers in one process can have different ones.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use async_trait::async_trait;
use url::Url;

use crate::{
    Compressor, MemoryStore, Options, Policy, Store, StoreError, StoreFactory, Tag,
    policies::{self, S3Fifo},
};

type CompressorFactory = dyn Fn(Option<&str>) -> Result<Arc<dyn Compressor>, String> + Send + Sync;
type PolicyFactory = dyn Fn() -> Box<dyn Policy> + Send + Sync;

/// The stores, compressors and victim policies that a configuration can name.
///
/// Adding a name that is there already replaces what it stood for: that is how you put your own in the
/// place of a shipped one. Cheap to clone.
///
/// ```
/// use spill_core::Registry;
/// let registry = Registry::new().with_known_feature("s3", "object");
/// assert_eq!(registry.schemes().collect::<Vec<_>>(), ["memory"]);
/// assert_eq!(
///     registry.store("s3").unwrap_err().to_string(),
///     "the store scheme `s3` is not compiled in: enable the cargo feature `object`",
/// );
/// ```
#[derive(Clone)]
pub struct Registry {
    stores: BTreeMap<String, Arc<dyn StoreFactory>>,
    file_systems: BTreeSet<String>,
    compressors: BTreeMap<String, Arc<CompressorFactory>>,
    policies: BTreeMap<String, Arc<PolicyFactory>>,
    features: BTreeMap<String, String>,
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl Registry {
    /// What the core has by itself: stores in memory, under the scheme `memory`, and the shipped victim
    /// policies.
    pub fn new() -> Self {
        let empty = Self {
            stores: BTreeMap::new(),
            file_systems: BTreeSet::from(["file".to_owned()]),
            compressors: BTreeMap::new(),
            policies: BTreeMap::new(),
            features: BTreeMap::new(),
        };
        let empty = empty.with_store("memory", Arc::new(MemoryStores));
        policies::NAMES.into_iter().fold(empty, |registry, name| {
            registry.with_policy(name, move || {
                policies::by_name(name).unwrap_or_else(|| Box::new(S3Fifo::default()))
            })
        })
    }

    /// The same with stores of one more URL scheme, in small letters.
    #[must_use]
    pub fn with_store(mut self, scheme: impl Into<String>, factory: Arc<dyn StoreFactory>) -> Self {
        self.stores.insert(scheme.into(), factory);
        self
    }

    /// The same, knowing that stores of this scheme are on a local file system, so that `reserve_free`
    /// makes sense for them. Holds for `file` from the start.
    #[must_use]
    pub fn with_file_system(mut self, scheme: impl Into<String>) -> Self {
        self.file_systems.insert(scheme.into());
        self
    }

    /// The same with one more compressor. The factory gets what follows the colon in `name:argument`, and
    /// says in an error what it would accept. Without an argument it has to succeed.
    ///
    /// Names are small letters, digits, `-` and `_`; others can't be written in a configuration. Two
    /// compressors that share a [`Tag`] must read each other's frames.
    #[must_use]
    pub fn with_compressor(
        mut self,
        name: impl Into<String>,
        factory: impl Fn(Option<&str>) -> Result<Arc<dyn Compressor>, String> + Send + Sync + 'static,
    ) -> Self {
        self.compressors.insert(name.into(), Arc::new(factory));
        self
    }

    /// The same with one more victim policy. Each buffer gets a fresh one from the factory.
    #[must_use]
    pub fn with_policy(
        mut self,
        name: impl Into<String>,
        factory: impl Fn() -> Box<dyn Policy> + Send + Sync + 'static,
    ) -> Self {
        self.policies.insert(name.into(), Arc::new(factory));
        self
    }

    /// The same, knowing that a cargo feature brings the component of this name. Errors say so as long as
    /// the component is not there.
    #[must_use]
    pub fn with_known_feature(mut self, name: impl Into<String>, feature: impl Into<String>) -> Self {
        self.features.insert(name.into(), feature.into());
        self
    }

    /// What opens stores of this URL scheme.
    ///
    /// # Errors
    /// When there is none.
    pub fn store(&self, scheme: &str) -> Result<Arc<dyn StoreFactory>, LookupError> {
        self.stores.get(scheme).cloned().ok_or_else(|| self.unknown(Component::Store, scheme, self.schemes()))
    }

    /// The compressor of this name, made with what follows the colon.
    ///
    /// # Errors
    /// When there is none, or it does not take this argument.
    pub fn compressor(&self, name: &str, argument: Option<&str>) -> Result<Arc<dyn Compressor>, LookupError> {
        let factory = self.compressors.get(name);
        let factory =
            factory.ok_or_else(|| self.unknown(Component::Compressor, name, self.compressor_names()))?;
        factory(argument).map_err(|reason| LookupError::Refused {
            kind: Component::Compressor,
            name: name.to_owned(),
            argument: argument.map(str::to_owned),
            reason,
        })
    }

    /// Every compressor as it is without an argument, by the tag of its frames: what a buffer needs to
    /// read any frame, whatever the configuration says now. Of two with one tag, the first by name.
    ///
    /// # Errors
    /// When one can't be made without an argument.
    pub fn compressors(&self) -> Result<BTreeMap<Tag, Arc<dyn Compressor>>, LookupError> {
        let mut by_tag = BTreeMap::new();
        for name in self.compressor_names() {
            let compressor = self.compressor(name, None)?;
            by_tag.entry(compressor.tag()).or_insert(compressor);
        }
        Ok(by_tag)
    }

    /// A fresh victim policy of this name.
    ///
    /// # Errors
    /// When there is none.
    pub fn policy(&self, name: &str) -> Result<Box<dyn Policy>, LookupError> {
        let factory = self.policies.get(name);
        factory
            .map(|factory| factory())
            .ok_or_else(|| self.unknown(Component::Policy, name, self.policy_names()))
    }

    /// Whether stores of this scheme are on a local file system.
    pub fn is_file_system(&self, scheme: &str) -> bool {
        self.file_systems.contains(scheme)
    }

    /// The URL schemes there are, in order.
    pub fn schemes(&self) -> impl Iterator<Item = &str> {
        self.stores.keys().map(String::as_str)
    }

    /// The names of the compressors there are, in order.
    pub fn compressor_names(&self) -> impl Iterator<Item = &str> {
        self.compressors.keys().map(String::as_str)
    }

    /// The names of the victim policies there are, in order.
    pub fn policy_names(&self) -> impl Iterator<Item = &str> {
        self.policies.keys().map(String::as_str)
    }

    fn unknown<'a>(&self, kind: Component, name: &str, known: impl Iterator<Item = &'a str>) -> LookupError {
        LookupError::Unknown {
            kind,
            name: name.to_owned(),
            known: known.map(str::to_owned).collect(),
            feature: self.features.get(name).cloned(),
        }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("stores", &self.stores.keys())
            .field("compressors", &self.compressors.keys())
            .field("policies", &self.policies.keys())
            .finish_non_exhaustive()
    }
}

/// A kind of component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Component {
    /// What a URL scheme stands for.
    Store,
    /// A compressor.
    Compressor,
    /// A victim policy.
    Policy,
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Store => "store scheme",
            Self::Compressor => "compressor",
            Self::Policy => "victim policy",
        })
    }
}

/// A registry does not have what was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookupError {
    /// Nothing has this name.
    Unknown {
        /// What was looked for.
        kind: Component,
        /// The name that was asked for.
        name: String,
        /// The names there are.
        known: Vec<String>,
        /// The cargo feature that would bring it.
        feature: Option<String>,
    },
    /// It is there, and does not take the argument.
    Refused {
        /// What was looked for.
        kind: Component,
        /// Its name.
        name: String,
        /// What followed the colon.
        argument: Option<String>,
        /// What it said.
        reason: String,
    },
}

impl fmt::Display for LookupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { kind, name, feature: Some(feature), .. } => {
                write!(f, "the {kind} `{name}` is not compiled in: enable the cargo feature `{feature}`")
            }
            Self::Unknown { kind, name, known, .. } => {
                write!(f, "unknown {kind} `{name}`; there are: {}", known.join(", "))
            }
            Self::Refused { kind, name, argument: Some(argument), reason } => {
                write!(f, "the {kind} `{name}` refuses `{argument}`: {reason}")
            }
            Self::Refused { kind, name, argument: None, reason } => {
                write!(f, "the {kind} `{name}`: {reason}")
            }
        }
    }
}

impl std::error::Error for LookupError {}

/// Opens stores in memory: `memory:`, or `memory:NAME` to have several. Each one opened is empty.
#[derive(Debug)]
struct MemoryStores;

#[async_trait]
impl StoreFactory for MemoryStores {
    async fn open(&self, _url: &Url, options: Options) -> Result<Arc<dyn Store>, StoreError> {
        options.finish("open", "memory:")?;
        Ok(Arc::new(MemoryStore::new()))
    }
}
