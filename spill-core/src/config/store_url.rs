//! The URL of a store, which shows itself without secrets.

use std::{fmt, str::FromStr};

use url::Url;

/// The URL of a store.
///
/// `Display` and `Debug` leave out what may be secret: user and password, and everything after `?` or `#`.
///
/// ```
/// use spill_core::config::StoreUrl;
/// let store: StoreUrl = "redis://me:hunter2@cache.example/7?token=abc".parse()?;
/// assert_eq!(store.to_string(), "redis://***@cache.example/7?***");
/// assert_eq!(store.as_url().password(), Some("hunter2"));
/// assert!("/var/tmp/app".parse::<StoreUrl>().is_err());
/// # Ok::<(), spill_core::config::ParseStoreUrlError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(Url);

impl StoreUrl {
    /// The URL itself, secrets included.
    pub fn as_url(&self) -> &Url {
        &self.0
    }

    /// The scheme, by which the registry finds the factory.
    pub fn scheme(&self) -> &str {
        self.0.scheme()
    }

    /// What two URLs of the same store share: slashes at the end, users and fragments don't matter.
    pub(super) fn identity(&self) -> String {
        let text = self.0.as_str();
        let text = text.split('#').next().unwrap_or(text);
        let (head, query) = text.split_once('?').unwrap_or((text, ""));
        let head = match (head.split_once("://"), self.0.has_authority()) {
            (Some((scheme, rest)), true) => {
                let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                let host = authority.rsplit('@').next().unwrap_or(authority);
                format!("{scheme}://{host}{path}")
            }
            _ => head.to_owned(),
        };
        format!("{}?{query}", head.trim_end_matches('/'))
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.as_str();
        // A path may have an @ in it; the URLs of files have no user, so there it is just that.
        match self.scheme() {
            "file" => f.write_str(&without_query(text)),
            _ => f.write_str(&redact(text)),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

/// Leaves out what may be secret in a text that may be a URL, or be meant as one.
pub(super) fn redact(text: &str) -> String {
    let text = without_query(text);
    let Some(at) = text.rfind('@') else { return text };
    let scheme = text[..at].find("://").map_or(0, |colon| colon + 3);
    format!("{}***{}", &text[..scheme], &text[at..])
}

fn without_query(text: &str) -> String {
    match text.find(['?', '#']) {
        Some(mark) if text.contains(':') => format!("{}***", &text[..=mark]),
        _ => text.to_owned(),
    }
}

/// The text is not the URL of a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}; {fix}")]
pub struct ParseStoreUrlError {
    pub(super) problem: String,
    pub(super) fix: String,
}

impl ParseStoreUrlError {
    fn new(problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { problem: problem.into(), fix: fix.into() }
    }
}

impl FromStr for StoreUrl {
    type Err = ParseStoreUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if text.is_empty() {
            let fix = "write where the store is, like \"file:///var/tmp/myapp\"";
            return Err(ParseStoreUrlError::new("the URL is empty", fix));
        }
        match Url::parse(text) {
            // One letter is the drive of a Windows path.
            Ok(url) if url.scheme().len() == 1 => Err(no_scheme(text)),
            Ok(url) if url.scheme() == "file" => check_file(text, url),
            Ok(url) => Ok(Self(url)),
            Err(url::ParseError::RelativeUrlWithoutBase) => Err(no_scheme(text)),
            Err(error) => {
                let fix = "write a URL like \"file:///var/tmp/myapp\" or \"s3://bucket/prefix\"";
                Err(ParseStoreUrlError::new(format!("not a URL ({error})"), fix))
            }
        }
    }
}

fn no_scheme(text: &str) -> ParseStoreUrlError {
    let drive = text.as_bytes().get(1) == Some(&b':');
    let fix = if text.starts_with('/') {
        format!("for a directory write \"file://{}\"", redact(text))
    } else if drive {
        format!("for a directory write \"file:///{}\"", redact(&text.replace('\\', "/")))
    } else {
        "for a directory write its absolute path as \"file:///path/to/directory\"".to_owned()
    };
    ParseStoreUrlError::new("the URL has no scheme", fix)
}

/// `file://var/tmp` is a classic: there `var` is a host. So is a relative path, which a URL turns into an
/// absolute one.
fn check_file(text: &str, url: Url) -> Result<StoreUrl, ParseStoreUrlError> {
    if let Some(host) = url.host_str() {
        let fix = format!("with three slashes it is a path: \"file:///{host}{}\"", url.path());
        return Err(ParseStoreUrlError::new(format!("`{host}` is a host here, not a directory"), fix));
    }
    let path = text.get("file:".len()..).unwrap_or_default();
    if !path.starts_with('/') {
        let fix = "write an absolute path, as \"file:///path/to/directory\"";
        return Err(ParseStoreUrlError::new("the path is relative", fix));
    }
    Ok(StoreUrl(url))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_no_secret() {
        for (text, shown) in [
            ("s3://bucket/prefix", "s3://bucket/prefix"),
            ("s3://key:secret@bucket/prefix", "s3://***@bucket/prefix"),
            ("s3://secret@bucket", "s3://***@bucket"),
            ("s3://bucket/p?sig=secret#secret", "s3://bucket/p?***"),
            ("s3://key:1/secret@bucket", "s3://***@bucket"),
            ("file:///srv/a@b", "file:///srv/a@b"),
            ("memory:", "memory:"),
        ] {
            let store: StoreUrl = text.parse().unwrap();
            assert_eq!(store.to_string(), shown);
            assert_eq!(format!("{store:?}"), format!("StoreUrl({shown})"));
        }
        assert_eq!(redact("s3//key:secret@bucket"), "***@bucket");
    }

    #[test]
    fn knows_the_same_store_under_another_spelling() {
        let identity = |text: &str| text.parse::<StoreUrl>().unwrap().identity();
        assert_eq!(identity("file:///var/tmp/a/"), identity("file:///var/tmp/b/../a"));
        assert_eq!(identity("s3://me:pw@bucket/p"), identity("S3://bucket/p#x"));
        assert_ne!(identity("s3://bucket/p"), identity("s3://bucket/q"));
        assert_ne!(identity("s3://bucket/p?endpoint=a"), identity("s3://bucket/p?endpoint=b"));
        assert_ne!(identity("memory:a"), identity("memory:b"));
    }
}
