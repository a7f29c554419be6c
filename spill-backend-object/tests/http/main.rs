//! Stores of services over real sockets, against a server that answers as it is told to: each trap that an
//! HTTP client can fall into, and what a store makes of it.

#![allow(clippy::unwrap_used, reason = "a test ends with a panic")]

mod azure;
mod bucket;
mod config;
mod delete;
mod gcs;
mod open;
mod server;
mod traps;
mod upload;

use std::sync::Arc;

use spill_backend_object::S3Factory;
use spill_core::{BlobId, Options, Store, StoreError, StoreFactory};

use self::{
    bucket::Bucket,
    server::{Action, Request, Server},
};

const SECRET: &str = "hunter2hunter2";

fn id(number: u64) -> BlobId {
    BlobId::new(number)
}

/// Options for S3 at this server.
fn s3_options(server: &Server) -> Options {
    Options::new()
        .with("endpoint", &server.url)
        .with("allow_http", "true")
        .with("access_key_id", "me")
        .with("secret_access_key", SECRET)
}

async fn open_s3(options: Options) -> Result<Arc<dyn Store>, StoreError> {
    let factory = S3Factory::new().with_environment([("NOTHING", "")]);
    factory.open(&"s3://bucket/some/prefix".parse().unwrap(), options).await
}

/// A store in a bucket whose server answers as `fault` says, where it says something. It was asked nothing
/// yet.
async fn s3(
    fault: impl FnMut(&Request) -> Option<Action> + Send + 'static,
    change: impl FnOnce(Options) -> Options,
) -> (Server, Bucket, Arc<dyn Store>) {
    let (server, bucket) = Bucket::serve(fault).await;
    let store = open_s3(change(s3_options(&server))).await.unwrap();
    server.take();
    (server, bucket, store)
}

/// What to answer to the first request that fits, and is not about life.
fn once(
    fits: impl Fn(&Request) -> bool + Send + 'static,
    answer: impl Into<Action>,
) -> impl FnMut(&Request) -> Option<Action> + Send + 'static {
    let mut answer = Some(answer.into());
    move |request| if fits(request) && !request.is_about_life() { answer.take() } else { None }
}

/// What to answer to every request that fits, and is not about life.
fn always(
    fits: impl Fn(&Request) -> bool + Send + 'static,
    answer: server::Reply,
) -> impl FnMut(&Request) -> Option<Action> + Send + 'static {
    move |request| (fits(request) && !request.is_about_life()).then(|| answer.clone().into())
}

/// Requests for the bytes of a blob.
fn reads(request: &Request) -> bool {
    request.method == "GET" && request.header("range").is_some()
}

fn puts(request: &Request) -> bool {
    request.method == "PUT"
}
