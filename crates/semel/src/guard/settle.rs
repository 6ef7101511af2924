//! Records how an attempt ended, retrying in the background until the store takes it (R14).

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{self, BoxFuture};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::attempt::Claimed;
use super::owed::Owed;
use super::run::join;
use super::{Guard, Held, Settled, Signal};
use crate::backoff::Backoff;
use crate::store::{Fenced, Refusal, Retention, Store, StoreExt as _, Token};
use crate::{Outcome, OutcomeKind, StateKind, StoreError, StoreErrorKind};

/// What takes longer is known to those who claim the identity meanwhile.
const SLOW: Duration = Duration::from_millis(50);
/// How long a caller waits for a store that does not take what it is told.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// What is known of an attempt at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settlement {
    /// It is done, with this outcome, which is kept for so long; as the policy says where it is `None`.
    Complete(Outcome, Option<Retention>),
    /// It had no effect, and may run again.
    Release,
    /// It may have had its effect, and nobody knows.
    Unknown,
}

impl<S: Store> Held<S> {
    /// Tells the store what is known of the attempt: an outcome is recorded for the policy's
    /// retention, as omitted where it is too large for the store.
    ///
    /// # Errors
    /// The store's: it is not recorded yet, see [`Held`].
    pub async fn settle(self, settlement: Settlement) -> Result<Settled, StoreError> {
        let claimed = Arc::clone(self.claimed());
        // Dropped while it waits for the store, it goes on in the background: on the list again before it leaves it.
        let mut listed = None;
        let mut held = self;
        let settlement = held.otherwise.insert(settlement);
        let told = {
            let mut telling = pin!(claimed.tell(settlement));
            // A store that answers at once needs no timer.
            let at_once = poll_fn(|cx| Poll::Ready(telling.as_mut().poll(cx))).await;
            let in_time = match at_once {
                Poll::Ready(told) => Ok(told),
                Poll::Pending => timeout(SLOW, &mut telling).await,
            };
            match in_time {
                Ok(told) => told,
                Err(_) => {
                    let known = Arc::new(Known {
                        claimed: Arc::clone(&claimed),
                        settlement: settlement.clone(),
                        is_first: true,
                    });
                    listed = Some(claimed.guard.list_owed(claimed.identity, known));
                    telling.await
                }
            }
        };
        if told.is_err() {
            claimed.signal(Signal::StoreError);
        }
        let settlement = held.otherwise.take();
        match (&told, settlement) {
            (Err(error), Some(settlement)) if error.is_retryable() => {
                let pursuit = claimed.settle_in_background(settlement);
                drop(listed);
                // Boxed, so that attempts whose store answers need no room for it.
                Box::pin(timeout(PATIENCE, join(pursuit)))
                    .await
                    .unwrap_or(told)
            }
            _ => {
                claimed.stop_renewing();
                told
            }
        }
    }
}

/// The end of an attempt, which several tell the store of.
struct Known<S> {
    claimed: Arc<Claimed<S>>,
    settlement: Settlement,
    /// It is on its way to a store that has not failed: it is told a second time only where the lease is in danger.
    is_first: bool,
}

impl<S: Store> Owed for Known<S> {
    fn tell(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async {
            match self.is_first && self.claimed.lease.is_renewed() {
                true => Ok(()),
                false => self.claimed.tell(&self.settlement).await.map(drop),
            }
        })
    }

    fn may_have_run(&self) -> bool {
        self.settlement != Settlement::Release
    }
}

/// Renews no more when it is dropped.
struct Ending<S: Store>(Arc<Claimed<S>>);

impl<S: Store> Drop for Ending<S> {
    fn drop(&mut self) {
        self.0.stop_renewing();
    }
}

impl<S: Store> Claimed<S> {
    pub(super) fn settle_in_background(
        self: &Arc<Self>,
        settlement: Settlement,
    ) -> JoinHandle<Result<Settled, StoreError>> {
        let ending = Ending(Arc::clone(self));
        let had_no_effect = settlement == Settlement::Release;
        self.had_no_effect.store(had_no_effect, Ordering::Relaxed);
        let known = Arc::new(Known {
            claimed: Arc::clone(self),
            settlement,
            is_first: false,
        });
        let owed = Arc::clone(&known) as _;
        self.guard.pursue(self.identity, owed, async move {
            let (claimed, guard) = (&ending.0, &ending.0.guard);
            let signal = |signal| claimed.signal(signal);
            guard
                .ask_until(guard.drained(&signal), signal, || {
                    claimed.tell(&known.settlement)
                })
                .await
        })
    }

    /// Asks a store that fails again, for as long as a caller has patience.
    pub(super) async fn insist<T, F>(&self, call: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let signal = |signal| self.signal(signal);
        self.guard.insist(signal, call).await
    }

