//! Failures, counted durably: each is kept as a finished step under the event's record.
//!
//! A record counts its attempts while it lives, but one that was released is forgotten after a
//! minute, unless steps are finished under it: then after seven days. So an attempt that fails keeps
//! a step before it gives the event back. One that ends without a word (its process died) releases
//! nothing, and its record stays and counts it. What is subtracted are attempts that ended for no
//! fault of the event's, each of which keeps a step of another name: there was no transaction to be had.

use std::any::Any;
use std::sync::Arc;

use crate::guard::{Attempt, Settled, caught};
use crate::store::Store;
use crate::{FinishedStep, Outcome, Progress, StoreError};

use super::poison::{Callback, CallbackError};
use super::{Event, Inbox, InboxError, Poison, Reason, Receipt};

const FAILED: &str = "failed";
const RELEASED: &str = "released";
/// What a step takes beside its text.
const FRAME: usize = 2 + FAILED.len() + 4;
/// The longest text of one failure that is kept.
const LONGEST: usize = 1024;

/// What the record says of the attempts before this one.
#[derive(Default)]
pub(super) struct History {
    errors: Vec<String>,
    released: u32,
    bytes: usize,
}

impl History {
    pub(super) async fn of<S: Store>(attempt: &Attempt<S>) -> Result<Self, StoreError> {
        Ok(Self::from(&attempt.progress().await?))
    }

    /// How many of the attempts before this one failed, or ended without a word.
    pub(super) const fn failed<S: Store>(&self, attempt: &Attempt<S>) -> u32 {
        attempt.info().number.saturating_sub(1 + self.released)
    }
}

impl From<&Progress> for History {
    fn from(progress: &Progress) -> Self {
        let mut history = Self {
            bytes: progress.as_bytes().len(),
            ..Self::default()
        };
        for (name, text) in progress.steps() {
            if name == FAILED {
                let text = String::from_utf8_lossy(text).into_owned();
                history.errors.push(text);
            } else {
                history.released += 1;
            }
        }
        history
    }
}

/// What setting an event aside that used up its attempts needs.
pub(super) struct Spent {
    pub(super) history: History,
    pub(super) callback: Arc<Callback>,
}

/// What becomes of an event after a failure.
pub(super) enum After {
    /// It may be delivered again; so many attempts have failed.
    Again(u32),
    Aside(Aside),
}

/// What becomes of an event that is to be set aside.
pub(super) enum Aside {
    Done,
    /// The callback failed; so many attempts have.
    NotTaken(u32, CallbackError),
    Superseded,
    Store(StoreError),
}

impl After {
    /// What the consumer is told; `again` where the failure itself is all that there is to say.
    pub(super) fn told<E>(
        self,
        again: impl FnOnce(u32) -> InboxError<E>,
    ) -> Result<Receipt, InboxError<E>> {
        match self {
            Self::Again(failed) => Err(again(failed)),
            Self::Aside(aside) => aside.told(),
        }
    }
}

impl Aside {
    /// What the consumer is told.
    pub(super) fn told<E>(self) -> Result<Receipt, InboxError<E>> {
        Err(match self {
            Self::Done => return Ok(Receipt::SetAside),
            Self::NotTaken(attempt, source) => InboxError::NotSetAside { attempt, source },
            Self::Superseded => InboxError::Superseded,
            Self::Store(source) => InboxError::Store { ran: true, source },
        })
    }
}

impl<S: Store> Inbox<S> {
    /// The work failed: the failure is kept and the event given back, or it is set aside where it
    /// had its last attempt.
    pub(super) async fn failed(&self, event: &Event, attempt: Attempt<S>, text: &str) -> After {
        let Ok(mut history) = History::of(&attempt).await else {
            // Where the store cannot be told either, the lease lapses, which counts as well.
            let number = attempt.info().number;
            attempt.abandon().await.ok();
            return After::Again(number);
        };
        let text = self.cut(text);
        let failed = 1 + history.failed(&attempt);
        let delivered = event.delivery().filter(|_| self.count_deliveries);
        let failed = failed.max(delivered.unwrap_or(0));
        match &self.on_poison {
            Some(callback) if failed >= self.max_attempts => {
                history.errors.push(text.into());
                let last = (FAILED, text);
                After::Aside(
                    self.set_aside(&**callback, event, attempt, history, failed, last)
                        .await,
                )
            }
            _ => {
                give_back(attempt, (FAILED, text), history.bytes).await;
                After::Again(failed)
            }
        }
    }

