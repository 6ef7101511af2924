//! What is told of each request: a line in the log, and the server's span.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::header::HOST;
use http::{HeaderMap, Method, Request, Response, Uri};
use hyper::service::Service;
use semel_tower::{OperationId, PROTECTED, Replayed, TraceParent};
use tokio::time::Instant;
use tracing::field::{Empty, display};
use tracing::{Level, Span};

use crate::problem::Problem;
use crate::telemetry::{self, ACCESS, SPANS, Told};

/// The field by which proxies and clients name a request.
const REQUEST_ID: &str = "x-request-id";
/// More of it is not logged.
const MOST_OF_ID: usize = 128;
/// A value that is so long stands in a path on purpose.
const LONG_ENOUGH: usize = 8;

/// A service whose requests are told of: never their keys, other fields or queries.
#[derive(Clone)]
pub(crate) struct Logged<S> {
    inner: S,
    has_spans: bool,
}

impl<S> Logged<S> {
    /// Each request has a span, or none has.
    pub(crate) const fn new(inner: S, has_spans: bool) -> Self {
        Self { inner, has_spans }
    }
}

impl<S, B, R> Service<Request<B>> for Logged<S>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Answering<S::Future>;

    fn call(&self, mut request: Request<B>) -> Self::Future {
        let is_told = self.has_spans || tracing::enabled!(target: ACCESS, Level::INFO);
        let asked = is_told.then(|| Box::new(Asked::new(&mut request, self.has_spans)));
        let entered = asked.as_ref().map(|asked| asked.span.enter());
        let inner = self.inner.call(request);
        drop(entered);
        Answering {
            inner,
            telling: Telling(asked),
        }
    }
}

pin_project_lite::pin_project! {
    /// A request under way.
    pub(crate) struct Answering<F> {
        #[pin]
        inner: F,
        telling: Telling,
    }
}

impl<F, R, E> Future for Answering<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let entered = this.telling.0.as_ref().map(|asked| asked.span.enter());
        let answer = ready!(this.inner.poll(cx));
        drop(entered);
        if let Ok(response) = &answer {
            this.telling.tell(Some(response));
        }
        Poll::Ready(answer)
    }
}

/// What there is to tell of a request, until that is done; nothing where nobody wants it.
struct Telling(Option<Box<Asked>>);

struct Asked {
    method: Method,
    path: Box<str>,
    request_id: Option<Box<str>>,
    since: Instant,
    told: Arc<Told>,
    span: Span,
}

impl Asked {
    fn new<B>(request: &mut Request<B>, has_span: bool) -> Self {
        let told = Arc::<Told>::default();
        request.extensions_mut().insert(Arc::clone(&told));
        let path = path(request.uri(), request.headers());
        let span = match has_span {
            true => server_span(request, &path),
            false => Span::none(),
        };
        if let Some(parent) = telemetry::as_parent(&span) {
            request.extensions_mut().insert(TraceParent(parent));
        }
        Self {
            method: request.method().clone(),
            path: path.into(),
            request_id: request_id(request.headers()).map(Into::into),
            since: Instant::now(),
            told,
            span,
        }
    }

    /// The span's name: what is asked of which route.
    fn name(&self) -> String {
        let method = match self.method {
            Method::GET
            | Method::HEAD
            | Method::POST
            | Method::PUT
            | Method::PATCH
            | Method::DELETE
            | Method::OPTIONS => self.method.as_str(),
            // Clients can make up others without end.
            _ => "HTTP",
        };
        match self.told.route.get() {
            Some(route) => format!("{method} {route}"),
            None => method.to_owned(),
        }
    }
}

fn server_span<B>(request: &Request<B>, path: &str) -> Span {
    let span = tracing::info_span!(
        target: SPANS,
        parent: None,
        "request",
        otel.kind = "server",
        otel.status_code = Empty,
        http.request.method = request.method().as_str(),
        http.response.status_code = Empty,
        http.route = Empty,
        url.path = path,
        semel.event = Empty,
        semel.id = Empty,
        semel.attempt = Empty,
    );
    telemetry::below_client(&span, request.headers());
    span
}

/// The path, without the parts that a field has too: that may be the key, and keys are in no log (protocol rule R12).
pub(crate) fn path(uri: &Uri, headers: &HeaderMap) -> String {
    // A service may be called like what it serves.
    let others = headers.iter().filter(|(name, _)| *name != HOST);
    let values = others.filter_map(|(_, value)| value.to_str().ok());
    let values = values.map(|value| value.trim_matches('"'));
    let values: Vec<_> = values.filter(|value| !value.is_empty()).collect();
    let hides = |part: &str, value: &&str| {
        part == *value || value.len() >= LONG_ENOUGH && part.contains(*value)
    };
    let parts = uri.path().split('/');
    let shown = parts.map(|part| match values.iter().any(|value| hides(part, value)) {
        true => "*",
        false => part,
    });
    shown.collect::<Vec<_>>().join("/")
}

/// What a client or a proxy calls its request, unless that is what it calls its operation too: keys are in
/// no log (protocol rule R12).
fn request_id(headers: &HeaderMap) -> Option<&str> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let others = headers.iter().filter(|(name, _)| *name != REQUEST_ID);
    let mut values = others.filter_map(|(_, value)| value.to_str().ok());
    let is_key = values.any(|value| value.contains(id));
    (!is_key && id.len() <= MOST_OF_ID).then_some(id)
}

impl Telling {
    fn tell<R>(&mut self, response: Option<&Response<R>>) {
        let Some(asked) = self.0.take() else {
            return;
        };
        let extensions = response.map(Response::extensions);
        let operation = extensions.and_then(|all| all.get::<OperationId>());
        let status = response.map(|answer| answer.status().as_u16());
        let event = response.map_or(CLIENT_GONE, event);
        let id = operation.map(|operation| display(operation.id));
        let attempt = operation.and_then(|operation| operation.attempt);
        let span = &asked.span;
        if !span.is_disabled() {
            telemetry::name(span, asked.name());
            span.record("http.route", asked.told.route.get().map(|route| &**route));
            span.record("http.response.status_code", status);
            span.record("semel.event", event);
            span.record("semel.id", &id);
            span.record("semel.attempt", attempt);
            if status.is_some_and(|status| status >= 500) {
                span.record("otel.status_code", "ERROR");
            }
            if let Some(first) = extensions.and_then(|all| all.get::<TraceParent>()) {
                telemetry::link(span, &first.0);
            }
        }
        let trace = (!span.is_disabled()).then(|| telemetry::context_of(span).trace_id());
        tracing::info!(
            target: ACCESS,
            method = %asked.method,
            path = &*asked.path,
            route = asked.told.route.get().map(|route| &**route),
            status,
            id,
            attempt,
            event,
            ms = millis(asked.since.elapsed()),
            upstream_ms = asked.told.upstream.get().copied().map(millis),
            request_id = asked.request_id.as_deref(),
            trace_id = trace.map(display),
            "request"
        );
    }
}

impl Drop for Telling {
    /// Nobody waits for the answer any more; an attempt goes on.
    fn drop(&mut self) {
        self.tell::<()>(None);
    }
}

/// To the microsecond.
pub(crate) fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// What became of a request whose client did not wait for it.
pub(crate) const CLIENT_GONE: &str = "client_gone";

/// What happened to a request: the code of a problem, or how it was answered.
pub(crate) fn event<R>(answer: &Response<R>) -> &'static str {
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
