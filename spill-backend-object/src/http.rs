//! The one place where requests leave the process: the HTTP client that the services share.
//!
//! It puts three things right that the client of `object_store` gets wrong:
//!
//! - A time-out for a whole request ends a large transfer that is slow and well. Here only silence ends one:
//!   no byte in either direction for the time allowed.
//! - An answer that says no becomes an [`Answer`], which keeps the code, the message and the wait it asks
//!   for, where `object_store` keeps a text. A `200` whose body is an error is one of them.
//! - What went wrong on the way becomes a [`Lost`], so that nobody has to guess from a text.
//!
//! Nothing is repeated here: that is done by the retry layer of `spill-core`, which knows about deadlines and
//! hears the wait that was asked for. Redirects are not followed, because a signature holds for one host.
//!
//! [`answer`] reads answers, [`body`] watches what is sent and received.

pub(crate) mod answer;
mod body;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use http::{Method, StatusCode};
use object_store::{
    ClientConfigKey, ClientOptions, Error, RetryConfig,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
        HttpService,
    },
};
use url::Url;

use self::body::{Received, Sent, Watch};
pub(crate) use answer::{Answer, Lost};

/// What is read of the body of an answer that says no.
const MOST_OF_A_REFUSAL: usize = 64 << 10;

/// The kind of error when the connection was in the pool although the runtime that drove it has ended, as may
/// happen to whoever uses one store from several.
const ORPHANED: HttpErrorKind = HttpErrorKind::Request;

/// Such connections which one request passes over. Each is taken out of the pool by that.
const MOST_ORPHANS: usize = 16;

/// What is read of the body of an answer that has to be looked into: a listing of 1000 objects fits.
const MOST_OF_A_REPORT: usize = 16 << 20;

/// How the client behaves, from the options of a tier.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    /// For setting up a connection, TLS included.
    pub(crate) connect_timeout: Duration,
    /// Without a byte sent or received.
    pub(crate) read_timeout: Duration,
    pub(crate) proxy_url: Option<String>,
    /// Hosts reached without the proxy, with commas between.
    pub(crate) proxy_excludes: Option<String>,
}

impl Connector {
    /// What `object_store` has to know: it hands it back to `connect`, changed for credential services.
    pub(crate) fn client_options(&self, allow_http: bool) -> ClientOptions {
        ClientOptions::new()
            .with_timeout_disabled()
            .with_connect_timeout(self.connect_timeout)
            .with_allow_http(allow_http)
    }

    pub(crate) fn proxy_is_valid(&self) -> bool {
        self.proxy().is_ok()
    }

    fn proxy(&self) -> reqwest::Result<Option<reqwest::Proxy>> {
        let Some(url) = &self.proxy_url else { return Ok(None) };
        let proxy = reqwest::Proxy::all(url)?;
        let excludes = self.proxy_excludes.as_deref().and_then(reqwest::NoProxy::from_string);
        Ok(Some(proxy.no_proxy(excludes)))
    }

    fn client(&self, connect_timeout: Duration, allow_http: bool) -> reqwest::Result<reqwest::Client> {
        let mut client = reqwest::Client::builder()
            .user_agent(concat!("spill/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(connect_timeout)
            .redirect(reqwest::redirect::Policy::none())
            .https_only(!allow_http)
            // One connection per request under way: large transfers don't share a congestion window.
            .http1_only();
        if let Some(proxy) = self.proxy()? {
            client = client.proxy(proxy);
        }
        client.build()
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let asked = |key| options.get_config_value(&key);
        let connect_timeout = asked(ClientConfigKey::ConnectTimeout)
            .and_then(|text| humantime::parse_duration(&text).ok())
            .unwrap_or(self.connect_timeout);
        let allow_http = asked(ClientConfigKey::AllowHttp).is_some_and(|text| text == "true");
        let client = self
            .client(connect_timeout, allow_http)
            .map_err(|error| Error::Generic { store: "HTTP client", source: Box::new(Lost::new(error)) })?;
        Ok(HttpClient::new(Service { client, read_timeout: self.read_timeout }))
    }
}

/// `object_store` sends each request once.
pub(crate) fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

#[derive(Debug)]
struct Service {
    client: reqwest::Client,
    read_timeout: Duration,
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let asked = Asked::of(&request);
        let answer = self.send(request).await?;
        asked.judge(answer).await
    }
}

impl Service {
    /// Sends a request, and again where the connection for it was one that a runtime left behind.
    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        // Starting an upload twice would leave one that nobody knows.
        let most = if request.method() == Method::POST { 0 } else { MOST_ORPHANS };
        for _ in 0..most {
            match self.send_once(request.clone()).await {
                Err(error) if error.kind() == ORPHANED => {}
                done => return done,
            }
        }
        self.send_once(request).await
    }

