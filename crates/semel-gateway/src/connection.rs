//! How a connection is used: whether a request is under way.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, sleep_until};
use tower_service::Service;

/// What is known of a connection's requests.
#[derive(Debug)]
pub(crate) struct Usage {
    since: Instant,
    /// Whether there was a request.
    has_begun: AtomicBool,
    under_way: AtomicUsize,
    /// When hyper had taken the last answer whole, in milliseconds after `since`.
    rests: AtomicU64,
}

impl Usage {
    /// Of a connection that was just made.
    pub(crate) fn new() -> Self {
        Self {
            since: Instant::now(),
            has_begun: AtomicBool::new(false),
            under_way: AtomicUsize::new(0),
            rests: AtomicU64::new(0),
        }
    }

    /// Whether there was a request.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Relaxed)
    }

    /// Returns once no request was under way for `limit`. It looks now and then: a timer for each request
    /// would have to be set and removed each time.
    pub(crate) async fn idleness(&self, limit: Duration) {
        let mut check = self.since + limit;
        loop {
            sleep_until(check).await;
            let now = Instant::now();
            check = if self.under_way.load(Ordering::Acquire) == 0 {
                self.rests() + limit
            } else {
                now + limit
            };
            if check <= now {
                return;
            }
        }
    }

    fn rests(&self) -> Instant {
        self.since + Duration::from_millis(self.rests.load(Ordering::Relaxed))
    }
}

/// A service whose requests are a connection's use.
#[derive(Debug, Clone)]
pub(crate) struct Used<S> {
    inner: S,
    usage: Arc<Usage>,
}

impl<S> Used<S> {
    pub(crate) const fn new(inner: S, usage: Arc<Usage>) -> Self {
        Self { inner, usage }
    }
}

impl<S, B, R> Service<Request<B>> for Used<S>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Response = Response<InUse<R>>;
    type Error = S::Error;
    type Future = InUse<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let under_way = UnderWay::begin(&self.usage);
        InUse {
            inner: self.inner.call(request),
            under_way: Some(under_way),
        }
    }
}

/// A request under way, until it is dropped.
#[derive(Debug)]
struct UnderWay(Arc<Usage>);

impl UnderWay {
    fn begin(usage: &Arc<Usage>) -> Self {
        usage.under_way.fetch_add(1, Ordering::AcqRel);
        usage.has_begun.store(true, Ordering::Relaxed);
        Self(Arc::clone(usage))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let since = self.0.since.elapsed().as_millis();
        let since = u64::try_from(since).unwrap_or(u64::MAX);
        self.0.rests.store(since, Ordering::Relaxed);
        self.0.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

pin_project_lite::pin_project! {
    /// A request's future, and then its answer's body.
    #[derive(Debug)]
    pub(crate) struct InUse<T> {
        #[pin]
        inner: T,
        under_way: Option<UnderWay>,
    }
}

impl<F, R, E> Future for InUse<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<InUse<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = ready!(this.inner.poll(cx));
        let under_way = this.under_way.take();
        Poll::Ready(answer.map(|answer| answer.map(|inner| InUse { inner, under_way })))
    }
}

impl<B: Body> Body for InUse<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.project().inner.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(20);

    async fn is_told(usage: &Usage) -> bool {
        timeout(LIMIT * 5, usage.idleness(LIMIT)).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn idle_is_who_has_no_request_under_way() {
        let usage = Arc::new(Usage::new());
        let first = UnderWay::begin(&usage);
        let second = UnderWay::begin(&usage);
        assert!(!is_told(&usage).await);
        drop(first);
        assert!(!is_told(&usage).await);
        drop(second);
        let since = Instant::now();
        usage.idleness(LIMIT).await;
        // Counted in whole milliseconds.
        assert!(since.elapsed() + Duration::from_millis(1) >= LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_is_who_never_asked() {
        let usage = Usage::new();
        assert!(is_told(&usage).await);
        assert!(!usage.has_begun());
    }
}
