//! Azure Blob Storage.

use std::{collections::BTreeMap, sync::Arc};

use spill_backend_object::AzureFactory;
use spill_core::{Options, Payload, Store, StoreError, StoreErrorKind, StoreFactory};

use super::{
    always, id, once, puts, reads,
    server::{Action, Reply, Request, Server},
};

use StoreErrorKind::{Corrupt, Denied, NoSpace, NotFound, Other, Transient};

const KEY: &str = "a2V5LW9mLXRoZS1hY2NvdW50";
const SIGNATURE: &str = "signature-of-mine";

#[derive(Default)]
struct Container {
    kept: BTreeMap<String, Vec<u8>>,
    blocks: BTreeMap<String, Vec<u8>>,
}

impl Container {
    fn answer(&mut self, request: &Request) -> Reply {
        let key = request.path.split_once('/').map_or("", |(_, key)| key).to_owned();
        match (request.method.as_str(), request.query("comp")) {
            ("GET", Some("list")) => self.list(request),
            ("GET" | "HEAD", _) => self.get(&key, request),
            ("PUT", Some("block")) => {
                self.blocks.insert(request.query("blockid").unwrap().to_owned(), request.body.clone());
                Reply::new(201, "")
            }
            ("PUT", Some("blocklist")) => {
                let asked = String::from_utf8(request.body.clone()).unwrap();
                let ids = asked.split("<Uncommitted>").skip(1).filter_map(|rest| rest.split('<').next());
                let whole = ids.flat_map(|id| self.blocks.remove(id).unwrap()).collect();
                self.kept.insert(key, whole);
                Reply::new(201, "").with("etag", "e")
            }
            ("PUT", None) => {
                self.kept.insert(key, request.body.clone());
                Reply::new(201, "").with("etag", "e")
            }
            ("POST", Some("batch")) => self.batch(request),
            _ => Reply::new(501, ""),
        }
    }

    fn list(&self, request: &Request) -> Reply {
        let prefix = request.query("prefix").unwrap_or_default();
        let blobs = self.kept.iter().filter(|(key, _)| key.starts_with(prefix));
        let blobs: String = blobs
            .map(|(key, bytes)| {
                format!(
                    "<Blob><Name>{key}</Name><Properties><Last-Modified>Sun, 06 Nov 1994 08:49:37 GMT</Last-Modified>\
                     <Content-Length>{}</Content-Length><Content-Type>b</Content-Type><Etag>e</Etag></Properties></Blob>",
                    bytes.len()
                )
            })
            .collect();
        Reply::new(200, format!("<EnumerationResults><Blobs>{blobs}</Blobs></EnumerationResults>"))
    }

    fn get(&self, key: &str, request: &Request) -> Reply {
        let Some(bytes) = self.kept.get(key) else { return error(404, "BlobNotFound") };
        let reply = |status, body: &[u8]| {
            Reply::new(status, body).with("etag", "e").with("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT")
        };
        match request.range() {
            Some((start, _)) if start >= bytes.len() => error(416, "InvalidRange"),
            Some((start, end)) => {
                let end = end.min(bytes.len() - 1);
                let range = format!("bytes {start}-{end}/{}", bytes.len());
                reply(206, &bytes[start..=end]).with("content-range", range)
            }
            None => reply(200, bytes),
        }
    }

    fn batch(&mut self, request: &Request) -> Reply {
        let asked = String::from_utf8(request.body.clone()).unwrap();
        let mut body = String::new();
        for (number, line) in asked.lines().filter(|line| line.starts_with("DELETE ")).enumerate() {
            let path = line.split(' ').nth(1).unwrap().split('?').next().unwrap();
            let key = path.trim_start_matches('/').split_once('/').unwrap().1;
            let status = if self.kept.remove(key).is_some() { "202 Accepted" } else { "404 Not Found" };
            body += &format!(
                "--b\r\ncontent-type: application/http\r\ncontent-id: {number}\r\n\r\nHTTP/1.1 {status}\r\n\r\n\r\n"
            );
        }
        Reply::new(202, format!("{body}--b--")).with("content-type", "multipart/mixed; boundary=b")
    }
}

fn error(status: u16, code: &str) -> Reply {
    Reply::xml_error(status, code).with("x-ms-error-code", code)
}

async fn serve(mut fault: impl FnMut(&Request) -> Option<Action> + Send + 'static) -> Server {
    let mut container = Container::default();
    Server::start(move |request| fault(request).unwrap_or_else(|| container.answer(request).into())).await
}

fn options(server: &Server) -> Options {
    Options::new().with("endpoint", &server.url).with("allow_http", "true").with("account", "mine")
}

async fn open(options: Options) -> Result<Arc<dyn Store>, StoreError> {
    let environment: [(&str, &str); 0] = [];
    AzureFactory::new()
        .with_environment(environment)
        .open(&"az://container/prefix".parse().unwrap(), options)
        .await
}

async fn azure(fault: impl FnMut(&Request) -> Option<Action> + Send + 'static) -> (Server, Arc<dyn Store>) {
    let server = serve(fault).await;
    let store = open(options(&server).with("access_key", KEY)).await.unwrap();
    server.take();
    (server, store)
}

