//! Forwarding to the upstream, and telling "nothing was sent" from "nobody knows".

use std::convert::Infallible;
use std::error::Error as _;
use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::HeaderValue;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, Response, Uri, Version};
use hyper::body::Incoming;
use hyper_util::client::legacy;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{HttpConnector, capture_connection};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use semel::guard::AttemptInfo;
use semel_tower::Disposition;
use tower_service::Service;

use crate::body::{Body, Progress};
use crate::headers;
use crate::metrics::Metrics;
use crate::problem::Problem;

/// Who sent a request: an extension of it.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub IpAddr);

/// The innermost service: sends requests to the upstream. Its answers carry a [`Disposition`] where
/// there is none of the upstream's.
#[derive(Clone)]
pub struct Proxy(Arc<Inner>);

struct Inner {
    client: Client<HttpConnector, Body>,
    upstream: Authority,
    host: HeaderValue,
    silence: Option<Duration>,
    metrics: Arc<Metrics>,
}

/// How long making a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections are not used again after this. A connection that the upstream closes while a request
/// is on its way makes an outcome unknown. Common servers close idle connections after 2 s to 75 s:
/// this stays below.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);

impl Proxy {
    /// A proxy to this host, which is given up when it is silent for longer than `silence`.
    ///
    /// # Errors
    /// An authority that cannot stand in a header field.
    pub fn new(
        upstream: Authority,
        silence: Option<Duration>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, http::header::InvalidHeaderValue> {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            // Sending again is decided here, where it is known whether the body can be.
            .retry_canceled_requests(false)
            .set_host(false)
            .build(connector);
        Ok(Self(Arc::new(Inner {
            client,
            host: HeaderValue::from_str(upstream.as_str())?,
            upstream,
            silence,
            metrics,
        })))
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("upstream", &self.0.upstream)
            .finish_non_exhaustive()
    }
}

impl Service<Request<Body>> for Proxy {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let inner = Arc::clone(&self.0);
        Box::pin(async move { Ok(inner.answer(request).await) })
    }
}

/// Why there is no answer of the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// No connection was made in time, or at all: nothing was sent.
    Unreached,
    /// A connection was there, and closed before the request was begun to be sent.
    Unsent,
    /// The client's body failed after a part of it was sent.
    ClientBody,
    /// The request was sent, or begun to be, and the connection broke.
    Unanswered,
    /// The request was sent, or begun to be, and the upstream was silent for too long.
    Silent,
}

impl Failure {
    /// The name in metrics and logs.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Unreached => "unreached",
            Self::Unsent => "unsent",
            Self::ClientBody => "client_body",
            Self::Unanswered => "unanswered",
            Self::Silent => "silent",
        }
    }

    const fn problem(self) -> Problem {
        match self {
            Self::Unreached | Self::Unsent => Problem::Unreachable,
            Self::ClientBody => Problem::IncompleteBody,
            Self::Unanswered => Problem::Failed,
            Self::Silent => Problem::Timeout,
        }
    }

    /// What is to become of the record: only where nothing was sent is it known that nothing
    /// happened.
    const fn disposition(self) -> Disposition {
        match self {
            Self::Unreached | Self::Unsent => Disposition::Release,
            Self::ClientBody | Self::Unanswered | Self::Silent => Disposition::Unknown,
        }
    }
}

impl Inner {
    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        if *request.method() == Method::CONNECT || headers::asks_for_upgrade(request.headers()) {
            let mut response = Problem::NotSupported.respond();
            response.extensions_mut().insert(Disposition::Release);
            return response;
        }
        let (mut parts, body) = request.into_parts();
        let attempt = parts.extensions.remove::<AttemptInfo>();
        let peer = parts.extensions.get::<Peer>().map(|peer| peer.0);
        let target = parts.uri.authority();
        headers::to_upstream(&mut parts.headers, target, &self.host, peer, attempt);
        parts.uri = self.target(&parts.uri);
        parts.version = Version::HTTP_11;
        parts.extensions.clear();
        match self.send(Request::from_parts(parts, body)).await {
            Ok(response) => {
                let (mut parts, body) = response.into_parts();
                headers::to_client(&mut parts.headers);
                parts.extensions.clear();
                // An answer that is to be kept is read whole, so its silence counts; a stream
                // without a key may be silent for as long as it likes.
                let silence = self.silence.filter(|_| attempt.is_some());
                Response::from_parts(parts, Body::stream(body, silence))
            }
            Err(failure) => {
                self.metrics.upstream_failure(failure.as_str());
                let mut response = failure.problem().respond();
                response.extensions_mut().insert(failure.disposition());
                response
            }
        }
    }

    /// Sends a request; once more where it is certain that nothing was sent and the body is still
    /// there.
    async fn send(&self, request: Request<Body>) -> Result<Response<Incoming>, Failure> {
        let Some(body) = request.body().again() else {
            return self.send_once(request).await;
        };
        let (parts, first) = request.into_parts();
        let again = Request::from_parts(parts.clone(), body);
        match self.send_once(Request::from_parts(parts, first)).await {
            Err(Failure::Unsent) => self.send_once(again).await,
            sent => sent,
        }
    }

    async fn send_once(&self, mut request: Request<Body>) -> Result<Response<Incoming>, Failure> {
        let connection = capture_connection(&mut request);
        let progress = Progress::new();
        request.body_mut().report_to(&progress);
        // The client takes a connection for this request, and tells `connection` so, before it
        // writes the first byte.
        let unconnected = || connection.connection_metadata().is_none();
        tokio::select! {
            biased;
            answer = self.client.request(request) => answer.map_err(|error| {
                let failure = if unconnected() { Failure::Unreached } else { kind_of(&error) };
                let cause = error.source().map(ToString::to_string).unwrap_or_default();
                tracing::warn!(failure = failure.as_str(), "upstream: {error}: {cause}");
                failure
            }),
            () = progress.ceases(self.silence) => {
                let failure = if unconnected() { Failure::Unreached } else { Failure::Silent };
                tracing::warn!(failure = failure.as_str(), "upstream: no answer in time");
                Err(failure)
            }
        }
    }

    fn target(&self, uri: &Uri) -> Uri {
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(Scheme::HTTP);
        parts.authority = Some(self.upstream.clone());
        let path = uri.path_and_query().cloned();
        parts.path_and_query = Some(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
        // With all three parts there is nothing to refuse.
        Uri::from_parts(parts).unwrap_or_default()
    }
}

/// What an error says that came after a connection was taken for the request.
///
/// hyper answers "canceled" if and only if it hands the request back because it was not begun to be
/// written: the connection was found closed with the request still in its queue
/// (`hyper::client::conn::http1::SendRequest::try_send_request`). Every other error may have come
/// after the first byte.
fn kind_of(error: &legacy::Error) -> Failure {
    if error.is_connect() {
        return Failure::Unreached;
    }
    match error
        .source()
        .and_then(|e| e.downcast_ref::<hyper::Error>())
    {
        Some(error) if error.is_canceled() => Failure::Unsent,
        Some(error) if is_body_error(error) => Failure::ClientBody,
        _ => Failure::Unanswered,
    }
}

fn is_body_error(error: &hyper::Error) -> bool {
    error
        .source()
        .is_some_and(|cause| cause.is::<crate::body::BodyError>())
}
