//! Events whose effects are not in the store's database.

use std::fmt::Display;

use crate::Outcome;
use crate::guard::{AttemptInfo, Settled, joined};
use crate::store::{OnLost, Store};

use super::failure::message;
use super::{Event, Inbox, InboxError, Receipt};

impl<S: Store> Inbox<S> {
    /// Handles `event` once: claims it, runs `work` in a task of its own while the lease is renewed,
    /// records that it is done, and gives the receipt. Of deliveries at the same time one runs.
    ///
    /// An error or a panic of `work` gives the event back to be run again: `work` fails only where
    /// that is right. Between the effect and its record a crash is possible, after which the event
    /// is [`Unknown`](InboxError::Unknown), or run again, as
    /// [`with_on_lost`](Self::with_on_lost) says; the attempt's fence lets a service refuse a
    /// stale one. If the caller is dropped, the work goes on (R11).
    ///
    /// # Errors
    /// See [`InboxError`]: do not acknowledge.
    pub async fn receive<E, F, W>(&self, event: &Event, work: F) -> Result<Receipt, InboxError<E>>
    where
        E: Display + Send + 'static,
        F: FnOnce(AttemptInfo) -> W + Send + 'static,
        W: Future<Output = Result<(), E>> + Send + 'static,
    {
        let (inbox, event) = (self.clone(), event.clone());
        let task = self
            .guard
            .spawn(async move { inbox.once(&event, work).await });
        joined(task).await
    }

    async fn once<E, F, W>(&self, event: &Event, work: F) -> Result<Receipt, InboxError<E>>
    where
        E: Display,
        F: FnOnce(AttemptInfo) -> W,
        W: Future<Output = Result<(), E>>,
    {
        let on_lost = self.on_lost.unwrap_or(OnLost::Hold);
        let in_flight = self.guard.policy().in_flight;
        let claimed = self.claim(event, on_lost, in_flight).await?;
        let mut attempt = match self.unless_fresh(event, claimed).await {
            Ok(attempt) => attempt,
            Err(answer) => return answer,
        };
        let info = attempt.info();
        match attempt.hold_catching(async { work(info).await }).await {
            Ok(Ok(())) => match attempt.complete(&Outcome::void()).await {
                Ok(Settled::Applied | Settled::Omitted) => Ok(Receipt::Handled),
                Ok(Settled::Refused(_)) => Err(InboxError::Superseded),
                Err(source) => Err(InboxError::Store { ran: true, source }),
            },
            Ok(Err(error)) => {
                let failed = self.failed(event, attempt, &error.to_string()).await;
                failed.told(|attempt| InboxError::Failed { error, attempt })
            }
            Err(panic) => {
                let message = message(&*panic);
                let failed = self.failed(event, attempt, &message).await;
                failed.told(|attempt| InboxError::Panicked { message, attempt })
            }
        }
    }
}