    /// Tells the store once, unless it has taken it. It may be told again, also where the answer was lost, and by
    /// several at the same time: what the first is answered holds.
    pub(super) async fn tell(&self, settlement: &Settlement) -> Result<Settled, StoreError> {
        let Some(token) = &self.token else {
            return Ok(Settled::Applied);
        };
        if let Some(told) = self.told.get() {
            return Ok(*told);
        }
        let told = match (self.send(token, settlement).await, self.told.get()) {
            (_, Some(told)) => return Ok(*told),
            (told, None) => told?,
        };
        if self.told.set(told).is_err() {
            return Ok(self.told.get().copied().unwrap_or(told));
        }
        self.stop_renewing();
        self.signal(match (told, settlement) {
            (Settled::Refused(_), _) => Signal::Stale,
            (Settled::Omitted, _) => Signal::Omitted,
            (Settled::Applied, Settlement::Complete(outcome, _)) => signal_of(outcome.kind()),
            (Settled::Applied, Settlement::Release) => Signal::Released,
            (Settled::Applied, Settlement::Unknown) => Signal::MarkedUnknown,
        });
        Ok(told)
    }

    async fn send(&self, token: &Token, settlement: &Settlement) -> Result<Settled, StoreError> {
        let (store, identity) = (self.store(), &self.identity);
        let mut applied = Settled::Applied;
        let sent = match settlement {
            Settlement::Complete(outcome, retention) => {
                let retention = self.guard.policy.kept_for(*retention);
                match store.complete(identity, token, outcome, retention).await {
                    Err(error) if error.kind() == StoreErrorKind::TooLarge => {
                        applied = Settled::Omitted;
                        let omitted = outcome.to_omitted();
                        store.complete(identity, token, &omitted, retention).await
                    }
                    sent => sent,
                }
            }
            Settlement::Release => match Box::pin(self.leave_mark(token)).await {
                // By a call whose answer was lost it is released already, or other steps are kept: they say enough.
                Ok(
                    Fenced::Applied
                    | Fenced::Refused(Refusal::OtherSteps | Refusal::Settled(StateKind::Released)),
                ) => store.abandon(identity, token).await,
                // No room for it, in bytes that are sealed: the release is what matters.
                Err(error) if error.kind() == StoreErrorKind::TooLarge => {
                    store.abandon(identity, token).await
                }
                refused => refused,
            },
            Settlement::Unknown => store.mark_unknown(identity, token).await,
        };
        Ok(match sent? {
            Fenced::Applied => applied,
            Fenced::Refused(refusal) => Settled::Refused(refusal),
        })
    }
}

/// What it is called that an outcome of this kind was recorded.
pub(super) const fn signal_of(kind: OutcomeKind) -> Signal {
    match kind {
        OutcomeKind::Omitted => Signal::Omitted,
        OutcomeKind::Success | OutcomeKind::Failure => Signal::Completed,
    }
}

/// Whether a task can be spawned: not at the end of a program.
pub(super) fn in_runtime() -> bool {
    tokio::runtime::Handle::try_current().is_ok()
}

impl<S: Store> Guard<S> {
    /// Asks a store that fails again, for as long as a caller has patience. `signal` is told of each
    /// failure.
    pub(super) async fn insist<T, F>(
        &self,
        signal: impl Fn(Signal),
        call: impl Fn() -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let patience = sleep(PATIENCE.min(self.policy.lease));
        self.ask_until(patience, signal, call).await
    }

    /// Asks a store that fails again, with pauses, until `end`. `signal` is told of each failure.
    pub(super) async fn ask_until<T, F>(
        &self,
        end: impl Future<Output = ()>,
        signal: impl Fn(Signal),
        call: impl Fn() -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut end = pin!(end);
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
        loop {
            let error = match call().await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            signal(Signal::StoreError);
            if !error.is_retryable() {
                return Err(error);
            }
            tokio::select! {
                biased;
                () = &mut end => return Err(error),
                () = sleep(backoff.pause()) => {}
            }
        }
    }

    /// Returns once a drain, and whoever waits for this, have waited long enough.
    pub(super) fn drained(
        &self,
        signal: &(impl Fn(Signal) + Sync),
    ) -> impl Future<Output = ()> + Send {
        let patience = sleep(PATIENCE);
        async move {
            let is_deferred = async {
                patience.await;
                signal(Signal::Deferred);
            };
            let is_drained = async {
                let draining = &self.shared.draining;
                draining
                    .until(|is_draining| is_draining.then_some(()))
                    .await;
                sleep(PATIENCE).await;
            };
            future::join(is_deferred, is_drained).await;
            signal(Signal::GaveUp);
        }
    }
}
