//! Failures, counted durably: each is kept as a finished step under the event's record.
//!
//! A record counts its attempts while it lives, but one that was released is forgotten after a
//! minute, unless steps are finished under it: then after seven days. So an attempt that fails keeps
//! a step before it gives the event back. One that ends without a word (its process died) releases
//! nothing, and its record stays and counts it. What is subtracted are attempts that ended for no
//! fault of the event's, each of which keeps a step of another name: there was no transaction to be had.

use std::any::Any;
use std::sync::Arc;

use crate::guard::{Held, Ran, Settled, catch_panic};
use crate::store::Store;
use crate::{FinishedStep, Outcome, Progress, StoreError};

use super::dead_letter::{Callback, CallbackError};
use super::{DeadLetter, Event, Inbox, InboxError, Reason, Receipt};

const FAILED: &str = "failed";
pub(super) const RELEASED: &str = "released";
/// What a step takes beside its text.
const FRAME: usize = 2 + FAILED.len() + 4;
/// The longest text of one failure that is kept.
const LONGEST: usize = 1024;

/// What the record says of the attempts before this one.
#[derive(Default)]
pub(super) struct History {
    errors: Vec<String>,
    released: u32,
    progress: Progress,
}

impl History {
    pub(super) async fn of<S: Store>(held: &Held<S>) -> Result<Self, StoreError> {
        // Another attempt's, where this one lost its claim: nothing can be kept behind it either.
        let progress = held.claimed().finished_steps().await?.unwrap_or_default();
        let mut history = Self::default();
        for (name, text) in progress.steps() {
            if name == FAILED {
                let text = String::from_utf8_lossy(text).into_owned();
                history.errors.push(text);
            } else {
                history.released += 1;
            }
        }
        Ok(Self {
            progress,
            ..history
        })
    }

    /// How many of the attempts before this one failed, or ended without a word.
    pub(super) fn failed<S: Store>(&self, held: &Held<S>) -> u32 {
        held.number().saturating_sub(1 + self.released)
    }
}

/// What setting an event aside that used up its attempts needs.
pub(super) struct Spent {
    pub(super) history: History,
    pub(super) callback: Arc<Callback>,
}

impl<S: Store> Inbox<S> {
    /// The work failed: the failure is kept and the event given back, which is what `again` says, or
    /// it is set aside where it had its last attempt.
    pub(super) async fn failed<E>(
        &self,
        event: &Event,
        held: Held<S>,
        text: &str,
        again: impl FnOnce(u32) -> InboxError<E>,
    ) -> Result<Receipt, InboxError<E>> {
        let Ok(mut history) = History::of(&held).await else {
            let number = held.number();
            held.release().await.ok();
            return Err(again(number));
        };
        let text = self.cut(text);
        let failed = 1 + history.failed(&held);
        let delivered = event.delivery().filter(|_| self.count_deliveries);
        let failed = failed.max(delivered.unwrap_or(0));
        match &self.dead_letters {
            Some(callback) if failed >= self.max_attempts => {
                history.errors.push(text.into());
                self.set_aside(&**callback, event, held, history, failed, (FAILED, text))
                    .await
            }
            _ => {
                give_back(held, (FAILED, text), &history.progress).await;
                Err(again(failed))
            }
        }
    }

    /// So many attempts failed or ended without a word that there is to be no other.
    pub(super) async fn exhausted<E>(
        &self,
        event: &Event,
        held: Held<S>,
        spent: Spent,
    ) -> Result<Receipt, InboxError<E>> {
        let Spent { history, callback } = spent;
        let failed = history.failed(&held);
        self.set_aside(&*callback, event, held, history, failed, (RELEASED, ""))
            .await
    }

    /// Hands it to the callback, and records that it will not be handled. A crash in between hands
    /// it over again.
    async fn set_aside<E>(
        &self,
        callback: &Callback,
        event: &Event,
        mut held: Held<S>,
        history: History,
        attempts: u32,
        last: (&'static str, &str),
    ) -> Result<Receipt, InboxError<E>> {
        let text = history.errors.last().cloned().unwrap_or_default();
        let letter = DeadLetter {
            event: event.clone(),
            reason: Reason::Failed,
            attempts,
            errors: history.errors,
        };
        if let Err(source) = taken(held.run(async { callback(letter).await }).await) {
            give_back(held, last, &history.progress).await;
            return Err(InboxError::NotDeadLettered {
                attempt: attempts,
                source,
            });
        }
        match held.complete(&Outcome::failure(text.as_bytes())).await {
            Ok(Settled::Applied | Settled::Omitted) => Ok(Receipt::DeadLettered),
            Ok(Settled::Refused(_)) => Err(InboxError::Superseded { ran: Ran::No }),
            Err(source) => Err(InboxError::Store {
                ran: Ran::No,
                source,
            }),
        }
    }

    /// The attempt ended for no fault of the event's: it does not count.
    pub(super) async fn release(&self, held: Held<S>) {
        match History::of(&held).await {
            Ok(history) => give_back(held, (RELEASED, ""), &history.progress).await,
            Err(_) => drop(held.release().await),
        }
    }

    /// The event came with the id of another one: handed to the callback, without which it stays
    /// where it is.
    pub(super) async fn mismatch<E>(&self, event: &Event) -> Result<Receipt, InboxError<E>> {
        let Some(callback) = &self.dead_letters else {
            return Err(InboxError::Mismatch);
        };
        let letter = DeadLetter {
            event: event.clone(),
            reason: Reason::Mismatch,
            attempts: 0,
            errors: Vec::new(),
        };
        match taken(catch_panic(async { callback(letter).await }).await) {
            Ok(()) => Ok(Receipt::DeadLettered),
            Err(source) => Err(InboxError::NotDeadLettered { attempt: 0, source }),
        }
    }

    /// The start of a failure's text, short enough that half a record keeps all of them.
    fn cut<'a>(&self, text: &'a str) -> &'a str {
        let room = Progress::MAX_BYTES / 2 / self.max_attempts as usize;
        let longest = room.saturating_sub(FRAME).min(LONGEST);
        &text[..text.floor_char_boundary(longest)]
    }
}

/// What the callback answered; its panic is a failure like another.
fn taken(
    answer: Result<Result<(), CallbackError>, Box<dyn Any + Send>>,
) -> Result<(), CallbackError> {
    answer.unwrap_or_else(|panic| Err(message(&*panic).into()))
}

/// Keeps a step, and gives the event back: also where the store did not take the step, which then is
/// not counted.
async fn give_back<S: Store>(held: Held<S>, step: (&'static str, &str), kept: &Progress) {
    let (name, text) = step;
    if let Ok(step) = FinishedStep::new(name, text.as_bytes()) {
        held.claimed().keep(&step, kept).await.ok();
    }
    held.release().await.ok();
}

/// The text of a panic.
pub(super) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no text").to_owned()
}
