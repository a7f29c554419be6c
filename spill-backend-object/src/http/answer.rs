//! What services say when they say no, read once and kept as data.

use std::{
    error::Error as StdError,
    fmt,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::HeaderMap;
use object_store::client::HttpErrorKind;
use spill_core::StoreErrorKind;

use crate::error::{is_throttling, kind_of_code, kind_of_status};

/// Longer messages are cut.
const LONGEST_MESSAGE: usize = 300;

/// What comes before the root of a listing is shorter: a declaration, and comments.
const LONGEST_PROLOGUE: usize = 4 << 10;

/// Longer codes are none.
const LONGEST_CODE: usize = 64;

/// An answer that says no.
///
/// Neither its text nor its fields hold anything of the request: no address, no query, no header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    status: u16,
    code: Option<String>,
    message: Option<String>,
    retry_after: Option<Duration>,
    request_id: Option<String>,
    /// Where the bucket is, when it is somewhere else.
    region: Option<String>,
}

impl Answer {
    pub(super) fn read(status: u16, headers: &HeaderMap, body: &[u8]) -> Self {
        let header = |name: &str| headers.get(name)?.to_str().ok();
        let body = String::from_utf8_lossy(body);
        let (code, message) = in_xml(&body).or_else(|| in_json(&body)).unwrap_or_default();
        let ids = ["x-amz-request-id", "x-ms-request-id", "x-guploader-uploadid"];
        Self {
            status,
            code: code.or_else(|| header("x-ms-error-code").map(str::to_owned)).and_then(clean_code),
            message: message.as_deref().and_then(clean_message),
            retry_after: header("retry-after").and_then(|wait| parse_wait(wait, SystemTime::now())),
            request_id: ids.into_iter().find_map(header).map(str::to_owned).and_then(clean_code),
            region: header("x-amz-bucket-region").map(str::to_owned).and_then(clean_code),
        }
    }

    /// What it means for a caller. The code tells more than the status, where it is known.
    pub(crate) fn kind(&self) -> StoreErrorKind {
        let code = self.code.as_deref().and_then(kind_of_code);
        code.unwrap_or_else(|| match self.status {
            // An error in the body of a 200 is what the service found out too late to say 500.
            200..=299 if self.code.is_none() => StoreErrorKind::Transient,
            status => kind_of_status(status).unwrap_or(StoreErrorKind::Other),
        })
    }

    pub(crate) fn is_throttling(&self) -> bool {
        is_throttling(self.status, self.code.as_deref())
    }

    pub(crate) fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Whether what is missing is the bucket, the account, or an upload.
    pub(super) fn is_about_more_than_an_object(&self) -> bool {
        let code = self.code.as_deref().unwrap_or_default();
        self.is_missing_bucket() || matches!(code, "NoSuchUpload" | "NoSuchAccount" | "ResourceNotFound")
    }

    fn is_missing_bucket(&self) -> bool {
        crate::error::names_a_missing_bucket(self.code.as_deref().unwrap_or_default())
            || (self.status == 404
                && self.message.as_deref().is_some_and(crate::error::names_a_missing_bucket))
    }

    /// Whether it says of what was asked for that it is not there, and not of what it would be in.
    pub(crate) fn is_missing_object(&self) -> bool {
        self.status == 404 && !self.is_about_more_than_an_object()
    }

    /// Whether the service does not know this kind of request.
    pub(crate) fn is_unknown_request(&self) -> bool {
        let code = self.code.as_deref().unwrap_or_default();
        matches!(self.status, 405 | 501)
            || matches!(code, "NotImplemented" | "MethodNotAllowed")
            || (self.status == 400 && matches!(code, "" | "MalformedXML" | "InvalidRequest"))
            || (self.status == 404 && code.is_empty())
    }

