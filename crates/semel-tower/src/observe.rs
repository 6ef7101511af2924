//! Requests that are only looked at, so that a team sees what the layer would do before it does it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, Response, response};
use http_body::{Body as HttpBody, Frame};
use semel::guard::{Asked, Begin, Guard, Seen, Signal};
use semel::store::OnLost;
use semel::{Identity, Key, Outcome, Scope, Store};
use tokio::sync::oneshot;
use tower::ServiceExt as _;
use tower_service::Service;

use crate::attempt::{Known, is_kept, known};
use crate::body::{self, Body, BoxError, Chunks, Read};
use crate::config::{Config, Echo};
use crate::future::ResponseFuture;
use crate::limits::{Bodies, Full, Limits, Slot};
use crate::policy::{self, Disposition, Reply};
use crate::problem::{Problem, ProblemCode};
use crate::replay;
use crate::scope::joined;
use crate::service::Idempotency;

/// What a layer does with requests that may have a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// Makes their operations happen once.
    #[default]
    Enforce,
    /// Passes all of them on, and their answers back, unchanged. What would have become of them is told
    /// to the guard's [`Observer`](semel::guard::Observer): `replayed`, `in_flight`, `mismatch` and so
    /// on. For that the layer keeps records, without answers, under names of their own: they mean
    /// nothing to a layer that enforces. The store is asked beside the request, which does not wait: it
    /// goes on when its body is there.
    ///
    /// A request whose body is longer than the layer reads, or of no announced length, is passed on and
    /// told as `too_large`. One for which there is no memory, or no room among as many as
    /// [may run](crate::IdempotencyLayer::with_max_attempts) at once, is passed on, told as `overloaded`,
    /// and not recorded: a store that is slow keeps no more requests waiting to be recorded than these.
    /// One whose scope has [used what it may](crate::IdempotencyLayer::with_scope_limits) is told as
    /// `limited`.
    Observe,
    /// Lets every request go past.
    Off,
}

/// A request that can be looked at.
struct Looked {
    scope: Scope,
    // What is in a body is not known yet.
    key: Option<Key>,
    bodies: Bodies,
}

impl<Inner, S: Store> Idempotency<Inner, S> {
    /// Passes a request on, and looks at it where that is possible.
    pub(crate) fn observe<B, R>(
        &mut self,
        request: Request<B>,
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
        let (parts, body) = request.into_parts();
        let looked = match self.look(&parts, &body) {
            Ok(looked) => looked,
            Err(signal) => {
                let name = self.config.operation.fixed();
                self.guard.tell(&Seen::new(signal).in_operation(name));
                let request = Request::from_parts(parts, body);
                return ResponseFuture::direct(self.inner.call(request), None);
            }
        };
        let Self {
            inner,
            guard,
            config,
            ..
        } = self.taken();
        ResponseFuture::attended(self.guard.attend(|_| async move {
            let Looked { scope, key, bodies } = looked;
            // Room for it was taken before.
            let unbounded = Limits::default().bodies();
            let read = body::read(body, config.max_request_body, &unbounded).await;
            let Read::Whole(body) = read else {
                let broken = Problem::new(ProblemCode::IncompleteBody);
                return Ok(config.problem(broken, &Echo::default()));
            };
            let (told, answered) = oneshot::channel();
            match asked(&config, &parts, scope, key, &body) {
                Ok(Some((identity, asked))) => {
                    look_on(&guard, &config, identity, asked, answered);
                }
                Ok(None) => {
                    let required = guard.policy().key_required();
                    guard.tell(&Seen::new(without_key(required, &parts)));
                }
                Err(problem) => {
                    if let Some(signal) = problem.code.refusal() {
                        guard.tell(&Seen::new(signal));
                    }
                }
            }
            let request = Request::from_parts(parts, B::from(body));
            match inner.oneshot(request).await {
                Ok(response) => {
                    let (head, body) = response.into_parts();
                    let body = watched(config, &head, body, told, bodies);
                    Ok(Response::from_parts(head, body))
                }
                Err(error) => {
                    let disposition = config.classify_error(&error);
                    let answered = Answered {
                        disposition: disposition.unwrap_or_else(|| Disposition::of_error(&error)),
                        bytes: 0,
                    };
                    told.send(answered).ok();
                    Err(error)
                }
            }
        }))
    }

