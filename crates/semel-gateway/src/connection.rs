//! How a connection is used: whether a request is under way, and whether the client takes its answer.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::service::Service;
use tokio::time::{Instant, sleep, sleep_until};

/// What is known of a connection's requests.
#[derive(Debug)]
pub(crate) struct Usage {
    since: Instant,
    /// Whether there was a request.
    has_begun: AtomicBool,
    under_way: AtomicUsize,
    /// When hyper had taken the last answer whole, in milliseconds after `since`.
    rests: AtomicU64,
    /// How many answers wait for the client to take more of them.
    waiting: AtomicUsize,
    /// Counts halves of the time in which it has to: reading a clock for each piece would take longer than the rest.
    half: AtomicU64,
    /// The half in which it last took of one, or the first began to wait.
    taken: AtomicU64,
}

impl Usage {
    /// Of a connection that was just made.
    pub(crate) fn new() -> Self {
        Self {
            since: Instant::now(),
            has_begun: AtomicBool::new(false),
            under_way: AtomicUsize::new(0),
            rests: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            half: AtomicU64::new(0),
            taken: AtomicU64::new(0),
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

    /// Returns once the client took nothing of its answers for `limit`, and at most half as long again. One that
    /// takes of some of them is left alone: it may speak for many.
    pub(crate) async fn refusal(&self, limit: Duration) {
        loop {
            sleep(limit / 2).await;
            let half = self.half.fetch_add(1, Ordering::Relaxed) + 1;
            let waits = self.waiting.load(Ordering::Relaxed) > 0;
            // The first of the halves may have been no whole one.
            if waits && half - self.taken.load(Ordering::Relaxed) > 2 {
                return;
            }
        }
    }

    fn takes(&self) {
        let half = self.half.load(Ordering::Relaxed);
        self.taken.store(half, Ordering::Relaxed);
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

    fn call(&self, request: Request<B>) -> Self::Future {
        let under_way = UnderWay::begin(&self.usage);
        InUse {
            inner: self.inner.call(request),
            under_way: Some(under_way),
        }
    }
}

/// A request under way, until it is dropped.
#[derive(Debug)]
struct UnderWay {
    usage: Arc<Usage>,
    /// Its answer waits for the client.
    waits: bool,
}

impl UnderWay {
    fn begin(usage: &Arc<Usage>) -> Self {
        usage.under_way.fetch_add(1, Ordering::AcqRel);
        usage.has_begun.store(true, Ordering::Relaxed);
        Self {
            usage: Arc::clone(usage),
            waits: false,
        }
    }

    /// What was there of the answer is taken. Now the client is waited for, or else the upstream.
    fn goes_on(&mut self, waits: bool) {
        let usage = &self.usage;
        let others = match (self.waits, waits) {
            (false, true) => usage.waiting.fetch_add(1, Ordering::Relaxed),
            (true, false) => usage.waiting.fetch_sub(1, Ordering::Relaxed),
            _ => 1,
        };
        if self.waits || others == 0 {
            usage.takes();
        }
        self.waits = waits;
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.goes_on(false);
        let since = self.usage.since.elapsed().as_millis();
        let since = u64::try_from(since).unwrap_or(u64::MAX);
        self.usage.rests.store(since, Ordering::Relaxed);
        self.usage.under_way.fetch_sub(1, Ordering::AcqRel);
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
        let mut under_way = this.under_way.take();
        // It may be that nothing of it is ever asked for.
        under_way.iter_mut().for_each(|it| it.goes_on(true));
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
        let this = self.project();
        let frame = this.inner.poll_frame(cx);
        let waits = matches!(frame, Poll::Ready(Some(_)));
        this.under_way.iter_mut().for_each(|it| it.goes_on(waits));
        frame
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
    use futures_util::future::join;
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

    /// Who waits for the upstream refuses nothing, nor who takes of one answer.
    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_of_its_answers_is_told() {
        let usage = Arc::new(Usage::new());
        let refuses = async || timeout(LIMIT * 5, usage.refusal(LIMIT)).await.is_ok();
        let [mut first, mut second] = [0; 2].map(|_| UnderWay::begin(&usage));
        assert!(!refuses().await);
        first.goes_on(true);
        second.goes_on(true);
        let since = Instant::now();
        assert!(refuses().await);
        assert!(since.elapsed() >= LIMIT);
        second.goes_on(false);
        assert!(refuses().await);
        let takes = async {
            for _ in 0..20 {
                second.goes_on(true);
                sleep(LIMIT / 2).await;
            }
        };
        assert!(
            timeout(LIMIT * 9, join(usage.refusal(LIMIT), takes))
                .await
                .is_err()
        );
        drop(first);
        drop(second);
        assert!(!refuses().await);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_is_who_never_asked() {
        let usage = Usage::new();
        assert!(is_told(&usage).await);
        assert!(!usage.has_begun());
    }
}
