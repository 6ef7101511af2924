//! Decisions about a record: entered in the audit log, made by the store, and entered again with what came
//! of it.

use std::future::Future;
use std::time::Duration;

use semel::sealed::{Keys, Sealed};
use semel::store::{
    Entry, Fence, Fenced, ListQuery, Nonce, Refusal, Resolution, Retention, Store, StoreExt as _,
    Verdict,
};
use semel::{
    AnyStore, IdentityDigest, Outcome, OutcomeKind, Record, State, StateKind, StoreError,
    StoreErrorKind,
};
use semel_tower::ProblemCode;
use tokio::time::sleep;

use super::filter::about_now;
use super::four_eyes::digest;
use super::order::{Many, Order};
use super::view::{Answer, DoneMany, time};
use super::{Filter, MOST, Operations, Position, of_refusal, of_store};
use crate::audit::{Begun, Came, Intent};
use crate::command::with_causes;
use crate::refused::{Code, Refused};

/// The longest reason, in characters.
const LONGEST_REASON: usize = 1_000;
/// How often a step is sent whose answer was lost, under the same nonce.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(100);
/// How many records a purge removes in one step.
const PURGE: usize = 1_000;
/// How long it is known at least that something was erased.
const LEAST_TOMBSTONE: Duration = Duration::from_hours(24);

/// Who does something, as the audit log has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// Their name.
    pub name: String,
    /// The address that they ask from, or the machine.
    pub from: String,
}

/// What became of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided {
    /// The record afterwards.
    pub entry: Entry,
    /// The number of the audit log's entry.
    pub number: String,
    /// Whether somebody else has to confirm it.
    pub is_proposed: bool,
}

/// What is decided about a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// What is unknown is decided.
    Resolve(Verdict),
    /// It did not happen: the key is given back.
    Release,
    /// What is completed is replayed for so long from now.
    Extend(Duration),
    /// What is completed is no longer kept, only that it was.
    Erase,
}

impl Action {
    const fn name(&self) -> &'static str {
        match self {
            Self::Resolve(Verdict::DidNotHappen) => "resolve-did-not-happen",
            Self::Resolve(_) => "resolve-happened",
            Self::Release => "release",
            Self::Extend(_) => "extend",
            Self::Erase => "erase",
        }
    }

    /// What it means for the record as it is.
    fn verdict(self, record: &Record) -> Result<Verdict, Refused> {
        let State::Completed(outcome) = &record.state else {
            return match self {
                Self::Resolve(verdict) => Ok(verdict),
                Self::Release => Ok(Verdict::DidNotHappen),
                Self::Extend(_) | Self::Erase => Err(Refused::new(
                    Code::WrongState,
                    format!(
                        "the record is {}: there is no answer",
                        record.state.kind().as_str()
                    ),
                )),
            };
        };
        match self {
            Self::Resolve(verdict) => Ok(verdict),
            Self::Release => Ok(Verdict::DidNotHappen),
            Self::Extend(_) if is_erased(record) => Err(answer_is_erased()),
            Self::Extend(ttl) => {
                if about_now().after(ttl) < record.expires_at {
                    let until = time(record.expires_at).unwrap_or_else(|| "for ever".to_owned());
                    let why = format!("ttl: it would end sooner than now: {until}");
                    return Err(Refused::invalid(why));
                }
                Ok(Verdict::Amended {
                    outcome: outcome.clone(),
                    retention: Retention::new(ttl)
                        .with_tombstone(record.expires_at.until(record.purge_at)),
                })
            }
            // For as long as the answer was to be known, counted anew: retries are not to run again.
            Self::Erase => {
                let settled = record.settled_at.unwrap_or(record.created_at);
                let known = settled.until(record.purge_at).max(LEAST_TOMBSTONE);
                Ok(Verdict::Amended {
                    outcome: erased(),
                    retention: Retention::new(Duration::ZERO).with_tombstone(known),
                })
            }
        }
    }
}