    /// What is known before the body is read; or what the request would have been told, or that it has
    /// no key.
    fn look<B: HttpBody>(&self, parts: &Parts, body: &B) -> Result<Looked, Signal> {
        let required = self.guard.policy().key_required();
        let in_body = self.config.key_member.is_some();
        let key = match in_body {
            true => None,
            false => self
                .config
                .key(&parts.headers)
                .map_err(|_| Signal::InvalidKey)?,
        };
        if key.is_none() && !(in_body && Config::may_hold_key(&parts.headers)) {
            return Err(without_key(required, parts));
        }
        let scope = self
            .scope(parts, body)
            .map_err(|problem| problem.code.refusal().unwrap_or(Signal::InvalidKey))?;
        let bodies = self.config.limits.bodies();
        let length = body.size_hint().exact().ok_or(Signal::TooLarge)?;
        let length = usize::try_from(length).map_err(|_| Signal::TooLarge)?;
        match bodies.take(length) {
            true => Ok(Looked { scope, key, bodies }),
            false => Err(Signal::Overloaded),
        }
    }
}

fn without_key(required: bool, parts: &Parts) -> Signal {
    match required && !policy::is_idempotent(&parts.method) {
        true => Signal::MissingKey,
        false => Signal::Unkeyed,
    }
}

/// What a request asks for, if it has a key.
fn asked(
    config: &Arc<Config>,
    parts: &Parts,
    scope: Scope,
    key: Option<Key>,
    body: &Bytes,
) -> Result<Option<(Identity, Asked)>, Problem> {
    let reads_body = config.reads_body() && Config::may_hold_key(&parts.headers);
    let (scope, key) = match reads_body {
        false => (scope, key),
        true => {
            let read = config.read(key, body, &mut Echo::default())?;
            (joined(scope, read.scope), read.key)
        }
    };
    let asked = |key| {
        let identity = config.identity(parts, scope, key);
        let asked = config.asked(identity.clone(), parts, body);
        (identity, asked)
    };
    Ok(key.map(asked))
}

/// Looks beside a request at what would become of it, in a task that takes the room of an attempt. Where
/// there is none it is not looked at: what a store that is slow, or away, has not settled counts as well.
fn look_on<S: Store>(
    guard: &Guard<S>,
    config: &Config,
    identity: Identity,
    asked: Asked,
    answered: oneshot::Receiver<Answered>,
) {
    let limits = &config.limits;
    let slot = match limits.are_enough(guard.unsettled()) {
        true => Err(Full::Process),
        false => limits.slot(&config.limited(&identity)),
    };
    // What is known already is not limited.
    let (slot, is_limited) = match slot {
        Err(Full::Scope(_)) => (limits.slot_of_nobody(), true),
        slot => (slot, false),
    };
    let Ok(slot) = slot else {
        return guard.tell(&Seen::of(&identity, Signal::Overloaded));
    };
    let policy = guard.policy();
    let policy = policy.with_wait(Duration::ZERO).with_on_lost(OnLost::Retry);
    let looking = guard.with_policy(policy);
    guard.spawn(async move {
        match is_limited {
            true => limited(&looking, &identity, &asked).await,
            false => observed(&looking, &asked, answered, slot).await,
        }
    });
}

/// Tells of a request whose scope has used what it may. It is not recorded: it would not have run.
async fn limited<S: Store>(guard: &Guard<S>, identity: &Identity, asked: &Asked) {
    let signal = match known(guard, identity, asked).await {
        Ok(Some(Known::Claimed(_))) => return,
        Ok(Some(Known::Found(signal, _))) => signal,
        Ok(None) => Signal::Limited,
        Err(_) => Signal::StoreError,
    };
    guard.tell(&Seen::of(identity, signal));
}

