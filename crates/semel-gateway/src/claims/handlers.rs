//! The endpoints: each reads a request, asks the store, and writes the answer.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use http::StatusCode;
use semel::guard::Signal;
use semel::record::Update;
use semel::store::{Fenced, Label, Refusal, Retention, Store as _, StoreExt as _};
use semel::{
    FinishedStep, IdentityDigest, Outcome, OutcomeKind, Progress, StateKind, StoreErrorKind,
    Timestamp,
};
use semel_tower::ProblemCode;

use super::asked::{self, Asked};
use super::claim::{self, Made};
use super::token::{Held, millis};
use super::wire::{
    AbandonRequest, Acquired, ClaimRequest, CompleteRequest, Completed, Ended, Kept, RenewRequest,
    Renewed, Replayed, Shown, State as Stands, StepRequest, UnknownRequest,
};
use super::{Claims, body, no_record};
use crate::access::{self, Caller};
use crate::exchange::{Given, Id, Told};
use crate::openapi::{ClaimProblems, RecordProblems, TokenProblems};
use crate::operations::{is_internal, of_store};
use crate::reconcile;
use crate::refused::{Code, Refused};

/// How often a step is kept again, when others are kept at the same time.
const STEP_TRIES: usize = 8;

type Shared = State<Arc<Claims>>;
type Answered<T> = Result<Told<T>, Refused>;

/// Claims a key.
#[utoipa::path(
    post,
    path = "/v1/claims",
    operation_id = "claim",
    tag = "claims",
    request_body = ClaimRequest,
    responses(
        (status = 201, description = "The claim is the caller's", body = Acquired),
        (status = 200, description = "It is done: the outcome", body = Replayed),
        ClaimProblems,
    ),
)]
pub(super) async fn claim(
    State(claims): Shared,
    Extension(caller): Extension<Caller>,
    Given(request): Given<ClaimRequest>,
) -> Result<Result<Told<Acquired>, Told<Replayed>>, Refused> {
    let service = asked::named(&request)?;
    caller.may_claim(service.name(), &request.operation)?;
    let asked = Asked::read(&request, &service, claims.secrets.as_ref())?;
    if is_internal(&Label::from(&asked.identity)) {
        let why = "This scope and operation are the gateway's own. Nothing was done.";
        return Err(Refused::new(Code::Forbidden, why));
    }
    // It may be large, and the wait long.
    drop(request);
    if !caller.may_claim_all() {
        let names = [Some(asked.identity.clone()), asked.identity.other()];
        for name in names.iter().flatten() {
            claims.remember(name.digest(), name.operation());
        }
    }
    Ok(match claim::make(&claims, &asked).await? {
        Made::Acquired(acquired) => Ok(Told(StatusCode::CREATED, acquired)),
        Made::Replayed(replayed) => Err(Told(StatusCode::OK, replayed)),
    })
}

/// Shows a record.
#[utoipa::path(
    get,
    path = "/v1/claims/{id}",
    operation_id = "show",
    tag = "claims",
    params(("id" = String, Path, description = "The name of the record", pattern = "^[0-9a-fA-F]{64}$")),
    responses((status = 200, description = "The record", body = Shown), RecordProblems),
)]
pub(super) async fn show(
    State(claims): Shared,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
) -> Answered<Shown> {
    caller.may_claim_any()?;
    let entry = claims.guard.store().get(&id).await?;
    let entry = entry.filter(|entry| !is_internal(&entry.label));
    let semel::store::Entry { label, record } = entry.ok_or_else(no_record)?;
    let (service, operation) = access::named(&label.operation);
    caller.may_claim(service, operation)?;
    let is_final = record.expires_at != Timestamp::MAX;
    let shown = Shown {
        id: id.to_string(),
        service: service.to_owned(),
        operation: operation.to_owned(),
        scope: label.scope.segments().map(str::to_owned).collect(),
        key_hint: label.key_hint.into(),
        state: stands(record.state.kind()),
        fence: record.token.fence.0,
        attempt: record.attempt,
        created_at: time(record.created_at),
        claimed_at: time(record.claimed_at),
        lease_until: time(record.lease_until),
        settled_at: record.settled_at.map(time),
        expires_at: is_final.then(|| time(record.expires_at)),
        steps: body::steps(&record.progress)?,
        outcome: match &record.state {
            // Answers to requests are for their clients; whoever else sees one is in the audit log.
            semel::State::Completed(outcome) if operation != reconcile::OPERATION => {
                Some(body::shown(outcome.readable().map_err(of_store)?))
            }
            _ => None,
        },
    };
    Ok(Told(StatusCode::OK, shown))
}