    async fn send_once(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let url = Url::parse(&parts.uri.to_string())
            .map_err(|error| HttpError::new(HttpErrorKind::Unknown, Lost::for_good(error.to_string())))?;
        let watch = Arc::new(Watch::new(self.read_timeout));
        let mut request = reqwest::Request::new(parts.method, url);
        *request.headers_mut() = parts.headers;
        if body.content_length() > 0 {
            *request.body_mut() = Some(reqwest::Body::wrap(Sent::new(body, Arc::clone(&watch))));
        }
        let answer = tokio::select! {
            answer = self.client.execute(request) => answer.map_err(|error| lost(Lost::new(error)))?,
            () = watch.silence() => return Err(lost(Lost::silent(self.read_timeout))),
        };
        let (parts, body) = http::Response::<reqwest::Body>::from(answer).into_parts();
        let body = HttpResponseBody::new(Received::new(body, self.read_timeout));
        Ok(HttpResponse::from_parts(parts, body))
    }
}

fn lost(lost: Lost) -> HttpError {
    HttpError::new(lost.kind(), lost)
}

/// What decides how an answer is read.
struct Asked {
    method: Method,
    /// A listing, or a batch: its answer is a text that says what became of it.
    report: bool,
    /// A listing.
    lists: bool,
}

impl Asked {
    fn of(request: &HttpRequest) -> Self {
        let query = request.uri().query().unwrap_or_default();
        let lists = query.split('&').any(|pair| pair.starts_with("list-type=") || pair == "comp=list");
        let method = request.method().clone();
        let report = lists || method == Method::PUT || method == Method::POST;
        Self { method, report, lists }
    }

    async fn judge(&self, answer: HttpResponse) -> Result<HttpResponse, HttpError> {
        let (parts, body) = answer.into_parts();
        if parts.status.is_success() && !self.report {
            return Ok(HttpResponse::from_parts(parts, body));
        }
        let body = if parts.status.is_success() {
            let (body, whole) = read(body, MOST_OF_A_REPORT).await?;
            if !whole {
                let message = format!("the answer is longer than {MOST_OF_A_REPORT} bytes");
                return Err(lost(Lost::for_good(message)));
            }
            body
        } else {
            // What the status says stands, also when the rest of the answer is lost.
            read(body, MOST_OF_A_REFUSAL).await.map_or_else(|_| Bytes::new(), |(body, _)| body)
        };
        let refused = !parts.status.is_success() || answer::is_error(&body);
        if refused {
            let answer = Answer::read(parts.status.as_u16(), &parts.headers, &body);
            if !self.passes(parts.status, &answer) {
                return Err(HttpError::new(HttpErrorKind::Unknown, answer));
            }
        }
        if self.lists && parts.status.is_success() && !answer::is_listing(&body) {
            // `object_store` takes any page for an empty listing.
            let message = "the answer is no listing, so it is not the service that answers";
            let fix = "mend the option `endpoint`, or `proxy_url`";
            return Err(lost(Lost::for_good(format!("{message}; {fix}"))));
        }
        Ok(HttpResponse::from_parts(parts, answer::hide_words(body).into()))
    }

    /// Whether `object_store` has a meaning of its own for this status, and the right one.
    ///
    /// A 404 to a write or a listing, or one that names something else than an object, is no missing object.
    fn passes(&self, status: StatusCode, answer: &Answer) -> bool {
        match status {
            StatusCode::NOT_MODIFIED | StatusCode::PRECONDITION_FAILED => true,
            StatusCode::NOT_FOUND => {
                let writes = self.method == Method::PUT || self.method == Method::POST;
                !writes && !self.lists && answer.is_missing_object()
            }
            _ => false,
        }
    }
}

/// At most `most` bytes of a body, and whether that was all of it.
async fn read(body: HttpResponseBody, most: usize) -> Result<(Bytes, bool), HttpError> {
    let mut pieces = body.bytes_stream();
    let mut whole = BytesMut::new();
    while let Some(piece) = pieces.next().await {
        let piece = piece?;
        let room = most - whole.len();
        whole.extend_from_slice(&piece[..piece.len().min(room)]);
        if piece.len() > room {
            return Ok((whole.freeze(), false));
        }
    }
    Ok((whole.freeze(), true))
}
