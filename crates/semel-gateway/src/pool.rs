//! Connections to an upstream, kept for the next request.
//!
//! A connection is used on the thread that made it only. hyper can leave a request for ever in the queue
//! of a connection that ends at the same moment (its issue 4122): on one thread there is no such moment.

use std::collections::{BTreeMap, HashMap};
use std::error::Error as StdError;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{self, BoxFuture, Either, WeakShared};
use futures_util::{FutureExt as _, TryFutureExt as _};
use http::header::{CONNECTION, HOST, HeaderValue, InvalidHeaderValue, USER_AGENT};
use http::uri::PathAndQuery;
use http::{Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tower::ServiceExt as _;

use crate::body::Body;
use crate::command::with_causes;
use crate::config::Route;
use crate::connector::{self, ConnectError, Connector};
use crate::cores;
use crate::driven::Driven;
use crate::metrics::Metrics;
use crate::shared::{Share, Shared};
use crate::tls::client::{Speaks, Trust};
use crate::upstream::{Address, Busy, Health, Protocol, Upstreams};

/// How long making a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections are not used again after this. A connection that the upstream closes while a request
/// is on its way makes an outcome unknown. Common servers close idle connections after 2 s to 75 s:
/// this stays below.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);
/// How often upstreams are asked whether they can be used, and how long an answer may take.
const CHECK_EVERY: Duration = Duration::from_secs(2);
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);
/// How many bytes an answer's header may have. More than any client takes: an answer beyond is lost although
/// the operation ran, so the limit is there to bound memory only.
const MAX_HEAD: u32 = 256 << 10;
/// How often a request waits for a connection of HTTP/2 whose room others take, until it makes one of its own.
const SHARED_TRIES: usize = 3;

/// The connections to all upstreams, for whatever routes lead there.
#[derive(Debug)]
pub struct Pools {
    trust: Arc<Trust>,
    metrics: Arc<Metrics>,
    pools: Mutex<HashMap<Way, Weak<Pool>>>,
}

/// An upstream, and what routes say of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Way {
    upstream: Address,
    /// Whether it gets the client's `Host`.
    preserves_host: bool,
    /// The path that says whether it can be used.
    check: Option<PathAndQuery>,
}

impl Pools {
    /// Without any connections.
    pub fn new(trust: Arc<Trust>, metrics: Arc<Metrics>) -> Self {
        let pools = Mutex::default();
        Self {
            trust,
            metrics,
            pools,
        }
    }

    /// The connections to the upstreams of a route.
    ///
    /// # Errors
    /// A name that cannot stand in a header field.
    pub(crate) fn of(&self, route: &Route) -> Result<Upstreams, InvalidHeaderValue> {
        let pools = route.upstreams.iter().map(|upstream| {
            self.one(Way {
                upstream: upstream.clone(),
                preserves_host: route.preserve_host,
                check: route.upstream_health.clone(),
            })
        });
        Ok(Upstreams::new(pools.collect::<Result<_, _>>()?))
    }

    fn one(&self, way: Way) -> Result<Arc<Pool>, InvalidHeaderValue> {
        let mut pools = self.pools();
        pools.retain(|_, pool| pool.strong_count() > 0);
        if let Some(pool) = pools.get(&way).and_then(Weak::upgrade) {
            return Ok(pool);
        }
        let pool = Arc::new(Pool::new(&way, &self.trust, Arc::clone(&self.metrics))?);
        pools.insert(way, Arc::downgrade(&pool));
        Ok(pool)
    }

    fn pools(&self) -> MutexGuard<'_, HashMap<Way, Weak<Pool>>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> Vec<Arc<Pool>> {
        self.pools().values().filter_map(Weak::upgrade).collect()
    }

    /// All addresses, and whether they are up.
    pub(crate) fn conditions(&self) -> BTreeMap<String, bool> {
        let mut conditions = BTreeMap::new();
        for pool in self.all() {
            let name = pool.upstream().to_string();
            *conditions.entry(name).or_insert(true) &= pool.health.is_up();
        }
        conditions
    }

    /// Asks all upstreams that have a path for it whether they can be used, for ever.
    pub async fn check(&self) {
        loop {
            tokio::time::sleep(CHECK_EVERY).await;
            let mut checks = JoinSet::new();
            for pool in self.all() {
                if let Some(path) = pool.check.clone() {
                    checks.spawn(async move { pool.check(path).await });
                }
            }
            while checks.join_next().await.is_some() {}
        }
    }
}