/// Prolongs the lease.
#[utoipa::path(
    post,
    path = "/v1/claims/{id}/renew",
    operation_id = "renew",
    tag = "claims",
    params(("id" = String, Path, description = "The name of the record", pattern = "^[0-9a-fA-F]{64}$")),
    request_body = RenewRequest,
    responses((status = 200, description = "The lease is prolonged", body = Renewed), TokenProblems),
)]
pub(super) async fn renew(
    State(claims): Shared,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
    Given(request): Given<RenewRequest>,
) -> Answered<Renewed> {
    claims.allow(&caller, &id).await?;
    let held = Held::parse(&request.token)?;
    let lease = match &request.lease {
        Some(text) => asked::lease(text)?,
        None => held.lease,
    };
    claims.change(&id, &held, Update::Renew(lease)).await?;
    claims.tell(&id, &held, Signal::Renewed);
    let lease_ms = millis(lease);
    Ok(Told(StatusCode::OK, Renewed { lease_ms }))
}

/// Keeps a finished step.
#[utoipa::path(
    post,
    path = "/v1/claims/{id}/steps",
    operation_id = "keep_step",
    tag = "claims",
    params(("id" = String, Path, description = "The name of the record", pattern = "^[0-9a-fA-F]{64}$")),
    request_body = StepRequest,
    responses((status = 200, description = "The step is kept", body = Kept), TokenProblems),
)]
pub(super) async fn keep_step(
    State(claims): Shared,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
    Given(request): Given<StepRequest>,
) -> Answered<Kept> {
    claims.allow(&caller, &id).await?;
    let held = Held::parse(&request.token)?;
    asked::text("name", &request.name)?;
    let result = body::stored(&request.result, "result")?;
    let too_large = |error: semel::ProgressTooLarge| {
        Refused::of_layer(ProblemCode::TooLarge, format!("{error}. Nothing was kept."))
    };
    let step = FinishedStep::new(&request.name, result.as_bytes()).map_err(too_large)?;
    for _ in 0..STEP_TRIES {
        let kept = claims.kept(&id, &held).await?;
        kept.readable().map_err(of_store)?;
        let before = kept.steps().count();
        let same = kept.steps().find(|(name, _)| *name == request.name);
        if let Some((_, kept)) = same {
            if kept == &result.as_bytes()[..] {
                return Ok(Told(StatusCode::OK, Kept { steps: before }));
            }
            let detail = "A step of this name is kept with another result. Nothing was changed.";
            return Err(Refused::new(Code::StepConflict, detail));
        }
        kept.with(&step).map_err(too_large)?;
        match claims.keep(&id, &held, &step, &kept).await? {
            Fenced::Applied => {
                claims.tell(&id, &held, Signal::StepKept);
                let steps = before + 1;
                return Ok(Told(StatusCode::OK, Kept { steps }));
            }
            // Another one came in between.
            Fenced::Refused(Refusal::OtherSteps) => {}
            Fenced::Refused(refusal) => return Err(claims.stale(&id, &held, refusal)),
        }
    }
    let detail = "Other steps of this record are kept at the same time. Send it again.";
    Err(Refused::of_layer(ProblemCode::Overloaded, detail).retry_after(Duration::from_secs(1)))
}

/// Records the outcome.
#[utoipa::path(
    post,
    path = "/v1/claims/{id}/complete",
    operation_id = "complete",
    tag = "claims",
    params(("id" = String, Path, description = "The name of the record", pattern = "^[0-9a-fA-F]{64}$")),
    request_body = CompleteRequest,
    responses((status = 200, description = "The outcome is recorded", body = Completed), TokenProblems),
)]
pub(super) async fn complete(
    State(claims): Shared,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
    Given(request): Given<CompleteRequest>,
) -> Answered<Completed> {
    claims.allow(&caller, &id).await?;
    let held = Held::parse(&request.token)?;
    let (ttl, tombstone) = (request.ttl.as_deref(), request.tombstone.as_deref());
    let chosen = asked::retention(held.retention, ttl, tombstone)?;
    // Not shorter than the lease, so that those who wait are answered.
    let retention = Retention {
        replay: chosen.replay.max(held.lease),
        ..chosen
    };
    let outcome = body::stored(&request.outcome, "outcome")?;
    drop(request);
    let recorded = claims.record(&id, &held, outcome, retention).await?;
    let omitted = recorded == OutcomeKind::Omitted;
    claims.tell(
        &id,
        &held,
        match omitted {
            true => Signal::Omitted,
            false => Signal::Completed,
        },
    );
    let state = Stands::Completed;
    Ok(Told(StatusCode::OK, Completed { state, omitted }))
}

