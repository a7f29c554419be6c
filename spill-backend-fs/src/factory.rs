//! Opens a file store from a `file:` URL and settings by name: [`FsFactory`].

use std::{path::PathBuf, sync::Arc};

use async_trait::async_trait;
use spill_core::{Options, Store, StoreError, StoreErrorKind, StoreFactory};
use url::Url;

use crate::{FsOptions, FsStore, ReserveFree};

/// Opens file stores at URLs like `file:///var/tmp/app`.
///
/// | option | value | default |
/// |---|---|---|
/// | `reserve_free` | a share of the file system or bytes: `5%`, `10 GiB` | `0` |
/// | `durable` | `true` or `false` | `false` |
/// | `direct` | `true` or `false` | `true` |
/// | `ring` | `true` or `false` | `true` |
/// | `allow_tmpfs` | `true` or `false` | `false` |
/// | `open_files` | a number from 1 to 1024 | `1024`, or a quarter of `ulimit -n` |
///
/// What each does is said at the methods of [`FsOptions`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use spill_backend_fs::FsFactory;
/// use spill_core::{Options, StoreFactory};
///
/// let root = tempfile::tempdir()?;
/// let url = url::Url::from_directory_path(root.path()).unwrap();
/// let store = FsFactory.open(&url, Options::new().with("allow_tmpfs", "true")).await?;
/// store.close().await?;
///
/// let misspelt = FsFactory.open(&url, Options::new().with("durabel", "true")).await.unwrap_err();
/// assert!(misspelt.to_string().contains("unknown option `durabel`"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct FsFactory;

#[async_trait]
impl StoreFactory for FsFactory {
    async fn open(&self, url: &Url, options: Options) -> Result<Arc<dyn Store>, StoreError> {
        Ok(Arc::new(FsStore::open(parse(url, options)?).await?))
    }
}

fn parse(url: &Url, mut options: Options) -> Result<FsOptions, StoreError> {
    let target = url.as_str();
    let mut parsed = FsOptions::new(root(url)?);
    if let Some(reserve) = options.take_parsed("reserve_free", target, str::parse::<ReserveFree>)? {
        parsed = parsed.reserve_free(reserve);
    }
    if let Some(durable) = options.take_parsed("durable", target, boolean)? {
        parsed = parsed.durable(durable);
    }
    if let Some(direct) = options.take_parsed("direct", target, boolean)? {
        parsed = parsed.direct(direct);
    }
    if let Some(ring) = options.take_parsed("ring", target, boolean)? {
        parsed = parsed.ring(ring);
    }
    if let Some(allow) = options.take_parsed("allow_tmpfs", target, boolean)? {
        parsed = parsed.allow_tmpfs(allow);
    }
    if let Some(files) = options.take_parsed("open_files", target, open_files)? {
        parsed = parsed.open_files(files);
    }
    options.finish("open", target)?;
    Ok(parsed)
}

fn root(url: &Url) -> Result<PathBuf, StoreError> {
    let refused = |reason: String| {
        let source = format!("{reason}; write an absolute path, like \"file:///var/tmp/app\"");
        Err(StoreError::new(StoreErrorKind::Other, "open", url.as_str()).with_source(source))
    };
    if url.scheme() != "file" {
        return refused(format!("the scheme is `{}`, this store takes `file`", url.scheme()));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return refused("a path has no `?` and no `#` part (write %3F and %23 for the characters)".into());
    }
    match url.to_file_path() {
        Ok(path) => Ok(path),
        Err(()) => refused("this is not a path on this machine".into()),
    }
}

fn boolean(text: &str) -> Result<bool, &'static str> {
    match text.trim() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err("write true or false"),
    }
}

fn open_files(text: &str) -> Result<usize, &'static str> {
    match text.trim().parse() {
        Ok(files @ 1..=FsOptions::MAX_OPEN_FILES) => Ok(files),
        _ => Err("write a number from 1 to 1024"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(url: &str, name: &str, value: &str) -> String {
        let url = Url::parse(url).unwrap();
        parse(&url, Options::new().with(name, value)).unwrap_err().to_string()
    }

    #[test]
    fn options_reach_the_store() {
        let url = Url::parse("file:///var/tmp/my%20app").unwrap();
        let options = [
            ("reserve_free", "5%"),
            ("durable", "true"),
            ("direct", "false"),
            ("ring", "false"),
            ("allow_tmpfs", "true"),
            ("open_files", "7"),
        ];
        let parsed = parse(&url, options.into_iter().collect()).unwrap();
        assert_eq!(parsed.root(), std::path::Path::new("/var/tmp/my app"));
        assert_eq!(parsed.reserve_free.of(1000), 50);
        assert!(parsed.durable && !parsed.direct && !parsed.ring && parsed.allow_tmpfs);
        assert_eq!(parsed.open_files, Some(7));
    }

    #[test]
    fn wrong_options_are_refused_with_what_is_allowed() {
        let url = "file:///var/tmp/app";
        for (name, value, expected) in [
            ("durable", "yes", "option `durable` = \"yes\": write true or false"),
            ("open_files", "0", "option `open_files` = \"0\": write a number from 1 to 1024"),
            ("open_files", "1025", "write a number from 1 to 1024"),
            ("reserve_free", "101%", "option `reserve_free` = \"101%\": write a share"),
            ("fsync", "true", "known options: allow_tmpfs, direct, durable, open_files, reserve_free, ring"),
        ] {
            let message = message(url, name, value);
            assert!(message.contains(expected) && message.contains(url), "{message}");
        }
    }

    #[test]
    fn wrong_urls_are_refused_with_the_right_form() {
        for url in ["file://host/path", "file:///path?durable=true", "file:///path#part", "s3://bucket/path"]
        {
            let message = message(url, "durable", "true");
            assert!(message.contains(url) && message.contains("file:///var/tmp/app"), "{message}");
        }
    }
}