/// The connections to one upstream.
pub(crate) struct Pool {
    any: Connector,
    http1: Connector,
    health: Health,
    /// Unless the client's is there.
    host: HeaderValue,
    preserves_host: bool,
    check: Option<PathAndQuery>,
    /// Whether connections are of HTTP/2, as far as is known.
    is_shared: AtomicBool,
    shelves: Box<[Mutex<Shelf>]>,
}

/// Those of one thread.
#[derive(Default)]
struct Shelf {
    // In the order in which they were put here.
    idle: Vec<(Instant, Driven)>,
    // Of HTTP/2.
    shared: Vec<Shared>,
    // The one that is being made.
    making: Option<WeakShared<Making>>,
    // Whether somebody looks after what nobody takes.
    is_swept: bool,
}

/// A connection that is being made: for the first of those who wait for it, and for the others on the shelf if it can
/// be shared.
type Making = BoxFuture<'static, Result<Arc<Mutex<Option<Lent>>>, NotMade>>;

/// Why there is none, for all of them.
#[derive(Debug, Clone)]
struct NotMade(Arc<dyn StdError + Send + Sync>);

#[derive(Debug)]
enum Sender {
    Http1(Driven),
    Http2(Share),
}

impl Pool {
    fn new(
        way: &Way,
        trust: &Arc<Trust>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, InvalidHeaderValue> {
        let connector =
            |speaks| Connector::new(CONNECT_TIMEOUT, Arc::clone(trust), speaks).for_upstreams();
        Ok(Self {
            // In HTTP/2 a `Host` must be the `:authority`, and that is the upstream's.
            any: connector(if way.preserves_host {
                Speaks::Http1
            } else {
                Speaks::Any
            }),
            http1: connector(Speaks::Http1),
            health: Health::new(&way.upstream, metrics),
            host: HeaderValue::from_str(way.upstream.authority.as_str())?,
            preserves_host: way.preserves_host,
            check: way.check.clone(),
            is_shared: AtomicBool::new(
                way.upstream.protocol != Protocol::Http && !way.preserves_host,
            ),
            shelves: (0..cores::places()).map(|_| Mutex::default()).collect(),
        })
    }

    pub(crate) const fn health(&self) -> &Health {
        &self.health
    }

    const fn upstream(&self) -> &Address {
        self.health.address()
    }

    async fn check(self: &Arc<Self>, path: PathAndQuery) {
        let asked = timeout(CHECK_TIMEOUT, self.ask(path)).await;
        match asked.unwrap_or_else(|_| Err("no answer in time".into())) {
            Ok(status) => {
                let is_good = status.is_success() || status.is_redirection();
                self.health.checked(is_good, &format!("answered {status}"));
            }
            Err(error) => self.health.checked(false, &with_causes(&*error)),
        }
    }

    async fn ask(self: &Arc<Self>, path: PathAndQuery) -> Result<StatusCode, ConnectError> {
        let mut request = Request::new(Body::from(Bytes::new()));
        *request.uri_mut() = Uri::from(path);
        let name = HeaderValue::from_static("semel");
        request.headers_mut().insert(USER_AGENT, name);
        let mut connection = self.connect(false).await?;
        let answer = connection.send(request).await;
        Ok(answer.map_err(|failed| failed.error)?.status())
    }

    /// Whether the upstream can be asked in HTTP/1.
    pub(crate) fn has_http1(&self) -> bool {
        self.upstream().protocol != Protocol::H2c
    }

    /// A connection that is there already, or else a new one; of HTTP/1 only, where asked.
    pub(crate) async fn lend(self: &Arc<Self>, http1: bool) -> Result<Lent, ConnectError> {
        for _ in 0..SHARED_TRIES {
            let kept = self.shelf(cores::place()).take(http1);
            if let Some(sender) = kept {
                return Ok(self.lent(sender));
            }
            if http1 || !self.is_shared.load(Ordering::Relaxed) {
                break;
            }
            let made = self.making().await?;
            let made = made.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(lent) = made {
                return Ok(lent);
            }
        }
        self.connect(http1).await
    }

    /// The connection that is being made for all who can share it.
    fn making(self: &Arc<Self>) -> future::Shared<Making> {
        let mut shelf = self.shelf(cores::place());
        let making = shelf.making.as_ref().and_then(WeakShared::upgrade);
        if let Some(making) = making.filter(|making| making.peek().is_none()) {
            return making;
        }
        let pool = Arc::clone(self);
        let making = async move {
            let made = pool.connect(false).await;
            let made = made.map(|lent| Arc::new(Mutex::new(Some(lent))));
            made.map_err(|error| NotMade(error.into()))
        };
        let making = making.boxed().shared();
        // Whoever waits makes it: where nobody does any more, it is not made.
        shelf.making = making.downgrade();
        making
    }

    /// A new connection; of HTTP/1, where asked.
    pub(crate) async fn connect(self: &Arc<Self>, http1: bool) -> Result<Lent, ConnectError> {
        // With the look-up of the name, and what is said before the first request. Boxed: what is rare takes no room
        // in the future of every request.
        let made = Box::pin(timeout(CONNECT_TIMEOUT, self.make(http1))).await;
        let made = made.unwrap_or_else(|late| Err(late.into()));
        match &made {
            Ok(_) => self.health.reached(),
            Err(error) if connector::is_starved(&**error) => {}
            Err(_) => self.health.unreached(),
        }
        made
    }

    async fn make(self: &Arc<Self>, http1: bool) -> Result<Lent, ConnectError> {
        let connector = if http1 { &self.http1 } else { &self.any };
        let target = self.target(PathAndQuery::from_static("/"));
        let stream = connector.clone().oneshot(target).await?;
        let is_shared = !self.has_http1() || stream.inner().speaks_http2();
        if !http1 {
            self.is_shared.store(is_shared, Ordering::Relaxed);
        }
        if is_shared {
            let mut shared = Shared::begin(stream, MAX_HEAD).await?;
            let share = shared.lend();
            self.keep(|shelf| shelf.shared.push(shared));
            return Ok(self.lent(Sender::Http2(share)));
        }
        let driven = Driven::begin(stream, MAX_HEAD).await?;
        Ok(self.lent(Sender::Http1(driven)))
    }

    fn lent(self: &Arc<Self>, sender: Sender) -> Lent {
        let pool = Arc::clone(self);
        Lent {
            sender,
            pool,
            busy: None,
        }
    }

    fn target(&self, path: PathAndQuery) -> Uri {
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(self.upstream().protocol.scheme());
        parts.authority = Some(self.upstream().authority.clone());
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

    /// No other request gets this connection.
    fn forget(&self, share: &Share) {
        let mut shelf = self.shelf(cores::place());
        shelf.shared.retain(|shared| !shared.is_that_of(share));
    }

    fn shelf(&self, place: usize) -> MutexGuard<'_, Shelf> {
        // Whoever panics there leaves nothing half done.
        let shelf = self.shelves[place].lock();
        shelf.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shelf {
    fn take(&mut self, http1: bool) -> Option<Sender> {
        if !http1 {
            self.shared.retain(|shared| !shared.is_closed());
            let usable = self.shared.iter_mut().filter(|shared| shared.has_room());
            // The fullest: others are let go once nobody needs them.
            if let Some(shared) = usable.max_by_key(|shared| shared.under_way()) {
                return Some(Sender::Http2(shared.lend()));
            }
        }
        // The one that was used last: others may be about to be closed.
        while let Some((since, mut connection)) = self.idle.pop() {
            if since.elapsed() >= IDLE_TIMEOUT {
                // So are all that were put here before it.
                self.idle.clear();
                break;
            }
            // One that still takes the body of a request that was answered early is let go.
            if connection.is_ready() {
                return Some(Sender::Http1(connection));
            }
        }
        None
    }

    /// Lets go what was not used; whether that is all.
    fn sweep(&mut self) -> bool {
        let old = |since: &Instant| since.elapsed() >= IDLE_TIMEOUT;
        let unused = self.idle.partition_point(|(since, _)| old(since));
        self.idle.drain(..unused);
        self.shared
            .retain(|shared| !old(shared.taken()) || shared.under_way() > 0);
        self.is_swept = !self.idle.is_empty() || !self.shared.is_empty();
        !self.is_swept
    }
}

impl fmt::Display for NotMade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no connection was made")
    }
}

impl StdError for NotMade {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("upstream", self.upstream())
            .finish_non_exhaustive()
    }
}

