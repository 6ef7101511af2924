//! Decisions about one record: entered in the audit log, made by the store, and entered again with what
//! came of it.

use std::time::Duration;

use semel::store::{
    Entry, Fence, Fenced, Refusal, Resolution, Retention, Store, StoreExt as _, Verdict,
};
use semel::{IdentityDigest, Outcome, OutcomeKind, Record, State, StateKind, Timestamp};

use super::entered::{Actor, facts, tried};
use super::filter::about_now;
use super::four_eyes::digest;
use super::order::Order;
use super::view::{Answer, time};
use super::{Operations, of_refusal, of_store};
use crate::audit::Came;
use crate::refused::{Code, Refused};

/// How long it is known at least that something was erased.
const LEAST_TOMBSTONE: Duration = Duration::from_hours(24);

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
    pub(super) fn verdict(self, record: &Record) -> Result<Verdict, Refused> {
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
        default: Retention,
    ) -> Result<Decided, Refused> {
        let proposal = order.proposal.clone();
        let same = Order {
            reason: String::new(),
            proposal: None,
            ..order.clone()
        };
        let (fence, reason, action) = order.read(name, default)?;
        let intent = actor.intends(action.name(), &reason)?;
        let before = self.find(id).await?;
        let mut intent = intent.about(&before);
        if matches!(action, Action::Erase) {
            self.reaches(&before.record)?;
        }
        let verdict = action.verdict(&before.record)?;
        let resolution = actor.decides(verdict, &intent.reason, Fence(fence))?;
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
        let (done, lost) = tried(|| self.store.resolve(id, &resolution)).await;
        let is_refused = matches!(done, Ok(Fenced::Refused(_)));
        let done = match lost {
            // It may have been made, and the record changed since: a released key is claimed at once.
            Some(lost) if is_refused => match self.store.get(id).await {
                Ok(Some(entry)) if is_made(&entry.record, &resolution, begun.at()) => {
                    Ok(Fenced::Applied)
                }
                _ => Err(lost),
            },
            Some(lost) => done.map_err(|_| lost),
            None => done,
        };
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

    /// The whole answer that is replayed, and the record that it was read with; of this attempt, where the
    /// order names one. That somebody looked is entered before it is shown.
    ///
    /// # Errors
    /// Why it is not shown.
    pub async fn reveal(
        &self,
        actor: &Actor,
        id: &IdentityDigest,
        order: &Order,
    ) -> Result<Result<(Entry, Answer), String>, Refused> {
        if order.happened.is_some() || order.outcome.is_some() || order.ttl.is_some() {
            let why = "reveal: it takes fence and reason only";
            return Err(Refused::invalid(why));
        }
        let intent = actor.intends("reveal", &order.reason)?;
        let entry = self.find(id).await?;
        let fence = entry.record.token.fence.0;
        if order.fence.is_some_and(|seen| seen != fence) {
            return Err(of_refusal(Refusal::Superseded));
        }
        let State::Completed(outcome) = &entry.record.state else {
            let state = entry.record.state.kind().as_str();
            let why = format!("the record is {state}: it has no answer");
            return Err(Refused::new(Code::WrongState, why));
        };
        if is_erased(&entry.record) {
            return Err(answer_is_erased());
        }
        outcome.readable().map_err(of_store)?;
        let mut intent = intent.about(&entry);
        let proposal = order.proposal.as_deref();
        let cleared = self.cleared("reveal", &mut intent, digest(&fence)?, proposal);
        if let Some(number) = cleared.await? {
            return Ok(Err(number));
        }
        let begun = self.enter(intent).await?;
        self.leave(begun, Came::Done, None, None).await;
        let answer = Answer::revealed(outcome);
        Ok(Ok((entry, answer)))
    }

    /// What erases a record has to find its object.
    pub(super) fn reaches(&self, record: &Record) -> Result<(), Refused> {
        match &record.state {
            State::Completed(outcome) if outcome.place().is_some() && self.offloaded.is_none() => {
                let why = "its answer is kept outside the store: say where with `--large-answers`";
                Err(Refused::new(Code::WrongState, why))
            }
            _ => Ok(()),
        }
    }
}

/// Whether the latest decision about a record, since then, is this one, whatever was claimed after it.
pub(super) fn is_made(record: &Record, resolution: &Resolution, since: Timestamp) -> bool {
    record.resolved.as_deref().is_some_and(|resolved| {
        resolved.at >= since
            && resolved.fence == resolution.fence
            && (resolved.after == StateKind::Released)
                == (resolution.verdict == Verdict::DidNotHappen)
            && resolved.by == resolution.by
            && resolved.reason == resolution.reason
    })
}

/// What is kept in place of an answer that was erased.
pub(super) fn erased() -> Outcome {
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
