//! An S3 server in this process: over a directory that goes with it, on a port of the loopback interface.
//!
//! It speaks real HTTP with signatures, so a client can't tell it from a service. It keeps no state beyond the
//! directory, and is not made to be fast.

use std::{net::SocketAddr, path::Path, sync::Arc};

use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use object_store::{
    ObjectStore,
    aws::{AmazonS3, AmazonS3Builder},
};
use s3s::{auth::SimpleAuth, service::S3ServiceBuilder};
use spill_core::BoxError;
use tempfile::TempDir;
use tokio::{net::TcpListener, runtime::Runtime};

const BUCKET: &str = "bucket";
const KEY: &str = "key";
const SECRET: &str = "secret";

/// Ends when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    runtime: Option<Runtime>,
    root: TempDir,
}

impl Server {
    /// A server with one empty bucket.
    pub(crate) fn start() -> Result<Self, BoxError> {
        let root = tempfile::tempdir()?;
        std::fs::create_dir(root.path().join(BUCKET))?;
        let files = s3s_fs::FileSystem::new(root.path()).map_err(|error| format!("{error:?}"))?;
        let mut service = S3ServiceBuilder::new(files);
        service.set_auth(SimpleAuth::from_single(KEY, SECRET));
        let service = service.build();
        // Threads of its own: the watchdog of the suite must not take its work for the store's.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let inside = runtime.enter();
        let listener = TcpListener::from_std(listener)?;
        runtime.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                // Otherwise each small answer waits 40 ms for the acknowledgement of its header.
                let _ = socket.set_nodelay(true);
                let service = service.clone();
                tokio::spawn(async move {
                    let server = Builder::new(TokioExecutor::new());
                    // A client that hangs up is no error of the server.
                    let _ = server.serve_connection(TokioIo::new(socket), service).await;
                });
            }
        });
        drop(inside);
        Ok(Self { address, runtime: Some(runtime), root })
    }

    /// A client of its own, for its bucket.
    pub(crate) fn bucket(&self) -> Result<Arc<dyn ObjectStore>, BoxError> {
        Ok(Arc::new(client(&self.endpoint(), BUCKET, KEY, SECRET)?))
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its directory, with a directory for the bucket in it.
    #[allow(dead_code, reason = "not every binary looks behind the server")]
    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A test drops it on a runtime of its own, where waiting for another is not allowed.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A client for a bucket of any S3 server.
pub(crate) fn client(
    endpoint: &str,
    bucket: &str,
    key: &str,
    secret: &str,
) -> Result<AmazonS3, object_store::Error> {
    AmazonS3Builder::new()
        .with_endpoint(endpoint)
        .with_allow_http(true)
        .with_region("us-east-1")
        .with_bucket_name(bucket)
        .with_access_key_id(key)
        .with_secret_access_key(secret)
        .build()
}
