//! A request with a key: claim, run, record, answer.
#![expect(
    clippy::manual_async_fn,
    reason = "an async function has room for what it is given twice: as it came, and as it is used"
)]

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::header::ACCEPT_ENCODING;
use http::request::Parts;
use http::{Request, Response, response};
use http_body::Body as HttpBody;
use semel::guard::{
    Asked, Begin, Caller, Guard, Held, OnStoreError, Seen, Settled, Settlement, Signal, Transacted,
};
use semel::store::OnLost;
use semel::{
    Identity, IdentityDigest, Outcome, OutcomeKind, State, Store, StoreError, StoreErrorKind,
};
use tower::ServiceExt as _;
use tower_service::Service;

use crate::body::{self, Body, Content, Relayable};
use crate::config::{Config, Echo};
use crate::limits::{Bodies, Full, Slot};
use crate::policy::{Disposition, Reply};
use crate::problem::{Problem, ProblemCode};
use crate::replay;
use crate::transact::{Calling, CommitFailure, Kept, RunAgain, Transactions};

/// Among the extensions of every answer to a request with a key and a principal, of replays and of the
/// layer's [problems](Problem) too: for logs and traces, and to find the record of an outcome that is
/// unknown. No key can be read from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct OperationId {
    /// The name of the operation. The inner service has the same in
    /// [`AttemptInfo::id`](semel::guard::AttemptInfo::id), and the gateway sends it on as
    /// `Idempotency-Id`.
    pub id: IdentityDigest,
    /// Which attempt gave this answer, from 1; `None` where none was begun for this request.
    pub attempt: Option<u32>,
}

/// When to ask again where nobody asked the store how long the lease is.
const SOON: Duration = Duration::from_secs(1);

/// What is known of a request.
pub(crate) struct Run<S> {
    pub(crate) guard: Guard<S>,
    pub(crate) config: Arc<Config>,
    pub(crate) identity: Identity,
    pub(crate) asked: Asked,
    /// What is held in memory for it.
    pub(crate) bodies: Bodies,
    /// What of the request goes into its answer.
    pub(crate) echo: Echo,
    pub(crate) transactions: Option<Arc<dyn Transactions<S>>>,
}

/// A service whose requests are made to happen once.
pub(crate) trait Protected<B, R>:
    Service<Request<B>, Response = Response<R>, Error: Send + 'static, Future: Send> + Clone + Send
{
}

impl<I, B, R> Protected<B, R> for I where
    I: Service<Request<B>, Response = Response<R>, Error: Send + 'static, Future: Send>
        + Clone
        + Send
{
}

/// What one call of the inner service came to.
struct Called<R: HttpBody, E> {
    /// The answer as far as its body was read, or an error.
    answer: Result<(response::Parts, Content<R>), E>,
    disposition: Disposition,
    /// The handler or the application says what it means, not its status or its type alone.
    is_stated: bool,
    /// What is to be kept of it, and how long where the handler says so.
    outcome: Option<Kept>,
}

impl<S: Store> Run<S> {
    /// The answer to a request with a key.
    pub(crate) fn answer<Inner, B, R>(
        self,
        inner: Inner,
        mut parts: Parts,
        body: Bytes,
        client: Caller,
    ) -> impl Future<Output = Result<Response<Body<R>>, Inner::Error>>
    where
        Inner: Protected<B, R>,
        B: From<Bytes> + Send,
        R: Relayable,
    {
        async move {
            let slot = self
                .config
                .limits
                .slot(&self.config.limited(&self.identity));
            let mut response = match slot {
                Ok(slot) => {
                    // From the claim on: a client that goes away neither stops an attempt (R11) nor leaves behind a
                    // claim that nobody runs.
                    let _begun = client.begin();
                    self.once(inner, &mut parts, body, &client, slot).await?
                }
                Err(full) => Box::pin(self.without_attempt(full)).await,
            };
            let extensions = response.extensions_mut();
            extensions.get_or_insert_with(|| OperationId {
                id: *self.identity.digest(),
                attempt: None,
            });
            Ok(response)
        }
    }

