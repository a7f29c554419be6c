//! What an error of `object_store` means for the buffer.
//!
//! Services that this crate opens itself answer in types of its own, which say all there is to know (the
//! `http` module). For an `ObjectStore` from elsewhere there is what its errors say as text.

use std::{error::Error as StdError, io::ErrorKind};

use object_store::Error;
use spill_core::{StoreError, StoreErrorKind};

#[cfg(feature = "service")]
use crate::http::{Answer, Lost};

/// Deeper chains of causes are not looked at.
const MOST_CAUSES: usize = 16;

/// How a client of `object_store` calls an error in the body of a 200.
const LATE_ERROR: &str = "Server returned error response: ";

/// The error of the store named `target` while it did `operation`.
pub(crate) fn store_error(target: &str, operation: &'static str, error: Error) -> StoreError {
    let mut failed = StoreError::new(kind_of(&error), operation, target);
    if throttles(&error) {
        failed = failed.with_throttled();
    }
    #[cfg(feature = "service")]
    {
        // What the service said is the cause; what `object_store` puts around it tells no more, and may
        // name the address of the request.
        if let Some(answer) = find::<Answer>(&error) {
            let wait = answer.retry_after().filter(|_| failed.kind() == StoreErrorKind::Transient);
            failed = wait.into_iter().fold(failed, StoreError::with_retry_after);
            return failed.with_source(answer.clone());
        }
        if let Some(lost) = find::<Lost>(&error) {
            return failed.with_source(lost.clone());
        }
    }
    failed.with_source(error)
}

/// The kind of trouble this error is.
pub(crate) fn kind_of(error: &Error) -> StoreErrorKind {
    match error {
        // A missing bucket is no missing blob: repeating won't help, and the blob may well be alive.
        Error::NotFound { source, .. } if names_a_missing_bucket(&source.to_string()) => {
            StoreErrorKind::Other
        }
        Error::NotFound { .. } => StoreErrorKind::NotFound,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => StoreErrorKind::Denied,
        _ => said(error).or_else(|| causes(error).find_map(kind_of_cause)).unwrap_or(StoreErrorKind::Other),
    }
}

/// What our own client made of it. To be asked first: an error around it repeats it as text.
fn said(error: &Error) -> Option<StoreErrorKind> {
    #[cfg(feature = "service")]
    {
        let lost = |lost: &Lost| match lost.is_passing() {
            true => StoreErrorKind::Transient,
            false => StoreErrorKind::Other,
        };
        find(error).map(Answer::kind).or_else(|| find(error).map(lost))
    }
    #[cfg(not(feature = "service"))]
    {
        let _ = error;
        None
    }
}

/// Whether this answer to a listing means that there is nothing below the prefix: a service with real directories has
/// none for names that nobody used yet. `object_store` has no error for it.
pub(crate) fn lists_nothing(error: &Error) -> bool {
    #[cfg(feature = "service")]
    if let Some(answer) = find::<Answer>(error) {
        return answer.is_missing_object();
    }
    let mut statuses = causes(error).map(|cause| status_in(&cause.to_string()));
    let missing = matches!(error, Error::NotFound { .. }) || statuses.any(|status| status == Some(404));
    missing && !causes(error).any(|cause| names_a_missing_bucket(&cause.to_string()))
}

/// Whether the upload in parts that this is about is gone.
pub(crate) fn is_without_upload(error: &Error) -> bool {
    kind_of(error) == StoreErrorKind::NotFound
        || causes(error).any(|cause| cause.to_string().contains("NoSuchUpload"))
}

pub(crate) fn names_a_missing_bucket(message: &str) -> bool {
    ["NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted", "bucket does not exist"]
        .iter()
        .any(|name| message.contains(name))
}

