//! A request with a key, in a task of its own: claim, run, record, answer.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Request, Response, response};
use http_body::Body as HttpBody;
use semel::guard::{
    Asked, Begin, Guard, Held, InFlight, OnStoreError, Settled, Signal, Transacted,
};
use semel::{Identity, Outcome, OutcomeKind, State, Store, StoreError, StoreErrorKind};
use tokio::sync::oneshot;
use tower::ServiceExt as _;
use tower_service::Service;

use crate::body::{self, Body, Content, Relayable};
use crate::config::Config;
use crate::limits::{Bodies, Slot};
use crate::policy::{Disposition, Reply};
use crate::problem::{Problem, ProblemCode};
use crate::replay;
use crate::transact::{CommitFailure, RunAgain, Transactions};

/// Where the client waits, unless it went away. Sending to one that did is no error (R11).
type Client<R, E> = oneshot::Sender<Result<Response<Body<R>>, E>>;

/// What the task knows of its request.
pub(crate) struct Run<S> {
    pub(crate) guard: Guard<S>,
    pub(crate) config: Arc<Config>,
    pub(crate) identity: Identity,
    pub(crate) asked: Asked,
    /// What is held in memory for it.
    pub(crate) bodies: Bodies,
    pub(crate) origin: Option<HeaderValue>,
    pub(crate) transactions: Option<Arc<dyn Transactions<S>>>,
}

/// An answer of the inner service, as far as its body was read, and what becomes of the record.
struct Answer<R: HttpBody> {
    head: response::Parts,
    content: Content<R>,
    plan: Plan,
    /// The handler or the application says what it means, not its status alone.
    is_stated: bool,
}

enum Plan {
    /// And whether it is a failure.
    Keep(Outcome, bool),
    Release,
    Unknown,
}

/// What became of the record.
enum Recorded {
    /// As planned; or the answer says that there was no effect, and whether the store knows is
    /// second to that.
    AsPlanned,
    /// Another attempt had taken over, and this is its outcome (R4).
    Otherwise(Outcome),
    /// Another attempt had taken over, and nobody knows more.
    Superseded,
    /// The store could not be told yet.
    Failed,
}

/// What one call of the inner service came to.
#[expect(clippy::large_enum_variant, reason = "an answer is what is expected")]
enum Called<R: HttpBody, E> {
    Answered(Answer<R>),
    /// An error, and what it means where somebody says so.
    Failed(E, Option<Disposition>),
}

impl<S: Store> Run<S> {
    /// Claims the identity, and runs the inner service if the claim is acquired.
    pub(crate) async fn once<Inner, B, R>(
        self,
        inner: Inner,
        mut parts: Parts,
        body: Bytes,
        mut client: Client<R, Inner::Error>,
        slot: Slot,
    ) where
        Inner: Service<Request<B>, Response = Response<R>, Error: Send + 'static, Future: Send>
            + Clone
            + Send,
        B: From<Bytes> + Send,
        R: Relayable,
    {
        // What is kept must be readable by clients that accept other codings than this one.
        parts.headers.remove(ACCEPT_ENCODING);
        let Some((begun, slot)) = self.begin(slot, &mut client).await else {
            return;
        };
        let (mut held, slot) = match begun {
            Ok(Begin::Acquired(held)) => match slot.or_else(|| self.config.limits.slot()) {
                Some(slot) => (held, slot),
                None => {
                    held.release().await.ok();
                    client.send(Ok(self.overloaded())).ok();
                    return;
                }
            },
            // Without the database there is no transaction either.
            Ok(Begin::Unprotected(_)) if self.transactions.is_none() => {
                parts.extensions.insert(self.identity.clone());
                let request = Request::from_parts(parts, B::from(body));
                let answer = inner.oneshot(request).await.map(|response| {
                    let (head, body) = response.into_parts();
                    self.unprotected(head, Body::inner(body))
                });
                client.send(answer).ok();
                return;
            }
            begun => {
                client.send(Ok(self.without_running(begun))).ok();
                return;
            }
        };
        parts.extensions.insert(self.identity.clone());
        if let Some(transactions) = &self.transactions {
            let transactions = Arc::clone(transactions);
            return self
                .transacted(&*transactions, held, inner, &(parts, body), client, slot)
                .await;
        }
        parts.extensions.insert(held.info());
        let request = Request::from_parts(parts, B::from(body));
        match held.run(self.call(inner, request)).await {
            Ok(called) => self.settle(held, called, client, slot).await,
            Err(panic) => held.panicked(panic).await,
        }
    }