/// A reason, checked.
fn checked(reason: &str) -> Result<&str, Refused> {
    let reason = reason.trim();
    if reason.is_empty() {
        let why = "say why: it is kept in the audit log and with the record";
        return Err(Refused::new(Code::MissingReason, why));
    }
    let long = reason.chars().count();
    if long > LONGEST_REASON {
        let why = format!("reason: it has {long} characters; {LONGEST_REASON} are kept");
        return Err(Refused::invalid(why));
    }
    if reason.chars().any(|c| c.is_control() && c != '\n') {
        return Err(Refused::invalid("reason: control characters are not text"));
    }
    Ok(reason)
}

impl<S: Store + Clone> Operations<S> {
    /// Decides about the record as the viewer saw it, under the order's fence; or proposes it, where somebody
    /// else has to confirm it.
    ///
    /// # Errors
    /// Why nothing was done, or that it is not known.
    pub async fn act(
        &self,
        actor: &Actor,
        id: &IdentityDigest,
        name: &str,
        order: Order,
        default_ttl: Duration,
    ) -> Result<Decided, Refused> {
        let proposal = order.proposal.clone();
        let same = Order {
            reason: String::new(),
            proposal: None,
            ..order.clone()
        };
        let (fence, reason, action) = order.read(name, default_ttl)?;
        let reason = checked(&reason)?;
        let before = self.find(id).await?;
        let mut intent = Intent {
            action: action.name().to_owned(),
            id: Some(id.to_string()),
            by: actor.name.clone(),
            from: actor.from.clone(),
            reason: reason.to_owned(),
            before: Some(facts(&before.record)),
            digest: None,
            confirms: None,
        };
        if matches!(action, Action::Erase) {
            self.reaches(&before.record)?;
        }
        let resolution = Resolution {
            verdict: action.verdict(&before.record)?,
            by: actor.name.as_str().into(),
            reason: reason.into(),
            fence: Fence(fence),
            nonce: Nonce::random().map_err(of_store)?,
        };
        // Nobody could ever confirm it, or it would be used up in vain.
        if self.needs_two(name) && before.record.token.fence != resolution.fence {
            return Err(of_refusal(Refusal::Superseded));
        }
        let cleared = self.cleared(name, &mut intent, digest(&same)?, proposal.as_deref());
        if let Some(number) = cleared.await? {
            return Ok(Decided {
                entry: before,
                number,
                is_proposed: true,
            });
        }
        let begun = self.enter(intent).await?;
        let done = insist(|| self.store.resolve(id, &resolution)).await;
        let refused = match done {
            Ok(Fenced::Applied) if name == "erase" => self.clean_files().await.err().map(|why| {
                let why =
                    format!("it is erased, and its bytes may still be in the store's files: {why}");
                Refused::new(Code::ActionUnknown, why)
            }),
            Ok(Fenced::Applied) => None,
            Ok(Fenced::Refused(refusal)) => Some(of_refusal(refusal)),
            Err(error) => Some(of_store(error)),
        };
        let after = self.store.get(id).await.ok().flatten();
        let facts = after.as_ref().map(|entry| facts(&entry.record));
        let number = begun.number().to_string();
        let came = match &refused {
            None => Came::Done,
            Some(refused) if refused.is(Code::ActionUnknown) => Came::Unknown,
            Some(_) => Came::Refused,
        };
        let detail = refused.as_ref().map(ToString::to_string);
        self.leave(begun, came, detail, facts).await;
        match refused {
            // It is gone at once only where nothing is retained.
            None => Ok(Decided {
                entry: after.unwrap_or(before),
                number,
                is_proposed: false,
            }),
            Some(refused) => Err(refused),
        }
    }

