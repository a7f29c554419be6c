//! The built-in layers around a store.
//!
//! [`Retry`] repeats what may pass, [`Timeout`] ends what takes too long, [`ConcurrencyLimit`] bounds what is
//! under way at once, [`AdaptiveLimit`] finds that bound by itself.
//! The contract is [`Layer`](crate::Layer); the last layer is outermost, so a limit, then
//! a time-out, then retries gives every try its own time and its own place in the queue:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), spill_core::StoreError> {
//! use std::{sync::Arc, time::Duration};
//! use spill_core::{BlobId, Layer, MemoryStore, Store, layers::{ConcurrencyLimit, Retry, Timeout}};
//!
//! let layers: [&dyn Layer; 3] =
//!     [&ConcurrencyLimit::new(16), &Timeout::new(Duration::from_secs(30)), &Retry::new(3)];
//! let mut store: Arc<dyn Store> = Arc::new(MemoryStore::new());
//! for layer in layers {
//!     store = layer.layer(store);
//! }
//! store.put(BlobId::new(1), b"payload".to_vec().into()).await?;
//! assert_eq!(store.get(BlobId::new(1), 0..3).await?, "pay");
//! assert_eq!(store.info().name, "memory:");
//! # Ok(())
//! # }
//! ```
//!
//! Note that a place in the queue counts against the time-out here; in the other order it does not.

mod adaptive;
mod gate;
mod limit;
mod retry;
mod timeout;

#[cfg(test)]
mod scripted;

pub use adaptive::AdaptiveLimit;
pub use limit::ConcurrencyLimit;
pub use retry::Retry;
pub use timeout::Timeout;
