//! Judges a whole configuration against what a registry has.

use std::collections::BTreeMap;

use super::{
    Amount, Compression, Config, ConfigError, MAX_TIERS, MemoryBudget, MemoryConfig, TierConfig, nearest,
    origin::Place,
    schema::{Key, Section},
    value::{Written, Wrong},
};
use crate::registry::{LookupError, Registry};

impl Config {
    /// Judges the whole: each setting, whether they make sense together, and whether `registry` has what
    /// they name. Opens nothing.
    ///
    /// # Errors
    /// The first thing that is wrong.
    ///
    /// ```
    /// use spill_core::{Registry, config::Config};
    /// let config = Config::from_toml("[memory]\nlimit = \"1 GiB\"\npolicy = \"lruu\"", "spill.toml")?;
    /// let error = config.validate(&Registry::new()).unwrap_err();
    /// assert_eq!((error.place(), error.key()), ("spill.toml:3", "memory.policy"));
    /// # Ok::<(), spill_core::config::ConfigError>(())
    /// ```
    pub fn validate(&self, registry: &Registry) -> Result<(), ConfigError> {
        self.memory.validate(registry)?;
        if self.tiers.len() > MAX_TIERS {
            return Err(too_many_tiers("set in code", self.tiers.len()));
        }
        for (index, tier) in self.tiers.iter().enumerate() {
            tier.validate(&path(index), registry)?;
            tier.check_demotion(&path(index), index + 1 == self.tiers.len())?;
        }
        self.check_twins("store", |tier| tier.store.identity())?;
        self.check_twins("name", TierConfig::name)
    }

    fn check_twins(&self, key: &str, identity: fn(&TierConfig) -> String) -> Result<(), ConfigError> {
        let mut seen = BTreeMap::new();
        for (index, tier) in self.tiers.iter().enumerate() {
            if let Some(first) = seen.insert(identity(tier), index) {
                let other = path(first);
                let problem = format!("{other} has the same {key}");
                let fix = match key {
                    "store" => "give each tier a store of its own, or remove one of the two",
                    _ => "give each tier a name of its own",
                };
                let allowed = format!("each {key} once");
                return Err(refuse(tier, &path(index), key, problem, fix).with_allowed(allowed));
            }
        }
        Ok(())
    }
}

impl MemoryConfig {
    fn validate(&self, registry: &Registry) -> Result<(), ConfigError> {
        check_fields(self, "memory")?;
        registry.policy(&self.policy).map_err(|error| missing(self, "memory", "policy", error, &[]))?;
        if self.low_watermark > self.high_watermark {
            let high = self.high_watermark;
            let problem = format!("it is above high_watermark, which is \"{high}\"");
            let fix = format!("set low_watermark to at most \"{high}\", or raise high_watermark");
            let allowed = format!("0% to {high}");
            return Err(refuse(self, "memory", "low_watermark", problem, fix).with_allowed(allowed));
        }
        match self.limit {
            // What a percentage comes to is judged when the size of the machine is known.
            Some(Amount::Share(_)) => Ok(()),
            _ => self.budget(None).map(|_| ()),
        }
    }

    pub(super) fn limit_in_bytes(&self, total: Option<u64>) -> Result<u64, ConfigError> {
        match (self.limit, total) {
            (Some(Amount::Bytes(bytes)), _) => Ok(bytes),
            (Some(share), Some(total)) => Ok(share.of(total)),
            (Some(_), None) => {
                let problem = "the memory of this machine can't be told, so a share of it neither";
                Err(refuse(self, "memory", "limit", problem, "write a number of bytes, like \"512 MiB\""))
            }
            (None, _) => {
                let fix = "set limit = \"512 MiB\" below [memory], or SPILL_MEMORY_LIMIT, or the limit in the builder";
                Err(refuse(self, "memory", "limit", "it is missing: a buffer has a memory limit", fix))
            }
        }
    }

    pub(super) fn check_budget(&self, budget: MemoryBudget) -> Result<(), ConfigError> {
        // A limit of zero makes every entry heavy, and leaves no buffers to take anything from it.
        if self.spill_buffers.is_none_or(|bytes| bytes == 0) || budget.spill_buffers < budget.limit {
            return Ok(());
        }
        let limit = super::format_bytes_exactly(budget.limit);
        let problem = format!("it leaves nothing of limit, which is {limit}, to entries");
        let fix = "lower it, or raise limit; without it the buffers get an eighth of limit";
        Err(refuse(self, "memory", "spill_buffers", problem, fix).with_allowed(format!("less than {limit}")))
    }
}

impl TierConfig {
    fn validate(&self, path: &str, registry: &Registry) -> Result<(), ConfigError> {
        check_fields(self, path)?;
        registry.store(self.store.scheme()).map_err(|error| missing(self, path, "store", error, &[]))?;
        if let Compression::Named { name, argument } = &self.compress {
            registry
                .compressor(name, argument.as_deref())
                .map_err(|error| missing(self, path, "compress", error, &["none", "auto"]))?;
        }
        self.check_files_only(path, registry)
    }

    fn check_demotion(&self, path: &str, is_last: bool) -> Result<(), ConfigError> {
        let (problem, fix) = match (self.demote_at, self.max_spill) {
            (None, _) => return Ok(()),
            (Some(_), _) if is_last => {
                ("there is no tier behind this one to move blobs to", "remove it, or add a [[tier]] below")
            }
            (Some(_), None) => {
                ("the tier has no cap that it could be a share of", "set max_spill, or remove it")
            }
            (Some(_), Some(_)) => return Ok(()),
        };
        let allowed = "only with max_spill, and not on the last tier";
        Err(refuse(self, path, "demote_at", problem, fix).with_allowed(allowed))
    }