    fn fix(&self) -> Option<String> {
        if self.is_missing_bucket() {
            return Some("create the bucket, or mend its name in the URL".into());
        }
        if (300..400).contains(&self.status) {
            return Some(match &self.region {
                Some(region) => {
                    format!("the bucket is in another region: set the option `region` to {region}")
                }
                None => "the service is elsewhere: mend the options `region` and `endpoint`".into(),
            });
        }
        match self.code.as_deref()? {
            "ExpiredToken" | "TokenRefreshRequired" => Some("get new credentials".into()),
            "RequestTimeTooSkewed" => Some("set the clock of this machine".into()),
            "AuthorizationHeaderMalformed" => Some("check the option `region`".into()),
            _ => None,
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the service answered {}", self.status)?;
        if let Some(code) = &self.code {
            write!(f, " {code}")?;
        }
        if let Some(message) = &self.message {
            write!(f, ": {message}")?;
        }
        if let Some(id) = &self.request_id {
            write!(f, " (request {id})")?;
        }
        self.fix().map_or(Ok(()), |fix| write!(f, "; {fix}"))
    }
}

impl StdError for Answer {}

/// A request without an answer, or with a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    message: String,
    kind: HttpErrorKind,
    passing: bool,
}

impl Lost {
    pub(super) fn new(error: reqwest::Error) -> Self {
        let message = causes(&error.without_url());
        if message.contains("invalid peer certificate") {
            let fix = "let SSL_CERT_FILE name a file with the certificate of who signed it";
            return Self::for_good(format!("{message}; {fix}"));
        }
        // hyper's error is not to be had by type: reqwest keeps it to itself.
        let orphaned = message.contains("dispatch task is gone");
        let kind = if orphaned { super::ORPHANED } else { HttpErrorKind::Interrupted };
        Self { message, kind, passing: true }
    }

    /// Something repeating won't mend.
    pub(super) fn for_good(message: impl Into<String>) -> Self {
        Self { message: message.into(), kind: HttpErrorKind::Unknown, passing: false }
    }

    pub(super) fn silent(limit: Duration) -> Self {
        let limit = humantime::format_duration(limit);
        let message = format!("no byte for {limit}; raise the option `read_timeout` if that is too short");
        Self { message, kind: HttpErrorKind::Timeout, passing: true }
    }

    pub(super) fn kind(&self) -> HttpErrorKind {
        self.kind
    }

    pub(crate) fn is_passing(&self) -> bool {
        self.passing
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Lost {}

/// What an error and its causes say, without what one repeats of the next.
fn causes(error: &dyn StdError) -> String {
    let mut texts = vec![error.to_string()];
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        match texts.last_mut() {
            Some(last) if last.contains(&text) => {}
            _ => texts.push(text),
        }
        next = cause.source();
    }
    texts.join(": ")
}

/// Whether a body is an error and nothing else. Services that take long to answer put blanks before it.
pub(super) fn is_error(body: &[u8]) -> bool {
    let mut rest = body.trim_ascii_start();
    rest = rest.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(rest).trim_ascii_start();
    if rest.starts_with(b"<?xml") {
        let end = rest.windows(2).position(|pair| pair == b"?>").map_or(rest.len(), |at| at + 2);
        rest = rest[end..].trim_ascii_start();
    }
    rest.strip_prefix(b"<Error").is_some_and(|rest| matches!(rest.first(), Some(b'>' | b' ' | b'/')))
}

/// Whether a body begins as a listing does: of S3 and Google, or of Azure.
pub(super) fn is_listing(body: &[u8]) -> bool {
    let body = body.trim_ascii_start();
    let begin = String::from_utf8_lossy(&body[..body.len().min(LONGEST_PROLOGUE)]);
    ["ListBucketResult", "EnumerationResults"].iter().any(|root| begin.contains(root))
}

/// The same report, with the first letter of two words written as its number, which XML takes for the same.
///
/// `object_store` takes a report for an error when one of the two is somewhere in it, be it the code of one object
/// of many, or a part of a name; and then nobody learns what became of the others.
pub(super) fn hide_words(body: Bytes) -> Bytes {
    let words = [("SlowDown", "&#83;lowDown"), ("InternalError", "&#73;nternalError")];
    let is_xml = body.trim_ascii_start().starts_with(b"<");
    let Some(text) = std::str::from_utf8(&body).ok().filter(|_| is_xml) else { return body };
    if !words.iter().any(|(word, _)| text.contains(word)) {
        return body;
    }
    let hidden = words.into_iter().fold(text.to_owned(), |text, (word, same)| text.replace(word, same));
    hidden.into()
}

fn in_xml(body: &str) -> Option<(Option<String>, Option<String>)> {
    let between = |open: &str, close: &str| {
        let (_, rest) = body.split_once(open)?;
        Some(unescape(rest.split_once(close)?.0))
    };
    let found = (between("<Code>", "</Code>"), between("<Message>", "</Message>"));
    (found != (None, None)).then_some(found)
}

fn unescape(text: &str) -> String {
    let named =
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&#39;", "'"), ("&amp;", "&")];
    named.into_iter().fold(text.to_owned(), |text, (name, meant)| text.replace(name, meant))
}

/// Google's errors, and those of OAuth.
fn in_json(body: &str) -> Option<(Option<String>, Option<String>)> {
    let json: serde_json::Value = serde_json::from_str(body).ok()?;
    let text = |value: Option<&serde_json::Value>| Some(value?.as_str()?.to_owned());
    let error = json.get("error").unwrap_or(&json);
    Some(match error.as_str() {
        Some(code) => (Some(code.to_owned()), text(json.get("error_description"))),
        None => (text(error.get("status").or(error.get("code"))), text(error.get("message"))),
    })
}

fn clean_code(code: String) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/' | '=' | '+');
    (!code.is_empty() && code.len() <= LONGEST_CODE && code.chars().all(plain)).then_some(code)
}

