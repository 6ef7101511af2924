//! A request whose handler is offered a transaction: run, commit with the answer, and only then
//! answer; run again where the database asks for it.

use std::future::poll_fn;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, response};
use http_body::{Body as HttpBody, SizeHint};
use http_body_util::BodyExt as _;
use semel::guard::{Attempt, Committed};
use semel::{Store, StoreErrorKind};
use tokio::sync::mpsc;
use tower_service::Service;

use crate::attempt::{
    Client, Collected, Plan, RELAYED_FRAMES, Recorded, Run, collect, is_event_stream, plus,
};
use crate::body::{Body, Chunks, Relayed};
use crate::problem::{Problem, ProblemCode};
use crate::replay;
use crate::transact::{Offer, RunAgain, Transactions};

/// What a client is told to wait before it asks again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// An attempt that is to be run again, and who waits for it.
type Again<S, R, E> = (Attempt<Arc<S>>, Client<R, E>);

/// An answer with its body, as far as that was read.
enum Answer<B, E> {
    Read(Collected<B, E>),
    /// Not read: it is not kept.
    Passed(Pin<Box<B>>),
}

impl<S: Store> Run<S> {
    pub(crate) async fn transacted<Inner, B, R>(
        &self,
        transactions: &dyn Transactions<S>,
        mut attempt: Attempt<Arc<S>>,
        mut inner: Inner,
        parts: &Parts,
        body: &Bytes,
        mut client: Client<R, Inner::Error>,
    ) where
        Inner: Service<Request<B>, Response = Response<R>>,
        B: From<Bytes>,
        R: HttpBody<Data = Bytes>,
    {
        for again in 0.. {
            let last = again >= transactions.retries();
            let mut parts = parts.clone();
            parts.extensions.insert(attempt.info());
            let offer = transactions.offer(&mut attempt, again, &mut parts);
            let request = Request::from_parts(parts, B::from(body.clone()));
            let called = &mut inner;
            let work = async move {
                if again > 0 {
                    poll_fn(|context| called.poll_ready(context)).await?;
                }
                called.call(request).await
            };
            match attempt.hold_catching(work).await {
                Ok(Ok(response)) => {
                    let settled = self.settle_in(attempt, offer, response, client, last);
                    let Some(next) = settled.await else { return };
                    (attempt, client) = next;
                    tokio::time::sleep(Duration::from_millis(10 << again.min(6))).await;
                }
                Ok(Err(error)) => {
                    offer.roll_back(self.guard.clone()).await;
                    attempt.abandon().await.ok();
                    client.send(Err(error)).ok();
                    return;
                }
                Err(panic) => {
                    offer.roll_back(self.guard.clone()).await;
                    attempt.panicked().await.ok();
                    resume_unwind(panic);
                }
            }
        }
    }

