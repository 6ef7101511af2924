//! Connections to an upstream, kept for the next request.
//!
//! A connection is used on the thread that made it only. hyper can leave a request for ever in the queue
//! of a connection that ends at the same moment (its issue 4122): on one thread there is no such moment.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use http::header::CONNECTION;
use http::uri::PathAndQuery;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::Instant;
use tower::ServiceExt as _;

use crate::body::Body;
use crate::connector::{ConnectError, Connector};
use crate::cores;
use crate::tls::client::{Speaks, Trust};
use crate::upstream::{Address, Protocol};

/// How long making a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections are not used again after this. A connection that the upstream closes while a request
/// is on its way makes an outcome unknown. Common servers close idle connections after 2 s to 75 s:
/// this stays below.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);
/// How often an upstream is asked whether it is there, on a connection of HTTP/2 that is silent.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// How many fields an answer may have, and how many bytes its header. More than any client takes: an
/// answer beyond is lost although the operation ran, so the limits are there to bound memory only. More
/// than 100 fields cost an allocation for each answer, a tenth of the gateway's work: an answer is worth it.
const MAX_FIELDS: usize = 256;
const MAX_HEAD: u32 = 256 << 10;

/// The connections to all upstreams, for whatever routes lead there.
#[derive(Debug)]
pub(crate) struct Pools {
    trust: Arc<Trust>,
    pools: Mutex<HashMap<Way, Weak<Pool>>>,
}

/// An upstream, and whether it gets the client's `Host`.
type Way = (Address, bool);

impl Pools {
    /// Without any connections.
    pub(crate) fn new(trust: Arc<Trust>) -> Self {
        let pools = Mutex::default();
        Self { trust, pools }
    }

    /// The connections to `upstream`.
    pub(crate) fn of(&self, upstream: Address, preserves_host: bool) -> Arc<Pool> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|_, pool| pool.strong_count() > 0);
        let way = (upstream, preserves_host);
        if let Some(pool) = pools.get(&way).and_then(Weak::upgrade) {
            return pool;
        }
        let pool = Arc::new(Pool::new(&way, &self.trust));
        pools.insert(way, Arc::downgrade(&pool));
        pool
    }
}

/// The connections to one upstream.
pub(crate) struct Pool {
    any: Connector,
    http1: Connector,
    upstream: Address,
    shelves: Box<[Mutex<Shelf>]>,
}

/// Those of one thread.
#[derive(Default)]
struct Shelf {
    // In the order in which they were put here.
    idle: Vec<(Instant, http1::SendRequest<Body>)>,
    // One for all requests, and when it was last taken.
    shared: Option<(Instant, http2::SendRequest<Body>)>,
    // Whether somebody looks after what nobody takes.
    is_swept: bool,
}

#[derive(Debug)]
enum Sender {
    Http1(http1::SendRequest<Body>),
    Http2(http2::SendRequest<Body>),
}

impl Pool {
    fn new((upstream, preserves_host): &Way, trust: &Arc<Trust>) -> Self {
        let connector = |speaks| Connector::new(CONNECT_TIMEOUT, Arc::clone(trust), speaks);
        Self {
            // In HTTP/2 a `Host` must be the `:authority`, and that is the upstream's.
            any: connector(if *preserves_host {
                Speaks::Http1
            } else {
                Speaks::Any
            }),
            http1: connector(Speaks::Http1),
            upstream: upstream.clone(),
            shelves: (0..cores::places()).map(|_| Mutex::default()).collect(),
        }
    }

    /// Whether the upstream can be asked in HTTP/1.
    pub(crate) fn has_http1(&self) -> bool {
        self.upstream.protocol != Protocol::H2c
    }

    /// A connection that is there already, or else a new one; of HTTP/1 only, where asked.
    pub(crate) async fn lend(self: &Arc<Self>, http1: bool) -> Result<Lent, ConnectError> {
        let kept = self.shelf(cores::place()).take(http1);
        match kept {
            Some(sender) => Ok(self.lent(sender)),
            None => self.connect(http1).await,
        }
    }

