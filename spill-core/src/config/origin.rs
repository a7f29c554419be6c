//! Remembers where a setting came from, so that a message written later can say so.

use std::{collections::BTreeMap, fmt, sync::Arc};

/// A place where settings are written.
#[derive(Clone)]
pub(super) enum Place {
    /// A line of a file.
    File { name: Arc<str>, line: usize },
    /// An environment variable.
    Variable(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { name, line } => write!(f, "{name}:{line}"),
            Self::Variable(name) => write!(f, "environment variable {name}"),
        }
    }
}

/// Where the settings of one table came from.
///
/// Fields are public, so a value may have been changed since: an origin counts only while the value still
/// shows as it did then.
#[derive(Clone, Default)]
pub(super) struct Origins {
    file: Option<Arc<str>>,
    settings: BTreeMap<&'static str, (Place, String)>,
}

impl Origins {
    pub(super) fn of_file(name: &Arc<str>) -> Self {
        Self { file: Some(name.clone()), settings: BTreeMap::new() }
    }

    pub(super) fn record(&mut self, key: &'static str, place: Place, shown: String) {
        self.settings.insert(key, (place, shown));
    }

    /// Where `key`, which now shows as `shown`, was set; `None` when not by a file or a variable.
    pub(super) fn find(&self, key: &str, shown: &str) -> Option<&Place> {
        self.settings.get(key).filter(|(_, then)| then == shown).map(|(place, _)| place)
    }

    /// The file the table is in, if it came from one.
    pub(super) fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }
}

impl PartialEq for Origins {
    /// Always: where a setting came from is no part of what it is.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl fmt::Debug for Origins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}
