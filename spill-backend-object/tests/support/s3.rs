//! An S3 server in this process: over a directory that goes with it, on a port of the loopback interface.
//!
//! It speaks real HTTP with signatures, so a client can't tell it from a service. It keeps no state beyond the
//! directory, and is not made to be fast.

use std::{net::SocketAddr, path::Path, sync::Arc};

use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use object_store::{ObjectStore, aws::AmazonS3Builder};
use s3s::{auth::SimpleAuth, service::S3ServiceBuilder};
use spill_backend_object::S3Factory;
use spill_core::{BoxError, Options, Store, StoreError, StoreErrorKind, StoreFactory};
use tempfile::TempDir;
use tokio::{net::TcpListener, runtime::Runtime};
use url::Url;

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

    /// Its bucket, and who may use it.
    pub(crate) fn bucket(&self) -> Bucket {
        bucket_at(format!("http://{}", self.address))
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

/// The bucket of such a server at this address, and who may use it.
pub(crate) fn bucket_at(endpoint: String) -> Bucket {
    Bucket { endpoint, name: BUCKET.to_owned(), key: KEY.to_owned(), secret: SECRET.to_owned() }
}

/// A bucket of any S3 server, and who may use it.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    pub(crate) endpoint: String,
    pub(crate) name: String,
    pub(crate) key: String,
    pub(crate) secret: String,
}

impl Bucket {
    /// A store under a prefix, as a configuration opens it. It shows every second that it lives.
    #[allow(dead_code, reason = "not every binary opens a store from a URL")]
    pub(crate) async fn open(self, prefix: String) -> Result<Arc<dyn Store>, StoreError> {
        let refused =
            |error| StoreError::new(StoreErrorKind::Other, "open", self.endpoint.clone()).with_source(error);
        let url = Url::parse(&format!("s3://{}/{prefix}", self.name)).map_err(refused)?;
        let options = Options::new()
            .with("endpoint", self.endpoint)
            .with("allow_http", "true")
            .with("region", "us-east-1")
            .with("owner", "conformance")
            .with("heartbeat", "1s")
            .with("access_key_id", self.key)
            .with("secret_access_key", self.secret);
        S3Factory::new().open(&url, options).await
    }

    /// What looks past the store: a client of `object_store`'s own.
    pub(crate) fn client(&self) -> Result<Arc<dyn ObjectStore>, BoxError> {
        let client = AmazonS3Builder::new()
            .with_endpoint(&self.endpoint)
            .with_allow_http(true)
            .with_region("us-east-1")
            .with_bucket_name(&self.name)
            .with_access_key_id(&self.key)
            .with_secret_access_key(&self.secret);
        Ok(Arc::new(client.build()?))
    }
}
