//! Which route a request takes: the first of the [`Table`] that matches.
//!
//! A request takes the table once, and all that happens to it is what that table says: a new
//! configuration never mixes with an old one in a request. What outlives tables (store, guard, limits,
//! connections to upstreams) is in [`Stacks`](crate::stack::Stacks).

mod matches;
mod path;

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::header::{HOST, HeaderMap};
use http::{Method, Request, Response, Uri};
use hyper::body::Incoming;
use semel::Store;
use semel_tower::{Idempotency, ResponseFuture};
use tower_service::Service;

use crate::body::Body;
use crate::bounded::Bounded;
use crate::config::{Config, Route};
use crate::headers::Rules;
use crate::logged::{self, CLIENT_GONE};
use crate::metrics::RouteMetrics;
use crate::peer::Peer;
use crate::principal::{self, Verified};
use crate::problem::Problem;
use crate::proxy::Proxy;
use crate::telemetry::Told;
use crate::wellformed::Answer;

pub(crate) use matches::method;
pub use matches::{Host, Matches};
pub use path::Path;
pub(crate) use path::decoded;

/// How long a client may be silent within a body.
const CLIENT_SILENCE: Duration = Duration::from_secs(30);
/// A path that servers may read in several ways is compared in each, if it has so many bytes at most.
const MOST_TO_READ: usize = 4 << 10;

/// Where a request goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// To this route.
    Route(usize),
    /// There is none for it.
    None,
    /// Its path can be read in several ways, for which there are several routes, or one and none.
    Ambiguous,
}

/// The host that a request is for, as routes compare it: the one that the upstream is told too, if it is
/// told the client's. A field that another proxy wrote would be one that clients can write through it.
pub(crate) fn host(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let host = uri.authority().map(|authority| authority.as_str());
    let host = host.or_else(|| headers.get(HOST)?.to_str().ok());
    host.map(matches::host_name)
}

/// The first route that takes a request.
pub fn find(routes: &[Route], method: &Method, uri: &Uri, headers: &HeaderMap) -> Found {
    // Most gateways have no use for it.
    let names_host = routes.iter().any(|route| !route.matches.hosts.is_empty());
    let host = names_host.then(|| host(uri, headers)).flatten();
    let first = |path: &str| {
        let takes = |route: &Route| {
            let misses = route.matches.misses(host.as_deref(), path, method);
            misses.is_none()
        };
        routes.iter().position(takes)
    };
    let found = |first: Option<usize>| first.map_or(Found::None, Found::Route);
    let path = uri.path();
    if routes.iter().all(|route| route.matches.paths.is_empty()) || path::is_plain(path) {
        return found(first(path));
    }
    let all = (path.len() <= MOST_TO_READ).then(|| path::readings(path));
    let all = all.flatten().unwrap_or_default();
    let mut all = all.iter().map(|path| first(path));
    match all.next() {
        Some(one) if all.all(|other| other == one) => found(one),
        _ => Found::Ambiguous,
    }
}

/// A configuration, made to serve.
pub struct Table<S> {
    /// What it is made of.
    pub config: Config,
    /// What is counted of requests that no route takes.
    unrouted: Arc<RouteMetrics>,
    // As many as the configuration has.
    handlers: Vec<Handler<S>>,
}

/// What a route does with requests.
pub(crate) struct Handler<S> {
    /// What it is called.
    pub(crate) name: Arc<str>,
    pub(crate) metrics: Arc<RouteMetrics>,
    pub(crate) rules: Arc<Rules>,
    pub(crate) service: Verified<Idempotency<Bounded<Proxy>, S>>,
}

impl<S> Table<S> {
    pub(crate) const fn new(
        config: Config,
        unrouted: Arc<RouteMetrics>,
        handlers: Vec<Handler<S>>,
    ) -> Self {
        Self {
            config,
            unrouted,
            handlers,
        }
    }
}

impl<S: Store> Table<S> {
    fn call(&self, request: Request<Incoming>, peer: &Peer) -> Counted {
        let routes = &self.config.routes;
        let found = find(routes, request.method(), request.uri(), request.headers());
        let (handler, problem) = match found {
            Found::Route(nth) => (self.handlers.get(nth), Problem::NoRoute),
            Found::None => (None, Problem::NoRoute),
            Found::Ambiguous => (None, Problem::AmbiguousPath),
        };
        let Some(handler) = handler else {
            let response = Some(problem.respond());
            return Counted {
                answer: Answer::Refused { response },
                counting: Counting(Some(Arc::clone(&self.unrouted))),
            };
        };
        let (mut parts, body) = request.into_parts();
        if let Some(told) = parts.extensions.get::<Arc<Told>>() {
            told.route.set(Arc::clone(&handler.name)).ok();
        }
        let Handler { rules, service, .. } = handler;
        rules.admit(&mut parts.headers, parts.uri.authority(), Some(peer));
        let time = self.config.limits.body_time;
        let body = Body::stream_in_time(body, parts.version, Some(CLIENT_SILENCE), time);
        let future = service.clone().call(Request::from_parts(parts, body));
        Counted {
            answer: Answer::Passed { future },
            counting: Counting(Some(Arc::clone(&handler.metrics))),
        }
    }
}

impl<S> fmt::Debug for Table<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

type Inner = <Bounded<Proxy> as Service<Request<Body>>>::Future;
type Protected = ResponseFuture<Inner, Body, Infallible>;
type Answering =
    Answer<principal::Answering<Protected, semel_tower::Body<Body>>, semel_tower::Body<Body>>;

pin_project_lite::pin_project! {
    /// The answer of a route, which is counted there.
    pub(crate) struct Counted {
        #[pin]
        answer: Answering,
        counting: Counting,
    }
}

impl Future for Counted {
    type Output = <Answering as Future>::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = ready!(this.answer.poll(cx))?;
        if let Some(metrics) = this.counting.0.take() {
            metrics.request(logged::event(&answer));
        }
        Poll::Ready(Ok(answer))
    }
}

/// Where a request is to be counted, until it is.
struct Counting(Option<Arc<RouteMetrics>>);

impl Drop for Counting {
    fn drop(&mut self) {
        if let Some(metrics) = self.0.take() {
            metrics.request(CLIENT_GONE);
        }
    }
}

/// Takes each request of a client through the table that holds when it comes.
pub(crate) struct Router<S> {
    table: Arc<ArcSwap<Table<S>>>,
    peer: Peer,
}

impl<S> Router<S> {
    pub(crate) const fn new(table: Arc<ArcSwap<Table<S>>>, peer: Peer) -> Self {
        Self { table, peer }
    }
}

impl<S> Clone for Router<S> {
    fn clone(&self) -> Self {
        Self {
            table: Arc::clone(&self.table),
            peer: self.peer.clone(),
        }
    }
}

impl<S> fmt::Debug for Router<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router")
            .field("table", &self.table)
            .field("peer", &self.peer)
            .finish()
    }
}

impl<S: Store> hyper::service::Service<Request<Incoming>> for Router<S> {
    type Response = Response<semel_tower::Body<Body>>;
    type Error = Infallible;
    type Future = Counted;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.table.load().call(request, &self.peer)
    }
}