    /// Claims the identity, and runs the inner service if the claim is acquired.
    async fn once<Inner, B, R>(
        &self,
        inner: Inner,
        parts: &mut Parts,
        body: Bytes,
        client: &Caller,
        slot: Slot,
    ) -> Result<Response<Body<R>>, Inner::Error>
    where
        Inner: Protected<B, R>,
        B: From<Bytes> + Send,
        R: Relayable,
    {
        // What is kept must be readable by clients that accept other codings than this one.
        parts.headers.remove(ACCEPT_ENCODING);
        let (begun, slot) = self.begin(slot, client).await;
        let (held, slot) = match begun {
            Ok(Begin::Acquired(held)) => {
                let again = || {
                    self.config
                        .limits
                        .slot(&self.config.limited(&self.identity))
                };
                match slot.map_or_else(again, Ok) {
                    Ok(mut slot) => {
                        slot.begun();
                        (held, slot)
                    }
                    Err(full) => {
                        held.release().await.ok();
                        return Ok(self.full(full));
                    }
                }
            }
            // Without the database there is no transaction either.
            Ok(Begin::Unprotected(_)) if self.transactions.is_none() => {
                parts.extensions.insert(self.identity.clone());
                let request = Request::from_parts(taken(parts), B::from(body));
                let (head, body) = inner.oneshot(request).await?.into_parts();
                return Ok(self.unprotected(head, Body::inner(body)));
            }
            begun => return Ok(self.without_running(begun)),
        };
        let attempt = OperationId {
            id: *held.id(),
            attempt: Some(held.number()),
        };
        let mut response = self.attempt(held, inner, parts, body, slot).await?;
        response.extensions_mut().insert(attempt);
        Ok(response)
    }

    /// Runs the inner service, with a transaction on offer where there is one.
    async fn attempt<Inner, B, R>(
        &self,
        mut held: Held<S>,
        inner: Inner,
        parts: &mut Parts,
        body: Bytes,
        slot: Slot,
    ) -> Result<Response<Body<R>>, Inner::Error>
    where
        Inner: Protected<B, R>,
        B: From<Bytes> + Send,
        R: Relayable,
    {
        parts.extensions.insert(self.identity.clone());
        let Some(transactions) = &self.transactions else {
            parts.extensions.insert(held.info());
            let request = Request::from_parts(taken(parts), B::from(body));
            return match held.run(self.call(inner, request)).await {
                Ok(called) => self.settle(held, called, slot).await,
                Err(panic) => held.panicked(panic).await,
            };
        };
        // Boxed, so that requests without a transaction need no room for it.
        Box::pin(self.offered(&**transactions, held, inner, parts, body, slot)).await
    }

    /// Runs the inner service with a transaction on offer. If it takes it, it may run again.
    async fn offered<Inner, B, R>(
        &self,
        transactions: &dyn Transactions<S>,
        mut held: Held<S>,
        inner: Inner,
        parts: &Parts,
        body: Bytes,
        slot: Slot,
    ) -> Result<Response<Body<R>>, Inner::Error>
    where
        Inner: Protected<B, R>,
        B: From<Bytes> + Send,
        R: Relayable,
    {
        let answered = &Mutex::new(None);
        let body = &body;
        let call = Box::new(move |extensions| {
            let inner = inner.clone();
            let mut parts = parts.clone();
            parts.extensions.extend(extensions);
            let request = Request::from_parts(parts, B::from(body.clone()));
            let calling = async move {
                // An answer that was to be run again may hold the transaction.
                put(answered, None);
                let called = self.call(inner, request).await;
                let next = called.next();
                put(answered, Some(called));
                next
            };
            Box::pin(calling) as Calling<'_>
        });
        let transacted = transactions.run(&mut held, call).await;
        let called = put(answered, None);
        self.transacted(held, transacted, called, slot).await
    }

