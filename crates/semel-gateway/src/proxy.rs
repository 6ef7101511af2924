//! Forwarding to the upstream, and telling "nothing was sent" from "nobody knows".

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{HeaderValue, InvalidHeaderValue, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::upgrade::{self, OnUpgrade};
use semel::guard::AttemptInfo;
use semel_tower::{Disposition, TraceParent, is_event_stream};
use tokio::time::Instant;
use tower_service::Service;
use tracing::Span;
use tracing::field::Empty;

use crate::body::{Body, Progress};
use crate::command::with_causes;
use crate::config::Route;
use crate::connector;
use crate::headers::{self, Rules};
use crate::logged;
use crate::metrics::{Metrics, RouteMetrics};
use crate::pool::{self, Lent, NotAnswered, Pools};
use crate::problem::Problem;
use crate::telemetry::{self, SPANS, Told};
use crate::upgrade::{Held, Tunnel};
use crate::upstream::Upstreams;

/// The innermost service: sends requests to the upstream. Its answers carry a [`Disposition`] where
/// there is none of the upstream's.
#[derive(Clone)]
pub struct Proxy(Arc<Inner>);

struct Inner {
    upstreams: Upstreams,
    rules: Arc<Rules>,
    silence: Option<Duration>,
    /// Of larger answers nothing is kept.
    max_kept: usize,
    metrics: Arc<Metrics>,
    counted: Arc<RouteMetrics>,
    has_spans: bool,
}

impl Proxy {
    /// To the upstreams of a route.
    ///
    /// # Errors
    /// One whose name cannot stand in a header field.
    pub(crate) fn new(
        route: &Route,
        pools: &Pools,
        rules: Arc<Rules>,
        metrics: Arc<Metrics>,
        counted: Arc<RouteMetrics>,
        has_spans: bool,
    ) -> Result<Self, InvalidHeaderValue> {
        Ok(Self(Arc::new(Inner {
            upstreams: pools.of(route)?,
            rules,
            silence: route.upstream_timeout,
            max_kept: route.max_body,
            metrics,
            counted,
            has_spans,
        })))
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("upstreams", &self.0.upstreams)
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
        // Nothing of this waits: what it needs has no place in the future.
        let (request, asked) = self.0.to_upstream(request);
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            let began = Instant::now();
            Ok(match inner.send(request, asked.leaving.is_some()).await {
                Ok(answer) => inner.to_client(answer, asked, began.elapsed()),
                Err((failure, why)) => inner.failed(failure, &why, &asked),
            })
        })
    }
}

/// What is known of a request that is under way to the upstream.
struct Asked {
    method: Method,
    target: Uri,
    /// The gateway's own: what a client sends by this name is removed.
    id: Option<HeaderValue>,
    leaving: Option<(OnUpgrade, Option<Arc<Held>>)>,
    told: Option<Arc<Told>>,
    /// The server's span, and that of the upstream's call.
    spans: Option<(Span, Span)>,
}

/// Why there is no answer of the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// No connection was made in time, or at all: nothing was sent.
    Unreached,
    /// The gateway had no descriptor, port or memory for a connection: nothing was sent.
    Starved,
    /// A connection was there, and closed before the request was begun to be sent; or the upstream says
    /// that it did nothing with it.
    Unsent,
    /// The client's body failed after a part of it was sent.
    ClientBody,
    /// The request was sent, or begun to be, and the connection broke.
    Unanswered,
    /// The request was sent, and what came back is no answer to it.
    Invalid,
    /// The request was sent, or begun to be, and the upstream was silent for too long.
    Silent,
}

impl Failure {
    pub(crate) const ALL: [Self; 7] = [
        Self::Unreached,
        Self::Starved,
        Self::Unsent,
        Self::ClientBody,
        Self::Unanswered,
        Self::Invalid,
        Self::Silent,
    ];

    /// The name in metrics and logs.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Unreached => "unreached",
            Self::Starved => "starved",
            Self::Unsent => "unsent",
            Self::ClientBody => "client_body",
            Self::Unanswered => "unanswered",
            Self::Invalid => "invalid",
            Self::Silent => "silent",
        }
    }

    const fn problem(self) -> Problem {
        match self {
            Self::Unreached | Self::Unsent => Problem::Unreachable,
            Self::ClientBody => Problem::IncompleteBody,
            Self::Starved => Problem::Overloaded,
            Self::Unanswered | Self::Invalid => Problem::Failed,
            Self::Silent => Problem::Timeout,
        }
    }

    /// What is to become of the record: only where nothing was sent is it known that nothing
    /// happened.
    const fn disposition(self) -> Disposition {
        match self {
            Self::Unreached | Self::Starved | Self::Unsent => Disposition::Release,
            Self::ClientBody | Self::Unanswered | Self::Invalid | Self::Silent => {
                Disposition::Unknown
            }
        }
    }
}