/// Records what the attempt would have recorded, but for the answer itself. The guard tells what
/// happens.
async fn observed<S: Store>(
    guard: &Guard<S>,
    asked: &Asked,
    answered: oneshot::Receiver<Answered>,
    mut slot: Slot,
) {
    let Ok(Begin::Acquired(held)) = guard.begin(asked).await else {
        return;
    };
    slot.begun();
    let answered = answered.await.ok();
    let disposition = answered.as_ref().map(|answered| answered.disposition);
    // What would be unknown would not run again either, and needs nobody who resolves it here. A client
    // that goes away does not stop an attempt (protocol rule R11).
    let settled = match disposition.unwrap_or(Disposition::Unknown) {
        Disposition::Release => held.release().await,
        Disposition::KeepFailure => held.complete(&Outcome::failure(b"")).await,
        Disposition::KeepSuccess | Disposition::Unknown => {
            held.complete(&Outcome::success(b"")).await
        }
    };
    // What the store did not take the guard goes on with, and tells.
    drop(settled);
    if let Some(Answered { disposition, bytes }) = answered
        && is_kept(disposition)
    {
        slot.kept(bytes);
    }
}

/// What a service answered.
struct Answered {
    disposition: Disposition,
    /// How long its body is, as far as that is known.
    bytes: usize,
}

/// The answer's body on its way to the client, which is told of as an attempt would settle it.
fn watched<R: HttpBody<Data = Bytes>>(
    config: Arc<Config>,
    head: &response::Parts,
    body: R,
    told: oneshot::Sender<Answered>,
    bodies: Bodies,
) -> Body<R> {
    let most = config.max_response_body;
    let bytes = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if let Some(disposition) = config.by_head_alone(head) {
        let bytes = bytes.min(most);
        told.send(Answered { disposition, bytes }).ok();
        return Body::inner(body);
    }
    let is_read = bytes <= most && !body::is_event_stream(&head.headers);
    let mut watch = Watch {
        unsaid: Some(Box::new(Unsaid {
            config,
            head: head.clone(),
            told,
        })),
        read: Chunks::default(),
        trailers: None,
        bodies: Some(bodies),
    };
    if !is_read {
        watch.broke();
        return Body::inner(body);
    }
    Body::watched(body, watch)
}

/// What passes of a body, until it is known what it means.
pub(crate) struct Watch {
    unsaid: Option<Box<Unsaid>>,
    read: Chunks,
    trailers: Option<HeaderMap>,
    /// Until it is told.
    bodies: Option<Bodies>,
}

struct Unsaid {
    config: Arc<Config>,
    head: response::Parts,
    told: oneshot::Sender<Answered>,
}

impl Watch {
    pub(crate) fn saw(&mut self, frame: &Frame<Bytes>) {
        let Some(unsaid) = &self.unsaid else {
            return;
        };
        if unsaid.told.is_closed() {
            // What is known already, or could not be looked at, needs no answer.
            return self.broke();
        }
        if let Some(trailers) = frame.trailers_ref() {
            self.trailers = Some(trailers.clone());
        }
        let Some(data) = frame.data_ref() else {
            return;
        };
        let is_more = self.read.len() + data.len() > unsaid.config.max_response_body;
        let has_room = |bodies: &Bodies| bodies.take(data.len());
        match is_more || !self.bodies.as_ref().is_some_and(has_room) {
            true => self.broke(),
            false => self.read.push(data.clone()),
        }
    }

    pub(crate) fn ended(&mut self) {
        if self.unsaid.is_some() {
            let body = std::mem::take(&mut self.read).join();
            self.say(Some(&body));
        }
    }

    /// It is not seen whole.
    pub(crate) fn broke(&mut self) {
        self.say(None);
    }

    fn say(&mut self, body: Option<&Bytes>) {
        let Some(unsaid) = self.unsaid.take() else {
            return;
        };
        let Unsaid { config, head, told } = *unsaid;
        let trailers = self.trailers.take();
        let trailers = trailers.as_ref().filter(|_| body.is_some());
        let disposition = config.classify(&Reply {
            head: &head,
            body: body.filter(|_| trailers.is_none_or(replay::can_be_kept)),
            trailers,
        });
        let bytes = body.map_or(0, Bytes::len);
        told.send(Answered { disposition, bytes }).ok();
        self.read = Chunks::default();
        self.bodies = None;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.broke();
    }
}
