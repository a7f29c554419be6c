//! Options as data: what each is called, how its value is written, and what it stands for in a builder.

use std::{collections::BTreeMap, fmt, str::FromStr, time::Duration};

use object_store::{ClientOptions, path::Path};
use spill_core::{BoxError, Options, StoreError, StoreErrorKind};
use url::Url;

use crate::http::Connector;

/// The longest wait that makes sense for a connection.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Text,
    /// A text that is never shown.
    Secret,
    Switch,
    /// `http://` or `https://`, a host, and no user, query or fragment.
    Endpoint,
    OneOf(&'static [&'static str]),
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => f.write_str("text"),
            Self::Secret => f.write_str("secret text"),
            Self::Switch => f.write_str("`true` or `false`"),
            Self::Endpoint => f.write_str("URL"),
            Self::OneOf(values) => {
                let values: Vec<_> = values.iter().map(|value| format!("`{value}`")).collect();
                f.write_str(&values.join(", "))
            }
        }
    }
}

/// One option of a service, and the key of `object_store` it stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    pub(crate) form: Form,
    /// Its name in the builder of `object_store`.
    pub(crate) key: &'static str,
    /// Variables that stand in for it, the first that is set.
    pub(crate) variables: &'static [&'static str],
    /// It belongs to the credentials: those come from the options, or all from the environment.
    pub(crate) credential: bool,
    #[cfg_attr(
        not(all(test, feature = "s3", feature = "gs", feature = "az")),
        expect(dead_code, reason = "for the page that a test writes")
    )]
    pub(crate) about: &'static str,
}

impl Setting {
    pub(crate) const fn new(name: &'static str, form: Form, key: &'static str, about: &'static str) -> Self {
        Self { name, form, key, variables: &[], credential: false, about }
    }

    pub(crate) const fn variables(mut self, variables: &'static [&'static str]) -> Self {
        self.variables = variables;
        self
    }

    pub(crate) const fn credential(mut self, variables: &'static [&'static str]) -> Self {
        self.variables = variables;
        self.credential = true;
        self
    }
}

/// The environment that stands in for options.
#[derive(Clone, Default)]
pub(crate) enum Environment {
    /// That of the process.
    #[default]
    Process,
    /// These variables and no others.
    Given(BTreeMap<String, String>),
}

impl Environment {
    pub(crate) fn get(&self, name: &str) -> Option<String> {
        let value = match self {
            Self::Process => std::env::var(name).ok(),
            Self::Given(variables) => variables.get(name).cloned(),
        };
        value.filter(|value| !value.is_empty())
    }
}

/// Gives a factory its constructors.
macro_rules! looks_into_environment {
    ($factory:ident) => {
        impl $factory {
            /// A factory that looks into the environment of the process for what the options leave open.
            pub fn new() -> Self {
                Self::default()
            }

            /// The same with these variables instead of those of the process.
            #[must_use]
            pub fn with_environment<N: Into<String>, T: Into<String>>(
                mut self,
                variables: impl IntoIterator<Item = (N, T)>,
            ) -> Self {
                self.environment = variables.into_iter().collect();
                self
            }
        }
    };
}
pub(crate) use looks_into_environment;

impl fmt::Debug for Environment {
    /// Names only: values may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process => f.write_str("Process"),
            Self::Given(variables) => f.debug_set().entries(variables.keys()).finish(),
        }
    }
}

