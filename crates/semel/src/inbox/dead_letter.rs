//! Dead letters: events that are handed to the application and set aside, so that they block no others.

use std::error::Error as StdError;
use std::pin::Pin;

use crate::Outcome;
use crate::guard::{Held, Ran, catch_panic};
use crate::store::Store;

use super::failure::{History, message, released};
use super::receipt::{Answer, told};
use super::{Event, Inbox, InboxError, Receipt};

/// An event that is about to be set aside.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The event, as it was delivered last.
    pub event: Event,
    /// Why.
    pub reason: Reason,
    /// How many attempts failed. 0 where it is for another [reason](Self::reason).
    pub attempts: u32,
    /// What they failed with, the latest last, each cut to a length that all of them have room
    /// for. Fewer than `attempts` where some ended without a word, as a process does that is killed.
    pub errors: Vec<String>,
}

/// Why an event is set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// As many attempts failed as the inbox allows. It is recorded as a kept failure.
    Failed,
    /// An event with the same id and another content came before. That one's record stays as it is.
    Mismatch,
    /// An earlier attempt may have handled it, and nobody recorded it. The record stays unknown: what
    /// became of the event is for an operator to say, and if it comes again after that, it is a
    /// duplicate, or runs. To wait for that, answer an error. An event that a reconciler is asked about
    /// is [kept back](InboxError::Unresolved) instead.
    Unknown,
    /// It has no id, by which it could be told from others. There is no record.
    NoId,
}

/// What a callback fails with.
pub(super) type CallbackError = Box<dyn StdError + Send + Sync>;

type Taken = Pin<Box<dyn Future<Output = Result<(), CallbackError>> + Send>>;

/// The application's callback.
pub(super) type Callback = dyn Fn(DeadLetter) -> Taken + Send + Sync;

impl<S: Store> Inbox<S> {
    /// Asks the callback to take an event of which nothing ran, where it is asked for such. Nothing
    /// is recorded.
    pub(super) async fn hand_over<E>(&self, event: &Event, error: InboxError<E>) -> Answer<E> {
        let Some(reason) = error.reason().filter(|_| self.dead_letters.is_some()) else {
            return Err(error);
        };
        self.take(event, reason, 0, Vec::new()).await?;
        Ok(Receipt::DeadLettered)
    }

    /// Hands an event that failed so often to the callback, and records that it will not be handled.
    pub(super) async fn set_aside<E>(
        &self,
        event: &Event,
        held: Held<S>,
        counted: u32,
    ) -> Answer<E> {
        let history = History::of(&held).await?;
        let attempts = history.failed(held.number()).max(counted);
        // Nothing else runs in this attempt: should it end here, the next one may hand it over again.
        if let Some(mark) = released(&held.number().to_string()) {
            held.claimed().keep(&mark, &history.progress).await.ok();
        }
        let text = history.errors.last().cloned().unwrap_or_default();
        let taken = self.take(event, Reason::Failed, attempts, history.errors);
        if let Err(error) = taken.await {
            held.release().await.ok();
            return Err(error);
        }
        let aside = held.complete(&Outcome::failure(text.as_bytes())).await;
        told(aside, Receipt::DeadLettered, Ran::No)
    }

    /// The callback's panic is a failure like another.
    async fn take<E>(
        &self,
        event: &Event,
        reason: Reason,
        attempts: u32,
        errors: Vec<String>,
    ) -> Result<(), InboxError<E>> {
        let letter = DeadLetter {
            event: event.clone(),
            reason,
            attempts,
            errors,
        };
        let answer = catch_panic(async {
            match &self.dead_letters {
                Some(callback) => callback(letter).await,
                None => Err("nobody takes it".into()),
            }
        });
        let taken = answer
            .await
            .unwrap_or_else(|panic| Err(message(&*panic).into()));
        taken.map_err(|source| InboxError::NotDeadLettered {
            attempt: attempts,
            source,
        })
    }
}