/// The first line, without control characters.
fn clean_message(message: &str) -> Option<String> {
    let line = message.trim().lines().next()?;
    let text: String = line.chars().filter(|c| !c.is_control()).take(LONGEST_MESSAGE).collect();
    (!text.is_empty()).then_some(text)
}

/// `Retry-After`: seconds, or a date.
fn parse_wait(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &str) -> Answer {
        Answer::read(status, &HeaderMap::new(), body.as_bytes())
    }

    #[test]
    fn an_error_is_read_from_xml_and_json() {
        let xml = answer(
            503,
            "<?xml version=\"1.0\"?>\n<Error><Code>SlowDown</Code><Message>Less, &lt;please&gt;.\nTime: 7</Message></Error>",
        );
        assert_eq!(xml.to_string(), "the service answered 503 SlowDown: Less, <please>.");
        let google = answer(403, r#"{"error":{"code":403,"message":"no","status":"PERMISSION_DENIED"}}"#);
        assert_eq!(google.to_string(), "the service answered 403 PERMISSION_DENIED: no");
        let oauth = answer(400, r#"{"error":"invalid_grant","error_description":"expired"}"#);
        assert_eq!(oauth.to_string(), "the service answered 400 invalid_grant: expired");
        let page = answer(502, "<html><body>Bad Gateway</body></html>");
        assert_eq!(page.to_string(), "the service answered 502");
    }

    #[test]
    fn what_a_service_says_is_cut_and_cleaned() {
        let long = answer(
            500,
            &format!("<Code>{}</Code><Message>\u{1b}[2J{}</Message>", "c".repeat(99), "m".repeat(999)),
        );
        assert_eq!(long.code, None);
        assert_eq!(long.message.unwrap().len(), LONGEST_MESSAGE);
        assert_eq!(answer(500, "<Code>two words</Code>").code, None);
    }

    #[test]
    fn an_error_in_a_body_is_told_from_a_report_with_errors() {
        for error in [
            "<Error><Code>InternalError</Code></Error>",
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\n   <Error><Code>SlowDown</Code></Error>",
            "  \n <Error/>",
            "\u{feff}<Error xmlns=\"x\"></Error>",
        ] {
            assert!(is_error(error.as_bytes()), "{error}");
        }
        for fine in [
            "",
            "<DeleteResult><Error><Code>AccessDenied</Code></Error></DeleteResult>",
            "<Errors>",
            "<?xml",
            "Error",
        ] {
            assert!(!is_error(fine.as_bytes()), "{fine}");
        }
    }

    #[test]
    fn a_wait_is_seconds_or_a_date() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        let wait = |text| parse_wait(text, now);
        assert_eq!(wait(" 7 "), Some(Duration::from_secs(7)));
        assert_eq!(wait("Sun, 06 Nov 1994 08:50:07 GMT"), Some(Duration::from_secs(30)));
        assert_eq!(wait("Sun, 06 Nov 1994 08:00:00 GMT"), Some(Duration::ZERO));
        assert_eq!(wait("soon"), None);
    }
}
