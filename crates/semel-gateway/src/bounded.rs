//! A bound on what is on its way to the upstream, so that descriptors are left for the store.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use semel_tower::Disposition;
use tokio::sync::Semaphore;
use tower_service::Service;

use crate::body::Body;
use crate::problem::Problem;

/// A service that has so many requests at most, each until its answer was read to the end. Beyond it:
/// 503 `overloaded`, and nothing is sent.
#[derive(Debug, Clone)]
pub(crate) struct Bounded<S> {
    inner: S,
    room: Arc<Semaphore>,
}

impl<S> Bounded<S> {
    pub(crate) fn new(inner: S, at_once: usize) -> Self {
        let room = Arc::new(Semaphore::new(at_once.min(Semaphore::MAX_PERMITS)));
        Self { inner, room }
    }
}

impl<S> Service<Request<Body>> for Bounded<S>
where
    S: Service<
            Request<Body>,
            Response = Response<Body>,
            Error = Infallible,
            Future: Send + 'static,
        >,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Ok(room) = Arc::clone(&self.room).try_acquire_owned() else {
            return Box::pin(async {
                let mut response = Problem::Overloaded.respond();
                response.extensions_mut().insert(Disposition::Release);
                Ok(response)
            });
        };
        let answer = self.inner.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| body.holding(room))) })
    }
}