    /// Claims. A duplicate that waits gives its slot back, and waits no longer than its client.
    async fn begin<R: HttpBody, E>(
        &self,
        slot: Slot,
        client: &mut Client<R, E>,
    ) -> Option<(Result<Begin<S>, StoreError>, Option<Slot>)> {
        let policy = *self.guard.policy();
        if policy.in_flight() == InFlight::Reject {
            return Some((self.guard.begin(&self.asked).await, Some(slot)));
        }
        let policy = policy.with_in_flight(InFlight::Reject);
        let at_once = self.asked.clone().with_policy(policy);
        match self.guard.begin(&at_once).await {
            Ok(Begin::InFlight { .. }) => drop(slot),
            begun => return Some((begun, Some(slot))),
        }
        tokio::select! {
            begun = self.guard.begin(&self.asked) => Some((begun, None)),
            () = client.closed() => None,
        }
    }

    /// Calls the inner service when it is ready. One that fails before that ran nothing.
    async fn call<Inner, B, R>(
        &self,
        mut inner: Inner,
        request: Request<B>,
    ) -> Called<R, Inner::Error>
    where
        Inner: Service<Request<B>, Response = Response<R>, Error: 'static>,
        R: HttpBody<Data = Bytes>,
    {
        match poll_fn(|context| inner.poll_ready(context)).await {
            Ok(()) => self.called(inner.call(request).await).await,
            Err(error) => Called::Failed(error, Some(Disposition::Release)),
        }
    }

    /// The same with a transaction on offer. A handler that takes it may run again.
    async fn transacted<Inner, B, R>(
        &self,
        transactions: &dyn Transactions<S>,
        mut held: Held<S>,
        inner: Inner,
        (parts, body): &(Parts, Bytes),
        client: Client<R, Inner::Error>,
        slot: Slot,
    ) where
        Inner: Service<Request<B>, Response = Response<R>, Error: Send + 'static, Future: Send>
            + Clone
            + Send,
        B: From<Bytes> + Send,
        R: Relayable,
    {
        let answered = &Mutex::new(None);
        let transacted = transactions.run(
            &mut held,
            Box::new(move |extensions| {
                let inner = inner.clone();
                let mut parts = parts.clone();
                parts.extensions.extend(extensions);
                let request = Request::from_parts(parts, B::from(body.clone()));
                Box::pin(async move {
                    // An answer that was to be run again may hold the transaction.
                    *answered.lock().unwrap_or_else(PoisonError::into_inner) = None;
                    let called = self.call(inner, request).await;
                    let next = called.next();
                    *answered.lock().unwrap_or_else(PoisonError::into_inner) = Some(called);
                    next
                })
            }),
        );
        let transacted = match transacted.await {
            Transacted::Panicked(panic) => held.panicked(panic).await,
            transacted => transacted,
        };
        let called = answered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let is_conflict = matches!(transacted, Transacted::Failed { conflict: true, .. });
        let problem = match (transacted, called) {
            (Transacted::NotTaken(_), Some(called)) => {
                return self.settle(held, called, client, slot).await;
            }
            (Transacted::RolledBack(_) | Transacted::Failed { .. }, Some(mut called)) => {
                // Nothing is left of it, unless somebody says that there is more than the writes.
                match &mut called {
                    Called::Answered(answer)
                        if is_conflict
                            || matches!(answer.plan, Plan::Unknown) && !answer.is_stated =>
                    {
                        answer.plan = Plan::Release;
                    }
                    Called::Failed(_, disposition) => {
                        disposition.get_or_insert(Disposition::Release);
                    }
                    Called::Answered(_) => {}
                }
                return self.settle(held, called, client, slot).await;
            }
            (Transacted::Committed(_), Some(Called::Answered(answer))) => {
                client
                    .send(Ok(self.answer(Recorded::AsPlanned, answer, slot)))
                    .ok();
                return;
            }
            (Transacted::Superseded(_), _) => match self.instead().await {
                Recorded::Otherwise(outcome) => {
                    client.send(Ok(self.replay(&outcome))).ok();
                    return;
                }
                _ => Problem::new(ProblemCode::OutcomeUnknown).with_detail(
                    "The operation lost its lease to another attempt, and nothing of it was \
                     committed. Ask again with the same key to learn what became of the other.",
                ),
            },

            (Transacted::Unknown(_), _) => {
                // Refused where it was committed: it waits for the transaction's lock.
                held.release().await.ok();
                Problem::new(ProblemCode::OutcomeUnknown).with_detail(
                    "The operation ran, and whether it was committed could not be found out. Ask \
                     again with the same key to learn it.",
                )
            }
            (failed, _) => {
                held.release().await.ok();
                let code = match failed {
                    Transacted::NotCommitted { source, .. }
                        if source.kind() == StoreErrorKind::Capacity =>
                    {
                        ProblemCode::Capacity
                    }
                    _ => ProblemCode::StoreUnavailable,
                };
                Problem::new(code)
                    .with_detail("Nothing was committed. Ask again with the same key.")
            }
        };
        client.send(Ok(self.config.problem(problem))).ok();
    }

