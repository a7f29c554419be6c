//! What is wrong with a configuration.

use std::{error::Error as StdError, fmt, sync::Arc};

/// A configuration was refused: names where it was written, the key, the value, what is allowed and the
/// fix.
///
/// Free of secrets: values of options and passwords in URLs are left out.
///
/// ```
/// use spill_core::config::Config;
/// let error = Config::from_toml("[memory]\nlimit = \"12 parsecs\"", "spill.toml").unwrap_err();
/// assert_eq!(error.key(), "memory.limit");
/// assert_eq!(error.place(), "spill.toml:2");
/// assert_eq!(error.value(), Some("\"12 parsecs\""));
/// assert!(error.fix().contains("limit = \"512 MiB\""));
/// ```
#[derive(Clone)]
pub struct ConfigError(Box<Parts>);

#[derive(Clone)]
struct Parts {
    place: String,
    key: String,
    value: Option<String>,
    problem: String,
    allowed: Option<String>,
    fix: String,
    source: Option<Arc<dyn StdError + Send + Sync + 'static>>,
}

impl ConfigError {
    pub(super) fn new(place: impl Into<String>, key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self(Box::new(Parts {
            place: place.into(),
            key: key.into(),
            value: None,
            problem: problem.into(),
            allowed: None,
            fix: String::new(),
            source: None,
        }))
    }

    pub(super) fn with_value(mut self, value: impl Into<Option<String>>) -> Self {
        self.0.value = value.into();
        self
    }

    pub(super) fn with_allowed(mut self, allowed: impl Into<String>) -> Self {
        self.0.allowed = Some(allowed.into());
        self
    }

    pub(super) fn with_fix(mut self, fix: impl Into<String>) -> Self {
        self.0.fix = fix.into();
        self
    }

    pub(super) fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// Where it was written: the file (with the line, where there is one), the environment variable, or
    /// that it was set in code.
    pub fn place(&self) -> &str {
        &self.0.place
    }

    /// The key, like `tier[1].max_spill`. Empty when the text as a whole is wrong.
    pub fn key(&self) -> &str {
        &self.0.key
    }

    /// The value as written, if there is one that may be shown.
    pub fn value(&self) -> Option<&str> {
        self.0.value.as_deref()
    }

    /// What is wrong with it.
    pub fn problem(&self) -> &str {
        &self.0.problem
    }

    /// What is allowed.
    pub fn allowed(&self) -> Option<&str> {
        self.0.allowed.as_deref()
    }

    /// What to do about it.
    pub fn fix(&self) -> &str {
        &self.0.fix
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { place, key, value, problem, allowed, fix, .. } = &*self.0;
        write!(f, "{place}: ")?;
        match (key.as_str(), value) {
            ("", _) => {}
            (key, Some(value)) => write!(f, "{key} = {value}: ")?,
            (key, None) => write!(f, "{key}: ")?,
        }
        f.write_str(problem)?;
        if let Some(allowed) = allowed {
            write!(f, "; allowed: {allowed}")?;
        }
        write!(f, "; fix: {fix}")
    }
}

impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConfigError({self})")
    }
}

impl StdError for ConfigError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}