impl Inner {
    /// A request as the upstream gets it.
    fn to_upstream(&self, request: Request<Body>) -> (Request<Body>, Asked) {
        let (mut parts, body) = request.into_parts();
        let attempt = parts.extensions.remove::<AttemptInfo>();
        let target = parts.uri.authority();
        self.rules
            .to_upstream(&mut parts.headers, target, attempt.as_ref());
        if !body.is_end_stream() && body.size_hint().exact().is_none() {
            // Without this hyper takes GET and HEAD to have no body.
            let chunked = HeaderValue::from_static("chunked");
            parts.headers.insert(TRANSFER_ENCODING, chunked);
        }
        let leaving = self.leaving(&mut parts, attempt.is_some());
        parts.version = Version::HTTP_11;
        let told = parts.extensions.remove::<Arc<Told>>();
        parts.extensions.clear();
        let spans = self
            .has_spans
            .then(|| (Span::current(), self.span(&mut parts)));
        let asked = Asked {
            method: parts.method.clone(),
            target: parts.uri.clone(),
            id: attempt.and_then(|_| parts.headers.get(headers::ID).cloned()),
            leaving,
            told,
            spans,
        };
        (Request::from_parts(parts, body.under(&self.rules)), asked)
    }

    /// The upstream's answer as the client gets it.
    fn to_client(
        &self,
        (mut response, mut connection): (Response<Incoming>, Lent),
        asked: Asked,
        took: Duration,
    ) -> Response<Body> {
        self.counted.upstream_answered(took);
        if let Some(told) = asked.told {
            told.upstream.set(took).ok();
        }
        let leaves = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let upstream = leaves.then(|| upgrade::on(&mut response));
        let (mut parts, body) = response.into_parts();
        headers::to_client(&mut parts.headers, leaves);
        if let (Some(upstream), Some((client, held))) = (upstream, asked.leaving) {
            let tunnel = Tunnel {
                client,
                upstream,
                held,
                busy: connection.busy(),
            };
            tokio::spawn(tunnel.run(Arc::clone(&self.metrics)));
        }
        // The gateway's, not the upstream's: else hyper answers as HTTP/1.0, and closes.
        let version = std::mem::replace(&mut parts.version, Version::HTTP_11);
        parts.extensions.clear();
        if let Some((here, span)) = asked.spans {
            span.record("http.response.status_code", parts.status.as_u16());
            if let Some(this) = telemetry::as_parent(&here) {
                parts.extensions.insert(TraceParent(this));
            }
        }
        // An answer that is to be kept is read whole, so its silence counts; what is passed on may be silent for
        // as long as it likes.
        let is_kept = asked.id.is_some() && !is_event_stream(&parts.headers);
        let silence = self.silence.filter(|_| is_kept);
        let silence = silence.map(|silence| (silence, self.max_kept));
        Response::from_parts(parts, Body::answer(body, version, silence, connection))
    }

    /// What the client gets where there is no answer, and what is told of it.
    fn failed(&self, failure: Failure, why: &str, asked: &Asked) -> Response<Body> {
        let method = &asked.method;
        let name = failure.as_str();
        self.metrics.upstream_failure(name);
        let id = asked.id.as_ref().and_then(|id| id.to_str().ok());
        // An operation has its id; its path may have its key in it (protocol rule R12).
        let path = id.is_none().then(|| asked.target.path());
        if let Some((_, span)) = &asked.spans {
            span.record("otel.status_code", "ERROR");
            span.record("error.type", name);
        }
        if failure == Failure::ClientBody {
            tracing::debug!(failure = name, %method, path, id, "client: {why}");
        } else {
            tracing::warn!(failure = name, %method, path, id, "upstream: {why}");
        }
        let mut response = failure.problem().respond();
        response.extensions_mut().insert(failure.disposition());
        response
    }

    /// The span of the upstream's call, which the upstream goes on below.
    fn span(&self, parts: &mut Parts) -> Span {
        let span = tracing::info_span!(
            target: SPANS,
            "upstream",
            otel.kind = "client",
            otel.name = parts.method.as_str(),
            otel.status_code = Empty,
            http.request.method = parts.method.as_str(),
            http.response.status_code = Empty,
            url.path = logged::path(&parts.uri, &parts.headers),
            error.type = Empty,
        );
        telemetry::pass_on(&span, &mut parts.headers);
        span
    }

