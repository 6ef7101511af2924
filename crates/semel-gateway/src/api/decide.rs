//! What changes something, or shows what is hidden.

use axum::Extension;
use axum::extract::State;
use http::{StatusCode, Uri};
use semel::IdentityDigest;
use semel::store::Retention;

use super::{Answered, Api, Shared};
use crate::access::{Caller, Role};
use crate::config::Route;
use crate::exchange::{Given, Id, Told};
use crate::openapi::ActionProblems;
use crate::operations::Actor;
use crate::operations::order::{self, Many, Order};
use crate::operations::view::{Answer, Done, DoneMany, Proposed};
use crate::peer::Peer;
use crate::refused::{Code, Refused};

/// Decides about a record.
///
/// `resolve`: what is unknown happened, with this outcome, or did not happen. `release`: it did not happen.
/// `extend`: what is completed is replayed for longer. `erase`: its answer is removed.
#[utoipa::path(
    post,
    path = "/api/v1/records/{id}/{action}",
    operation_id = "act",
    tag = "records",
    params(
        ("id" = String, Path, description = "The name of the record", pattern = "^[0-9a-fA-F]{64}$"),
        ("action" = String, Path, description = "What is done", pattern = "^(resolve|release|extend|erase)$"),
    ),
    request_body = Order,
    responses(
        (status = 200, description = "It is done", body = Done),
        (status = 202, description = "Somebody else has to confirm it", body = Done),
        ActionProblems,
    ),
)]
pub(super) async fn act(
    State(api): Shared,
    uri: Uri,
    Extension(peer): Extension<Peer>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
    order: Result<Given<Order>, Refused>,
) -> Answered<Done> {
    let action = uri.path().rsplit('/').next().unwrap_or_default().to_owned();
    caller.require(least(&action))?;
    let Given(order) = order?;
    let actor = actor(&caller, &peer);
    finished(async move {
        let retention = api.retention(&id, &action).await?;
        let operations = &api.operations;
        let done = operations.act(&actor, &id, &action, order, retention);
        let done = done.await?;
        let done = operations.done(done);
        Ok(Told(status(done.proposed), done))
    })
    .await
}

/// Shows the whole answer that is replayed.
#[utoipa::path(
    post,
    path = "/api/v1/records/{id}/reveal",
    operation_id = "reveal",
    tag = "records",
    params(("id" = String, Path, description = "The name of the record", pattern = "^[0-9a-fA-F]{64}$")),
    request_body = Order,
    responses(
        (status = 200, description = "The answer", body = Answer),
        (status = 202, description = "Somebody else has to confirm it", body = Proposed),
        ActionProblems,
    ),
)]
pub(super) async fn reveal(
    State(api): Shared,
    Extension(peer): Extension<Peer>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
    order: Result<Given<Order>, Refused>,
) -> Result<Result<Told<Answer>, Told<Proposed>>, Refused> {
    caller.require(least("reveal"))?;
    let Given(order) = order?;
    let actor = actor(&caller, &peer);
    finished(async move {
        let revealed = api.operations.reveal(&actor, &id, &order).await?;
        Ok(match revealed {
            Ok((_, answer)) => Ok(Told(StatusCode::OK, answer)),
            Err(audit) => Err(Told(status(true), Proposed::new(audit))),
        })
    })
    .await
}

/// What is done with many records: but for its path and description, each is the same.
macro_rules! of_many {
    ($($(#[$($about:tt)*])* $name:ident, $path:tt;)*) => {$(
        $(#[$($about)*])*
        #[utoipa::path(
            post,
            path = $path,
            tag = "records",
            request_body = Many,
            responses(
                (status = 200, description = "It is done", body = DoneMany),
                (status = 202, description = "Somebody else has to confirm it", body = DoneMany),
                ActionProblems,
            ),
        )]
        pub(super) async fn $name(
            State(api): Shared,
            Extension(peer): Extension<Peer>,
            Extension(caller): Extension<Caller>,
            order: Result<Given<Many>, Refused>,
        ) -> Answered<DoneMany> {
            let action = stringify!($name);
            caller.require(least(action))?;
            let Given(order) = order?;
            let actor = actor(&caller, &peer);
            finished(async move {
                let done = api.operations.many(&actor, action, &order, |_| ()).await?;
                Ok(Told(status(done.proposed), done))
            })
            .await
        }
    )*};
}

of_many! {
    /// Removes the answers of a scope.
    erase, "/api/v1/erase";
    /// Removes what is past its retention.
    purge, "/api/v1/purge";
    /// Encrypts all answers with the key in use.
    reencrypt, "/api/v1/reencrypt";
}

/// The role that an action asks for.
pub(crate) fn least(action: &str) -> Role {
    match action {
        "erase" | "purge" | "reencrypt" => Role::Admin,
        _ => Role::Operator,
    }
}

/// Nothing is done until somebody else confirms it.
const fn status(proposed: bool) -> StatusCode {
    match proposed {
        true => StatusCode::ACCEPTED,
        false => StatusCode::OK,
    }
}

/// Who asks, for the audit log.
pub(crate) fn actor(caller: &Caller, peer: &Peer) -> Actor {
    Actor {
        name: caller.name().to_owned(),
        from: peer.address().to_string(),
    }
}

/// Does something to the end, also where whoever asked for it goes away in the middle.
pub(crate) async fn finished<T: Send + 'static>(
    task: impl Future<Output = Result<T, Refused>> + Send + 'static,
) -> Result<T, Refused> {
    tokio::spawn(task).await.unwrap_or_else(|error| {
        let why = format!("it broke off: {error}");
        Err(Refused::new(Code::ActionUnknown, why))
    })
}

impl Api {
    /// As long as an answer is kept that comes by itself to a record of this operation; of several
    /// routes, the longest.
    ///
    /// # Errors
    /// There is no such record, or the store did not show it.
    pub(crate) async fn retention(
        &self,
        id: &IdentityDigest,
        action: &str,
    ) -> Result<Retention, Refused> {
        if action != "resolve" {
            return Ok(order::OUTCOME_RETENTION);
        }
        let entry = self.operations.find(id).await?;
        let routes = &self.table.load().config.routes;
        let policy = Route::longest(routes, &entry.label.operation);
        Ok(policy.map_or(order::OUTCOME_RETENTION, |policy| policy.retention()))
    }
}