impl<N: Into<String>, T: Into<String>> FromIterator<(N, T)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, T)>>(variables: I) -> Self {
        Self::Given(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

pub(crate) fn refused(target: &str, source: impl Into<BoxError>) -> StoreError {
    StoreError::new(StoreErrorKind::Other, "open", target).with_source(source)
}

/// What the options and the environment say, by the name of the option.
#[derive(Debug)]
pub(crate) struct Values {
    target: String,
    values: BTreeMap<&'static str, String>,
}

impl Values {
    /// Takes the options of `settings` and checks them. The environment fills in for those that are not
    /// given; for credentials only when none of them is given, so that no two identities are mixed.
    pub(crate) fn take(
        settings: &[Setting],
        options: &mut Options,
        environment: &Environment,
        target: &str,
    ) -> Result<Self, StoreError> {
        let mut values = BTreeMap::new();
        for setting in settings {
            let Some(value) = options.take(setting.name) else { continue };
            let place = format!("option `{}`", setting.name);
            let value = check(setting.form, &place, value).map_err(|reason| refused(target, reason))?;
            values.insert(setting.name, value);
        }
        let given = settings.iter().any(|setting| setting.credential && values.contains_key(setting.name));
        for setting in settings.iter().filter(|setting| !(setting.credential && given)) {
            let found = setting.variables.iter().find_map(|name| Some((name, environment.get(name)?)));
            let Some((variable, value)) = found else { continue };
            if values.contains_key(setting.name) {
                continue;
            }
            let place = format!("variable {variable}");
            let value = check(setting.form, &place, value).map_err(|reason| refused(target, reason))?;
            values.insert(setting.name, value);
        }
        Ok(Self { target: target.to_owned(), values })
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    pub(crate) fn is_true(&self, name: &str) -> bool {
        self.get(name) == Some("true")
    }

    pub(crate) fn set(&mut self, name: &'static str, value: String) {
        self.values.insert(name, value);
    }

    /// A builder that was told all of it.
    pub(crate) fn fill<B, K: FromStr>(
        &self,
        settings: &[Setting],
        builder: B,
        with: impl Fn(B, K, &str) -> B,
    ) -> Result<B, StoreError> {
        settings.iter().try_fold(builder, |builder, setting| {
            let Some(value) = self.get(setting.name) else { return Ok(builder) };
            let unknown = |_| refused(&self.target, format!("object_store knows no {}", setting.key));
            Ok(with(builder, setting.key.parse().map_err(unknown)?, value))
        })
    }

    /// Refuses one option without those that it is of no use without.
    pub(crate) fn needs(&self, name: &str, others: &[&str]) -> Result<(), StoreError> {
        let missing = others.iter().find(|other| !self.has(other));
        match missing {
            Some(other) if self.has(name) => {
                Err(refused(&self.target, format!("`{name}` is of no use without `{other}`: give both")))
            }
            _ => Ok(()),
        }
    }

    /// Refuses more than one of these.
    pub(crate) fn only_one(&self, names: &[&str]) -> Result<(), StoreError> {
        let given: Vec<_> = names.iter().filter(|name| self.has(name)).collect();
        match given[..] {
            [first, second, ..] => {
                let message = format!("`{first}` and `{second}` say who asks, in two ways: remove one");
                Err(refused(&self.target, message))
            }
            _ => Ok(()),
        }
    }

    /// Refuses an endpoint without TLS, unless that is meant.
    pub(crate) fn check_encrypted(&self, name: &str, connection: &Connection) -> Result<(), StoreError> {
        match self.get(name) {
            Some(endpoint) if endpoint.starts_with("http://") && !connection.allow_http => {
                let message = format!(
                    "`{name}` = {endpoint:?} is not encrypted: write https://, or set `allow_http` = \"true\""
                );
                Err(refused(&self.target, message))
            }
            _ => Ok(()),
        }
    }
}

/// The value as the builder wants it, or what is wrong with it.
fn check(form: Form, place: &str, value: String) -> Result<String, String> {
    let wrong = |fix: &str| Err(format!("{place} = {value:?}: {fix}"));
    if value.trim().is_empty() {
        return Err(format!("{place} is empty: give it a value, or remove it"));
    }
    match form {
        Form::Text | Form::Secret => Ok(value),
        Form::Switch => match value.trim() {
            switch @ ("true" | "false") => Ok(switch.to_owned()),
            _ => wrong("write true or false"),
        },
        Form::OneOf(known) => match known.contains(&value.trim()) {
            true => Ok(value.trim().to_owned()),
            false => wrong(&format!("write one of {}", known.join(", "))),
        },
        // The value is not shown: a URL that is wrong may be so because it holds a password.
        Form::Endpoint => match endpoint(value.trim()) {
            Some(endpoint) => Ok(endpoint),
            None => Err(format!(
                "{place}: write a URL like https://storage.example:9000, without user, `?` or `#`"
            )),
        },
    }
}

fn endpoint(text: &str) -> Option<String> {
    let url = Url::parse(text).ok()?;
    let web = matches!(url.scheme(), "http" | "https") && url.host_str().is_some();
    let plain = url.username().is_empty() && url.password().is_none();
    let ends = url.query().is_none() && url.fragment().is_none();
    (web && plain && ends).then(|| url.as_str().trim_end_matches('/').to_owned())
}

/// The options of the connection, the same for each service.
pub(crate) const CONNECTION: &[Setting] = &[
    Setting::new("allow_http", Form::Switch, "allow_http", "Lets `endpoint` be `http://`. Default: `false`."),
    Setting::new(
        "connect_timeout",
        Form::Text,
        "connect_timeout",
        "A duration, like `5s`: for setting up a connection, TLS included. Default: `5s`.",
    ),
    Setting::new(
        "read_timeout",
        Form::Text,
        "read_timeout",
        "A duration: for how long no byte may come or go. A slow transfer has all the time it needs. Default: `30s`.",
    ),
    Setting::new(
        "proxy_url",
        Form::Secret,
        "proxy_url",
        "All requests go through this proxy. Default: what `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` say.",
    ),
    Setting::new(
        "proxy_excludes",
        Form::Text,
        "proxy_excludes",
        "Hosts, with commas between, that are reached without `proxy_url`.",
    ),
];

/// How the service is reached.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) allow_http: bool,
    pub(crate) connector: Connector,
}

impl Connection {
    /// What `object_store` has to know of it.
    pub(crate) fn client_options(&self) -> ClientOptions {
        self.connector.client_options(self.allow_http)
    }

    pub(crate) fn take(options: &mut Options, target: &str) -> Result<Self, StoreError> {
        let values = Values::take(CONNECTION, options, &Environment::Given(BTreeMap::new()), target)?;
        values.needs("proxy_excludes", &["proxy_url"])?;
        let timeout = |name: &'static str, default: Duration| match values.get(name) {
            None => Ok(default),
            Some(text) => parse_timeout(text).ok_or_else(|| {
                refused(target, format!("option `{name}` = {text:?}: write a duration like 30s, at most 24h"))
            }),
        };
        let connector = Connector {
            connect_timeout: timeout("connect_timeout", CONNECT_TIMEOUT)?,
            read_timeout: timeout("read_timeout", READ_TIMEOUT)?,
            proxy_url: values.get("proxy_url").map(str::to_owned),
            proxy_excludes: values.get("proxy_excludes").map(str::to_owned),
        };
        if !connector.proxy_is_valid() {
            return Err(refused(target, "option `proxy_url`: write a URL like http://proxy.example:3128"));
        }
        Ok(Self { allow_http: values.is_true("allow_http"), connector })
    }
}

fn parse_timeout(text: &str) -> Option<Duration> {
    let timeout = humantime::parse_duration(text.trim()).ok()?;
    (!timeout.is_zero() && timeout <= LONGEST_TIMEOUT).then_some(timeout)
}

/// A bucket and a prefix in it, from a URL like `s3://bucket/prefix`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) bucket: String,
    /// Without slashes around it; may be empty.
    pub(crate) prefix: String,
}

