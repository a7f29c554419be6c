//! Futures that are dropped half-way.

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
};

/// Lets whatever runs in the background come to its end: more turns than anything here takes.
pub(crate) async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// Polls `future` at most `polls` times, then drops it. `None` when it was not done by then.
pub(crate) async fn poll_at_most<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..polls {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Some(output);
        }
        // What the future has spawned gets its turn.
        tokio::task::yield_now().await;
    }
    None
}