    async fn settle_in<R, E>(
        &self,
        mut attempt: Attempt<Arc<S>>,
        offer: Box<dyn Offer<S>>,
        response: Response<R>,
        client: Client<R, E>,
        last: bool,
    ) -> Option<Again<S, R, E>>
    where
        R: HttpBody<Data = Bytes>,
    {
        if !offer.taken() {
            self.settle(attempt, response, client).await;
            return None;
        }
        let (mut head, body) = response.into_parts();
        replay::strip_marks(&mut head.headers, &self.config.replay_header);
        if !last && head.extensions.get::<RunAgain>().is_some() {
            drop(body);
            offer.roll_back(self.guard.clone()).await;
            return Some((attempt, client));
        }
        if let Some(plan) = self.plan_by_head(&head) {
            offer.roll_back(self.guard.clone()).await;
            self.record(attempt, &plan).await;
            client.send(Ok(self.first(head, Body::inner(body)))).ok();
            return None;
        }
        let limit = self.config.max_response_body;
        let answer = if is_event_stream(&head.headers) || body.size_hint().lower() > limit as u64 {
            Answer::Passed(Box::pin(body))
        } else {
            match attempt.hold_catching(collect(body, limit)).await {
                Ok(read) => Answer::Read(read),
                Err(panic) => {
                    offer.roll_back(self.guard.clone()).await;
                    attempt.panicked().await.ok();
                    resume_unwind(panic);
                }
            }
        };
        let whole = match &answer {
            Answer::Read(Collected::Whole(data, _)) => Some(data),
            Answer::Read(_) | Answer::Passed(_) => None,
        };
        let outcome = match self.plan(&head, whole) {
            Plan::Keep(outcome) => outcome,
            plan => {
                offer.roll_back(self.guard.clone()).await;
                self.record(attempt, &plan).await;
                self.pass_on(head, answer, client).await;
                return None;
            }
        };
        // Nothing of the answer goes out before it is committed, whatever its size.
        let recorded = match offer.commit(attempt, &outcome).await {
            Committed::Done(_) => {
                self.pass_on(head, answer, client).await;
                return None;
            }
            Committed::Conflict(attempt, _) if !last => return Some((attempt, client)),
            Committed::Conflict(attempt, error) | Committed::Failed(attempt, error) => {
                attempt.abandon().await.ok();
                let code = match error.kind() {
                    StoreErrorKind::Capacity => ProblemCode::Capacity,
                    _ => ProblemCode::StoreUnavailable,
                };
                let problem = Problem::new(code)
                    .with_detail("Nothing was committed. Ask again with the same key.")
                    .retry_after(RETRY_AFTER);
                client.send(Ok(self.config.problem(problem))).ok();
                return None;
            }
            Committed::Refused(_) => self.instead().await,
            Committed::Unknown(_) => {
                let problem = Problem::new(ProblemCode::OutcomeUnknown).with_detail(
                    "The operation ran, and whether it was committed could not be found out. Ask \
                     again with the same key to learn it.",
                );
                client.send(Ok(self.config.problem(problem))).ok();
                return None;
            }
        };
        let answer = match recorded {
            Recorded::Otherwise(outcome) => self.replay(&outcome),
            Recorded::AsPlanned | Recorded::Superseded | Recorded::Failed => {
                let problem = Problem::new(ProblemCode::OutcomeUnknown).with_detail(
                    "The operation lost its lease to another attempt, and nothing of it was \
                     committed. Ask again with the same key to learn what became of the other.",
                );
                self.config.problem(problem)
            }
        };
        client.send(Ok(answer)).ok();
        None
    }

    /// Answers, once what is to be recorded is.
    async fn pass_on<R, E>(
        &self,
        head: response::Parts,
        answer: Answer<R, R::Error>,
        client: Client<R, E>,
    ) where
        R: HttpBody<Data = Bytes>,
    {
        let (read, mut rest) = match answer {
            Answer::Read(Collected::Whole(data, trailers)) => {
                let body = Body::with_trailers(data, trailers);
                client.send(Ok(self.first(head, body))).ok();
                return;
            }
            Answer::Read(Collected::Broken(read, error)) => {
                let (relay, coming) = mpsc::channel(1);
                relay.try_send(Relayed::Frame(Err(error))).ok();
                let body = Body::relayed(read.into_frames(), coming, SizeHint::new());
                client.send(Ok(self.first(head, body))).ok();
                return;
            }
            Answer::Read(Collected::Large(read, rest)) => (read, rest),
            Answer::Passed(rest) => (Chunks::default(), rest),
        };
        let (relay, coming) = mpsc::channel(RELAYED_FRAMES);
        let size = plus(&rest.size_hint(), read.len as u64);
        let body = Body::relayed(read.into_frames(), coming, size);
        client.send(Ok(self.first(head, body))).ok();
        while let Some(frame) = rest.frame().await {
            let broken = frame.is_err();
            // Nobody reads on: nothing depends on it.
            if relay.send(Relayed::Frame(frame)).await.is_err() || broken {
                return;
            }
        }
    }
}