    /// Claims. A duplicate that waits gives its slot back, and waits no longer than its client.
    async fn begin(
        &self,
        slot: Slot,
        client: &Caller,
    ) -> (Result<Begin<S>, StoreError>, Option<Slot>) {
        let slot = &Mutex::new(Some(slot));
        let gone = poll_fn(|_| match is_empty(slot) && client.is_gone() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        });
        let begun = tokio::select! {
            // First, so that whoever begins to wait looks for its client at once.
            biased;
            begun = self.guard.begin_or_wait(&self.asked, || drop(put(slot, None))) => begun,
            () = gone => Ok(Begin::InFlight { retry_after: SOON }),
        };
        (begun, put(slot, None))
    }

    /// Calls the inner service when it is ready. One that fails before that ran nothing.
    fn call<Inner, B, R>(
        &self,
        mut inner: Inner,
        request: Request<B>,
    ) -> impl Future<Output = Called<R, Inner::Error>>
    where
        Inner: Service<Request<B>, Response = Response<R>, Error: 'static>,
        R: HttpBody<Data = Bytes>,
    {
        async move {
            match poll_fn(|context| inner.poll_ready(context)).await {
                Ok(()) => self.called(inner.call(request).await).await,
                Err(error) => Called::failed(error, Some(Disposition::Release)),
            }
        }
    }

    /// What the client gets once the transaction has ended.
    async fn transacted<R: Relayable, E: 'static>(
        &self,
        held: Held<S>,
        transacted: Transacted<Option<Kept>, ()>,
        called: Option<Called<R, E>>,
        slot: Slot,
    ) -> Result<Response<Body<R>>, E> {
        let is_conflict = matches!(transacted, Transacted::Failed { conflict: true, .. });
        let in_doubt = matches!(transacted, Transacted::Unknown(_));
        let mut problem = match (transacted, called) {
            (Transacted::Panicked(panic), _) => held.panicked(panic).await,
            (Transacted::NotTaken(_), Some(called)) => {
                return self.settle(held, called, slot).await;
            }
            (Transacted::RolledBack(_) | Transacted::Failed { .. }, Some(mut called)) => {
                // Nothing is left of it, unless somebody says that there is more than the writes.
                let is_free = match called.disposition {
                    Disposition::Unknown => !called.is_stated,
                    _ => is_conflict,
                };
                if is_free {
                    called.disposition = Disposition::Release;
                }
                return self.settle(held, called, slot).await;
            }
            (Transacted::Committed(_), Some(called)) => {
                if let Some((outcome, _)) = &called.outcome {
                    slot.kept(outcome.as_bytes().len());
                }
                let (head, content) = called.answer?;
                return Ok(self.first(head, content.into_body(&self.guard, slot)));
            }
            (Transacted::Superseded(_), _) => {
                let lost = "The operation lost its lease to another attempt, and nothing of it was \
                     committed. Ask again with the same key to learn what became of the other.";
                return Ok(self.instead(lost).await);
            }
            (Transacted::Unknown(_), _) => Problem::new(ProblemCode::OutcomeUnknown).with_detail(
                "The operation ran, and whether it was committed could not be found out. Ask \
                 again with the same key to learn it.",
            ),
            (failed, _) => {
                let code = match failed {
                    Transacted::NotCommitted { source, .. } => unavailable(&source),
                    _ => ProblemCode::StoreUnavailable,
                };
                nothing_committed(code)
            }
        };
        match self.guard.policy().on_lost() {
            // Then the application says that there may be effects elsewhere, too.
            Some(OnLost::Hold | OnLost::Reconcile) => drop(held.mark_unknown().await),
            None | Some(OnLost::Retry) => {
                let gave_up = held.give_up().await;
                if in_doubt && gave_up {
                    problem = nothing_committed(ProblemCode::StoreUnavailable);
                }
            }
        }
        Ok(self.config.problem(problem, &self.echo))
    }

    /// The answer where no attempt may be begun: what is known already needs none.
    async fn without_attempt<R: HttpBody>(&self, full: Full) -> Response<Body<R>> {
        match known(&self.guard, &self.identity, &self.asked).await {
            Ok(None) => self.full(full),
            // A claim might run it again, or ask the reconciler.
            Ok(Some(Known::Found(Signal::Unknown, _))) if !self.holds() => self.full(full),
            Ok(Some(Known::Found(signal, begun))) => {
                self.tell(signal);
                self.without_running(Ok(begun))
            }
            Ok(Some(Known::Claimed(begun))) => self.without_running(begun),
            Err(error) => {
                self.tell(Signal::StoreError);
                self.without_running(Err(error))
            }
        }
    }

    /// Whether a lost attempt stays unknown until somebody resolves it, whatever its record says.
    fn holds(&self) -> bool {
        match self.guard.policy().on_lost() {
            Some(on_lost) => on_lost == OnLost::Hold,
            None => self.transactions.is_none(),
        }
    }

    fn tell(&self, signal: Signal) {
        self.guard.tell(&Seen::of(&self.identity, signal));
    }

    fn full<R: HttpBody>(&self, full: Full) -> Response<Body<R>> {
        let problem = match full {
            Full::Process => Problem::new(ProblemCode::Overloaded),
            Full::Scope(wait) => Problem::new(ProblemCode::Limit).retry_after(wait),
        };
        if let Some(signal) = problem.code.refusal() {
            self.tell(signal);
        }
        self.config.problem(problem, &self.echo)
    }

    /// The answer where the inner service is not called.
    fn without_running<R: HttpBody>(
        &self,
        begun: Result<Begin<S>, StoreError>,
    ) -> Response<Body<R>> {
        let code = match begun {
            Ok(Begin::Completed(outcome)) => return self.replay(&outcome),
            Ok(Begin::InFlight { retry_after }) => {
                let problem = Problem::new(ProblemCode::InFlight).retry_after(retry_after);
                return self.config.problem(problem, &self.echo);
            }
            Ok(Begin::Mismatch) => ProblemCode::Mismatch,
            Ok(Begin::Expired) => ProblemCode::Expired,
            Ok(Begin::Unknown) => ProblemCode::OutcomeUnknown,
            Ok(Begin::KeyRequired | Begin::Unkeyed) => ProblemCode::MissingKey,
            Ok(Begin::Acquired(_)) => ProblemCode::StoreUnavailable,
            Err(error) | Ok(Begin::Unprotected(error)) => unavailable(&error),
        };
        self.config.problem(Problem::new(code), &self.echo)
    }

    /// Reads an answer as far as it is kept.
    fn called<R, E>(&self, answer: Result<Response<R>, E>) -> impl Future<Output = Called<R, E>>
    where
        R: HttpBody<Data = Bytes>,
        E: 'static,
    {
        async move {
            let response = match answer {
                Ok(response) => response,
                Err(error) => {
                    let stated = self.config.classify_error(&error);
                    return Called::failed(error, stated);
                }
            };
            let (mut head, body) = response.into_parts();
            self.config.strip(&mut head.headers);
            let not_kept = self.config.by_head(&head).filter(|by_head| {
                !is_kept(*by_head) && !self.config.may_be_envelope(&head.headers)
            });
            let content = match not_kept {
                // Nothing of the body is kept, so it goes its way untouched.
                Some(_) => Content::Untouched(body),
                None if body::is_event_stream(&head.headers) => Content::stream(body),
                None => body::collect(body, self.config.max_response_body, &self.bodies).await,
            };
            let content = match content {
                Content::Whole(data, trailers) => {
                    Content::Whole(self.config.first_body(&mut head, data), trailers)
                }
                content => content,
            };
            let (data, trailers) = match &content {
                Content::Whole(data, trailers) => (Some(data), trailers.as_ref()),
                // A head that is fine means that the operation ran.
                _ => (None, None),
            };
            let reply = Reply {
                head: &head,
                body: data.filter(|_| trailers.is_none_or(replay::can_be_kept)),
                trailers,
            };
            let kept = reply
                .body
                .filter(|body| self.config.can_be_replayed(&head, body));
            let disposition = not_kept.unwrap_or_else(|| self.config.classify(&reply));
            let outcome = is_kept(disposition).then(|| {
                // Without a body, what is kept is that it was omitted.
                let kind = match (kept, disposition) {
                    (None, _) => OutcomeKind::Omitted,
                    (_, Disposition::KeepFailure) => OutcomeKind::Failure,
                    _ => OutcomeKind::Success,
                };
                let allowed = &self.config.allowed_replay_headers;
                let outcome = replay::outcome_of(kind, &head, kept, trailers, allowed);
                let stated = head.extensions.get().copied();
                let retention = self.guard.policy().retention();
                (outcome, self.config.retention(stated, retention))
            });
            Called {
                disposition,
                is_stated: self.config.is_stated(&head),
                outcome,
                answer: Ok((head, content)),
            }
        }
    }

    /// Records what an answer means, then gives it to the client.
    fn settle<R: Relayable, E>(
        &self,
        held: Held<S>,
        called: Called<R, E>,
        slot: Slot,
    ) -> impl Future<Output = Result<Response<Body<R>>, E>> {
        async move {
            let (settlement, is_kept) = match (called.disposition, called.outcome) {
                (Disposition::Release, _) => (Settlement::Release, false),
                (_, Some((outcome, retention))) => {
                    slot.kept(outcome.as_bytes().len());
                    (Settlement::Complete(outcome, retention), true)
                }
                (_, None) => (Settlement::Unknown, false),
            };
            let settled = held.settle(settlement).await;
            // An error is the answer anyway.
            let (head, content) = called.answer?;
            // What the handler does while it writes goes on, whoever reads it.
            let body = content.into_body(&self.guard, slot);
            let fails_open = self.guard.policy().on_store_error() == OnStoreError::FailOpen;
            Ok(match settled {
                // Where there is nothing to keep, whether the store knows is second to the answer.
                _ if !is_kept => self.first(head, body),
                Ok(Settled::Applied | Settled::Omitted) => self.first(head, body),
                Ok(Settled::Refused(_)) => {
                    let lost = "The operation ran, but lost its lease, and its answer was not recorded. \
                     Ask again with the same key to learn what is known of it.";
                    self.instead(lost).await
                }
                Err(_) if fails_open => self.unprotected(head, body),
                Err(_) => {
                    let problem = Problem::new(ProblemCode::StoreUnavailable).with_detail(
                        "The operation ran, and its answer is not recorded yet. Ask again with the \
                     same key to get it.",
                    );
                    self.config.problem(problem, &self.echo)
                }
            })
        }
    }

    /// What is recorded in place of a refused completion (R4); a problem where nobody knows more.
    async fn instead<R: HttpBody>(&self, lost: &'static str) -> Response<Body<R>> {
        let found = self.guard.look_up(&self.identity).await.ok().flatten();
        // After a release another request may have the key (conformance row 59).
        let ours = found.filter(|(name, entry)| {
            entry.record.fingerprint == name.fingerprint(self.asked.fingerprint())
        });
        match ours.map(|(_, entry)| entry.record.state) {
            Some(State::Completed(outcome)) => self.replay(&outcome),
            _ => {
                let problem = Problem::new(ProblemCode::OutcomeUnknown);
                self.config.problem(problem.with_detail(lost), &self.echo)
            }
        }
    }

    /// The inner service's own answer.
    fn first<R: HttpBody>(&self, mut head: response::Parts, body: Body<R>) -> Response<Body<R>> {
        let body = self.config.first_stream(&mut head.headers, body);
        self.config.first_head(&mut head.headers);
        Response::from_parts(head, body)
    }

    fn unprotected<R: HttpBody>(
        &self,
        mut head: response::Parts,
        body: Body<R>,
    ) -> Response<Body<R>> {
        self.config.strip(&mut head.headers);
        replay::mark_unprotected(&mut head.headers);
        self.first(head, body)
    }

    fn replay<R: HttpBody>(&self, outcome: &Outcome) -> Response<Body<R>> {
        self.config.replay(outcome, &self.echo)
    }
}