impl Place {
    pub(crate) fn parse(url: &Url, scheme: &str) -> Result<Self, StoreError> {
        // Not the URL itself: an authority or a query may hold a password.
        let target = format!("{}:", url.scheme());
        let refuse = |reason: &str| {
            Err(refused(&target, format!("{reason}; write {scheme}://BUCKET or {scheme}://BUCKET/PREFIX")))
        };
        if url.scheme() != scheme {
            return refuse("this store does not take such URLs");
        }
        if !url.username().is_empty() || url.password().is_some() || url.port().is_some() {
            return refuse("credentials and the address of the service are options, not part of the URL");
        }
        if url.query().is_some() || url.fragment().is_some() {
            return refuse("settings are options: there is nothing after `?` or `#`");
        }
        let bucket = url.host_str().unwrap_or_default();
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '$');
        if bucket.is_empty() || !bucket.chars().all(plain) {
            return refuse("the name of the bucket is missing, or has characters that no bucket has");
        }
        let path = url.path().trim_matches('/');
        let prefix =
            Path::from_url_path(path).map_err(|error| refused(&format!("{scheme}://{bucket}"), error))?;
        Ok(Self { bucket: bucket.to_owned(), prefix: prefix.to_string() })
    }

    /// How it is called in messages.
    pub(crate) fn target(&self, scheme: &str) -> String {
        match self.prefix.is_empty() {
            true => format!("{scheme}://{}", self.bucket),
            false => format!("{scheme}://{}/{}", self.bucket, self.prefix),
        }
    }
}