/// A connection for one request. One of HTTP/1 is closed when this is dropped: who has read an answer to
/// its end [gives it back](Self::give_back).
#[derive(Debug)]
pub(crate) struct Lent {
    sender: Sender,
    pool: Arc<Pool>,
    /// Held until the answer was read.
    busy: Option<Busy>,
}

impl Lent {
    /// The same connection, which counts as in use.
    pub(crate) fn counted(self, busy: Option<Busy>) -> Self {
        Self { busy, ..self }
    }

    /// Whether the request was answered by the service. Of the only address it is not counted: there is no
    /// choice.
    pub(crate) fn answered(&self, is_good: bool) {
        if self.busy.is_some() {
            self.pool.health.answered(is_good);
        }
    }

    /// What counts as in use, for whoever goes on when the answer was read.
    pub(crate) fn busy(&mut self) -> Option<Busy> {
        self.busy.take()
    }

    /// No other request gets this connection.
    pub(crate) fn forget(&self) {
        if let Sender::Http2(share) = &self.sender {
            self.pool.forget(share);
        }
    }

    /// Another connection in place of this one, which turned out to be closed.
    pub(crate) async fn renewed(self, http1: bool) -> Result<Self, ConnectError> {
        let is_shared = matches!(self.sender, Sender::Http2(_));
        self.forget();
        let renewed = match is_shared {
            // Others on that connection need one as well.
            true => self.pool.lend(http1).await?,
            // Those that are kept may be closed, too.
            false => self.pool.connect(http1).await?,
        };
        Ok(renewed.counted(self.busy))
    }

