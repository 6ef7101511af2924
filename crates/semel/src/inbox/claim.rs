//! The claim of an event, before anything runs.

use std::time::Duration;

use crate::guard::{Asked, Begin, Effects, Held, Policy, Ran, Seen, Signal};
use crate::store::{OnLost, Store};
use crate::{OutcomeKind, StateKind};

use super::event::OPERATION;
use super::failure::{History, only_handed_over, released};
use super::receipt::Answer;
use super::{Event, Inbox, InboxError, Receipt};

/// An event that is not to be run.
pub(super) enum Old<S: Store, E> {
    Answered(Answer<E>),
    /// Every attempt that it may have is used up, of which so many at least failed.
    Exhausted(Held<S>, u32),
}

impl<S: Store> Inbox<S> {
    /// Claims `event`, whose effects are there, for its work. In a batch no delivery waits for
    /// another.
    pub(super) async fn claim<E>(
        &self,
        event: &Event,
        effects: Effects,
        may_wait: bool,
    ) -> Result<Held<S>, Old<S, E>> {
        let policy = match may_wait {
            true => self.policy,
            false => self.policy.with_wait(Duration::ZERO),
        };
        let claimed = self.begin(event, effects, policy).await;
        let held = claimed.map_err(|answer| Old::Answered(answer))?;
        let delivered = self.delivered(event);
        if self.dead_letters.is_some() && held.number().max(delivered) > self.max_attempts {
            let history = History::of(&held).await;
            let history = history.map_err(|error| Old::Answered(Err(error)))?;
            // What was handed over had failed as often as it may. Others of the broker's deliveries may have been
            // no attempts.
            let counted = match history.handed_over {
                true => self.max_attempts.max(delivered.saturating_sub(1)),
                false => 0,
            };
            if history.failed(held.number()).max(counted) >= self.max_attempts {
                return Err(Old::Exhausted(held, counted));
            }
        }
        Ok(held)
    }

    /// How often the broker has delivered it, this time among them; 0 where that does not count.
    pub(super) fn delivered(&self, event: &Event) -> u32 {
        let counted = event.delivery().filter(|_| self.count_deliveries);
        counted.unwrap_or(0)
    }

    /// Claims it, or answers.
    pub(super) async fn begin<E>(
        &self,
        event: &Event,
        effects: Effects,
        policy: Policy,
    ) -> Result<Held<S>, Answer<E>> {
        let Some(identity) = event.identity(&self.consumer) else {
            let seen = Seen::new(Signal::MissingKey).in_operation(OPERATION);
            self.guard.tell(&seen);
            return Err(Err(InboxError::NoId));
        };
        let reconciles = policy.on_lost() == Some(OnLost::Reconcile) && self.guard.has_reconciler();
        let unreached = |source| Err(InboxError::store(Ran::No, source));
        let digest = *identity.digest();
        let asked = Asked::new(identity, event.fingerprint());
        let mut asked = asked
            .with_policy(policy)
            .with_effects(effects)
            .with_unbegun(released(""));
        let mut begun = self.guard.begin(&asked).await.map_err(unreached)?;
        if let Begin::Unknown = begun {
            let entry = self.guard.store().get(&digest).await.map_err(unreached)?;
            let record = entry.as_ref().map(|entry| &entry.record);
            let is_again = record.is_some_and(only_handed_over);
            if is_again {
                asked = asked.with_policy(policy.with_on_lost(OnLost::Retry));
            }
            // Unknown no more: resolved, or taken by another delivery that hands it over again.
            if is_again || record.is_none_or(|it| it.state.kind() != StateKind::Unknown) {
                begun = self.guard.begin(&asked).await.map_err(unreached)?;
            }
        }
        Err(match begun {
            Begin::Acquired(held) => return Ok(held),
            // Omitted: of a failure the text may be too large for the store, of a success there is none.
            Begin::Completed(outcome) if outcome.kind() != OutcomeKind::Success => {
                Ok(Receipt::DeadLettered)
            }
            // Expired: handled so long ago that only a tombstone is left of it.
            Begin::Completed(_) | Begin::Expired => Ok(Receipt::Duplicate),
            Begin::Mismatch => Err(InboxError::Mismatch),
            Begin::InFlight { retry_after } => Err(InboxError::InFlight { retry_after }),
            Begin::Unknown if reconciles => Err(InboxError::Unresolved),
            Begin::Unknown => Err(InboxError::Unknown),
            Begin::Unprotected(source) => unreached(source),
            Begin::Unkeyed | Begin::KeyRequired => Err(InboxError::NoId),
        })
    }

    /// The answer to a delivery for which nothing runs.
    pub(super) async fn answer<E>(&self, event: &Event, old: Old<S, E>) -> Answer<E> {
        match old {
            Old::Exhausted(held, failed) => self.set_aside(event, held, failed).await,
            Old::Answered(Err(error)) => self.hand_over(event, error).await,
            Old::Answered(receipt) => receipt,
        }
    }
}