    /// So many attempts failed or ended without a word that there is to be no other.
    pub(super) async fn exhausted(
        &self,
        event: &Event,
        attempt: Attempt<S>,
        spent: Spent,
    ) -> Aside {
        let Spent { history, callback } = spent;
        let failed = history.failed(&attempt);
        let last = (RELEASED, "");
        self.set_aside(&*callback, event, attempt, history, failed, last)
            .await
    }

    /// Hands it to the callback, and records that it will not be handled. A crash in between hands
    /// it over again.
    async fn set_aside(
        &self,
        callback: &Callback,
        event: &Event,
        mut attempt: Attempt<S>,
        history: History,
        attempts: u32,
        last: (&'static str, &str),
    ) -> Aside {
        let text = history.errors.last().cloned().unwrap_or_default();
        let poison = Poison {
            event: event.clone(),
            reason: Reason::Failed,
            attempts,
            errors: history.errors,
        };
        let called = attempt.hold_catching(async { callback(poison).await });
        if let Err(source) = called
            .await
            .unwrap_or_else(|panic| Err(message(&*panic).into()))
        {
            give_back(attempt, last, history.bytes).await;
            return Aside::NotTaken(attempts, source);
        }
        match attempt.complete(&Outcome::failure(text.as_bytes())).await {
            Ok(Settled::Applied | Settled::Omitted) => Aside::Done,
            Ok(Settled::Refused(_)) => Aside::Superseded,
            Err(source) => Aside::Store(source),
        }
    }

    /// The attempt ended for no fault of the event's: it does not count.
    pub(super) async fn release(&self, attempt: Attempt<S>) {
        match History::of(&attempt).await {
            Ok(history) => give_back(attempt, (RELEASED, ""), history.bytes).await,
            // It lapses.
            Err(_) => drop(attempt),
        }
    }

    /// The event came with the id of another one: handed to the callback, without which it stays
    /// where it is.
    pub(super) async fn mismatch<E>(&self, event: &Event) -> Result<Receipt, InboxError<E>> {
        let Some(callback) = &self.on_poison else {
            return Err(InboxError::Mismatch);
        };
        let poison = Poison {
            event: event.clone(),
            reason: Reason::Mismatch,
            attempts: 0,
            errors: Vec::new(),
        };
        match caught(async { callback(poison).await }).await {
            Ok(Ok(())) => Ok(Receipt::SetAside),
            Ok(Err(source)) => Err(InboxError::NotSetAside { attempt: 0, source }),
            Err(panic) => Err(InboxError::NotSetAside {
                attempt: 0,
                source: message(&*panic).into(),
            }),
        }
    }

    /// The start of a failure's text, short enough that half a record keeps all of them.
    fn cut<'a>(&self, text: &'a str) -> &'a str {
        let room = Progress::MAX_BYTES / 2 / self.max_attempts as usize;
        let longest = room.saturating_sub(FRAME).min(LONGEST);
        &text[..text.floor_char_boundary(longest)]
    }
}

/// Keeps a step, and gives the event back. Where the step cannot be kept the lease is left to lapse:
/// the record then stays, and counts the attempt.
async fn give_back<S: Store>(attempt: Attempt<S>, step: (&'static str, &str), kept: usize) {
    let (name, text) = step;
    let Ok(step) = FinishedStep::new(name, text.as_bytes()) else {
        return;
    };
    if attempt.keep_step(&step, kept).await.is_ok() {
        attempt.abandon().await.ok();
    }
}

/// The text of a panic.
pub(super) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no text").to_owned()
}
