//! One attempt: it holds the lease while work runs, and settles the claim.

use std::any::Any;
use std::convert::Infallible;
use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::{Event, Guard, OnPanic, Steps};
use crate::store::{Acquired, Fence, Fenced, Refusal, Store, Token};
use crate::{
    FinishedStep, IdentityDigest, Outcome, OutcomeKind, Progress, StoreError, StoreErrorKind,
};

/// What a handler may know of the attempt that it runs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptInfo {
    /// Grows with every claim on the identity: pass it to services that can refuse a stale one.
    pub fence: Fence,
    /// Which attempt this is, from 1.
    pub number: u32,
}

impl AttemptInfo {
    /// Of a call without protection: no fence, the first.
    pub(super) const UNPROTECTED: Self = Self {
        fence: Fence(0),
        number: 1,
    };
}

/// How an attempt was settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a refused settlement recorded nothing (protocol rule R4)"]
pub enum Settled {
    /// Recorded, as durable as the store promises.
    Applied,
    /// Recorded as done, but without its answer: it was too large for the store.
    Omitted,
    /// Nothing was changed.
    Refused(Refusal),
}

/// A claim that was acquired. Run the work in [`hold`](Self::hold), which renews the lease, then
/// settle it with one of [`complete`](Self::complete), [`abandon`](Self::abandon) and
/// [`mark_unknown`](Self::mark_unknown). Dropped without being settled, it lapses.
pub struct Attempt<S> {
    pub(super) guard: Guard<S>,
    pub(super) identity: IdentityDigest,
    pub(super) token: Token,
    number: u32,
    // Whether renewals wait for the end of a transaction; not there where there is none.
    pub(super) still: OnceLock<Arc<AtomicBool>>,
    // Counted on our own clock from before the claim was sent, so never later than the store's.
    renewed: Instant,
}

/// How long settling is tried when the store does not answer; never longer than the lease.
const SETTLE_FOR: Duration = Duration::from_secs(5);
const FIRST_BACKOFF: Duration = Duration::from_millis(10);

impl<S: Store> Attempt<S> {
    pub(super) const fn new(
        guard: Guard<S>,
        identity: IdentityDigest,
        acquired: Acquired,
        claimed: Instant,
    ) -> Self {
        Self {
            guard,
            identity,
            token: acquired.token,
            number: acquired.attempt,
            still: OnceLock::new(),
            renewed: claimed,
        }
    }

    /// What the handler may know.
    pub const fn info(&self) -> AttemptInfo {
        AttemptInfo {
            fence: self.token.fence,
            number: self.number,
        }
    }

    /// The steps of this attempt: results kept one by one, so that the next attempt goes on after the
    /// last.
    pub fn steps(&self) -> Steps<S> {
        let still = self.still.get_or_init(Arc::default);
        self.no_steps().held_still_by(still.clone())
    }

    /// For work that is not in steps.
    pub(super) fn no_steps(&self) -> Steps<S> {
        Steps::new(
            self.guard.clone(),
            self.identity,
            Some(self.token),
            self.number,
        )
    }

    /// Runs `work`, and renews the lease every third of it as long as that takes. May be called
    /// again for the next part of the work.
    pub async fn hold<F: Future>(&mut self, work: F) -> F::Output {
        beside(work, self.keep()).await
    }

    /// Like [`hold`](Self::hold), with a panic of `work` as a value.
    ///
    /// # Errors
    /// The panic's payload, for [`std::panic::resume_unwind`].
    pub async fn hold_catching<F: Future>(
        &mut self,
        work: F,
    ) -> Result<F::Output, Box<dyn Any + Send>> {
        beside(caught(work), self.keep()).await
    }

    /// Renews the lease every third of it, for ever.
    pub(super) async fn keep(&mut self) -> Infallible {
        let lease = self.guard.policy().lease();
        loop {
            sleep_until(self.renewed + lease / 3).await;
            let still = self.still.get();
            while still.is_some_and(|still| still.load(Ordering::SeqCst)) {
                sleep(lease / 10).await;
            }
            match self.renew().await {
                Ok(Fenced::Applied) => {}
                // Another attempt owns it now, or it was found unknown. The work cannot be
                // undone; its completion will be refused or welcome, as the store decides.
                Ok(Fenced::Refused(_)) => return pending().await,
                Err(_) => sleep(lease / 10).await,
            }
        }
    }

    async fn renew(&mut self) -> Result<Fenced, StoreError> {
        let lease = self.guard.policy().lease();
        let sent = Instant::now();
        let store = self.guard.store();
        let renewed = store.renew(&self.identity, &self.token, lease).await;
        self.guard.observe(match renewed {
            Ok(Fenced::Applied) => {
                self.renewed = sent;
                Event::Renewed
            }
            Ok(Fenced::Refused(_)) => Event::Stale,
            Err(_) => Event::StoreError,
        });
        renewed
    }

    /// Renews the lease once, where a third of it is over.
    pub(super) async fn renew_if_due(&mut self) {
        if self.renewed + self.guard.policy().lease() / 3 <= Instant::now() {
            // Who lost it learns so at the completion.
            self.renew().await.ok();
        }
    }