/// What is known of a request without an attempt.
pub(crate) enum Known<S: Store> {
    /// As its record says, which nobody was told.
    Found(Signal, Begin<S>),
    /// As a claim says, of which the guard has told.
    Claimed(Result<Begin<S>, StoreError>),
}

/// What a claim would find, if it would not begin an attempt: looked at only, unless the store's clock
/// alone knows whether an outcome's time is over.
pub(crate) async fn known<S: Store>(
    guard: &Guard<S>,
    identity: &Identity,
    asked: &Asked,
) -> Result<Option<Known<S>>, StoreError> {
    let Some((name, entry)) = guard.look_up(identity).await? else {
        return Ok(None);
    };
    let record = entry.record;
    let may_be_expired = record.expires_at < record.purge_at;
    if may_be_expired && matches!(record.state, State::Completed(_)) {
        let at_once = guard.policy().with_wait(Duration::ZERO);
        return Ok(match guard.with_policy(at_once).begin(asked).await {
            // Its tombstone's time ended just now.
            Ok(Begin::Acquired(held)) => {
                held.release().await.ok();
                None
            }
            begun => Some(Known::Claimed(begun)),
        });
    }
    let is_mismatch = record.fingerprint != name.fingerprint(asked.fingerprint());
    let (signal, begun) = match record.state {
        _ if may_be_expired => return Ok(None),
        State::Released => return Ok(None),
        _ if is_mismatch => (Signal::Mismatch, Begin::Mismatch),
        State::Completed(outcome) => (Signal::Replayed, Begin::Completed(outcome)),
        State::Unknown => (Signal::Unknown, Begin::Unknown),
        State::InFlight => {
            let retry_after = SOON;
            (Signal::InFlight, Begin::InFlight { retry_after })
        }
    };
    Ok(Some(Known::Found(signal, begun)))
}