    /// The whole answer that is replayed, and the record that it was read with. That somebody looked is
    /// entered before it is shown.
    ///
    /// # Errors
    /// Why it is not shown.
    pub async fn reveal(
        &self,
        actor: &Actor,
        id: &IdentityDigest,
        order: &Order,
    ) -> Result<Result<(Entry, Answer), String>, Refused> {
        let reason = checked(&order.reason)?;
        let entry = self.find(id).await?;
        let State::Completed(outcome) = &entry.record.state else {
            let state = entry.record.state.kind().as_str();
            let why = format!("the record is {state}: it has no answer");
            return Err(Refused::new(Code::WrongState, why));
        };
        if is_erased(&entry.record) {
            return Err(answer_is_erased());
        }
        if outcome.is_sealed() || outcome.place().is_some() {
            let why = "its answer cannot be read: it is encrypted with a key that is not here, or kept outside \
                       the store and not to be found there";
            return Err(Refused::of_layer(ProblemCode::StoreUnavailable, why));
        }
        let mut intent = Intent {
            action: "reveal".to_owned(),
            id: Some(id.to_string()),
            by: actor.name.clone(),
            from: actor.from.clone(),
            reason: reason.to_owned(),
            before: Some(facts(&entry.record)),
            digest: None,
            confirms: None,
        };
        let proposal = order.proposal.as_deref();
        let fence = entry.record.token.fence.0;
        let cleared = self.cleared("reveal", &mut intent, digest(&fence)?, proposal);
        if let Some(number) = cleared.await? {
            return Ok(Err(number));
        }
        let begun = self.enter(intent).await?;
        self.leave(begun, Came::Done, None, None).await;
        let answer = Answer::revealed(outcome);
        Ok(Ok((entry, answer)))
    }

    /// Does what is done with many records: `erase`, `purge` or `reencrypt`.
    ///
    /// # Errors
    /// Why nothing was done, or no more.
    pub async fn many(
        &self,
        actor: &Actor,
        action: &str,
        order: &Many,
        progress: impl FnMut(usize),
    ) -> Result<DoneMany, Refused> {
        match action {
            "erase" => self.erase_scope(actor, order, progress).await,
            "reencrypt" => self.reencrypt(actor, order, progress).await,
            _ => self.purge(actor, order, progress).await,
        }
    }

    /// Removes what is past its retention, and its tombstone, in steps of a bounded number. Answers how
    /// many records that were, and the number of the audit log's entry.
    ///
    /// # Errors
    /// Why nothing was removed, or no more.
    async fn purge(
        &self,
        actor: &Actor,
        order: &Many,
        mut progress: impl FnMut(usize),
    ) -> Result<DoneMany, Refused> {
        if !order.scope.is_empty() || order.service.is_some() {
            let why = "a purge takes all that is past its retention, and a reason";
            return Err(Refused::invalid(why));
        }
        let begun = match self.enter_many(actor, "purge", order).await? {
            Ok(begun) => begun,
            Err(proposed) => return Ok(proposed),
        };
        let mut removed = 0;
        let done = loop {
            match insist(|| self.store.purge(PURGE)).await {
                Ok(purged) => {
                    removed += purged.removed;
                    progress(removed);
                    if !purged.more {
                        // One round sweeps a part of what is kept elsewhere.
                        let swept = match &self.offloaded {
                            Some(offloaded) => offloaded.sweep().await.map(drop),
                            None => Ok(()),
                        };
                        break swept.map_err(of_store);
                    }
                }
                Err(error) => break Err(of_store(error)),
            }
        };
        self.leave_many(begun, done, removed).await
    }

    /// Seals all answers anew that are not under the key in use. What is under it already is left alone, so
    /// that it goes on where it was broken off. Answers how many records were written, and how many are
    /// left that others than the first key are needed for.
    ///
    /// # Errors
    /// Why nothing was written, or no more.
    async fn reencrypt(
        &self,
        actor: &Actor,
        order: &Many,
        mut progress: impl FnMut(usize),
    ) -> Result<DoneMany, Refused> {
        if !order.scope.is_empty() || order.service.is_some() {
            let why = "all answers of a store are under one key: this takes a reason only";
            return Err(Refused::invalid(why));
        }
        let Some(sealed) = &self.sealed else {
            let why = "--encryption-keys: there are none here";
            return Err(Refused::invalid(why));
        };
        let begun = match self.enter_many(actor, "reencrypt", order).await? {
            Ok(begun) => begun,
            Err(proposed) => return Ok(proposed),
        };
        let (mut written, mut left) = (0, 0);
        let mut tell = |is_written| {
            match is_written {
                true => written += 1,
                false => left += 1,
            }
            progress(written);
        };
        let done = reseal_all(sealed, actor, &order.reason, &mut tell).await;
        let done = done.map_err(of_store);
        let done = self.leave_many(begun, done, written).await?;
        Ok(DoneMany { left, ..done })
    }

