//! Overrides settings by environment variables.

use super::{
    Config, ConfigError, MemoryConfig, TierConfig, nearest,
    origin::Place,
    schema::{Field, Key, Section},
    validate,
    value::Written,
};

/// What the names of all variables start with.
const PREFIX: &str = "SPILL_";

/// One variable, understood: which setting it is for.
enum Target {
    Memory(&'static Key<MemoryConfig>),
    Tier(usize, &'static Key<TierConfig>),
    Option(usize, String),
}

impl Config {
    /// The same with what the environment variables among `variables` say: `SPILL_MEMORY_<KEY>`, and
    /// `SPILL_TIER_<N>_<KEY>` for the tier with number N, counted from 0. A store's option is
    /// `SPILL_TIER_<N>_OPTIONS_<NAME>`, which sets the option `<name>` in small letters. Variables that
    /// don't start with `SPILL_` are none of its business.
    ///
    /// They change tiers that are there; they can't add one.
    ///
    /// # Errors
    /// When a variable that starts with `SPILL_` is unknown, or its value is not allowed.
    pub fn with_env(
        mut self,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let mut ours: Vec<_> = variables.into_iter().filter(|(name, _)| name.starts_with(PREFIX)).collect();
        ours.sort();
        let mut targets = Vec::new();
        for (name, value) in &ours {
            targets.push((self.target(name)?, name, value));
        }
        // In the order of the keys, since one may depend on another.
        targets.sort_by_key(|(target, ..)| rank(target));
        for (target, name, value) in targets {
            match target {
                Target::Memory(key) => apply(&mut self.memory, "memory", key, name, value)?,
                Target::Tier(index, key) => {
                    apply(&mut self.tiers[index], &format!("tier[{index}]"), key, name, value)?;
                }
                Target::Option(index, option) => {
                    let options = std::mem::take(&mut self.tiers[index].options);
                    self.tiers[index].options = options.with(option, value);
                }
            }
        }
        Ok(self)
    }

    /// [`with_env`](Self::with_env) with the environment of this process.
    ///
    /// # Errors
    /// As [`with_env`](Self::with_env), and when a variable that starts with `SPILL_` is not UTF-8.
    pub fn with_process_env(self) -> Result<Self, ConfigError> {
        let mut variables = Vec::new();
        for (name, value) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if !name.starts_with(PREFIX) {
                continue;
            }
            let value = value.into_string().map_err(|_| {
                ConfigError::new(place(&name), "", "its value is not UTF-8")
                    .with_fix("set it again, with nothing but UTF-8 in it, or unset it")
            })?;
            variables.push((name, value));
        }
        self.with_env(variables)
    }

    fn target(&self, name: &str) -> Result<Target, ConfigError> {
        let rest = name.strip_prefix(PREFIX).unwrap_or(name);
        if let Some(rest) = rest.strip_prefix("MEMORY_")
            && let Some(key) = key(rest)
        {
            return Ok(Target::Memory(key));
        }
        let Some((number, rest)) = rest.strip_prefix("TIER_").and_then(|rest| rest.split_once('_')) else {
            return Err(unknown(name, rest));
        };
        let meant = format!("TIER_<N>_{rest}");
        let target = match (plain_number(number), key::<TierConfig>(rest), rest.strip_prefix("OPTIONS_")) {
            (Some(index), Some(key), _) if !matches!(key.field, Field::Options { .. }) => {
                (index, Target::Tier(index, key))
            }
            (Some(index), None, Some(option)) if !option.is_empty() => {
                (index, Target::Option(index, option.to_lowercase()))
            }
            _ => return Err(unknown(name, &meant)),
        };
        let (index, target) = target;
        if index >= self.tiers.len() { Err(self.no_such_tier(name, index)) } else { Ok(target) }
    }

    fn no_such_tier(&self, name: &str, index: usize) -> ConfigError {
        let (problem, allowed) = match self.tiers.len() {
            0 => ("there are no tiers".to_owned(), "no SPILL_TIER_ variable".to_owned()),
            1 => ("there is 1 tier, counted from 0".to_owned(), "SPILL_TIER_0_...".to_owned()),
            tiers => {
                let last = tiers - 1;
                (
                    format!("there are {tiers} tiers, counted from 0"),
                    format!("SPILL_TIER_0_... to SPILL_TIER_{last}_..."),
                )
            }
        };
        ConfigError::new(place(name), format!("tier[{index}]"), problem)
            .with_allowed(allowed)
            .with_fix("change the number, or add the tier to the file or in code: variables can't add one")
    }
}

fn place(name: &str) -> String {
    Place::Variable(name.to_owned()).to_string()
}

fn key<T: Section>(variable: &str) -> Option<&'static Key<T>> {
    T::keys().iter().find(|key| key.variable() == variable)
}

/// No sign and no leading zeros, so that a tier has one number only.
fn plain_number(text: &str) -> Option<usize> {
    text.parse().ok().filter(|number: &usize| number.to_string() == text)
}

fn rank(target: &Target) -> (usize, usize) {
    fn position<T: Section>(key: &Key<T>) -> usize {
        T::keys().iter().position(|other| other.name == key.name).unwrap_or(usize::MAX)
    }
    match target {
        Target::Memory(key) => (0, position(key)),
        Target::Tier(index, key) => (index + 1, position(key)),
        Target::Option(index, _) => (index + 1, usize::MAX),
    }
}

fn apply<T: Section>(
    target: &mut T,
    path: &str,
    key: &'static Key<T>,
    variable: &str,
    value: &str,
) -> Result<(), ConfigError> {
    let written = Written::Variable(value);
    let place = Place::Variable(variable.to_owned());
    key.set(target, &written).map_err(|wrong| validate::wrong(&place, path, Some(key), &written, wrong))?;
    let shown = key.show(target).unwrap_or_default();
    target.origins_mut().record(key.name, place, shown);
    Ok(())
}

/// `meant` is the name without prefix, the number of a tier replaced.
fn unknown(name: &str, meant: &str) -> ConfigError {
    let mut known: Vec<String> = super::keys().into_iter().map(|key| key.environment).collect();
    let meant = format!("{PREFIX}{meant}");
    // Those of the same table will do, when it is plain which one is meant.
    for table in ["SPILL_MEMORY_", "SPILL_TIER_"].iter().filter(|table| meant.starts_with(**table)) {
        known.retain(|variable| variable.starts_with(table));
    }
    let fix = match nearest(&meant, known.iter().map(String::as_str)) {
        Some(near) => format!("did you mean {near}?"),
        None => "unset it, or give it another name if it is not meant for the buffer".to_owned(),
    };
    // Its value stays unsaid: it may be a secret.
    ConfigError::new(place(name), "", "unknown variable").with_allowed(known.join(", ")).with_fix(fix)
}
