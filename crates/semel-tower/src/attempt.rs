//! A request with a key, in a task of its own: claim, run, record, answer.

use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Request, Response, response};
use http_body::{Body as HttpBody, SizeHint};
use http_body_util::BodyExt as _;
use semel::guard::{Attempt, Begin, Guard, OnStoreError, Settled};
use semel::{
    Fingerprint, Identity, Outcome, OutcomeKind, State, Store, StoreError, StoreErrorKind,
};
use tokio::sync::{mpsc, oneshot};
use tower_service::Service;

use crate::body::{Body, Chunks, Relayed};
use crate::config::Config;
use crate::policy::Disposition;
use crate::problem::{Problem, ProblemCode};
use crate::replay;
use crate::transact::Transactions;

/// How many frames of a relayed body wait for a client that reads slowly.
pub(crate) const RELAYED_FRAMES: usize = 16;

/// Where the client waits, unless it went away. Sending to one that did is no error (R11).
pub(crate) type Client<R, E> = oneshot::Sender<Result<Response<Body<R>>, E>>;

/// What the task knows of its request.
pub(crate) struct Run<S> {
    pub(crate) guard: Guard<Arc<S>>,
    pub(crate) config: Arc<Config>,
    pub(crate) identity: Identity,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) origin: Option<HeaderValue>,
    pub(crate) transactions: Option<Arc<dyn Transactions<S>>>,
}

/// What is to become of the record.
pub(crate) enum Plan {
    Keep(Outcome),
    Release,
    Unknown,
}

/// What became of it.
pub(crate) enum Recorded {
    /// As planned; or the answer says that there was no effect, and whether the store knows is
    /// second to that.
    AsPlanned,
    /// Another attempt had taken over, and this is its outcome (R4).
    Otherwise(Outcome),
    /// Another attempt had taken over, and nobody knows more.
    Superseded,
    /// The store could not be told.
    Failed,
}

/// How reading the inner service's body ended.
pub(crate) enum Collected<B, E> {
    Whole(Bytes, Option<HeaderMap>),
    /// Larger than is kept: what was read, and the rest.
    Large(Chunks, Pin<Box<B>>),
    /// It failed after this much.
    Broken(Chunks, E),
}

impl<S: Store> Run<S> {
    /// Claims the identity, and runs the inner service if the claim is acquired.
    pub(crate) async fn once<Inner, B, R>(
        self,
        mut inner: Inner,
        mut parts: Parts,
        body: Bytes,
        client: Client<R, Inner::Error>,
    ) where
        Inner: Service<Request<B>, Response = Response<R>>,
        B: From<Bytes>,
        R: HttpBody<Data = Bytes>,
    {
        // What is kept must be readable by clients that accept other codings than this one.
        parts.headers.remove(ACCEPT_ENCODING);
        let begun = {
            let about = || Some(format!("{} {}", parts.method, parts.uri.path()).into());
            let begin = self
                .guard
                .begin_about(&self.identity, self.fingerprint, &about);
            begin.await
        };
        let mut attempt = match begun {
            Ok(Begin::Acquired(attempt)) => attempt,
            Ok(Begin::Unprotected(_)) => {
                parts.extensions.insert(self.identity.clone());
                let request = Request::from_parts(parts, B::from(body));
                let answer = inner.call(request).await;
                client
                    .send(answer.map(|response| {
                        let (head, body) = response.into_parts();
                        self.unprotected(head, Body::inner(body))
                    }))
                    .ok();
                return;
            }
            begun => {
                client.send(Ok(self.without_running(begun))).ok();
                return;
            }
        };
        parts.extensions.insert(self.identity.clone());
        if let Some(transactions) = &self.transactions {
            let run = self.transacted(&**transactions, attempt, inner, &parts, &body, client);
            return run.await;
        }
        parts.extensions.insert(attempt.info());
        let request = Request::from_parts(parts, B::from(body));
        let work = async move { inner.call(request).await };
        match attempt.hold_catching(work).await {
            Ok(Ok(response)) => self.settle(attempt, response, client).await,
            Ok(Err(error)) => {
                // If the store cannot be told, the lease lapses. The error is the answer anyway.
                attempt.abandon().await.ok();
                client.send(Err(error)).ok();
            }
            Err(panic) => {
                attempt.panicked().await.ok();
                resume_unwind(panic);
            }
        }
    }

