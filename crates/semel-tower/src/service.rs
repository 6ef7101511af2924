//! The service: what passes through, what is refused, and what runs once.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD};
use http::{Method, Request, Response};
use http_body::Body as HttpBody;
use semel::guard::{Asked, Guard, Seen, Signal};
use semel::store::OnLost;
use semel::{Identity, Store};
use tokio::sync::oneshot;
use tower_service::Service;

use crate::attempt::{OperationId, Run};
use crate::body::{self, Body, BoxError, Read};
use crate::config::{self, Config};
use crate::future::ResponseFuture;
use crate::problem::{Problem, ProblemCode};
use crate::transact::Transactions;
use crate::transact::Unkeyed;
use crate::{policy, replay};

/// The service that [`IdempotencyLayer`](crate::IdempotencyLayer) makes.
pub struct Idempotency<Inner, S> {
    inner: Inner,
    guard: Guard<S>,
    config: Arc<Config>,
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
        if !self.config.is_protecting {
            return ResponseFuture::direct(self.inner.call(request), None);
        }
        if policy::is_safe(request.method()) {
            let preflight = self
                .asks_for_key(&request)
                .then(|| Arc::clone(&self.config));
            return ResponseFuture::direct(self.inner.call(request), preflight);
        }
        let key = match self.config.key(request.headers()) {
            Ok(Some(key)) => key,
            Ok(None) if self.requires_key(request.method()) => {
                return self.refuse(self.config.missing_key());
            }
            Ok(None) => {
                // No name that would have to be made: nothing is allocated here (R13).
                let name = self.config.operation.fixed();
                self.guard
                    .tell(&Seen::new(Signal::Unkeyed).in_operation(name));
                if self.transactions.is_some() {
                    request
                        .extensions_mut()
                        .insert(Unkeyed(Arc::clone(&self.config)));
                }
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
        let (parts, body) = request.into_parts();
        let identity = match self.config.identity(&parts, &body, key) {
            Ok(identity) => identity,
            Err(problem) => return self.refuse(problem),
        };
        // The service that was polled may hold room for a call, which this request does not need
        // before its body is there and its key claimed: it is dropped, and a clone is polled then.
        let inner = self.inner.clone();
        self.inner = inner.clone();
        let once = Once {
            inner,
            guard: self.guard.clone(),
            config: Arc::clone(&self.config),
            transactions: self.transactions.clone(),
            identity,
        };
        let id = *once.identity.digest();
        ResponseFuture::boxed(async move {
            let mut response = once.answer(Request::from_parts(parts, body)).await?;
            let extensions = response.extensions_mut();
            extensions.get_or_insert_with(|| OperationId { id, attempt: None });
            Ok(response)
        })
    }
}

impl<Inner, S: Store> Idempotency<Inner, S> {
    fn requires_key(&self, method: &Method) -> bool {
        self.guard.policy().key_required() && !policy::is_idempotent(method)
    }

    /// Whether this is a preflight for a request with a key.
    fn asks_for_key<B>(&self, request: &Request<B>) -> bool {
        let name = self.config.key_header.as_str();
        request.method() == Method::OPTIONS
            && request
                .headers()
                .contains_key(ACCESS_CONTROL_REQUEST_METHOD)
            && replay::tokens(request.headers(), &ACCESS_CONTROL_REQUEST_HEADERS)
                .any(|token| token.eq_ignore_ascii_case(name))
    }

    // Before the body is polled: hyper then sends no `100 Continue` (RFC 9110, section 10.1.1).
    fn refuse<F, R, E>(&self, problem: Problem) -> ResponseFuture<F, R, E>
    where
        R: HttpBody + Send + 'static,
        R::Error: Send,
        E: Send + 'static,
    {
        if let Some(signal) = problem.code.refusal() {
            // By a function of the request the caller would choose it, whoever that is.
            let seen = Seen::new(signal);
            self.guard.tell(&match self.config.operation.fixed() {
                Some(name) => seen.in_operation(name),
                None => seen,
            });
        }
        ResponseFuture::boxed(std::future::ready(Ok(self.config.problem(problem))))
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

/// A request with a key.
struct Once<Inner, S> {
    inner: Inner,
    guard: Guard<S>,
    config: Arc<Config>,
    transactions: Option<Arc<dyn Transactions<S>>>,
    identity: Identity,
}

impl<Inner, S: Store> Once<Inner, S> {
    async fn answer<B, R>(self, request: Request<B>) -> Result<Response<Body<R>>, Inner::Error>
    where
        Inner: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
        Inner::Future: Send + 'static,
        Inner::Error: Send + 'static,
        B: HttpBody<Data = Bytes> + From<Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
        R: HttpBody<Data = Bytes> + Send + 'static,
        R::Error: Send + 'static,
    {
        let Self {
            inner,
            guard,
            config,
            transactions,
            identity,
        } = self;
        let (parts, body) = request.into_parts();
        let bodies = config.limits.bodies();
        let body = match body::read(body, config.max_request_body, &bodies).await {
            Read::Whole(body) => Ok(body),
            Read::NoRoom => Err(Problem::new(ProblemCode::Overloaded)),
            Read::TooLarge => Err(config.too_large()),
            Read::Failed => Err(Problem::new(ProblemCode::IncompleteBody)),
        };
        let body = match body {
            Ok(body) => body,
            Err(problem) => {
                if let Some(signal) = problem.code.refusal() {
                    guard.tell(&Seen::of(&identity, signal));
                }
                return Ok(config.problem(problem));
            }
        };
        let (mut client, answered) = oneshot::channel();
        let mut asked = Asked::new(identity.clone(), config.fingerprint(&parts, &body));
        if guard.policy().on_lost() == Some(OnLost::Reconcile) {
            asked = asked.about(format!("{} {}", parts.method, parts.uri.path()));
        }
        if transactions.is_some() {
            asked = asked.transaction_offered();
        }
        let run = Run {
            origin: config::origin(&parts.headers),
            guard: guard.clone(),
            config: Arc::clone(&config),
            transactions,
            identity,
            asked,
            bodies,
        };
        let slot = match config.limits.slot(run.identity.scope()) {
            Ok(slot) => slot,
            Err(full) => return Ok(run.without_attempt(full).await),
        };
        // From the claim on in a task of its own: a client that goes away neither stops an attempt
        // (R11) nor leaves behind a claim that nobody runs.
        let task = guard.spawn(async move {
            let answer = run.once(inner, parts, body, &mut client, slot).await;
            client.send(answer).ok();
        });
        if let Ok(answer) = answered.await {
            return answer;
        }
        match task.await.map_err(tokio::task::JoinError::try_into_panic) {
            Err(Ok(panic)) => resume_unwind(panic),
            // The runtime is shutting down.
            Ok(()) | Err(Err(_)) => Ok(config.problem(Problem::new(ProblemCode::OutcomeUnknown))),
        }
    }
}