    /// What earlier attempts finished.
    pub(crate) async fn progress(&self) -> Result<Progress, StoreError> {
        if self.number == 1 {
            return Ok(Progress::EMPTY);
        }
        let entry = self.guard.store().get(&self.identity).await?;
        // Another attempt's, where this one lost its claim: nothing can be kept behind it either.
        Ok(entry.map_or(Progress::EMPTY, |entry| entry.record.progress))
    }

    /// Keeps a step behind the `kept` bytes of those before it.
    pub(crate) async fn keep_step(
        &self,
        step: &FinishedStep,
        kept: usize,
    ) -> Result<Fenced, StoreError> {
        let store = self.guard.store();
        insist(&self.guard, || {
            store.keep_step(&self.identity, &self.token, step, kept)
        })
        .await
    }

    /// Records the outcome for the policy's retention. A store that fails is asked again with the
    /// same token for up to 5 s; an outcome too large for it is recorded as omitted.
    ///
    /// # Errors
    /// The store's last error: the outcome may or may not have been recorded.
    pub async fn complete(self, outcome: &Outcome) -> Result<Settled, StoreError> {
        let retention = self.guard.policy().retention();
        let event = |outcome: &Outcome| match outcome.kind() {
            OutcomeKind::Omitted => Event::Omitted,
            OutcomeKind::Success | OutcomeKind::Failure => Event::Completed,
        };
        let store = self.guard.store();
        let done = self
            .settle(event(outcome), || {
                store.complete(&self.identity, &self.token, outcome, retention)
            })
            .await;
        match done {
            Err(error) if error.kind() == StoreErrorKind::TooLarge => {
                let omitted = outcome.to_omitted();
                let settled = self
                    .settle(Event::Omitted, || {
                        store.complete(&self.identity, &self.token, &omitted, retention)
                    })
                    .await?;
                Ok(match settled {
                    Settled::Applied => Settled::Omitted,
                    other => other,
                })
            }
            done => done,
        }
    }

    /// Gives the identity back: the work had no effect, and may run again.
    ///
    /// # Errors
    /// The store's last error: the identity may still be in flight, until its lease lapses.
    pub async fn abandon(self) -> Result<Settled, StoreError> {
        let store = self.guard.store();
        self.settle(Event::Released, || {
            store.abandon(&self.identity, &self.token)
        })
        .await
    }

    /// Says that the work may have had its effect, and that nobody knows.
    ///
    /// # Errors
    /// The store's last error: the identity may still be in flight, until its lease lapses.
    pub async fn mark_unknown(self) -> Result<Settled, StoreError> {
        let store = self.guard.store();
        self.settle(Event::MarkedUnknown, || {
            store.mark_unknown(&self.identity, &self.token)
        })
        .await
    }

    /// Settles it as the policy says of a panic.
    ///
    /// # Errors
    /// See [`abandon`](Self::abandon).
    pub async fn panicked(self) -> Result<Settled, StoreError> {
        match self.guard.policy().on_panic() {
            OnPanic::Release => self.abandon().await,
            OnPanic::Unknown => self.mark_unknown().await,
        }
    }

    async fn settle<F: Future<Output = Result<Fenced, StoreError>>>(
        &self,
        event: Event,
        step: impl Fn() -> F,
    ) -> Result<Settled, StoreError> {
        match insist(&self.guard, step).await? {
            Fenced::Applied => {
                self.guard.observe(event);
                Ok(Settled::Applied)
            }
            Fenced::Refused(refusal) => {
                self.guard.observe(Event::Stale);
                Ok(Settled::Refused(refusal))
            }
        }
    }
}

/// Runs `work` while `keep` goes on. Work first: while it is quick, no timer is ever set.
pub(super) async fn beside<F: Future>(
    work: F,
    keep: impl Future<Output = Infallible>,
) -> F::Output {
    let (mut work, mut keep) = (pin!(work), pin!(keep));
    poll_fn(move |context| {
        if let Poll::Ready(output) = work.as_mut().poll(context) {
            return Poll::Ready(output);
        }
        keep.as_mut().poll(context).map(|never| match never {})
    })
    .await
}

/// Work with its panic as a value. It is not polled again after one, so nobody sees what it broke.
pub(crate) async fn caught<F: Future>(work: F) -> Result<F::Output, Box<dyn Any + Send>> {
    let mut work = pin!(work);
    poll_fn(
        move |context| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        },
    )
    .await
}

/// Asks a store that fails again, with the same token, for up to 5 s and no longer than the lease.
pub(super) async fn insist<S: Store, T, F: Future<Output = Result<T, StoreError>>>(
    guard: &Guard<S>,
    step: impl Fn() -> F,
) -> Result<T, StoreError> {
    let mut backoff = FIRST_BACKOFF;
    let mut until = None;
    loop {
        let error = match step().await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        guard.observe(Event::StoreError);
        let may_pass = matches!(
            error.kind(),
            StoreErrorKind::NotApplied | StoreErrorKind::Unknown
        );
        let until =
            *until.get_or_insert_with(|| Instant::now() + guard.policy().lease().min(SETTLE_FOR));
        if !may_pass || Instant::now() + backoff > until {
            return Err(error);
        }
        sleep(backoff).await;
        backoff *= 2;
    }
}

impl<S> fmt::Debug for Attempt<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("fence", &self.token.fence)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}
