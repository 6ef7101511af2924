//! Events whose effects are not in the store's database.

use std::fmt::Display;

use crate::Outcome;
use crate::guard::{AttemptInfo, Effects, Failed, Ran, join};
use crate::store::Store;

use super::failure::message;
use super::receipt::{Answer, told};
use super::{Event, Inbox, InboxError, Receipt};

impl<S: Store> Inbox<S> {
    /// Handles `event` once: claims it, runs `work` in a task of its own while the lease is renewed,
    /// records that it is done, and gives the receipt. Of deliveries at the same time one runs.
    ///
    /// If the work fails or panics, the event is released and may be delivered again: return an error
    /// only if running again is safe. Between the effect and its record a crash is possible, after
    /// which the event is [`Unknown`](InboxError::Unknown), or runs again where the policy's
    /// [`OnLost`](crate::store::OnLost) says so; the attempt's fence lets a service refuse a stale
    /// one. If the caller is dropped, the work continues (R11).
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
        join(task).await
    }

    async fn once<E, F, W>(&self, event: &Event, work: F) -> Answer<E>
    where
        E: Display,
        F: FnOnce(AttemptInfo) -> W,
        W: Future<Output = Result<(), E>>,
    {
        let mut held = match self.claim(event, Effects::Anywhere, true).await {
            Ok(held) => held,
            Err(old) => return self.answer(event, old).await,
        };
        let (info, ran) = (held.info(), Ran::Yes);
        let (text, failed) = match held.run(async { work(info).await }).await {
            Ok(Ok(())) => {
                let done = held.complete(&Outcome::void()).await;
                return told(done, Receipt::Handled, ran);
            }
            Ok(Err(error)) => (error.to_string(), Failed::now(error, ran)),
            Err(panic) => {
                let text = message(&*panic);
                let failed = Failed::panicked(&text, ran);
                (text, failed)
            }
        };
        let error = InboxError::failed(failed);
        self.failed(event, held, &text, error).await
    }
}