#[tokio::test]
async fn a_blob_makes_its_way_there_and_back() {
    let (server, store) = azure(|_| None).await;
    assert!(store.info().name.starts_with("az://container/prefix/"));
    store.put(id(1), b"payload".to_vec().into()).await.unwrap();
    assert_eq!(store.get(id(1), 3..7).await.unwrap(), "load");
    assert_eq!(store.get(id(1), 7..8).await.unwrap_err().kind(), Corrupt);
    assert_eq!(store.get(id(2), 0..1).await.unwrap_err().kind(), NotFound);
    let blob: Vec<u8> = (0..20 << 18).flat_map(|number: u32| number.to_le_bytes()).collect();
    store.put(id(3), Payload::from(blob.clone())).await.unwrap();
    assert!(store.get(id(3), 0..blob.len() as u64).await.unwrap() == blob, "the bytes differ");
    assert_eq!(store.list(None, 10).await.unwrap().len(), 2);
    server.take();
    store.delete(&[id(1), id(2)]).await.unwrap();
    assert_eq!(server.lines(), ["POST container?comp"], "deletes are one request");
    store.close().await.unwrap();
    assert!(store.list(None, 10).await.unwrap().is_empty());
}

#[tokio::test]
async fn s07_its_answers_are_told_apart() {
    for (status, code, kind, throttled) in [
        (403, "AuthenticationFailed", Denied, false),
        (404, "ContainerNotFound", Other, false),
        (409, "ContainerBeingDeleted", Other, false),
        (400, "Md5Mismatch", Transient, false),
        (500, "OperationTimedOut", Transient, false),
        (503, "ServerBusy", Transient, true),
        (507, "", NoSpace, false),
    ] {
        let fits =
            |request: &Request| puts(request) || request.header("x-ms-range").is_some() || reads(request);
        let (_server, store) = azure(always(fits, error(status, code).with("retry-after", "3"))).await;
        let put = store.put(id(1), b"x".to_vec().into()).await.unwrap_err();
        let get = store.get(id(1), 0..1).await.unwrap_err();
        assert_eq!((put.kind(), get.kind()), (kind, kind), "{status}: {put}, {get}");
        assert_eq!((put.is_throttled(), get.is_throttled()), (throttled, throttled), "{status}");
        assert_eq!(put.retry_after().is_some(), kind == Transient);
    }
}

#[tokio::test]
async fn s03_what_failed_of_a_batch_is_named() {
    let body = "--b\r\ncontent-id: 0\r\n\r\nHTTP/1.1 202 Accepted\r\n\r\n\r\n\
                --b\r\ncontent-id: 1\r\n\r\nHTTP/1.1 503 Server Busy\r\n\r\n\r\n--b--";
    let reply = Reply::new(202, body).with("content-type", "multipart/mixed; boundary=b");
    let (_server, store) = azure(once(|request| request.query("comp") == Some("batch"), reply)).await;
    let error = store.delete(&[id(1), id(2)]).await.unwrap_err();
    assert_eq!(error.failed(), [id(2)]);
    assert_eq!((error.kind(), error.is_throttled()), (Transient, true), "{error}");
}

#[tokio::test]
async fn a_signature_in_the_address_is_never_shown() {
    let server = serve(|_| None).await;
    let sas = format!("?sv=2021&sig={SIGNATURE}");
    let store = open(options(&server).with("sas_token", &sas)).await.unwrap();
    assert!(server.take().iter().all(|request| request.query("sig") == Some(SIGNATURE)));
    drop(server);
    // Refused connections, refused requests, nonsense.
    let lost = store.put(id(1), b"x".to_vec().into()).await.unwrap_err();
    assert_eq!(lost.kind(), Transient);
    let mut shown = format!("{lost} {lost:?}");
    for reply in [
        error(403, "AuthenticationFailed"),
        Reply::new(404, ""),
        Reply::new(206, "x"),
        Reply::new(200, "x"),
        Reply::new(302, ""),
    ] {
        let server = serve(always(|request| request.query("comp").is_none(), reply)).await;
        let store = open(options(&server).with("sas_token", &sas)).await.unwrap();
        for error in [store.get(id(1), 0..1).await.unwrap_err(), store.get(id(1), 0..0).await.unwrap_err()] {
            shown += &format!("{error} {error:?}");
        }
        shown += &format!("{store:?}");
    }
    assert!(!shown.contains(SIGNATURE), "{shown}");
}

#[tokio::test]
async fn s07_what_would_fail_for_good_fails_when_opening() {
    for (reply, kind, says) in [
        (error(404, "ContainerNotFound"), Other, "create the bucket"),
        (
            error(403, "AuthenticationFailed"),
            Denied,
            "403 AuthenticationFailed: message of AuthenticationFailed",
        ),
    ] {
        let server = serve(always(|_| true, reply)).await;
        let error = open(options(&server).with("access_key", KEY)).await.unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().contains(says), "{error}");
    }
}
