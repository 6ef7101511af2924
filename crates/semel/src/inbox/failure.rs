//! Failures, counted durably: each is kept as a finished step under the event's record.
//!
//! A record counts its attempts while it lives, but one that was released is forgotten after a
//! minute, unless steps are finished under it: then after seven days. So an attempt that fails leaves
//! a step when it gives the event back. One that ends without a word (its process died) releases
//! nothing, and its record stays and counts it. What is subtracted are attempts that ended for no
//! fault of the event's, each of which leaves a step of another name: there was no transaction to be
//! had, or the event was only handed to the callback for dead letters.

use std::any::Any;
use std::time::Duration;

use crate::guard::{Effects, Held, Ran};
use crate::store::{OnLost, Store};
use crate::{FinishedStep, Progress, Record};

use super::receipt::Answer;
use super::{Event, Inbox, InboxError};

const FAILED: &str = "failed";
const RELEASED: &str = "released";
/// What a step takes beside its text.
const FRAME: usize = 2 + FAILED.len() + 4;
/// For so many there is room beside the failures, sealed or not.
const MOST_RELEASED: u32 = 200;
/// The longest text of one failure that is kept.
const LONGEST: usize = 1024;

/// What the record says of the attempts before this one.
pub(super) struct History {
    pub(super) errors: Vec<String>,
    released: u32,
    /// Whether it was handed to the callback after the last failure.
    pub(super) handed_over: bool,
    pub(super) progress: Progress,
}

impl History {
    pub(super) async fn of<S: Store, E>(held: &Held<S>) -> Result<Self, InboxError<E>> {
        let unread = |source| InboxError::store(Ran::No, source);
        // Another attempt's, where this one lost its claim: nothing can be kept behind it either.
        let progress = held.claimed().readable_steps().await.map_err(unread)?;
        let progress = progress.unwrap_or_default();
        let (mut errors, mut released, mut handed_over) = (Vec::new(), 0, false);
        for (name, text) in progress.steps() {
            if name == FAILED {
                errors.push(String::from_utf8_lossy(text).into_owned());
                handed_over = false;
            } else {
                released += 1;
                handed_over |= text.first().is_some_and(u8::is_ascii_digit);
            }
        }
        Ok(Self {
            errors,
            released,
            handed_over,
            progress,
        })
    }

    /// How many of the attempts before this one failed, or ended without a word. After too many that did neither
    /// only failures that are kept count: the next ones may have no room to say so.
    pub(super) fn failed(&self, number: u32) -> u32 {
        match self.released > MOST_RELEASED {
            true => u32::try_from(self.errors.len()).unwrap_or(u32::MAX),
            false => number.saturating_sub(1 + self.released),
        }
    }
}

/// What an attempt leaves that is no failure of the event's. With its own number it says that the
/// event was only handed over.
pub(super) fn released(text: &str) -> Option<FinishedStep> {
    step(RELEASED, text)
}

fn step(name: &str, text: &str) -> Option<FinishedStep> {
    FinishedStep::new(name, text.as_bytes()).ok()
}

/// Whether the latest attempt did nothing but hand the event over: it may be made again.
pub(super) fn only_handed_over(record: &Record) -> bool {
    let number = record.attempt.to_string();
    let last = record.progress.steps().last();
    last == Some((RELEASED, number.as_bytes()))
}

impl<S: Store> Inbox<S> {
    /// The work failed: the event is given back with the failure kept, and set aside where that was
    /// its last attempt.
    pub(super) async fn failed<E>(
        &self,
        event: &Event,
        held: Held<S>,
        text: &str,
        error: InboxError<E>,
    ) -> Answer<E> {
        let number = held.number();
        let history = History::of::<_, E>(&held).await;
        let failure = step(FAILED, self.cut(text));
        held.release_leaving(failure).await.ok();
        let Ok(history) = history else {
            return Err(error.after(number));
        };
        let failed = (1 + history.failed(number)).max(self.delivered(event));
        if self.dead_letters.is_none() || failed < self.max_attempts {
            return Err(error.after(failed));
        }
        // In an attempt of its own: if it is lost, that was not the work. It takes over nobody's, so that a claim whose
        // answer is lost can be given back.
        let policy = self.policy.with_on_lost(OnLost::Hold);
        let policy = policy.with_wait(Duration::ZERO);
        match self.begin::<E>(event, Effects::Anywhere, policy).await {
            Ok(held) => self.set_aside(event, held, failed).await,
            // The next delivery finds that it had its last attempt.
            Err(_) => Err(error.after(failed)),
        }
    }

    /// The attempt ended for no fault of the event's: it does not count.
    pub(super) async fn release(&self, held: Held<S>) {
        held.release_leaving(released("")).await.ok();
    }

    /// The start of a failure's text, short enough that half a record keeps all of them.
    fn cut<'a>(&self, text: &'a str) -> &'a str {
        let room = Progress::MAX_BYTES / 2 / self.max_attempts as usize;
        let longest = room.saturating_sub(FRAME).min(LONGEST);
        &text[..text.floor_char_boundary(longest)]
    }
}

/// The text of a panic.
pub(super) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no text").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_takes_its_frame_and_its_text() {
        let failure = step(FAILED, "declined").unwrap();
        assert_eq!(failure.as_bytes().len(), FRAME + "declined".len());
    }

    #[test]
    fn after_too_many_that_do_not_count_only_kept_failures_do() {
        for (released, failed) in [(0, 299), (200, 99), (201, 1)] {
            let history = History {
                errors: vec!["declined".into()],
                released,
                handed_over: false,
                progress: Progress::default(),
            };
            assert_eq!(history.failed(300), failed);
        }
    }
}
