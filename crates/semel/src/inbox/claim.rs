//! The claim of an event, before anything runs.

use crate::guard::{Asked, Begin, Effects, Held, InFlight, Ran};
use crate::store::Store;
use crate::{OutcomeKind, StoreError};

use super::failure::{History, RELEASED, Spent};
use super::{Event, Inbox, InboxError, Receipt};

/// What a claim found.
pub(super) enum Claimed<S: Store> {
    /// To be run.
    New(Held<S>),
    /// Every attempt that it may have is used up. Not to be run.
    Exhausted(Held<S>, Spent),
    /// An earlier delivery got this far.
    Before(Receipt),
    /// Another event has its id.
    Mismatch,
}

impl<S: Store> Inbox<S> {
    /// Claims `event`, whose effects are there. In a batch no delivery waits for another.
    pub(super) async fn claim<E>(
        &self,
        event: &Event,
        effects: Effects,
        may_wait: bool,
    ) -> Result<Claimed<S>, InboxError<E>> {
        let unreached = |source: StoreError| InboxError::Store {
            ran: Ran::No,
            source,
        };
        let identity = event.identity(&self.consumer).ok_or(InboxError::NoId)?;
        let policy = match may_wait {
            true => self.policy,
            false => self.policy.with_in_flight(InFlight::Reject),
        };
        let asked = Asked::new(identity, event.fingerprint());
        let asked = asked
            .with_policy(policy)
            .with_effects(effects)
            .with_unbegun(RELEASED);
        let held = match self.guard.begin(&asked).await.map_err(unreached)? {
            Begin::Acquired(held) => held,
            // Omitted: of a failure the text may be too large for the store, of a success there is none.
            Begin::Completed(outcome) if outcome.kind() != OutcomeKind::Success => {
                return Ok(Claimed::Before(Receipt::DeadLettered));
            }
            // Expired: handled so long ago that only a tombstone is left of it.
            Begin::Completed(_) | Begin::Expired => {
                return Ok(Claimed::Before(Receipt::Duplicate));
            }
            Begin::Mismatch => return Ok(Claimed::Mismatch),
            Begin::InFlight { retry_after } => return Err(InboxError::InFlight { retry_after }),
            Begin::Unknown => return Err(InboxError::Unknown),
            Begin::Unprotected(source) => return Err(unreached(source)),
            Begin::Unkeyed | Begin::KeyRequired => return Err(InboxError::NoId),
        };
        match &self.dead_letters {
            Some(callback) if held.number() > self.max_attempts => {
                let history = History::of(&held).await.map_err(unreached)?;
                Ok(match history.failed(&held) >= self.max_attempts {
                    true => Claimed::Exhausted(
                        held,
                        Spent {
                            history,
                            callback: callback.clone(),
                        },
                    ),
                    false => Claimed::New(held),
                })
            }
            _ => Ok(Claimed::New(held)),
        }
    }

    /// The answer to a delivery for which nothing runs; the attempt, where there is something to
    /// run.
    pub(super) async fn unless_new<E>(
        &self,
        event: &Event,
        claimed: Claimed<S>,
    ) -> Result<Held<S>, Result<Receipt, InboxError<E>>> {
        Err(match claimed {
            Claimed::New(held) => return Ok(held),
            Claimed::Before(receipt) => Ok(receipt),
            Claimed::Mismatch => self.mismatch(event).await,
            Claimed::Exhausted(held, spent) => self.exhausted(event, held, spent).await,
        })
    }
}