    /// Waits for what comes of the connection.
    pub(crate) fn poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        mut looks: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        match &mut self.sender {
            Sender::Http1(driven) => driven.poll(cx, looks),
            Sender::Http2(_) => looks(cx),
        }
    }

    /// Whether a part of the request waits here until the upstream takes it. HTTP/2 has tasks for that.
    pub(crate) fn is_stuck(&self) -> bool {
        matches!(&self.sender, Sender::Http1(driven) if driven.is_stuck())
    }

    /// Leaves what the connection still does to a task.
    pub(crate) fn leave(&mut self) {
        if let Sender::Http1(driven) = &mut self.sender {
            driven.leave();
        }
    }

    /// Sends a request to the path of its target; the host is this upstream's, unless the client's is to be
    /// preserved. In HTTP/2 there is a copy, for an upstream that refuses it.
    pub(crate) fn send(
        &mut self,
        mut request: Request<Body>,
    ) -> impl Future<Output = Result<Response<Incoming>, NotAnswered>> {
        let path = request.uri().path_and_query().cloned();
        let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
        if !self.pool.preserves_host || !request.headers().contains_key(HOST) {
            request.headers_mut().insert(HOST, self.pool.host.clone());
        }
        match &mut self.sender {
            Sender::Http1(driven) => {
                *request.uri_mut() = Uri::from(path);
                Either::Left(driven.send(request).map_err(NotAnswered::from))
            }
            Sender::Http2(Share { sender, place }) => {
                // hyper would remove what it names, and `TE` is to arrive.
                request.headers_mut().remove(CONNECTION);
                *request.uri_mut() = self.pool.target(path);
                let (parts, body) = request.into_parts();
                let again = body.again();
                let again = again.map(|body| Request::from_parts(parts.clone(), body));
                let request = Request::from_parts(parts, body.sent_from(place));
                let sent = sender.try_send_request(request);
                Either::Right(Box::pin(sent.map_err(|error| {
                    let error = NotAnswered::from(error);
                    let again = again.filter(|_| is_refused(&error.error));
                    let unsent = error.unsent.or(again);
                    NotAnswered { unsent, ..error }
                })))
            }
        }
    }

    /// The answer was read to its end: the connection is there for the next request.
    pub(crate) fn give_back(self) {
        if let Sender::Http1(mut driven) = self.sender
            && driven.goes_on()
        {
            let now = Instant::now();
            self.pool.keep(|shelf| shelf.idle.push((now, driven)));
        }
    }
}

/// Why a request has no answer.
pub(crate) struct NotAnswered {
    pub(crate) error: hyper::Error,
    /// The request, if nothing was done with it: none of it was written, or the upstream says so.
    pub(crate) unsent: Option<Request<Body>>,
}

impl From<TrySendError<Request<Body>>> for NotAnswered {
    fn from(mut error: TrySendError<Request<Body>>) -> Self {
        let unsent = error.take_message();
        let error = error.into_error();
        Self { error, unsent }
    }
}

/// Whether an upstream of HTTP/2 says that it did nothing with a request (RFC 9113, section 8.7): by
/// `REFUSED_STREAM`, or by a GOAWAY whose last stream is an earlier one. After an error of its own
/// (a GOAWAY with another code than `NO_ERROR`) nobody should count on what it says.
pub(crate) fn is_refused(error: &hyper::Error) -> bool {
    let Some(error) = error
        .source()
        .and_then(|cause| cause.downcast_ref::<h2::Error>())
    else {
        return false;
    };
    let reason = error.reason();
    let is_refused = error.is_reset() && reason == Some(h2::Reason::REFUSED_STREAM);
    let is_later = error.is_go_away() && reason == Some(h2::Reason::NO_ERROR);
    error.is_remote() && (is_refused || is_later)
}