    /// A new connection; of HTTP/1, where asked.
    pub(crate) async fn connect(self: &Arc<Self>, http1: bool) -> Result<Lent, ConnectError> {
        let connector = if http1 { &self.http1 } else { &self.any };
        let target = self.target(PathAndQuery::from_static("/"));
        let stream = connector.clone().oneshot(target).await?;
        if !self.has_http1() || stream.inner().speaks_http2() {
            let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .keep_alive_interval(PING_INTERVAL)
                .max_header_list_size(MAX_HEAD)
                .handshake(stream)
                .await?;
            tokio::spawn(told(connection));
            self.keep(|shelf| shelf.shared = Some((Instant::now(), sender.clone())));
            return Ok(self.lent(Sender::Http2(sender)));
        }
        let (sender, connection) = http1::Builder::new()
            .max_headers(MAX_FIELDS)
            .max_buf_size(MAX_HEAD as usize)
            .handshake(stream)
            .await?;
        tokio::spawn(told(connection.with_upgrades()));
        Ok(self.lent(Sender::Http1(sender)))
    }

    fn lent(self: &Arc<Self>, sender: Sender) -> Lent {
        let pool = Arc::clone(self);
        Lent { sender, pool }
    }

    fn target(&self, path: PathAndQuery) -> Uri {
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(self.upstream.protocol.scheme());
        parts.authority = Some(self.upstream.authority.clone());
        parts.path_and_query = Some(path);
        // With all three parts there is nothing to refuse.
        Uri::from_parts(parts).unwrap_or_default()
    }

    /// Puts something onto the shelf, and sees to it that it does not stay there.
    fn keep(self: &Arc<Self>, put: impl FnOnce(&mut Shelf)) {
        let place = cores::place();
        let mut shelf = self.shelf(place);
        put(&mut shelf);
        if std::mem::replace(&mut shelf.is_swept, true) {
            return;
        }
        let pool = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(IDLE_TIMEOUT).await;
                match pool.upgrade() {
                    Some(pool) if !pool.shelf(place).sweep() => {}
                    _ => return,
                }
            }
        });
    }

    fn shelf(&self, place: usize) -> MutexGuard<'_, Shelf> {
        // Whoever panics there leaves nothing half done.
        let shelf = self.shelves[place].lock();
        shelf.unwrap_or_else(PoisonError::into_inner)
    }
}

async fn told(connection: impl Future<Output = hyper::Result<()>>) {
    if let Err(error) = connection.await {
        tracing::debug!("connection to the upstream: {error}");
    }
}

impl Shelf {
    fn take(&mut self, http1: bool) -> Option<Sender> {
        if !http1
            && let Some((used, sender)) = &mut self.shared
            && sender.is_ready()
        {
            *used = Instant::now();
            return Some(Sender::Http2(sender.clone()));
        }
        // The one that was used last: others may be about to be closed.
        while let Some((since, sender)) = self.idle.pop() {
            if since.elapsed() >= IDLE_TIMEOUT {
                // So are all that were put here before it.
                self.idle.clear();
                break;
            }
            // One that still takes the body of a request that was answered early is let go.
            if sender.is_ready() {
                return Some(Sender::Http1(sender));
            }
        }
        None
    }

    /// Lets go what was not used; whether that is all.
    fn sweep(&mut self) -> bool {
        let old = |since: &Instant| since.elapsed() >= IDLE_TIMEOUT;
        let unused = self.idle.partition_point(|(since, _)| old(since));
        self.idle.drain(..unused);
        self.shared.take_if(|(used, _)| old(used));
        self.is_swept = !self.idle.is_empty() || self.shared.is_some();
        !self.is_swept
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("upstream", &self.upstream)
            .finish_non_exhaustive()
    }
}

/// A connection for one request. One of HTTP/1 is closed when this is dropped: who has read an answer to
/// its end [gives it back](Self::give_back).
#[derive(Debug)]
pub(crate) struct Lent {
    sender: Sender,
    pool: Arc<Pool>,
}

impl Lent {
    /// Sends a request to the path of its target. An error with the request in it says that none of it
    /// was written.
    pub(crate) async fn send(
        &mut self,
        mut request: Request<Body>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Body>>> {
        let path = request.uri().path_and_query().cloned();
        let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
        match &mut self.sender {
            Sender::Http1(sender) => {
                *request.uri_mut() = Uri::from(path);
                sender.try_send_request(request).await
            }
            Sender::Http2(sender) => {
                // hyper would remove what it names, and `TE` is to arrive.
                request.headers_mut().remove(CONNECTION);
                *request.uri_mut() = self.pool.target(path);
                sender.try_send_request(request).await
            }
        }
    }

    /// The answer was read to its end: the connection is there for the next request.
    pub(crate) fn give_back(self) {
        if let Sender::Http1(sender) = self.sender {
            let now = Instant::now();
            self.pool.keep(|shelf| shelf.idle.push((now, sender)));
        }
    }
}