    /// The answer where as many attempts run as may: what is known already needs none.
    pub(crate) async fn without_attempt<R: HttpBody>(&self) -> Response<Body<R>> {
        let record = match self.guard.store().get(self.identity.digest()).await {
            Ok(entry) => entry.map(|entry| entry.record),
            Err(error) => {
                self.guard.signal(Signal::StoreError);
                return self.without_running(Err(error));
            }
        };
        let (signal, begun) = match record {
            None => return self.overloaded(),
            Some(record) if record.state == State::Released => return self.overloaded(),
            Some(record) if record.fingerprint != self.asked.fingerprint() => {
                (Signal::Mismatch, Begin::Mismatch)
            }
            Some(record) => match record.state {
                State::Completed(outcome) => (Signal::Replayed, Begin::Completed(outcome)),
                State::Unknown => (Signal::Unknown, Begin::Unknown),
                State::InFlight | State::Released => {
                    let retry_after = Duration::from_secs(1);
                    (Signal::InFlight, Begin::InFlight { retry_after })
                }
            },
        };
        self.guard.signal(signal);
        self.without_running(Ok(begun))
    }

    fn overloaded<R: HttpBody>(&self) -> Response<Body<R>> {
        self.guard.signal(Signal::Overloaded);
        self.config.problem(Problem::new(ProblemCode::Overloaded))
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
                return self.config.problem(problem);
            }
            Ok(Begin::Mismatch) => ProblemCode::Mismatch,
            Ok(Begin::Expired) => ProblemCode::Expired,
            Ok(Begin::Unknown) => ProblemCode::OutcomeUnknown,
            Err(error) if error.kind() == StoreErrorKind::Capacity => ProblemCode::Capacity,
            Ok(Begin::KeyRequired | Begin::Unkeyed) => ProblemCode::MissingKey,
            Err(_) | Ok(Begin::Acquired(_) | Begin::Unprotected(_)) => {
                ProblemCode::StoreUnavailable
            }
        };
        self.config.problem(Problem::new(code))
    }

    /// Reads an answer as far as it is kept.
    async fn called<R, E>(&self, answer: Result<Response<R>, E>) -> Called<R, E>
    where
        R: HttpBody<Data = Bytes>,
        E: 'static,
    {
        let response = match answer {
            Ok(response) => response,
            Err(error) => {
                let stated = self.config.classify_error(&error);
                return Called::Failed(error, stated);
            }
        };
        let (mut head, body) = response.into_parts();
        replay::strip_marks(&mut head.headers, &self.config.replay_header);
        let is_stated = self.config.is_stated(&head);
        if let Some(plan) = self.plan_by_head(&head) {
            // Nothing of the body is kept, so it goes its way untouched.
            let content = Content::Untouched(body);
            return Called::Answered(Answer {
                head,
                content,
                plan,
                is_stated,
            });
        }
        let content = match body::is_event_stream(&head.headers) {
            true => Content::stream(body),
            false => body::collect(body, self.config.max_response_body, &self.bodies).await,
        };
        let plan = match &content {
            Content::Whole(data, trailers) => self.plan(&head, Some(data), trailers.as_ref()),
            // A head that is fine means that the operation ran.
            _ => self.plan(&head, None, None),
        };
        Called::Answered(Answer {
            head,
            content,
            plan,
            is_stated,
        })
    }

    /// Records what an answer means, then gives it to the client.
    async fn settle<R, E: 'static>(
        &self,
        held: Held<S>,
        called: Called<R, E>,
        client: Client<R, E>,
        slot: Slot,
    ) where
        R: Relayable,
    {
        match called {
            Called::Answered(answer) => {
                let recorded = self.record(held, &answer.plan).await;
                client.send(Ok(self.answer(recorded, answer, slot))).ok();
            }
            Called::Failed(error, disposition) => {
                let plan = match disposition.unwrap_or_else(|| Disposition::of_error(&error)) {
                    Disposition::Release => Plan::Release,
                    _ => Plan::Unknown,
                };
                // The error is the answer anyway.
                self.record(held, &plan).await;
                client.send(Err(error)).ok();
            }
        }
    }

    /// What is to be done, where the head says that nothing is kept.
    fn plan_by_head(&self, head: &response::Parts) -> Option<Plan> {
        match self.config.by_head(head)? {
            Disposition::KeepSuccess | Disposition::KeepFailure => None,
            Disposition::Release => Some(Plan::Release),
            Disposition::Unknown => Some(Plan::Unknown),
        }
    }

    /// What is to be done. Without a body, what is kept is that it was omitted.
    fn plan(
        &self,
        head: &response::Parts,
        body: Option<&Bytes>,
        trailers: Option<&HeaderMap>,
    ) -> Plan {
        let body = body.filter(|_| trailers.is_none_or(replay::can_be_kept));
        let disposition = self.config.classify(&Reply {
            head,
            body,
            trailers,
        });
        let is_failure = disposition == Disposition::KeepFailure;
        let kind = match disposition {
            Disposition::Release => return Plan::Release,
            Disposition::Unknown => return Plan::Unknown,
            _ if body.is_none() => OutcomeKind::Omitted,
            Disposition::KeepSuccess => OutcomeKind::Success,
            Disposition::KeepFailure => OutcomeKind::Failure,
        };
        let allowed = &self.config.allowed_replay_headers;
        Plan::Keep(
            replay::outcome_of(kind, head, body, trailers, allowed),
            is_failure,
        )
    }

    async fn record(&self, held: Held<S>, plan: &Plan) -> Recorded {
        let settled = match plan {
            Plan::Keep(outcome, _) => held.complete(outcome).await,
            // The inner service says that nothing happened, or that nobody knows. The store is
            // told in the background where it cannot be told now.
            Plan::Release => {
                held.release().await.ok();
                return Recorded::AsPlanned;
            }
            Plan::Unknown => {
                held.mark_unknown().await.ok();
                return Recorded::AsPlanned;
            }
        };
        match settled {
            Ok(Settled::Applied | Settled::Omitted) => Recorded::AsPlanned,
            Ok(Settled::Refused(_)) => self.instead().await,
            Err(_) => Recorded::Failed,
        }
    }

    /// What is recorded in place of a refused completion.
    async fn instead(&self) -> Recorded {
        let entry = self.guard.store().get(self.identity.digest()).await;
        match entry.ok().flatten().map(|entry| entry.record) {
            // After a release another request may have the key (conformance row 59).
            Some(record) if record.fingerprint != self.asked.fingerprint() => Recorded::Superseded,
            Some(record) => match record.state {
                State::Completed(outcome) => Recorded::Otherwise(outcome),
                State::InFlight | State::Unknown | State::Released => Recorded::Superseded,
            },
            None => Recorded::Superseded,
        }
    }

    /// What the client gets once the outcome is recorded, or is not.
    fn answer<R>(&self, recorded: Recorded, answer: Answer<R>, slot: Slot) -> Response<Body<R>>
    where
        R: Relayable,
    {
        let problem = match recorded {
            Recorded::AsPlanned => {
                return self.first(answer.head, answer.content.into_body(&self.guard, slot));
            }
            Recorded::Otherwise(outcome) => {
                drop(answer.content.into_body(&self.guard, slot));
                return self.replay(&outcome);
            }
            Recorded::Failed if self.guard.policy().on_store_error() == OnStoreError::FailOpen => {
                let body = answer.content.into_body(&self.guard, slot);
                return self.unprotected(answer.head, body);
            }
            Recorded::Superseded => Problem::new(ProblemCode::OutcomeUnknown).with_detail(
                "The operation ran, but lost its lease, and its answer was not recorded. Ask again \
                 with the same key to learn what is known of it.",
            ),
            Recorded::Failed => Problem::new(ProblemCode::StoreUnavailable).with_detail(
                "The operation ran, and its answer is not recorded yet. Ask again with the same \
                 key to get it.",
            ),
        };
        // What the handler does while it writes goes on.
        drop(answer.content.into_body(&self.guard, slot));
        self.config.problem(problem)
    }

    /// The inner service's own answer.
    fn first<R: HttpBody>(&self, mut head: response::Parts, body: Body<R>) -> Response<Body<R>> {
        replay::expose(&mut head.headers, &self.config.replay_header);
        Response::from_parts(head, body)
    }

    fn unprotected<R: HttpBody>(
        &self,
        mut head: response::Parts,
        body: Body<R>,
    ) -> Response<Body<R>> {
        replay::strip_marks(&mut head.headers, &self.config.replay_header);
        replay::mark_unprotected(&mut head.headers);
        self.first(head, body)
    }

    fn replay<R: HttpBody>(&self, outcome: &Outcome) -> Response<Body<R>> {
        self.config.replay(outcome, self.origin.as_ref())
    }
}

impl<R: HttpBody, E> Called<R, E> {
    /// What its transaction records. An answer that is no success is kept beside it, unless the
    /// handler says otherwise; the error: run it again.
    fn next(&self) -> Result<Option<Outcome>, ()> {
        let Self::Answered(answer) = self else {
            return Ok(None);
        };
        let extensions = &answer.head.extensions;
        if extensions.get::<RunAgain>().is_some() {
            return Err(());
        }
        Ok(match &answer.plan {
            Plan::Keep(outcome, is_failure)
                if !is_failure || extensions.get::<CommitFailure>().is_some() =>
            {
                Some(outcome.clone())
            }
            _ => None,
        })
    }
}
