//! The claim of an event, before anything runs.

use crate::guard::{Attempt, Begin, Choice, InFlight};
use crate::store::{OnLost, Store};
use crate::{OutcomeKind, StoreError};

use super::failure::{History, Spent};
use super::{Event, Inbox, InboxError, Receipt};

/// What a claim found.
pub(super) enum Claimed<S> {
    /// To be run.
    Fresh(Attempt<S>),
    /// Every attempt that it may have is used up. Not to be run.
    Exhausted(Attempt<S>, Spent),
    /// An earlier delivery got this far.
    Before(Receipt),
    /// Another event has its id.
    Mismatch,
}

impl<S: Store> Inbox<S> {
    /// Claims `event`. Not cancel-safe, as [`begin`](crate::guard::Guard::begin) is not.
    pub(super) async fn claim<E>(
        &self,
        event: &Event,
        on_lost: OnLost,
        in_flight: InFlight,
    ) -> Result<Claimed<S>, InboxError<E>> {
        let unreached = |source: StoreError| InboxError::Store { ran: false, source };
        let identity = event.identity(&self.consumer).ok_or(InboxError::NoId)?;
        let begun = self
            .guard
            .begin_with(
                &identity,
                event.fingerprint(),
                Choice {
                    on_lost,
                    in_flight,
                    about: &|| None,
                },
            )
            .await
            .map_err(unreached)?;
        let attempt = match begun {
            Begin::Acquired(attempt) => attempt,
            // Omitted: of a failure the text may be too large for the store, of a success there is none.
            Begin::Completed(outcome) if outcome.kind() != OutcomeKind::Success => {
                return Ok(Claimed::Before(Receipt::SetAside));
            }
            // Expired: handled so long ago that only a tombstone is left of it.
            Begin::Completed(_) | Begin::Expired => {
                return Ok(Claimed::Before(Receipt::Duplicate));
            }
            Begin::Mismatch => return Ok(Claimed::Mismatch),
            Begin::InFlight { retry_after } => return Err(InboxError::InFlight { retry_after }),
            Begin::Unknown => return Err(InboxError::Unknown),
            Begin::Unprotected(source) => return Err(unreached(source)),
        };
        let Some(callback) = &self.on_poison else {
            return Ok(Claimed::Fresh(attempt));
        };
        if attempt.info().number <= self.max_attempts {
            return Ok(Claimed::Fresh(attempt));
        }
        match History::of(&attempt).await {
            Ok(history) if history.failed(&attempt) >= self.max_attempts => {
                let callback = callback.clone();
                Ok(Claimed::Exhausted(attempt, Spent { history, callback }))
            }
            Ok(_) => Ok(Claimed::Fresh(attempt)),
            Err(source) => {
                attempt.abandon().await.ok();
                Err(unreached(source))
            }
        }
    }

    /// The answer to a delivery for which nothing runs; the attempt, where there is something to
    /// run.
    pub(super) async fn unless_fresh<E>(
        &self,
        event: &Event,
        claimed: Claimed<S>,
    ) -> Result<Attempt<S>, Result<Receipt, InboxError<E>>> {
        Err(match claimed {
            Claimed::Fresh(attempt) => return Ok(attempt),
            Claimed::Before(receipt) => Ok(receipt),
            Claimed::Mismatch => self.mismatch(event).await,
            Claimed::Exhausted(attempt, spent) => {
                self.exhausted(event, attempt, spent).await.told()
            }
        })
    }
}