    /// Removes the answers of all completed records whose scope begins with these segments, and keeps that
    /// they were there. Answers how many, and the number of the audit log's entry.
    ///
    /// # Errors
    /// Why nothing was removed, or no more.
    async fn erase_scope(
        &self,
        actor: &Actor,
        order: &Many,
        mut progress: impl FnMut(usize),
    ) -> Result<DoneMany, Refused> {
        let Many {
            reason,
            scope,
            service,
            ..
        } = order;
        if scope.is_empty() {
            let why = "scope: say whose answers: the segments that the scope begins with";
            return Err(Refused::invalid(why));
        }
        let pairs = scope.iter().map(|segment| ("scope", segment.as_str()));
        let service = service.as_deref().map(|service| ("service", service));
        let pairs = pairs.chain(service).chain([("state", "completed")]);
        let filter = Filter::of(pairs)?;
        let begun = match self.enter_many(actor, "erase", order).await? {
            Ok(begun) => begun,
            Err(proposed) => return Ok(proposed),
        };
        let mut erased = 0;
        let done = self
            .erase_all(&filter, actor, reason, &mut erased, &mut progress)
            .await;
        let done = match done {
            Ok(()) => self.clean_files().await,
            failed => failed,
        };
        self.leave_many(begun, done, erased).await
    }

    /// What was erased leaves the store's own files, if it has some, with the next purge.
    async fn clean_files(&self) -> Result<(), Refused> {
        insist(|| self.store.purge(1)).await?;
        Ok(())
    }

