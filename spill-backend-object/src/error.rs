//! What an error of `object_store` means for the buffer.

use std::{error::Error as StdError, io::ErrorKind};

use object_store::Error;
use spill_core::StoreErrorKind;

/// Deeper chains of causes are not looked at.
const MOST_CAUSES: usize = 16;

/// The kind of trouble this error is.
pub(crate) fn kind_of(error: &Error) -> StoreErrorKind {
    match error {
        // A missing bucket is no missing blob: repeating won't help, and the blob may well be alive.
        Error::NotFound { source, .. } if names_a_missing_bucket(&source.to_string()) => {
            StoreErrorKind::Other
        }
        Error::NotFound { .. } => StoreErrorKind::NotFound,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => StoreErrorKind::Denied,
        Error::Generic { .. } => kind_of_causes(error),
        _ => StoreErrorKind::Other,
    }
}

fn names_a_missing_bucket(message: &str) -> bool {
    ["NoSuchBucket", "ContainerNotFound", "bucket does not exist"].iter().any(|name| message.contains(name))
}

/// What the chain of causes says: an I/O error by its kind, an HTTP answer by its status.
fn kind_of_causes(error: &Error) -> StoreErrorKind {
    let causes = std::iter::successors(Some(error as &(dyn StdError + 'static)), |&cause| cause.source());
    causes.take(MOST_CAUSES).find_map(kind_of_cause).unwrap_or(StoreErrorKind::Other)
}

fn kind_of_cause(cause: &(dyn StdError + 'static)) -> Option<StoreErrorKind> {
    if let Some(error) = cause.downcast_ref::<std::io::Error>() {
        return kind_of_io(error.kind());
    }
    kind_of_status(status_in(&cause.to_string())?)
}

fn kind_of_io(kind: ErrorKind) -> Option<StoreErrorKind> {
    match kind {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            Some(StoreErrorKind::NoSpace)
        }
        ErrorKind::PermissionDenied => Some(StoreErrorKind::Denied),
        ErrorKind::UnexpectedEof => Some(StoreErrorKind::Corrupt),
        ErrorKind::ConnectionRefused
        | ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted
        | ErrorKind::BrokenPipe
        | ErrorKind::NotConnected
        | ErrorKind::HostUnreachable
        | ErrorKind::NetworkUnreachable
        | ErrorKind::NetworkDown
        | ErrorKind::TimedOut
        | ErrorKind::Interrupted
        | ErrorKind::ResourceBusy => Some(StoreErrorKind::Transient),
        _ => None,
    }
}

/// The HTTP status in a message of an `object_store` client. Its type is not public in every build.
fn status_in(message: &str) -> Option<u16> {
    let (_, after) = message.split_once("status code: ")?;
    after.get(..3)?.parse().ok()
}

fn kind_of_status(status: u16) -> Option<StoreErrorKind> {
    match status {
        401 | 403 => Some(StoreErrorKind::Denied),
        416 => Some(StoreErrorKind::Corrupt),
        507 => Some(StoreErrorKind::NoSpace),
        408 | 429 | 500..=599 => Some(StoreErrorKind::Transient),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn generic(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        Error::Generic { store: "test", source: source.into() }
    }

    fn missing(source: &str) -> Error {
        Error::NotFound { path: "p".into(), source: source.into() }
    }

    #[test]
    fn s07_answers_of_a_service_are_told_apart() {
        let status =
            |status: &str| kind_of(&generic(format!("Server returned non-2xx status code: {status}: ")));
        assert_eq!(status("507 Insufficient Storage"), StoreErrorKind::NoSpace);
        for passing in ["429 Too Many Requests", "503 Service Unavailable", "500 Internal Server Error"] {
            assert_eq!(status(passing), StoreErrorKind::Transient, "{passing}");
        }
        assert_eq!(status("403 Forbidden"), StoreErrorKind::Denied);
        assert_eq!(status("416 Range Not Satisfiable"), StoreErrorKind::Corrupt);
        assert_eq!(status("400 Bad Request"), StoreErrorKind::Other);
        assert_eq!(kind_of(&missing("404, NoSuchKey")), StoreErrorKind::NotFound);
        assert_eq!(kind_of(&missing("<Code>NoSuchBucket</Code>")), StoreErrorKind::Other);
        let denied = Error::PermissionDenied { path: "p".into(), source: "403".into() };
        assert_eq!(kind_of(&denied), StoreErrorKind::Denied);
    }

    #[test]
    fn an_io_error_anywhere_in_the_chain_decides() {
        #[derive(Debug)]
        struct Around(io::Error);
        impl std::fmt::Display for Around {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("unable to copy data")
            }
        }
        impl StdError for Around {
            fn source(&self) -> Option<&(dyn StdError + 'static)> {
                Some(&self.0)
            }
        }
        let kind = |errno| kind_of(&generic(Around(io::Error::from_raw_os_error(errno))));
        for full in [28, 122, 27] {
            assert_eq!(kind(full), StoreErrorKind::NoSpace, "errno {full}");
        }
        assert_eq!(kind(104), StoreErrorKind::Transient);
        assert_eq!(kind(13), StoreErrorKind::Denied);
        assert_eq!(kind(5), StoreErrorKind::Other);
        assert_eq!(kind_of(&generic("no idea")), StoreErrorKind::Other);
    }
}
