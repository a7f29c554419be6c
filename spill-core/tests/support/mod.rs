//! A registry as a facade would build it, of components that do nothing.

use std::sync::Arc;

use spill_core::{
    Arrival, CompressError, Compressor, Marks, MemoryStore, Options, Policy, Registry, Slot, Store,
    StoreError, StoreFactory, Tag, Touch,
};

#[derive(Debug)]
struct NoPolicy(&'static str);

impl Policy for NoPolicy {
    fn name(&self) -> &'static str {
        self.0
    }
    fn touch(&self) -> Touch {
        Touch::Nothing
    }
    fn admit(&mut self, _: &Arrival) {}
    fn forget(&mut self, _: Slot) {}
    fn victim(&mut self, _: &dyn Marks) -> Option<Slot> {
        None
    }
}

#[derive(Debug)]
pub(crate) struct Copies(pub(crate) &'static str, pub(crate) Tag);

impl Compressor for Copies {
    fn tag(&self) -> Tag {
        self.1
    }
    fn name(&self) -> &'static str {
        self.0
    }
    fn bound(&self, raw: usize) -> usize {
        raw
    }
    fn compress(&self, raw: &[u8], out: &mut [u8]) -> Result<usize, CompressError> {
        out[..raw.len()].copy_from_slice(raw);
        Ok(raw.len())
    }
    fn decompress(&self, packed: &[u8], out: &mut [u8]) -> Result<(), CompressError> {
        out.copy_from_slice(packed);
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct NoFiles;

#[async_trait::async_trait]
impl StoreFactory for NoFiles {
    async fn open(&self, _: &url::Url, _: Options) -> Result<Arc<dyn Store>, StoreError> {
        Ok(Arc::new(MemoryStore::new()))
    }
}

fn zstd(level: Option<&str>) -> Result<Arc<dyn Compressor>, String> {
    match level.map(str::parse::<i32>) {
        None | Some(Ok(1..=22)) => Ok(Arc::new(Copies("zstd", Tag::ZSTD))),
        _ => Err("levels are 1 to 22".to_owned()),
    }
}

fn lz4(level: Option<&str>) -> Result<Arc<dyn Compressor>, String> {
    match level {
        None => Ok(Arc::new(Copies("lz4", Tag::LZ4))),
        Some(_) => Err("it has no levels".to_owned()),
    }
}

/// Files, lz4 and zstd are compiled in; object storage and snappy are not.
pub(crate) fn registry() -> Registry {
    ["lru", "fifo", "clock", "s3-fifo", "sieve"]
        .into_iter()
        .fold(Registry::new(), |registry, name| registry.with_policy(name, move || Box::new(NoPolicy(name))))
        .with_store("file", Arc::new(NoFiles))
        .with_compressor("lz4", lz4)
        .with_compressor("zstd", zstd)
        .with_known_feature("s3", "object")
        .with_known_feature("snappy", "snappy")
}