    /// The client's end of a request that may leave HTTP. With a key it may not: what passes then would
    /// be run, and never kept.
    fn leaving(&self, parts: &mut Parts, keyed: bool) -> Option<(OnUpgrade, Option<Arc<Held>>)> {
        if let Some(client) = parts.extensions.remove::<OnUpgrade>()
            && !keyed
            && self.upstreams.has_http1()
            && parts.headers.contains_key(UPGRADE)
        {
            return Some((client, parts.extensions.remove()));
        }
        headers::remove_upgrade(&mut parts.headers);
        None
    }

    /// Sends a request; once more where nothing of it was written, because the connection was closed.
    /// It `may_leave` HTTP if it asks for that.
    async fn send(
        &self,
        mut request: Request<Body>,
        may_leave: bool,
    ) -> Result<(Response<Incoming>, Lent), (Failure, String)> {
        let mut connection = self.lend(may_leave).await?;
        let mut is_again = false;
        loop {
            // Connecting has a limit of its own.
            let progress = Progress::new();
            request.body_mut().report_to(&progress);
            let sent = tokio::select! {
                biased;
                sent = connection.send(request) => sent,
                () = progress.ceases(self.silence) => {
                    // Whose silence it is, is not known while the client's body is still to come.
                    if !progress.goes_on() {
                        connection.forget();
                        connection.answered(false);
                    }
                    return Err((Failure::Silent, "no answer in time".to_owned()));
                }
            };
            let NotAnswered { error, unsent } = match sent {
                Ok(answer) if may_leave && answer.status() == StatusCode::SWITCHING_PROTOCOLS => {
                    connection.leave();
                    connection.answered(true);
                    return Ok((answer, connection));
                }
                // 101 is an answer to those who asked for it, and other statuses have no meaning
                // (RFC 9110, section 15). hyper reads over other 1xx.
                Ok(answer) if !(200..600).contains(&answer.status().as_u16()) => {
                    connection.answered(false);
                    let status = answer.status().as_u16();
                    return Err((Failure::Invalid, format!("answered with {status}")));
                }
                Ok(answer) => {
                    match answer.status().as_u16() {
                        502 => connection.answered(false),
                        // A quota, or what the service waited for: the address is there, and perhaps not well.
                        503 | 504 => {}
                        _ => connection.answered(true),
                    }
                    // Who reads an answer slowly, or last, is not to hold up what is still to be sent.
                    if progress.goes_on() || connection.is_stuck() {
                        connection.leave();
                    }
                    return Ok((answer, connection));
                }
                Err(error) => error,
            };
            request = match unsent {
                Some(request) if !is_again => request,
                Some(_) => {
                    connection.answered(false);
                    return Err((Failure::Unsent, with_causes(&error)));
                }
                None => {
                    let failure = match kind_of(&error) {
                        Failure::Unanswered if progress.is_broken() => Failure::ClientBody,
                        failure => failure,
                    };
                    if failure != Failure::ClientBody {
                        connection.answered(false);
                    }
                    return Err((failure, with_causes(&error)));
                }
            };
            is_again = true;
            connection = match connection.renewed(may_leave).await {
                Ok(renewed) => renewed,
                Err(_) if self.upstreams.are_several() => self.lend(may_leave).await?,
                Err(error) => return Err((unconnected_for(&*error), with_causes(&*error))),
            };
        }
    }

    /// A connection to one of the addresses: to the next where none is made to the first, because then
    /// nothing was sent.
    async fn lend(&self, http1: bool) -> Result<Lent, (Failure, String)> {
        let mut tried = Vec::new();
        let mut failed = (Failure::Unreached, "there is no upstream".to_owned());
        while let Some((pool, busy)) = self.upstreams.choose(http1, &tried) {
            match pool.lend(http1).await {
                Ok(connection) => return Ok(connection.counted(busy)),
                Err(error) => failed = (unconnected_for(&*error), with_causes(&*error)),
            }
            if failed.0 == Failure::Starved {
                break;
            }
            tracing::debug!(upstream = %pool.health().address(), "upstream: {}", failed.1);
            tried.push(pool);
        }
        Err(failed)
    }
}