/// Gives the key back: nothing happened.
#[utoipa::path(
    post,
    path = "/v1/claims/{id}/abandon",
    operation_id = "abandon",
    tag = "claims",
    params(("id" = String, Path, description = "The name of the record", pattern = "^[0-9a-fA-F]{64}$")),
    request_body = AbandonRequest,
    responses((status = 200, description = "The next claim may run", body = Ended), TokenProblems),
)]
pub(super) async fn abandon(
    State(claims): Shared,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
    Given(request): Given<AbandonRequest>,
) -> Answered<Ended> {
    claims.allow(&caller, &id).await?;
    let held = Held::parse(&request.token)?;
    if request.keys_given {
        let kept = claims.kept(&id, &held).await?;
        if kept.is_bare() {
            let mark = FinishedStep::keys_given();
            match claims.keep(&id, &held, &mark, &kept).await? {
                // Other steps are kept meanwhile: they say enough. Released before: with its mark.
                Fenced::Applied
                | Fenced::Refused(Refusal::OtherSteps | Refusal::Settled(StateKind::Released)) => {}
                Fenced::Refused(refusal) => return Err(claims.stale(&id, &held, refusal)),
            }
        }
    }
    claims.change(&id, &held, Update::Abandon).await?;
    claims.tell(&id, &held, Signal::Released);
    let state = Stands::Released;
    Ok(Told(StatusCode::OK, Ended { state }))
}

/// Says that nobody knows what happened.
#[utoipa::path(
    post,
    path = "/v1/claims/{id}/unknown",
    operation_id = "mark_unknown",
    tag = "claims",
    params(("id" = String, Path, description = "The name of the record", pattern = "^[0-9a-fA-F]{64}$")),
    request_body = UnknownRequest,
    responses((status = 200, description = "The outcome is unknown", body = Ended), TokenProblems),
)]
pub(super) async fn mark_unknown(
    State(claims): Shared,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
    Given(request): Given<UnknownRequest>,
) -> Answered<Ended> {
    claims.allow(&caller, &id).await?;
    let held = Held::parse(&request.token)?;
    claims.change(&id, &held, Update::MarkUnknown).await?;
    claims.tell(&id, &held, Signal::MarkedUnknown);
    let state = Stands::Unknown;
    Ok(Told(StatusCode::OK, Ended { state }))
}

impl Claims {
    /// Changes a record for the client that holds it.
    async fn change(
        &self,
        id: &IdentityDigest,
        held: &Held,
        update: Update,
    ) -> Result<(), Refused> {
        let change = semel::record::Change::Held(held.token, update);
        match self.guard.store().change(id, &change).await? {
            Fenced::Applied => Ok(()),
            Fenced::Refused(refusal) => Err(self.stale(id, held, refusal)),
        }
    }

    /// Records an outcome, without its body where that is too large for the store. Says which.
    async fn record(
        &self,
        id: &IdentityDigest,
        held: &Held,
        outcome: Outcome,
        retention: Retention,
    ) -> Result<OutcomeKind, Refused> {
        let store = self.guard.store();
        let mut outcome = outcome;
        let mut told = store.complete(id, &held.token, &outcome, retention).await;
        if told
            .as_ref()
            .is_err_and(|error| error.kind() == StoreErrorKind::TooLarge)
        {
            outcome = outcome.to_omitted();
            told = store.complete(id, &held.token, &outcome, retention).await;
        }
        match told? {
            Fenced::Applied => Ok(outcome.kind()),
            Fenced::Refused(refusal) => Err(self.stale(id, held, refusal)),
        }
    }

    /// What is kept of the attempt that the client holds.
    async fn kept(&self, id: &IdentityDigest, held: &Held) -> Result<Progress, Refused> {
        match self.guard.store().get(id).await? {
            Some(entry) if entry.record.token == held.token => Ok(entry.record.progress),
            Some(_) => Err(self.stale(id, held, Refusal::Superseded)),
            None => Err(self.stale(id, held, Refusal::Missing)),
        }
    }

    async fn keep(
        &self,
        id: &IdentityDigest,
        held: &Held,
        step: &FinishedStep,
        kept: &Progress,
    ) -> Result<Fenced, Refused> {
        let before = kept.as_bytes().len();
        let store = self.guard.store();
        Ok(store.keep_step(id, &held.token, step, before).await?)
    }

    /// The answer to a token that is not the current one.
    fn stale(&self, id: &IdentityDigest, held: &Held, refusal: Refusal) -> Refused {
        self.tell(id, held, Signal::Stale);
        let reason = match refusal {
            Refusal::Missing => "missing",
            Refusal::Settled(state) => state.as_str(),
            _ => "superseded",
        };
        let detail = format!("Nothing was changed: {refusal}.");
        Refused::new(Code::Stale, detail).with("reason", reason)
    }
}

const fn stands(state: StateKind) -> Stands {
    match state {
        StateKind::InFlight => Stands::InFlight,
        StateKind::Unknown => Stands::Unknown,
        StateKind::Completed => Stands::Completed,
        StateKind::Released => Stands::Released,
    }
}

fn time(at: Timestamp) -> String {
    let at = std::time::UNIX_EPOCH + Duration::from_micros(at.as_micros());
    humantime::format_rfc3339_micros(at).to_string()
}
