//! The claim API: the protocol over HTTP and JSON, for work that is not an HTTP request. What goes over
//! the wire is `wire` and `docs/claims.md`; what a claim asks for, `asked`; the claim with its wait,
//! `claim`; all else is one step of the store and its answer, in `handlers`.

mod asked;
pub(crate) mod body;
mod claim;
mod handlers;
mod token;
pub(crate) mod wire;

use std::sync::Arc;

use quick_cache::sync::Cache;
use semel::guard::{Guard, Seen, Signal};
use semel::secrets::Secrets;
use semel::{AnyStore, IdentityDigest, Store};
use tokio::sync::{Semaphore, watch};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::{self, Caller};
use crate::refused::{Code, Refused};
use token::Held;

/// The largest request, in bytes.
pub(crate) const MAX_REQUEST: usize = 2 << 20;
/// Of how many records the operation is remembered.
const REMEMBERED: usize = 16 << 10;

/// What the endpoints share.
pub struct Claims {
    guard: Guard<AnyStore>,
    /// What identities are named under.
    secrets: Option<Secrets>,
    /// Room for calls that wait.
    waiting: Semaphore,
    room: usize,
    stopping: watch::Receiver<bool>,
    /// The stored names of operations, which never change: for callers with some rights.
    operations: Cache<IdentityDigest, Arc<str>>,
}

impl Claims {
    /// Claims on the store of `guard`. So many calls may wait at once, until the gateway is stopping.
    pub fn new(guard: Guard<AnyStore>, waiting: usize, stopping: watch::Receiver<bool>) -> Self {
        let room = waiting.min(Semaphore::MAX_PERMITS);
        Self {
            guard,
            secrets: None,
            waiting: Semaphore::new(room),
            room,
            stopping,
            operations: Cache::new(REMEMBERED),
        }
    }

    /// Names identities under these.
    #[must_use]
    pub fn with_secrets(mut self, secrets: Option<Secrets>) -> Self {
        self.secrets = secrets;
        self
    }

    /// How many calls are waiting.
    pub(crate) fn waiting(&self) -> usize {
        self.room.saturating_sub(self.waiting.available_permits())
    }

    /// Refuses callers who may not claim what this record is about. Where there is no record, they are
    /// told so later.
    async fn allow(&self, caller: &Caller, id: &IdentityDigest) -> Result<(), Refused> {
        if caller.may_claim_all() {
            return Ok(());
        }
        caller.may_claim_any()?;
        let operation = match self.operations.get(id) {
            Some(operation) => operation,
            None => match self.guard.store().get(id).await? {
                Some(entry) => self.remember(id, &entry.label.operation),
                None => return Ok(()),
            },
        };
        let (service, operation) = access::named(&operation);
        caller.may_claim(service, operation)
    }

    fn remember(&self, id: &IdentityDigest, operation: &str) -> Arc<str> {
        let operation: Arc<str> = operation.into();
        self.operations.insert(*id, Arc::clone(&operation));
        operation
    }

    fn tell(&self, id: &IdentityDigest, held: &Held, signal: Signal) {
        let mut seen = Seen::new(signal);
        seen.id = Some(id);
        seen.fence = Some(held.token.fence);
        self.guard.tell(&seen);
    }
}

/// The endpoints, and their description.
pub(crate) fn router(claims: Arc<Claims>) -> OpenApiRouter {
    OpenApiRouter::new()
        .routes(routes!(handlers::claim))
        .routes(routes!(handlers::show))
        .routes(routes!(handlers::renew))
        .routes(routes!(handlers::keep_step))
        .routes(routes!(handlers::complete))
        .routes(routes!(handlers::abandon))
        .routes(routes!(handlers::mark_unknown))
        .with_state(claims)
}

/// Returns once the gateway is stopping.
async fn until_stopping(mut stopping: watch::Receiver<bool>) {
    if stopping.wait_for(|stopping| *stopping).await.is_err() {
        // It has stopped.
    }
}

fn no_record() -> Refused {
    Refused::new(Code::NotFound, "There is no record of this id.")
}
