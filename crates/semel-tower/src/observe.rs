//! Requests that are only looked at, so that a team sees what the layer would do before it does it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body as HttpBody;
use semel::guard::{Asked, Begin, Guard, Seen, Signal};
use semel::store::OnLost;
use semel::{Key, Outcome, Scope, Store};
use tokio::sync::oneshot;
use tower::ServiceExt as _;
use tower_service::Service;

use crate::body::{self, Body, BoxError, Read};
use crate::config::{Config, Echo};
use crate::future::ResponseFuture;
use crate::limits::{Bodies, Limits};
use crate::problem::{Problem, ProblemCode};
use crate::scope::joined;
use crate::service::Idempotency;
use crate::{Disposition, policy};

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
    /// nothing to a layer that enforces. The store is asked beside the request, which does not wait.
    ///
    /// A request whose body is longer than the layer reads, or of no announced length, is passed on and
    /// told as `too_large`; one for which there is no memory as `overloaded`.
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
            // Counted until the request is answered and looked at.
            let bodies = Arc::new(looked.bodies);
            // Room for it was taken before.
            let unbounded = Limits::default().bodies();
            let read = body::read(body, config.max_request_body, &unbounded).await;
            let Read::Whole(body) = read else {
                let broken = Problem::new(ProblemCode::IncompleteBody);
                return Ok(config.problem(broken, &Echo::default()));
            };
            let (told, answered) = oneshot::channel();
            match asked(&config, &parts, looked.scope, looked.key, &body) {
                Ok(Some(asked)) => {
                    let policy = guard.policy();
                    let policy = policy.with_wait(Duration::ZERO).with_on_lost(OnLost::Retry);
                    let observing = observed(guard.with_policy(policy), asked, answered);
                    let held = Arc::clone(&bodies);
                    guard.spawn(async move {
                        observing.await;
                        drop(held);
                    });
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
            let answer = match inner.oneshot(request).await {
                Ok(response) => {
                    let (head, body) = response.into_parts();
                    let said = config.by_head(&head);
                    let said = said.unwrap_or_else(|| Disposition::of_status(head.status));
                    told.send(said).ok();
                    Response::from_parts(head, Body::inner(body))
                }
                Err(error) => {
                    told.send(Disposition::Unknown).ok();
                    return Err(error);
                }
            };
            drop(bodies);
            Ok(answer)
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
) -> Result<Option<Asked>, Problem> {
    let (scope, key) = match &config.key_member {
        None => (scope, key),
        Some(member) => {
            let read = config.read(member, body, &mut Echo::default())?;
            let scope = joined(scope, read.scope);
            (scope, read.key)
        }
    };
    let asked = |key| {
        let identity = config.identity(parts, scope, key);
        config.asked(identity, parts, body)
    };
    Ok(key.map(asked))
}

/// Records what the attempt would have recorded, but for the answer itself. The guard tells what
/// happens.
async fn observed<S: Store>(
    guard: Guard<S>,
    asked: Asked,
    answered: oneshot::Receiver<Disposition>,
) {
    let Ok(Begin::Acquired(held)) = guard.begin(&asked).await else {
        return;
    };
    let settled = match answered.await {
        Ok(Disposition::Release) => held.release().await,
        Ok(Disposition::KeepFailure) => held.complete(&Outcome::failure(b"")).await,
        // What would be unknown would not run again either, and needs nobody who resolves it here. A client
        // that goes away does not stop an attempt (protocol rule R11).
        Ok(Disposition::KeepSuccess | Disposition::Unknown) | Err(_) => {
            held.complete(&Outcome::success(b"")).await
        }
    };
    // What the store did not take the guard goes on with, and tells.
    drop(settled);
}
