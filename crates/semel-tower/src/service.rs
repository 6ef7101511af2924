//! The service: what passes through, what is refused, and what runs once.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD};
use http::request::Parts;
use http::{Extensions, HeaderMap, Method, Request, Response};
use http_body::Body as HttpBody;
use semel::guard::{Guard, Seen, Signal};
use semel::store::OnLost;
use semel::{Identity, Key, Scope, Store};
use tower::ServiceExt as _;
use tower_service::Service;

use crate::attempt::{OperationId, Run};
use crate::body::{self, Body, BoxError, Read};
use crate::config::{self, Config, Echo};
use crate::future::ResponseFuture;
use crate::limits::Bodies;
use crate::observe::Mode;
use crate::problem::{Problem, ProblemCode};
use crate::scope::joined;
use crate::transact::Transactions;
use crate::transact::Unkeyed;
use crate::{policy, replay};

/// The service that [`IdempotencyLayer`](crate::IdempotencyLayer) makes.
pub struct Idempotency<Inner, S> {
    pub(crate) inner: Inner,
    pub(crate) guard: Guard<S>,
    pub(crate) config: Arc<Config>,
    transactions: Option<Arc<dyn Transactions<S>>>,
}

impl<Inner, S> Idempotency<Inner, S> {
    pub(crate) const fn new(
        inner: Inner,
        guard: Guard<S>,
        config: Arc<Config>,
        transactions: Option<Arc<dyn Transactions<S>>>,
    ) -> Self {
        Self {
            inner,
            guard,
            config,
            transactions,
        }
    }
}

impl<Inner, S> Idempotency<Inner, S> {
    /// Whether a request may have a key, as far as its head says. A service outside that finds out who
    /// asks, and leaves it for [`with_principal_by`](crate::IdempotencyLayer::with_principal_by), need
    /// not do so for others.
    pub fn may_have_key(&self, method: &Method, headers: &HeaderMap) -> bool {
        !policy::is_safe(method)
            && self.config.protects(method)
            && match self.config.key_member {
                Some(_) => Config::may_hold_key(headers),
                None => headers.contains_key(&self.config.key_header),
            }
    }
}

impl<Inner, S, B, R> Service<Request<B>> for Idempotency<Inner, S>
where
    Inner: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    Inner::Future: Send + 'static,
    Inner::Error: Send + 'static,
    S: Store,
    B: HttpBody<Data = Bytes> + From<Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Send + 'static,
{
    type Response = Response<Body<R>>;
    type Error = Inner::Error;
    type Future = ResponseFuture<Inner::Future, R, Inner::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Inner::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        if policy::is_safe(request.method()) {
            let preflight = self
                .asks_for_key(&request)
                .then(|| Arc::clone(&self.config));
            return ResponseFuture::direct(self.inner.call(request), preflight);
        }
        if !self.config.protects(request.method()) {
            return match self.config.unprotected(request.headers()) {
                Some(problem) if self.config.mode != Mode::Observe => self.refuse(problem),
                _ => ResponseFuture::direct(self.inner.call(request), None),
            };
        }
        if self.config.mode == Mode::Observe {
            return self.observe(request);
        }
        let reads_body = self.config.reads_body() && Config::may_hold_key(request.headers());
        if reads_body && self.config.key_member.is_some() {
            return self.call_for_body(request, None);
        }
        let key = match self.config.key_member {
            None => self.config.key(request.headers()),
            // No other body has such a member.
            Some(_) => Ok(None),
        };
        let key = match key {
            Ok(Some(key)) => key,
            Ok(None) if self.config.is_half_repeatable(request.headers()) => {
                return self.refuse(self.config.missing_key());
            }
            Ok(None) if self.requires_key(request.method()) => {
                return self.refuse(self.config.missing_key());
            }
            Ok(None) => {
                self.mark_unkeyed(request.extensions_mut());
                return ResponseFuture::direct(self.inner.call(request), None);
            }
            Err(error) => {
                let problem = Problem::new(ProblemCode::InvalidKey).with_detail(format!(
                    "In `{}`: {error}. Nothing was run.",
                    self.config.key_header
                ));
                return self.refuse(problem);
            }
        };
        if reads_body {
            return self.call_for_body(request, Some(key));
        }
        let (parts, body) = request.into_parts();
        let scope = match self.scope(&parts, &body) {
            Ok(scope) => scope,
            Err(problem) => return self.refuse(problem),
        };
        let identity = self.config.identity(&parts, scope, key);
        let once = self.taken();
        ResponseFuture::attended(self.guard.attend(|client| async move {
            let bodies = once.config.limits.bodies();
            let body = match read(&once.config, body, &bodies).await {
                Ok(body) => body,
                Err(problem) => {
                    if let Some(signal) = problem.code.refusal() {
                        once.guard.tell(&Seen::of(&identity, signal));
                    }
                    let mut response = once.config.problem(problem, &Echo::default());
                    let (id, attempt) = (*identity.digest(), None);
                    response
                        .extensions_mut()
                        .insert(OperationId { id, attempt });
                    return Ok(response);
                }
            };
            let (inner, run) = once.asked(identity, &parts, &body, bodies, Echo::default());
            run.answer(inner, parts, body, client).await
        }))
    }
}