/// What is said of one error and of what caused it, the error itself first.
fn causes(error: &Error) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    let first = Some(error as &(dyn StdError + 'static));
    std::iter::successors(first, |&cause| cause.source()).take(MOST_CAUSES)
}

#[cfg(feature = "service")]
pub(crate) fn find<T: StdError + 'static>(error: &Error) -> Option<&T> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

fn kind_of_cause(cause: &(dyn StdError + 'static)) -> Option<StoreErrorKind> {
    if let Some(error) = cause.downcast_ref::<std::io::Error>() {
        return kind_of_io(error.kind());
    }
    #[cfg(feature = "service")]
    if let Some(error) = cause.downcast_ref::<object_store::client::HttpError>() {
        use object_store::client::HttpErrorKind::{Connect, Interrupted, Request, Timeout};
        let passing = matches!(error.kind(), Connect | Interrupted | Request | Timeout);
        return passing.then_some(StoreErrorKind::Transient);
    }
    let text = cause.to_string();
    let code = code_in(&text).and_then(|code| match code.parse() {
        Ok(status) => kind_of_status(status),
        Err(_) => kind_of_code(code),
    });
    // A 200 whose body has `InternalError` or `SlowDown` somewhere.
    let late = || text.contains(LATE_ERROR).then_some(StoreErrorKind::Transient);
    code.or_else(|| kind_of_status(status_in(&text)?)).or_else(late)
}

/// Whether the service has too much to do.
fn throttles(error: &Error) -> bool {
    #[cfg(feature = "service")]
    if let Some(answer) = find::<Answer>(error) {
        return answer.is_throttling();
    }
    causes(error).any(|cause| {
        let text = cause.to_string();
        let code = code_in(&text);
        let status = code.and_then(|code| code.parse().ok()).or_else(|| status_in(&text));
        let late = text.contains(LATE_ERROR) && text.contains("SlowDown");
        late || is_throttling(status.unwrap_or_default(), code)
    })
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

/// The HTTP status in a message of an `object_store` client. Its type is not public.
fn status_in(message: &str) -> Option<u16> {
    let (_, after) = message.split_once("status code: ")?;
    after.get(..3)?.parse().ok()
}

/// The code in a message about one object of a batch: a word of S3, a status of Azure.
fn code_in(message: &str) -> Option<&str> {
    let (_, after) = message.rsplit_once("(code: ")?;
    Some(after.split_once(')')?.0)
}

pub(crate) fn kind_of_status(status: u16) -> Option<StoreErrorKind> {
    match status {
        401 | 403 | 407 => Some(StoreErrorKind::Denied),
        416 => Some(StoreErrorKind::Corrupt),
        507 => Some(StoreErrorKind::NoSpace),
        501 | 505 => None,
        408 | 425 | 429 | 500..=599 => Some(StoreErrorKind::Transient),
        _ => None,
    }
}

/// What the codes of the services mean where their status does not say it.
///
/// Damage on the way up (`BadDigest` and its like) passes. So does an upload that is gone: putting again
/// starts a new one. Expired credentials don't: those that can be renewed are renewed before.
pub(crate) fn kind_of_code(code: &str) -> Option<StoreErrorKind> {
    Some(match code {
        "SlowDown"
        | "SlowDownRead"
        | "SlowDownWrite"
        | "Throttling"
        | "ThrottlingException"
        | "RequestLimitExceeded"
        | "TooManyRequests"
        | "ServerBusy"
        | "RESOURCE_EXHAUSTED" => StoreErrorKind::Transient,
        "InternalError"
        | "InternalServerError"
        | "ServiceUnavailable"
        | "RequestTimeout"
        | "OperationTimedOut"
        | "OperationAborted"
        | "ConditionalRequestConflict"
        | "NoSuchUpload"
        | "IncompleteBody"
        | "BadDigest"
        | "InvalidDigest"
        | "XAmzContentSHA256Mismatch"
        | "Md5Mismatch"
        | "Crc64Mismatch" => StoreErrorKind::Transient,
        "AccessDenied"
        | "AllAccessDisabled"
        | "InvalidAccessKeyId"
        | "SignatureDoesNotMatch"
        | "AuthorizationHeaderMalformed"
        | "RequestTimeTooSkewed"
        | "ExpiredToken"
        | "InvalidToken"
        | "TokenRefreshRequired"
        | "AuthenticationFailed"
        | "AuthorizationFailure"
        | "AuthorizationPermissionMismatch"
        | "InvalidAuthenticationInfo"
        | "AccountIsDisabled"
        | "invalid_grant"
        | "invalid_client"
        | "unauthorized_client"
        | "ExpiredTokenException"
        | "InvalidIdentityToken" => StoreErrorKind::Denied,
        "QuotaExceeded" | "XMinioStorageFull" | "XMinioAdminBucketQuotaExceeded" | "InsufficientStorage" => {
            StoreErrorKind::NoSpace
        }
        "InvalidRange" => StoreErrorKind::Corrupt,
        code if names_a_missing_bucket(code) => StoreErrorKind::Other,
        _ => return None,
    })
}

/// Whether status or code say that there is too much to do.
pub(crate) fn is_throttling(status: u16, code: Option<&str>) -> bool {
    let code = code.unwrap_or_default();
    matches!(status, 429 | 503)
        || code.starts_with("SlowDown")
        || code.starts_with("Throttling")
        || matches!(code, "RequestLimitExceeded" | "TooManyRequests" | "ServerBusy" | "RESOURCE_EXHAUSTED")
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
        for final_one in ["400 Bad Request", "501 Not Implemented", "404 Not Found"] {
            assert_eq!(status(final_one), StoreErrorKind::Other, "{final_one}");
        }
        assert_eq!(kind_of(&missing("404, NoSuchKey")), StoreErrorKind::NotFound);
        assert_eq!(kind_of(&missing("<Code>NoSuchBucket</Code>")), StoreErrorKind::Other);
        let late = generic("Server returned error response: <Error><Code>SlowDown</Code></Error>");
        let late = store_error("test", "put", late);
        assert_eq!((late.kind(), late.is_throttled()), (StoreErrorKind::Transient, true));
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

    #[test]
    fn s07_one_object_of_a_batch_is_told_apart_too() {
        let failed = |code: &str| {
            let text =
                format!("DeleteObjects request failed for key p/7: some (code: reason) (code: {code})");
            store_error("test", "delete", generic(text))
        };
        assert_eq!(failed("AccessDenied").kind(), StoreErrorKind::Denied);
        assert_eq!(failed("InternalError").kind(), StoreErrorKind::Transient);
        assert!(!failed("InternalError").is_throttled());
        assert_eq!(failed("SlowDown").kind(), StoreErrorKind::Transient);
        assert!(failed("SlowDown").is_throttled());
        assert_eq!(failed("503").kind(), StoreErrorKind::Transient);
        assert!(failed("503").is_throttled());
        assert_eq!(failed("409").kind(), StoreErrorKind::Other);
    }
}