    async fn erase_all(
        &self,
        filter: &Filter,
        actor: &Actor,
        reason: &str,
        erased: &mut usize,
        progress: &mut impl FnMut(usize),
    ) -> Result<(), Refused> {
        let mut from = Position::default();
        loop {
            let found = self.list(filter, &from, MOST).await?;
            for entry in &found.entries {
                *erased += usize::from(self.erase_one(entry, actor, reason).await?);
            }
            progress(*erased);
            match found.next {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }

    /// Whether there was something to erase. A record that changes meanwhile is looked at again.
    async fn erase_one(&self, entry: &Entry, actor: &Actor, reason: &str) -> Result<bool, Refused> {
        let id = &entry.label.digest;
        let mut record = entry.record.clone();
        loop {
            self.reaches(&record)?;
            match &record.state {
                State::Completed(outcome) if *outcome != erased() => {}
                _ => return self.tidy(id).await.map(|()| false),
            }
            let resolution = Resolution {
                verdict: Action::Erase.verdict(&record)?,
                by: actor.name.as_str().into(),
                reason: reason.into(),
                fence: record.token.fence,
                nonce: Nonce::random().map_err(of_store)?,
            };
            let done = insist(|| self.store.resolve(id, &resolution)).await;
            if done.map_err(of_store)? == Fenced::Applied {
                return Ok(true);
            }
            match self.store.get(id).await.map_err(of_store)? {
                Some(entry) => record = entry.record,
                None => return Ok(false),
            }
        }
    }

    /// What erases a record has to find its object.
    fn reaches(&self, record: &Record) -> Result<(), Refused> {
        match &record.state {
            State::Completed(outcome) if outcome.place().is_some() && self.offloaded.is_none() => {
                let why = "its answer is kept outside the store: say where with `--large-answers`";
                Err(Refused::new(Code::WrongState, why))
            }
            _ => Ok(()),
        }
    }

    /// Whoever erased it may not have got to the end of what is kept elsewhere.
    async fn tidy(&self, id: &IdentityDigest) -> Result<(), Refused> {
        match &self.offloaded {
            Some(offloaded) => offloaded.tidy(id).await.map_err(of_store),
            None => Ok(()),
        }
    }

    /// The entry to do it under, or that it was proposed.
    async fn enter_many(
        &self,
        actor: &Actor,
        family: &str,
        order: &Many,
    ) -> Result<Result<Begun, DoneMany>, Refused> {
        let Many {
            reason,
            scope,
            service,
            proposal,
        } = order;
        let about = serde_json::json!({ "scope": scope, "service": service });
        let is_scoped = !scope.is_empty();
        let mut intent = Intent {
            action: if is_scoped { "erase-scope" } else { family }.to_owned(),
            id: None,
            by: actor.name.clone(),
            from: actor.from.clone(),
            reason: checked(reason)?.to_owned(),
            before: is_scoped.then(|| about.clone()),
            digest: None,
            confirms: None,
        };
        let cleared = self.cleared(family, &mut intent, digest(&about)?, proposal.as_deref());
        match cleared.await? {
            Some(audit) => Ok(Err(DoneMany {
                audit,
                records: 0,
                left: 0,
                proposed: true,
            })),
            None => Ok(Ok(self.enter(intent).await?)),
        }
    }

    async fn leave_many(
        &self,
        begun: Begun,
        done: Result<(), Refused>,
        records: usize,
    ) -> Result<DoneMany, Refused> {
        let audit = begun.number().to_string();
        let (came, detail) = match &done {
            Ok(()) => (Came::Done, None),
            Err(refused) => (Came::Unknown, Some(refused.to_string())),
        };
        let after = serde_json::json!({ "records": records });
        self.leave(begun, came, detail, Some(after)).await;
        done.map(|()| DoneMany {
            audit,
            records,
            left: 0,
            proposed: false,
        })
    }

    pub(super) async fn enter(&self, intent: Intent) -> Result<Begun, Refused> {
        self.log.begin(intent).await.map_err(|error| {
            let why = format!(
                "nothing was done, because it could not be entered in the audit log: {}",
                with_causes(&error)
            );
            Refused::of_layer(ProblemCode::StoreUnavailable, why)
        })
    }

    /// Whoever listens hears of it.
    pub(super) fn told(&self, begun: &Begun, came: Came) {
        if let Some(events) = &self.events {
            let Intent { action, id, .. } = begun.intent();
            let number = begun.number().to_string();
            events.acted(action, id.as_deref(), came.as_str(), &number);
        }
    }

    /// What was done stays done where this fails: the entry says then that its result is not known.
    pub(super) async fn leave(
        &self,
        begun: Begun,
        came: Came,
        detail: Option<String>,
        after: Option<serde_json::Value>,
    ) {
        let number = begun.number();
        self.told(&begun, came);
        if let Err(error) = self.log.end(begun, came, detail, after).await {
            tracing::warn!(entry = %number, "audit: the result could not be entered: {error}");
        }
    }
}

/// Looks at all records of a store as it has them, and tells of each that was sealed anew or that needs
/// another key than the first.
async fn reseal_all(
    sealed: &Sealed<AnyStore>,
    actor: &Actor,
    reason: &str,
    tell: &mut impl FnMut(bool),
) -> Result<(), StoreError> {
    let (store, first) = (sealed.inner(), sealed.keys().names().next());
    for state in StateKind::ALL {
        let mut query = ListQuery::new(state);
        loop {
            let page = store.list(&query).await?;
            for entry in &page.entries {
                let is_written = reseal(sealed, entry, actor, reason).await?;
                if is_written {
                    tell(true);
                }
                // Of what is completed the note may be under another key, which is no loss.
                let is_open = !matches!(entry.record.state, State::Completed(_));
                let others = |name: &_| Some(*name) != first;
                if is_open && Keys::used_by(entry).iter().any(others) {
                    tell(false);
                }
            }
            query.after = page.next;
            if query.after.is_none() {
                break;
            }
        }
    }
    Ok(())
}

/// Whether it was written. One that is changed by somebody else meanwhile is sealed by them.
async fn reseal(
    sealed: &Sealed<AnyStore>,
    entry: &Entry,
    actor: &Actor,
    reason: &str,
) -> Result<bool, StoreError> {
    // A list does not read what is kept outside the store.
    let is_elsewhere =
        |state: &State| matches!(state, State::Completed(outcome) if outcome.place().is_some());
    let read = match is_elsewhere(&entry.record.state) {
        true => sealed.inner().get(&entry.label.digest).await?,
        false => None,
    };
    let entry = read.as_ref().unwrap_or(entry);
    let (record, nonce) = (&entry.record, Nonce::random()?);
    let Some(outcome) = sealed.resealed(entry, &nonce)? else {
        return Ok(false);
    };
    let now = about_now();
    let replay = now.until(record.expires_at);
    let tombstone = now.max(record.expires_at).until(record.purge_at);
    let before = record.resolved.as_deref();
    let resolution = Resolution {
        verdict: Verdict::Amended {
            outcome,
            retention: Retention::new(replay).with_tombstone(tombstone),
        },
        by: before.map_or_else(|| actor.name.as_str().into(), |by| by.by.clone()),
        reason: before.map_or_else(|| reason.into(), |by| by.reason.clone()),
        fence: record.token.fence,
        nonce,
    };
    let store = sealed.inner();
    let done = insist(|| store.resolve(&entry.label.digest, &resolution)).await?;
    Ok(done == Fenced::Applied)
}

/// What is kept in place of an answer that was erased.
fn erased() -> Outcome {
    Outcome::builder(OutcomeKind::Omitted).void()
}

/// Whether no answer is left: it was erased, or never kept, and is not replayed any more.
pub(super) fn is_erased(record: &Record) -> bool {
    let is_omitted = matches!(&record.state, State::Completed(outcome) if outcome.kind() == OutcomeKind::Omitted);
    is_omitted && record.expires_at <= about_now()
}

fn answer_is_erased() -> Refused {
    let why = "the record has no answer any more: it was erased, or not kept";
    Refused::new(Code::WrongState, why)
}

/// What the audit log keeps of a record.
pub(crate) fn facts(record: &Record) -> serde_json::Value {
    let outcome = match &record.state {
        State::Completed(outcome) => Some(brief(outcome)),
        _ => None,
    };
    serde_json::json!({
        "state": record.state.kind().as_str(),
        "fence": record.token.fence.0,
        "attempt": record.attempt,
        "expires_at": time(record.expires_at),
        "outcome": outcome,
    })
}

/// An outcome without what may be secret in it.
fn brief(outcome: &Outcome) -> serde_json::Value {
    let Answer {
        kind,
        status,
        body_bytes,
        ..
    } = Answer::redacted(outcome);
    serde_json::json!({ "kind": kind, "status": status, "body_bytes": body_bytes })
}

/// Tries a step again whose answer was lost, or which the store could not do.
pub(crate) async fn insist<T, F>(mut step: impl FnMut() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut tries = 1;
    // Once an answer was lost it may have happened, whatever comes after.
    let mut lost = None;
    loop {
        match step().await {
            Ok(done) => return Ok(done),
            Err(error) if error.is_retryable() && tries < TRIES => {
                if error.kind() == StoreErrorKind::Unknown {
                    lost = Some(error);
                }
                sleep(PAUSE * tries).await;
                tries += 1;
            }
            Err(error) => return Err(lost.unwrap_or(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_text_of_some_length() {
        assert_eq!(checked(" paid in cash\n"), Ok("paid in cash"));
        for (reason, code) in [
            ("", Code::MissingReason),
            (" \n ", Code::MissingReason),
            ("a\u{1b}[2J", Code::InvalidRequest),
            (&"x".repeat(1_001), Code::InvalidRequest),
        ] {
            assert!(checked(reason).unwrap_err().is(code), "{reason}");
        }
    }
}
