//! What S3 and the XML interface of Google answer, as far as a store needs it, kept in memory.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{Arc, Mutex},
};

use super::server::{Action, Reply, Request, Server};

const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

#[derive(Default)]
pub(crate) struct Objects {
    pub(crate) kept: BTreeMap<String, Vec<u8>>,
    /// Unfinished uploads, by their ids.
    pub(crate) uploads: BTreeMap<String, BTreeMap<u32, Vec<u8>>>,
    started: usize,
}

impl Objects {
    /// Without heartbeats.
    pub(crate) fn blobs(&self) -> Vec<&Vec<u8>> {
        self.kept.iter().filter(|(key, _)| !key.ends_with("/alive")).map(|(_, bytes)| bytes).collect()
    }
}

#[derive(Clone, Default)]
pub(crate) struct Bucket(pub(crate) Arc<Mutex<Objects>>);

impl Bucket {
    /// A server with this bucket. What `fault` answers comes first.
    pub(crate) async fn serve(
        mut fault: impl FnMut(&Request) -> Option<Action> + Send + 'static,
    ) -> (Server, Self) {
        let bucket = Self::default();
        let serving = bucket.clone();
        let server =
            Server::start(move |request| fault(request).unwrap_or_else(|| serving.answer(request).into()));
        (server.await, bucket)
    }

    pub(crate) fn answer(&self, request: &Request) -> Reply {
        let objects = &mut *self.0.lock().unwrap();
        let key = request.path.split_once('/').map_or("", |(_, key)| key);
        let upload = request.query("uploadId");
        match (request.method.as_str(), upload) {
            ("GET", _) if request.query("list-type").is_some() => list(objects, request),
            ("GET" | "HEAD", _) => get(objects, key, request),
            ("PUT", Some(upload)) => {
                let part = request.query("partNumber").unwrap().parse().unwrap();
                // It may have been aborted while this part was on its way.
                let Some(parts) = objects.uploads.get_mut(upload) else {
                    return Reply::xml_error(404, "NoSuchUpload");
                };
                parts.insert(part, request.body.clone());
                Reply::new(200, "").with("etag", format!("\"{part}\""))
            }
            ("PUT", None) => {
                objects.kept.insert(key.to_owned(), request.body.clone());
                Reply::new(200, "").with("etag", "\"whole\"")
            }
            ("POST", Some(upload)) => {
                let parts = objects.uploads.remove(upload).unwrap();
                objects.kept.insert(key.to_owned(), parts.into_values().flatten().collect());
                Reply::new(
                    200,
                    "<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>",
                )
            }
            ("POST", None) if request.query("uploads").is_some() => {
                objects.started += 1;
                let id = format!("upload-{}", objects.started);
                objects.uploads.insert(id.clone(), BTreeMap::new());
                Reply::new(
                    200,
                    format!(
                        "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
                    ),
                )
            }
            ("POST", None) if request.query("delete").is_some() => delete_many(objects, request),
            ("DELETE", Some(upload)) => {
                objects.uploads.remove(upload);
                Reply::new(204, "")
            }
            ("DELETE", None) => {
                objects.kept.remove(key);
                Reply::new(204, "")
            }
            _ => Reply::xml_error(501, "NotImplemented"),
        }
    }
}

fn list(objects: &Objects, request: &Request) -> Reply {
    let prefix = request.query("prefix").unwrap_or_default();
    let after = request.query("start-after").unwrap_or_default();
    let mut body = String::from("<ListBucketResult>");
    for (key, bytes) in &objects.kept {
        if key.starts_with(prefix) && key.as_str() > after {
            let size = bytes.len();
            let date = "1994-11-06T08:49:37.000Z";
            write!(body, "<Contents><Key>{key}</Key><Size>{size}</Size><LastModified>{date}</LastModified><ETag>e</ETag></Contents>")
                .unwrap();
        }
    }
    Reply::new(200, format!("{body}</ListBucketResult>"))
}

fn get(objects: &Objects, key: &str, request: &Request) -> Reply {
    let Some(bytes) = objects.kept.get(key) else { return Reply::xml_error(404, "NoSuchKey") };
    let reply =
        |status, body: &[u8]| Reply::new(status, body).with("etag", "\"e\"").with("last-modified", DATE);
    match request.range() {
        None => reply(200, bytes),
        Some((start, _)) if start >= bytes.len() => Reply::xml_error(416, "InvalidRange"),
        Some((start, end)) => {
            let end = end.min(bytes.len() - 1);
            let range = format!("bytes {start}-{end}/{}", bytes.len());
            reply(206, &bytes[start..=end]).with("content-range", range)
        }
    }
}

fn delete_many(objects: &mut Objects, request: &Request) -> Reply {
    let asked = String::from_utf8(request.body.clone()).unwrap();
    let mut body = String::from("<DeleteResult>");
    for key in asked.split("<Key>").skip(1).filter_map(|rest| rest.split("</Key>").next()) {
        objects.kept.remove(key);
        write!(body, "<Deleted><Key>{key}</Key></Deleted>").unwrap();
    }
    Reply::new(200, format!("{body}</DeleteResult>"))
}