    /// The answer where the inner service is not called.
    fn without_running<R: HttpBody>(
        &self,
        begun: Result<Begin<Arc<S>>, StoreError>,
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
            Err(_) | Ok(Begin::Acquired(_) | Begin::Unprotected(_)) => {
                ProblemCode::StoreUnavailable
            }
        };
        self.config.problem(Problem::new(code))
    }

    pub(crate) async fn settle<R, E>(
        &self,
        mut attempt: Attempt<Arc<S>>,
        response: Response<R>,
        client: Client<R, E>,
    ) where
        R: HttpBody<Data = Bytes>,
    {
        let (mut head, body) = response.into_parts();
        replay::strip_marks(&mut head.headers, &self.config.replay_header);
        if let Some(plan) = self.plan_by_head(&head) {
            // Nothing of the body is kept, so it goes its way untouched.
            self.record(attempt, &plan).await;
            client.send(Ok(self.first(head, Body::inner(body)))).ok();
            return;
        }
        let limit = self.config.max_response_body;
        if is_event_stream(&head.headers) || body.size_hint().lower() > limit as u64 {
            let read = Chunks::default();
            return self
                .relay(attempt, head, read, Box::pin(body), client)
                .await;
        }
        match attempt.hold_catching(collect(body, limit)).await {
            Ok(Collected::Whole(data, trailers)) => {
                let plan = self.plan(&head, Some(&data));
                let recorded = self.record(attempt, &plan).await;
                let body = Body::with_trailers(data, trailers);
                client.send(Ok(self.answer(recorded, head, body))).ok();
            }
            Ok(Collected::Large(read, rest)) => {
                self.relay(attempt, head, read, rest, client).await;
            }
            Ok(Collected::Broken(read, error)) => {
                // The head was fine, so the operation ran. The client gets what there is of it.
                self.record(attempt, &self.plan(&head, None)).await;
                let (relay, coming) = mpsc::channel(1);
                relay.try_send(Relayed::Frame(Err(error))).ok();
                let body = Body::relayed(read.into_frames(), coming, SizeHint::new());
                client.send(Ok(self.first(head, body))).ok();
            }
            Err(panic) => {
                self.record(attempt, &self.plan(&head, None)).await;
                resume_unwind(panic);
            }
        }
    }

    /// Answers with a body that is not kept, passing it on as it comes; records that it was
    /// omitted, and only then lets it end.
    async fn relay<R, E>(
        &self,
        mut attempt: Attempt<Arc<S>>,
        head: response::Parts,
        read: Chunks,
        mut rest: Pin<Box<R>>,
        client: Client<R, E>,
    ) where
        R: HttpBody<Data = Bytes>,
    {
        let plan = self.plan(&head, None);
        let (relay, coming) = mpsc::channel(RELAYED_FRAMES);
        let size = plus(&rest.size_hint(), read.len as u64);
        let body = Body::relayed(read.into_frames(), coming, size);
        client.send(Ok(self.first(head, body))).ok();
        let passed_on = attempt.hold_catching(async {
            while let Some(frame) = rest.frame().await {
                let broken = frame.is_err();
                relay.send(Relayed::Frame(frame)).await.ok();
                if broken {
                    break;
                }
            }
        });
        let passed_on = passed_on.await;
        // The client has its answer; a store that fails here is told about by the observer.
        self.record(attempt, &plan).await;
        if let Err(panic) = passed_on {
            relay.send(Relayed::Panic(panic)).await.ok();
        }
    }

    /// What is to be done, where the head says that nothing is kept.
    pub(crate) fn plan_by_head(&self, head: &response::Parts) -> Option<Plan> {
        match self.config.by_head(head)? {
            Disposition::KeepSuccess | Disposition::KeepFailure => None,
            Disposition::Release => Some(Plan::Release),
            Disposition::Unknown => Some(Plan::Unknown),
        }
    }

    /// What is to be done. Without a body, what is kept is that it was omitted.
    pub(crate) fn plan(&self, head: &response::Parts, body: Option<&Bytes>) -> Plan {
        let kind = match self.config.classify(head, body) {
            Disposition::Release => return Plan::Release,
            Disposition::Unknown => return Plan::Unknown,
            Disposition::KeepSuccess | Disposition::KeepFailure if body.is_none() => {
                OutcomeKind::Omitted
            }
            Disposition::KeepSuccess => OutcomeKind::Success,
            Disposition::KeepFailure => OutcomeKind::Failure,
        };
        let allowed = &self.config.allowed_replay_headers;
        Plan::Keep(replay::outcome_of(kind, head, body, allowed))
    }

    pub(crate) async fn record(&self, attempt: Attempt<Arc<S>>, plan: &Plan) -> Recorded {
        let settled = match plan {
            Plan::Keep(outcome) => attempt.complete(outcome).await,
            // The inner service says that nothing happened, or that nobody knows. Where the store
            // cannot be told, the lease lapses, and the policy says what that means.
            Plan::Release => {
                attempt.abandon().await.ok();
                return Recorded::AsPlanned;
            }
            Plan::Unknown => {
                attempt.mark_unknown().await.ok();
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
    pub(crate) async fn instead(&self) -> Recorded {
        let entry = self.guard.store().get(self.identity.digest()).await;
        match entry.ok().flatten().map(|entry| entry.record) {
            // After a release another request may have the key (conformance row 59).
            Some(record) if record.fingerprint != self.fingerprint => Recorded::Superseded,
            Some(record) => match record.state {
                State::Completed(outcome) => Recorded::Otherwise(outcome),
                State::InFlight | State::Unknown | State::Released => Recorded::Superseded,
            },
            None => Recorded::Superseded,
        }
    }

    /// What the client gets once the outcome is recorded, or is not.
    fn answer<R: HttpBody>(
        &self,
        recorded: Recorded,
        head: response::Parts,
        body: Body<R>,
    ) -> Response<Body<R>> {
        match recorded {
            Recorded::AsPlanned => self.first(head, body),
            Recorded::Otherwise(outcome) => self.replay(&outcome),
            Recorded::Superseded => {
                self.config
                    .problem(Problem::new(ProblemCode::OutcomeUnknown).with_detail(
                    "The operation ran, but lost its lease, and its answer was not recorded. Ask \
                     again with the same key to learn what is known of it.",
                ))
            }
            Recorded::Failed if self.guard.policy().on_store_error() == OnStoreError::FailOpen => {
                self.unprotected(head, body)
            }
            Recorded::Failed => {
                self.config
                    .problem(Problem::new(ProblemCode::StoreUnavailable).with_detail(
                    "The operation ran, and its answer could not be recorded. Ask again with the \
                     same key to learn what is known of it.",
                ))
            }
        }
    }

    /// The inner service's own answer.
    pub(crate) fn first<R: HttpBody>(
        &self,
        mut head: response::Parts,
        body: Body<R>,
    ) -> Response<Body<R>> {
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

    pub(crate) fn replay<R: HttpBody>(&self, outcome: &Outcome) -> Response<Body<R>> {
        self.config.replay(outcome, self.origin.as_ref())
    }
}

/// Reads a body of at most `limit` bytes.
pub(crate) async fn collect<R: HttpBody<Data = Bytes>>(
    body: R,
    limit: usize,
) -> Collected<R, R::Error> {
    let mut body = Box::pin(body);
    let mut read = Chunks::default();
    let mut trailers: Option<HeaderMap> = None;
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => return Collected::Broken(read, error),
        };
        match frame.into_data() {
            Ok(data) => {
                read.push(data);
                if read.len > limit {
                    return Collected::Large(read, body);
                }
            }
            Err(frame) => trailers = frame.into_trailers().ok().or(trailers),
        }
    }
    Collected::Whole(read.join(), trailers)
}

pub(crate) fn is_event_stream(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok()?.split(';').next())
        .is_some_and(|essence| essence.trim().eq_ignore_ascii_case("text/event-stream"))
}

pub(crate) fn plus(rest: &SizeHint, read: u64) -> SizeHint {
    let mut size = SizeHint::new();
    if let Some(upper) = rest.upper() {
        size.set_upper(upper.saturating_add(read));
    }
    size.set_lower(rest.lower().saturating_add(read));
    size
}
