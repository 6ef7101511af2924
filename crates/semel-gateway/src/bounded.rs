//! A bound on the requests without a key that are on their way to the upstream, so that descriptors
//! are left for the store and for attempts.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response, StatusCode};
use semel::guard::{AttemptInfo, Signal};
use tokio::sync::Semaphore;
use tower_service::Service;

use crate::body::Body;
use crate::metrics::Metrics;
use crate::problem::Problem;
use crate::upgrade::Held;

/// A service that has so many requests without a key at most, each until its answer was read to the
/// end, or its tunnel is closed. Beyond it: 503 `overloaded`, and nothing is sent. Attempts pass: the layer bounds them before
/// it claims.
#[derive(Debug, Clone)]
pub(crate) struct Bounded<S> {
    inner: S,
    room: Arc<Semaphore>,
    metrics: Arc<Metrics>,
}

impl<S> Bounded<S> {
    /// All that share the room are bounded together.
    pub(crate) const fn new(inner: S, room: Arc<Semaphore>, metrics: Arc<Metrics>) -> Self {
        Self {
            inner,
            room,
            metrics,
        }
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
        if request.extensions().get::<AttemptInfo>().is_some() {
            return Box::pin(self.inner.call(request));
        }
        let Ok(room) = Arc::clone(&self.room).try_acquire_owned() else {
            self.metrics.event(Signal::Overloaded);
            return Box::pin(async { Ok(Problem::Overloaded.respond()) });
        };
        let held = request.extensions().get::<Arc<Held>>().cloned();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            match held {
                Some(held) if answer.status() == StatusCode::SWITCHING_PROTOCOLS => {
                    held.hold(room);
                    Ok(answer)
                }
                _ => Ok(answer.map(|body| body.holding(room))),
            }
        })
    }
}
