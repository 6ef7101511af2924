//! A bound on the requests without a key that are on their way to the upstream, so that descriptors
//! are left for the store and for attempts.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response, StatusCode};
use pin_project_lite::pin_project;
use semel::guard::{AttemptInfo, Signal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower_service::Service;

use crate::body::Body;
use crate::metrics::Metrics;
use crate::problem::Problem;
use crate::upgrade::Held;
use crate::wellformed::Answer;

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
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Holding<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let extensions = request.extensions();
        let is_attempt = extensions.get::<AttemptInfo>().is_some();
        let held = extensions.get::<Arc<Held>>().cloned();
        let room = match is_attempt {
            true => None,
            false => Some(Arc::clone(&self.room).try_acquire_owned()),
        };
        let Ok(room) = room.transpose() else {
            self.metrics.event(Signal::Overloaded);
            return Holding {
                answer: Answer::Refused {
                    response: Some(Problem::Overloaded.respond()),
                },
                room: None,
                held: None,
            };
        };
        // Also until the request's body was passed on: an answer may come before that.
        let room = room.map(Arc::new);
        let request = match &room {
            Some(room) => request.map(|body| body.holding(Arc::clone(room))),
            None => request,
        };
        Holding {
            answer: Answer::Passed {
                future: self.inner.call(request),
            },
            room,
            held,
        }
    }
}

pin_project! {
    /// A request that holds its room.
    pub(crate) struct Holding<F> {
        #[pin]
        answer: Answer<F, Body>,
        room: Option<Arc<OwnedSemaphorePermit>>,
        held: Option<Arc<Held>>,
    }
}

impl<F> Future for Holding<F>
where
    F: Future<Output = Result<Response<Body>, Infallible>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let answer = ready!(this.answer.poll(cx))?;
        let Some(room) = this.room.take() else {
            return Poll::Ready(Ok(answer));
        };
        Poll::Ready(Ok(match this.held.take() {
            Some(held) if answer.status() == StatusCode::SWITCHING_PROTOCOLS => {
                held.hold(room);
                answer
            }
            _ => answer.map(|body| body.holding(room)),
        }))
    }
}
