//! Reads a configuration from TOML.
//!
//! By hand rather than by derive, so that every refusal says which key, on which line, and what to write
//! instead.

use std::{fs::File, io::Read, path::Path, sync::Arc};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    Config, ConfigError, MAX_FILE_BYTES, MAX_TIERS, TierConfig, format_bytes_exactly, nearest,
    origin::{Origins, Place},
    schema::{Field, Key, Section},
    value::{self, Written, Wrong},
};

impl Config {
    /// Reads a TOML text. `file_name` is what messages call it.
    ///
    /// Settings are judged one by one; whether they make sense together is up to
    /// [`validate`](Self::validate), since other sources may still change them.
    ///
    /// # Errors
    /// When the text is longer than [`MAX_FILE_BYTES`], not TOML, or has an unknown key or a value that is
    /// not allowed.
    pub fn from_toml(text: &str, file_name: &str) -> Result<Self, ConfigError> {
        let source = Source { text, name: Arc::from(file_name) };
        if text.len() as u64 > MAX_FILE_BYTES {
            return Err(too_long(file_name));
        }
        let document = DeTable::parse(text).map_err(|error| source.not_toml(&error))?;
        let document = document.get_ref();
        for (name, _) in document {
            if !["memory", "tier"].contains(&name.get_ref().as_ref()) {
                return Err(source.unknown_table(name));
            }
        }
        let mut config = Self::default();
        config.memory.origins = Origins::of_file(&source.name);
        if let Some(memory) = document.get("memory") {
            let DeValue::Table(table) = memory.get_ref() else {
                return Err(source.misplaced("memory", "[memory]", memory));
            };
            source.read(&mut config.memory, "memory", table)?;
        }
        if let Some(tiers) = document.get("tier") {
            config.tiers = source.tiers(tiers)?;
        }
        Ok(config)
    }

    /// Reads a TOML file. Blocks the thread while it does.
    ///
    /// # Errors
    /// When the file can't be read, and as [`from_toml`](Self::from_toml).
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let name = path.as_ref().display().to_string();
        let mut text = String::new();
        let read = File::open(&path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text));
        if let Err(error) = read {
            let fix = "check that the path is right, and that it is a UTF-8 text this process may read";
            let problem = format!("can't be read: {error}");
            return Err(ConfigError::new(name, "", problem).with_fix(fix).with_source(error));
        }
        Self::from_toml(&text, &name)
    }
}

fn too_long(file_name: &str) -> ConfigError {
    ConfigError::new(file_name, "", "the text is too long for a configuration")
        .with_allowed(format!("at most {}", format_bytes_exactly(MAX_FILE_BYTES)))
        .with_fix("check that this is the file you mean")
}

/// The text that is read, to tell places in it.
struct Source<'a> {
    text: &'a str,
    name: Arc<str>,
}

type Name<'i> = Spanned<std::borrow::Cow<'i, str>>;

