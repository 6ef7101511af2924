//! A line in the log for each request, at the level `debug`.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Method, Request, Response, Uri};
use semel_tower::{OperationId, PROTECTED, Replayed};
use tokio::time::Instant;
use tower_service::Service;
use tracing::Level;

use crate::problem::Problem;

/// A service whose requests are logged: never their keys, fields or queries.
#[derive(Clone)]
pub(crate) struct Logged<S>(S);

impl<S> Logged<S> {
    pub(crate) const fn new(inner: S) -> Self {
        Self(inner)
    }
}

impl<S, B, R> Service<Request<B>> for Logged<S>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Answering<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let line = Line(tracing::enabled!(Level::DEBUG).then(|| Asked {
            method: request.method().clone(),
            uri: request.uri().clone(),
            since: Instant::now(),
        }));
        Answering {
            inner: self.0.call(request),
            line,
        }
    }
}

pin_project_lite::pin_project! {
    /// A request under way.
    pub(crate) struct Answering<F> {
        #[pin]
        inner: F,
        line: Line,
    }
}

impl<F, R, E> Future for Answering<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let answer = ready!(this.inner.poll(cx));
        if let Ok(response) = &answer {
            this.line.write(Some(response));
        }
        Poll::Ready(answer)
    }
}

/// The line of a request, until it is written; none where nobody wants it.
struct Line(Option<Asked>);

struct Asked {
    method: Method,
    uri: Uri,
    since: Instant,
}

impl Line {
    fn write<R>(&mut self, response: Option<&Response<R>>) {
        let Some(asked) = self.0.take() else {
            return;
        };
        let id = response.and_then(|answer| answer.extensions().get::<OperationId>());
        tracing::debug!(
            method = %asked.method,
            path = asked.uri.path(),
            status = response.map(|answer| answer.status().as_u16()),
            id = id.map(|operation| tracing::field::display(operation.id)),
            event = response.map_or("client_gone", event),
            ms = u64::try_from(asked.since.elapsed().as_millis()).unwrap_or(u64::MAX),
            "request"
        );
    }
}

impl Drop for Line {
    /// Nobody waits for the answer any more; an attempt goes on.
    fn drop(&mut self) {
        self.write::<()>(None);
    }
}

/// What happened to a request: the code of a problem, or how it was answered.
fn event<R>(answer: &Response<R>) -> &'static str {
    let extensions = answer.extensions();
    if let Some(problem) = extensions.get::<semel_tower::Problem>() {
        problem.code.as_str()
    } else if let Some(problem) = extensions.get::<Problem>() {
        problem.code()
    } else if extensions.get::<OperationId>().is_none() {
        "passed_on"
    } else if extensions.get::<Replayed>().is_some() {
        "replayed"
    } else if answer.headers().contains_key(PROTECTED) {
        "unprotected"
    } else {
        "ran"
    }
}
