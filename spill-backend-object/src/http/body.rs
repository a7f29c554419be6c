//! Bodies that are watched: a transfer may take as long as it likes, but not stand still.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use object_store::client::{HttpError, HttpRequestBody};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::{Lost, lost};

/// Bytes handed to the connection at once. It asks for more when they have gone out, which is what counts
/// as progress.
const PIECE: usize = 64 << 10;

/// When a request last made progress.
#[derive(Debug)]
pub(super) struct Watch {
    started: Instant,
    /// Milliseconds after the start.
    progress: AtomicU64,
    limit: Duration,
}

impl Watch {
    pub(super) fn new(limit: Duration) -> Self {
        Self { started: Instant::now(), progress: AtomicU64::new(0), limit }
    }

    fn note(&self) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.progress.store(now, Ordering::Relaxed);
    }

    /// Ends when there was no progress for the time allowed.
    pub(super) async fn silence(&self) {
        loop {
            let progress = Duration::from_millis(self.progress.load(Ordering::Relaxed));
            let due = self.started + progress + self.limit;
            if Instant::now() >= due {
                return;
            }
            sleep_until(due).await;
        }
    }
}

/// The body of a request, in pieces.
pub(super) struct Sent {
    body: HttpRequestBody,
    rest: Bytes,
    watch: Arc<Watch>,
}

impl Sent {
    pub(super) fn new(body: HttpRequestBody, watch: Arc<Watch>) -> Self {
        Self { body, rest: Bytes::new(), watch }
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        self.watch.note();
        while self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => self.rest = frame.into_data().unwrap_or_default(),
                end => return Poll::Ready(end),
            }
        }
        let length = self.rest.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let body = self.body.size_hint();
        body.exact().map_or_else(SizeHint::new, |length| SizeHint::with_exact(rest + length))
    }
}

/// The body of an answer. Only time spent waiting for it counts, not the time its reader takes.
pub(super) struct Received {
    body: reqwest::Body,
    limit: Duration,
    wait: Option<Pin<Box<Sleep>>>,
}

impl Received {
    pub(super) fn new(body: reqwest::Body, limit: Duration) -> Self {
        Self { body, limit, wait: None }
    }
}

impl Body for Received {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.wait = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(|error| lost(Lost::new(error)))));
        }
        let limit = self.limit;
        let wait = self.wait.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(wait.as_mut().poll(context));
        Poll::Ready(Some(Err(lost(Lost::silent(limit)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use object_store::client::HttpRequestBody;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    async fn next(sent: &mut Sent) -> Option<Bytes> {
        let frame = poll_fn(|context| Pin::new(&mut *sent).poll_frame(context)).await?;
        frame.unwrap().into_data().ok()
    }

    #[tokio::test(start_paused = true)]
    async fn s07_a_slow_upload_has_all_the_time_it_needs() {
        let watch = Arc::new(Watch::new(LIMIT));
        let bytes = Bytes::from(vec![7; 4 * PIECE + 1]);
        let mut sent = Sent::new(HttpRequestBody::from(bytes.clone()), Arc::clone(&watch));
        assert_eq!(sent.size_hint().exact(), Some(bytes.len() as u64));
        let before = Instant::now();
        let sending = async {
            let mut whole = Vec::new();
            while let Some(piece) = next(&mut sent).await {
                assert!(piece.len() <= PIECE);
                whole.extend_from_slice(&piece);
                sleep(LIMIT - Duration::from_secs(1)).await;
            }
            whole
        };
        let whole = tokio::select! {
            whole = sending => whole,
            () = watch.silence() => panic!("ended after {:?}", before.elapsed()),
        };
        assert!(whole == bytes);
        assert!(before.elapsed() > 4 * LIMIT, "this was no slow upload");
        assert!(sent.is_end_stream());
    }

    #[tokio::test(start_paused = true)]
    async fn s07_an_upload_that_stands_still_ends() {
        let watch = Arc::new(Watch::new(LIMIT));
        let mut sent = Sent::new(HttpRequestBody::from(vec![7; 2 * PIECE]), Arc::clone(&watch));
        sleep(Duration::from_secs(20)).await;
        next(&mut sent).await.unwrap();
        let before = Instant::now();
        watch.silence().await;
        let silent = before.elapsed();
        assert!(silent >= LIMIT && silent < LIMIT + Duration::from_millis(5), "{silent:?}");
    }
}