impl Source<'_> {
    fn place(&self, offset: usize) -> Place {
        let before = self.text.as_bytes().iter().take(offset);
        Place::File { name: self.name.clone(), line: 1 + before.filter(|byte| **byte == b'\n').count() }
    }

    fn error(&self, offset: usize, key: impl Into<String>, problem: impl Into<String>) -> ConfigError {
        ConfigError::new(self.place(offset).to_string(), key, problem)
    }

    /// The parser's own message shows the line, in which there may be a secret; so only its reason is kept.
    fn not_toml(&self, error: &toml::de::Error) -> ConfigError {
        let span = error.span().unwrap_or_default();
        let reason = error.message().lines().collect::<Vec<_>>().join(", ");
        let fix = match reason.as_str() {
            "duplicate key" => {
                "remove one of the two; if it is a tier, write `[[tier]]` with two brackets above each"
            }
            _ => "mend the syntax of this line; strings, sizes and durations stand in double quotes",
        };
        self.error(span.start, "", format!("not TOML: {reason}")).with_fix(fix)
    }

    fn unknown_table(&self, name: &Name<'_>) -> ConfigError {
        let key = shown_name(name.get_ref());
        let fix = match nearest(name.get_ref(), ["memory", "tier"]) {
            Some("tier") => "did you mean [[tier]]?".to_owned(),
            Some(near) => format!("did you mean [{near}]?"),
            None => "remove it, or move it under the table it belongs to".to_owned(),
        };
        self.error(name.span().start, key, "unknown key or table")
            .with_allowed("[memory], [[tier]]")
            .with_fix(fix)
    }

    /// Something else than a table, or a table where many belong.
    fn misplaced(&self, key: &str, header: &str, value: &Spanned<DeValue<'_>>) -> ConfigError {
        let written = Written::of(value.get_ref());
        let allowed = format!("a table that starts with {header}");
        self.error(value.span().start, key, "not the table it should be")
            .with_value(written.shown())
            .with_allowed(allowed)
            .with_fix(format!("write {header} on a line of its own, and the keys below it"))
    }

    fn tiers(&self, value: &Spanned<DeValue<'_>>) -> Result<Vec<TierConfig>, ConfigError> {
        let DeValue::Array(entries) = value.get_ref() else {
            return Err(self.misplaced("tier", "[[tier]]", value));
        };
        if entries.len() > MAX_TIERS {
            return Err(super::validate::too_many_tiers(
                &self.place(value.span().start).to_string(),
                entries.len(),
            ));
        }
        let tier = |(index, entry): (usize, &Spanned<DeValue<'_>>)| {
            let path = format!("tier[{index}]");
            match entry.get_ref() {
                DeValue::Table(table) => self.tier(&path, entry.span().start, table),
                _ => Err(self.misplaced(&path, "[[tier]]", entry)),
            }
        };
        entries.iter().enumerate().map(tier).collect()
    }

    fn tier(&self, path: &str, offset: usize, table: &DeTable<'_>) -> Result<TierConfig, ConfigError> {
        self.check_names::<TierConfig>(path, table)?;
        let Some(written) = table.get("store") else {
            return Err(self
                .error(offset, format!("{path}.store"), "it is missing: every tier has a store")
                .with_allowed("a URL with a scheme the registry has")
                .with_fix("add a line like store = \"file:///var/tmp/myapp\""));
        };
        let key = TierConfig::keys().iter().find(|key| key.name == "store");
        let store = value::store(&Written::of(written.get_ref()))
            .map_err(|wrong| self.wrong(path, key, written, wrong))?;
        let mut tier = TierConfig::new(store);
        tier.origins = Origins::of_file(&self.name);
        self.read(&mut tier, path, table)?;
        Ok(tier)
    }

    fn read<T: Section>(&self, target: &mut T, path: &str, table: &DeTable<'_>) -> Result<(), ConfigError> {
        self.check_names::<T>(path, table)?;
        for key in T::keys() {
            let Some(written) = table.get(key.name) else { continue };
            if let Field::Options { get } = &key.field {
                let options = self.options(&format!("{path}.{}", key.name), key, written)?;
                *get(target) = options.into_iter().collect();
                continue;
            }
            key.set(target, &Written::of(written.get_ref()))
                .map_err(|wrong| self.wrong(path, Some(key), written, wrong))?;
            let shown = key.show(target).unwrap_or_default();
            target.origins_mut().record(key.name, self.place(written.span().start), shown);
        }
        Ok(())
    }

    fn check_names<T: Section>(&self, path: &str, table: &DeTable<'_>) -> Result<(), ConfigError> {
        let names = || T::keys().iter().map(|key| key.name);
        let Some((unknown, _)) = table.iter().find(|(name, _)| names().all(|known| known != name.get_ref()))
        else {
            return Ok(());
        };
        let name = unknown.get_ref();
        // Its value stays unsaid: it may be a secret that belongs under the options.
        let fix = match nearest(name, names()) {
            Some(near) => format!("did you mean {near}?"),
            None if names().any(|known| known == "options") => {
                format!(
                    "remove it; if it is a setting of the store, move it below a line [{}.options]",
                    header(path)
                )
            }
            None => "remove it".to_owned(),
        };
        let key = format!("{path}.{}", shown_name(name));
        let known: Vec<_> = names().collect();
        Err(self.error(unknown.span().start, key, "unknown key").with_allowed(known.join(", ")).with_fix(fix))
    }

    fn options<T: Section>(
        &self,
        path: &str,
        key: &Key<T>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Vec<(String, String)>, ConfigError> {
        let refuse = |offset, path: String, problem: String| {
            self.error(offset, path, problem)
                .with_value("(not shown)".to_owned())
                .with_allowed(key.limits())
                .with_fix("write it as NAME = \"VALUE\" below a line [tier.options]")
        };
        let DeValue::Table(table) = value.get_ref() else {
            return Err(refuse(value.span().start, path.to_owned(), "not a table".to_owned()));
        };
        let option = |(name, written): (&Name<'_>, &Spanned<DeValue<'_>>)| {
            let path = format!("{path}.{}", shown_name(name.get_ref()));
            match value::option(&Written::of(written.get_ref())) {
                _ if name.get_ref().is_empty() => {
                    Err(refuse(name.span().start, path, "an option without a name".to_owned()))
                }
                Ok(text) => Ok((name.get_ref().to_string(), text)),
                Err(wrong) => Err(refuse(written.span().start, path, wrong.problem.into_owned())),
            }
        };
        table.iter().map(option).collect()
    }

    fn wrong<T: Section>(
        &self,
        path: &str,
        key: Option<&Key<T>>,
        written: &Spanned<DeValue<'_>>,
        wrong: Wrong,
    ) -> ConfigError {
        let place = self.place(written.span().start);
        super::validate::wrong(&place, path, key, &Written::of(written.get_ref()), wrong)
    }
}

/// The table's name in a header: indices are for messages only.
fn header(path: &str) -> &str {
    path.split('[').next().unwrap_or(path)
}

/// A name that somebody made up, fit for one line of a message.
fn shown_name(name: &str) -> String {
    let short: String = name.chars().take(64).collect();
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    if !short.is_empty() && short.chars().all(plain) { short } else { format!("{short:?}") }
}