/// What an error says that came before there was a connection for the request.
fn unconnected_for(error: &(dyn Error + 'static)) -> Failure {
    match connector::is_starved(error) {
        true => Failure::Starved,
        false => Failure::Unreached,
    }
}

/// What an error says of a request that may have been sent: hyper hands it back where it was not begun
/// to be written.
fn kind_of(error: &hyper::Error) -> Failure {
    match pool::is_refused(error) {
        true => Failure::Unsent,
        false => Failure::Unanswered,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::StatusCode;
    use hyper::client::conn::{http1, http2};
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use rustix::io::Errno;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

    fn request() -> Request<Body> {
        Request::post("http://upstream/orders")
            .body(Body::from(Bytes::from("once")))
            .unwrap()
    }

    async fn read_request(server: &mut DuplexStream) {
        let mut read = Vec::new();
        while !read.ends_with(b"once") {
            read.push(server.read_u8().await.unwrap());
        }
    }

    #[test]
    fn a_shortage_of_the_gateway_is_not_the_upstreams_fault() {
        #[derive(Debug, thiserror::Error)]
        #[error("tcp connect error")]
        struct Connect(#[source] std::io::Error);
        let failure = |error: Errno| unconnected_for(&Connect(error.into()));
        assert_eq!(failure(Errno::MFILE), Failure::Starved);
        assert_eq!(failure(Errno::ADDRNOTAVAIL), Failure::Starved);
        assert_eq!(failure(Errno::CONNREFUSED), Failure::Unreached);
        let response: Response<Body> = Failure::Starved.problem().respond();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(response.headers().contains_key(http::header::RETRY_AFTER));
    }

    // These hold hyper to what `send` builds on.

    #[tokio::test]
    async fn closed_with_the_request_in_the_queue_is_unsent() {
        let (client, mut server) = duplex(1024);
        let (mut sender, connection) = http1::handshake(TokioIo::new(client)).await.unwrap();
        let connection = tokio::spawn(connection);
        let (answer, ()) = tokio::join!(sender.send_request(request()), async {
            read_request(&mut server).await;
            server.write_all(ANSWER).await.unwrap();
        });
        assert_eq!(answer.unwrap().status(), StatusCode::OK);
        sender.ready().await.unwrap();
        // The connection is still taken to be open when the request is put into its queue.
        let answer = sender.try_send_request(request());
        server.shutdown().await.unwrap();
        assert!(answer.await.unwrap_err().take_message().is_some());
        connection.await.unwrap().unwrap();
        let mut sent = Vec::new();
        server.read_to_end(&mut sent).await.unwrap();
        assert_eq!(sent, b"");
    }

    #[tokio::test]
    async fn closed_after_the_first_byte_is_unanswered() {
        for read in [1, 20, 40] {
            let (client, mut server) = duplex(16);
            let (mut sender, connection) = http1::handshake(TokioIo::new(client)).await.unwrap();
            tokio::spawn(connection);
            let (answer, ()) = tokio::join!(sender.try_send_request(request()), async move {
                for _ in 0..read {
                    server.read_u8().await.unwrap();
                }
            });
            let mut error = answer.unwrap_err();
            assert!(error.take_message().is_none(), "after {read} bytes");
            assert_eq!(kind_of(error.error()), Failure::Unanswered);
        }
    }

    fn frame(kind: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let header = [&length[1..], &[kind, 0], &stream.to_be_bytes()];
        [header.concat(), payload.to_vec()].concat()
    }

    #[tokio::test]
    async fn what_an_upstream_of_http2_says_it_has_not_done_is_unsent() {
        let [no_error, internal_error, refused_stream, cancel] = [0, 2, 7, 8];
        let reset = |code| frame(3, 1, &[0, 0, 0, code]);
        let go_away = |last, code| frame(7, 0, &[0, 0, 0, last, 0, 0, 0, code]);
        for (says, failure) in [
            (reset(refused_stream), Failure::Unsent),
            (reset(cancel), Failure::Unanswered),
            (go_away(0, no_error), Failure::Unsent),
            (go_away(1, no_error), Failure::Unanswered),
            (go_away(0, internal_error), Failure::Unanswered),
            (Vec::new(), Failure::Unanswered),
        ] {
            let (client, mut server) = duplex(1 << 16);
            let io = TokioIo::new(client);
            let (mut sender, connection) =
                http2::handshake(TokioExecutor::new(), io).await.unwrap();
            tokio::spawn(connection);
            let settings = frame(4, 0, &[]);
            let said = says.clone();
            let (answer, ()) = tokio::join!(sender.try_send_request(request()), async move {
                server.write_all(&settings).await.unwrap();
                // The body's end, in a frame of DATA.
                read_request(&mut server).await;
                server.write_all(&said).await.unwrap();
                server.flush().await.unwrap();
            });
            let error = answer.unwrap_err().into_error();
            assert_eq!(kind_of(&error), failure, "{says:?}: {error:?}");
        }
    }
}
