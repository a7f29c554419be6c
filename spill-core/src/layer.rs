//! The contract of a layer, which wraps a store to add something: retries, a time-out, a limit, a fault.

use std::{fmt, sync::Arc};

use crate::Store;

/// Wraps a store into another one.
///
/// The built-in ones are in [`layers`](crate::layers). Layers are applied in the order they are named:
/// the last one is outermost.
pub trait Layer: fmt::Debug + Send + Sync + 'static {
    /// The store with this layer around it.
    fn layer(&self, inner: Arc<dyn Store>) -> Arc<dyn Store>;
}