/// The head of a request, which is not looked at again.
fn taken(parts: &mut Parts) -> Parts {
    std::mem::replace(parts, Request::new(()).into_parts().0)
}

pub(crate) const fn is_kept(disposition: Disposition) -> bool {
    matches!(
        disposition,
        Disposition::KeepSuccess | Disposition::KeepFailure
    )
}

fn nothing_committed(code: ProblemCode) -> Problem {
    Problem::new(code).with_detail("Nothing was committed. Ask again with the same key.")
}

/// What a store that fails is called.
fn unavailable(error: &StoreError) -> ProblemCode {
    match error.kind() {
        StoreErrorKind::Capacity => ProblemCode::Capacity,
        _ => ProblemCode::StoreUnavailable,
    }
}

fn is_empty<T>(place: &Mutex<Option<T>>) -> bool {
    place
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .is_none()
}

/// What was there before.
fn put<T>(place: &Mutex<Option<T>>, value: Option<T>) -> Option<T> {
    let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::replace(&mut place, value)
}

impl<R: HttpBody, E> Called<R, E> {
    /// An error, and what it means where somebody says so.
    fn failed(error: E, stated: Option<Disposition>) -> Self
    where
        E: 'static,
    {
        let disposition = stated.unwrap_or_else(|| Disposition::of_error(&error));
        Self {
            answer: Err(error),
            disposition,
            is_stated: stated.is_some(),
            outcome: None,
        }
    }

    /// What its transaction records. An answer that is no success is kept beside it, unless the
    /// handler says otherwise; the error: run it again.
    fn next(&self) -> Result<Option<Kept>, ()> {
        let Ok((head, _)) = &self.answer else {
            return Ok(None);
        };
        if head.extensions.get::<RunAgain>().is_some() {
            return Err(());
        }
        let is_committed = self.disposition != Disposition::KeepFailure
            || head.extensions.get::<CommitFailure>().is_some();
        Ok(self.outcome.clone().filter(|_| is_committed))
    }
}