async fn read<B>(config: &Config, body: B, bodies: &Bodies) -> Result<Bytes, Problem>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    match body::read(body, config.max_request_body, bodies).await {
        Read::Whole(body) => Ok(body),
        Read::NoRoom => Err(Problem::new(ProblemCode::Overloaded)),
        Read::TooLarge => Err(config.too_large()),
        Read::Failed => Err(Problem::new(ProblemCode::IncompleteBody)),
    }
}

impl<Inner, S: Store> Idempotency<Inner, S> {
    fn requires_key(&self, method: &Method) -> bool {
        self.guard.policy().key_required() && !policy::is_idempotent(method)
    }

    /// Whether this is a preflight for a request with a key.
    fn asks_for_key<B>(&self, request: &Request<B>) -> bool {
        let name = self.config.key_header.as_str();
        self.config.mode == Mode::Enforce
            && request.method() == Method::OPTIONS
            && request
                .headers()
                .contains_key(ACCESS_CONTROL_REQUEST_METHOD)
            && replay::tokens(request.headers(), &ACCESS_CONTROL_REQUEST_HEADERS)
                .any(|token| token.eq_ignore_ascii_case(name))
    }

    pub(crate) fn scope<B: HttpBody>(&self, parts: &Parts, body: &B) -> Result<Scope, Problem> {
        let retention = self.guard.policy().retention();
        self.config.scope(parts, body, retention)
    }

    /// Tells of a request without a key that runs plainly.
    fn mark_unkeyed(&self, extensions: &mut Extensions) {
        // No name that would have to be made: nothing is allocated here (R13).
        let name = self.config.operation.fixed();
        self.guard
            .tell(&Seen::new(Signal::Unkeyed).in_operation(name));
        if self.transactions.is_some() {
            extensions.insert(Unkeyed(Arc::clone(&self.config)));
        }
    }

    // Before the body is polled: hyper then sends no `100 Continue` (RFC 9110, section 10.1.1).
    fn refuse<F, R, E>(&self, problem: Problem) -> ResponseFuture<F, R, E>
    where
        R: HttpBody + Send + 'static,
        R::Error: Send,
        E: Send + 'static,
    {
        let response = self.refusal(problem, &Echo::default());
        ResponseFuture::attended(self.guard.attend(|_| std::future::ready(Ok(response))))
    }