    fn check_files_only(&self, path: &str, registry: &Registry) -> Result<(), ConfigError> {
        let keys = [
            (
                "reserve_free",
                self.reserve_free.is_some(),
                "remove it; max_spill caps what the store may hold",
            ),
            ("durable", self.durable, "remove it; what such a store confirms is as durable as it ever gets"),
        ];
        for (key, set, fix) in keys {
            if set && !registry.is_file_system(self.store.scheme()) {
                let problem = format!("a store of scheme `{}` is not on a file system", self.store.scheme());
                return Err(
                    refuse(self, path, key, problem, fix).with_allowed("only with file:///... stores")
                );
            }
            // One way to say a thing: as an option it would be overridden in silence.
            if self.options.names().any(|name| name == key) {
                let fix = format!("set {key} below [[tier]], next to store");
                return Err(refuse(
                    self,
                    path,
                    "options",
                    format!("`{key}` is a key of the tier itself"),
                    fix,
                ));
            }
        }
        Ok(())
    }
}

pub(super) fn path(index: usize) -> String {
    format!("tier[{index}]")
}

fn check_fields<T: Section>(section: &T, path: &str) -> Result<(), ConfigError> {
    for key in T::keys() {
        key.check(section).map_err(|wrong| {
            refuse(section, path, key.name, wrong.problem, wrong.fix.unwrap_or_else(|| example(key)))
        })?;
    }
    Ok(())
}

fn example<T>(key: &Key<T>) -> String {
    format!("write it like {} = {}", key.name, key.example)
}

pub(super) fn too_many_tiers(place: &str, tiers: usize) -> ConfigError {
    ConfigError::new(place, "tier", format!("there are {tiers} tiers"))
        .with_value(format!("({tiers} tables)"))
        .with_allowed(format!("at most {MAX_TIERS} tiers"))
        .with_fix("remove some; a few large ones do the same")
}

/// A value that was just read is not allowed.
pub(super) fn wrong<T: Section>(
    place: &Place,
    path: &str,
    key: Option<&Key<T>>,
    written: &Written<'_>,
    wrong: Wrong,
) -> ConfigError {
    let name = key.map_or(path.to_owned(), |key| format!("{path}.{}", key.name));
    let example = |key: &Key<T>| match place {
        Place::File { .. } => example(key),
        Place::Variable(name) => format!("write it like {name}={}", key.example),
    };
    let fix = wrong.fix.or_else(|| key.map(example)).unwrap_or_default();
    let error = ConfigError::new(place.to_string(), name, wrong.problem).with_value(written.shown());
    match key {
        Some(key) => error.with_allowed(key.limits()).with_fix(fix),
        None => error.with_fix(fix),
    }
}

/// A value that was read or set earlier turns out not to make sense.
pub(super) fn refuse<T: Section>(
    section: &T,
    path: &str,
    name: &str,
    problem: impl Into<String>,
    fix: impl Into<String>,
) -> ConfigError {
    let key = T::keys().iter().find(|key| key.name == name);
    let shown = key.and_then(|key| key.show(section));
    let origin = section.origins().find(name, shown.as_deref().unwrap_or_default());
    let by_default = origin.is_none()
        && !key.is_some_and(Key::is_required)
        && key.and_then(|key| key.show(&section.untouched())) == shown;
    let place = match origin {
        Some(place) => place.to_string(),
        None if by_default || shown.is_none() => section.origins().file().unwrap_or("config").to_owned(),
        None => "set in code".to_owned(),
    };
    let value = shown.map(|shown| if by_default { format!("{shown} (the default)") } else { shown });
    let error = ConfigError::new(place, format!("{path}.{name}"), problem).with_value(value).with_fix(fix);
    match key {
        Some(key) => error.with_allowed(key.limits()),
        None => error,
    }
}

/// A component is named that the registry does not have, or that refuses its argument.
pub(super) fn missing<T: Section>(
    section: &T,
    path: &str,
    key: &str,
    error: LookupError,
    also: &[&str],
) -> ConfigError {
    match &error {
        LookupError::Unknown { kind, name, known, feature } => {
            let names = || also.iter().copied().chain(known.iter().map(String::as_str));
            let fix = match feature {
                Some(feature) => {
                    format!(
                        "enable the cargo feature `{feature}`, which brings `{name}`, or take another {kind}"
                    )
                }
                None => match nearest(name, names()) {
                    Some(near) => format!("did you mean {near}?"),
                    None => format!("take one of these, or add `{name}` to the registry"),
                },
            };
            let problem = match feature {
                Some(_) => format!("the {kind} `{name}` is not compiled in"),
                None => format!("unknown {kind} `{name}`"),
            };
            let list: Vec<_> = names().collect();
            let list = if list.is_empty() {
                format!("nothing: the registry has no {kind}")
            } else {
                list.join(", ")
            };
            refuse(section, path, key, problem, fix).with_allowed(list)
        }
        LookupError::Refused { kind, name, reason, .. } => {
            let fix = format!("write {key} = \"{name}\" for its default, or another level");
            refuse(section, path, key, format!("the {kind} `{name}` refuses it: {reason}"), fix)
        }
    }
    .with_source(error)
}