    fn refusal<R: HttpBody>(&self, problem: Problem, echo: &Echo) -> Response<Body<R>> {
        if let Some(signal) = problem.code.refusal() {
            // By a function of the request the caller would choose it, whoever that is.
            let seen = Seen::new(signal);
            self.guard.tell(&match self.config.operation.fixed() {
                Some(name) => seen.in_operation(name),
                None => seen,
            });
        }
        self.config.problem(problem, echo)
    }
}

impl<Inner: Clone, S> Idempotency<Inner, S> {
    /// For a request that runs on its own. The service that was polled may hold room for a call, which
    /// this request does not need before its body is there and its key claimed: it is dropped, and a
    /// clone is polled then.
    pub(crate) fn taken(&mut self) -> Self {
        let taken = self.clone();
        self.inner = taken.inner.clone();
        taken
    }
}

impl<Inner: Clone, S> Clone for Idempotency<Inner, S> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            guard: self.guard.clone(),
            config: Arc::clone(&self.config),
            transactions: self.transactions.clone(),
        }
    }
}

impl<Inner: std::fmt::Debug, S> std::fmt::Debug for Idempotency<Inner, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Idempotency")
            .field("inner", &self.inner)
            .field("guard", &self.guard)
            .field("config", &self.config)
            .finish()
    }
}

impl<Inner, S: Store> Idempotency<Inner, S> {
    /// A request whose body is read first: the key is in it, if there is one and it is not known yet, or it
    /// says more of who asks.
    fn call_for_body<B, R>(
        &mut self,
        request: Request<B>,
        key: Option<Key>,
    ) -> ResponseFuture<Inner::Future, R, Inner::Error>
    where
        Inner: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
        Inner::Future: Send + 'static,
        Inner::Error: Send + 'static,
        B: HttpBody<Data = Bytes> + From<Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
        R: HttpBody<Data = Bytes> + Send + 'static,
        R::Error: Send + 'static,
    {
        let (mut parts, body) = request.into_parts();
        let scope = match self.scope(&parts, &body) {
            Ok(scope) => scope,
            Err(problem) => return self.refuse(problem),
        };
        let once = self.taken();
        ResponseFuture::attended(self.guard.attend(|client| async move {
            let config = Arc::clone(&once.config);
            let bodies = config.limits.bodies();
            let mut echo = Echo::default();
            let read = read(&config, body, &bodies).await.and_then(|body| {
                let read = config.read(key, &body, &mut echo)?;
                Ok((body, read))
            });
            let (body, read) = match read {
                Ok(read) => read,
                Err(problem) => return Ok(once.refusal(problem, &echo)),
            };
            let Some(key) = read.key else {
                if once.requires_key(&parts.method) {
                    return Ok(once.refusal(once.config.missing_key(), &echo));
                }
                once.mark_unkeyed(&mut parts.extensions);
                let request = Request::from_parts(parts, B::from(body));
                return Ok(once.inner.oneshot(request).await?.map(Body::inner));
            };
            let scope = joined(scope, read.scope);
            let identity = once.config.identity(&parts, scope, key);
            let (inner, run) = once.asked(identity, &parts, &body, bodies, echo);
            run.answer(inner, parts, body, client).await
        }))
    }

    /// What is known of a request before it is claimed.
    fn asked(
        self,
        identity: Identity,
        parts: &Parts,
        body: &Bytes,
        bodies: Bodies,
        mut echo: Echo,
    ) -> (Inner, Run<S>) {
        let Self {
            inner,
            guard,
            config,
            transactions,
        } = self;
        let mut asked = config.asked(identity.clone(), parts, body);
        if guard.policy().on_lost() == Some(OnLost::Reconcile) {
            asked = asked.about(format!("{} {}", parts.method, parts.uri.path()));
        }
        if transactions.is_some() {
            asked = asked.transaction_offered();
        }
        echo.origin = config::origin(&parts.headers);
        let run = Run {
            echo,
            guard: guard.with_policy(config.policy(guard.policy())),
            config,
            transactions,
            identity,
            asked,
            bodies,
        };
        (inner, run)
    }
}
