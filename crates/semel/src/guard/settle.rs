//! Telling the store what is known of an attempt, for as long as it takes (R14).

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::attempt::Claimed;
use super::lease::later;
use super::run::join;
use super::{Asked, Guard, Held, Settled, Shared, Signal};
use crate::backoff::Backoff;
use crate::store::{ClaimRequest, Fenced, Refusal, Store, Token};
use crate::{Outcome, OutcomeKind, StoreError, StoreErrorKind};

/// How long a caller waits for a store that does not take what it is told.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// What is known of an attempt at its end.
pub(super) enum Settlement {
    Complete(Outcome),
    Release,
    Unknown,
}

impl<S: Store> Held<S> {
    pub(super) async fn settle(mut self, settlement: Settlement) -> Result<Settled, StoreError> {
        let claimed = Arc::clone(self.claimed());
        // Dropped while it waits for the store, it goes on in the background.
        let mut told = claimed.tell(self.otherwise.insert(settlement)).await;
        let settlement = self.otherwise.take();
        if let (Err(error), Some(settlement)) = (&told, settlement)
            && may_pass(error)
        {
            let pursuit = claimed.settle_in_background(settlement);
            if let Ok(later) = timeout(PATIENCE, join(pursuit)).await {
                told = later;
            }
        } else {
            claimed.stop_renewing();
        }
        told
    }

    /// For callers who have their answer already; nothing where it was settled before.
    pub(super) async fn settle_if_open(self, settlement: Settlement) {
        if self.otherwise.is_some() {
            self.settle(settlement).await.ok();
        }
    }
}

/// Whether the store may take later what it did not take now.
pub(super) fn may_pass(error: &StoreError) -> bool {
    matches!(
        error.kind(),
        StoreErrorKind::NotApplied | StoreErrorKind::Unknown | StoreErrorKind::Capacity
    )
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
        mut settlement: Settlement,
    ) -> JoinHandle<Result<Settled, StoreError>> {
        let claimed = Ending(Arc::clone(self));
        self.guard.pursue(async move {
            let claimed = &claimed.0;
            let mut tries = claimed.guard.tries();
            loop {
                match claimed.tell(&mut settlement).await {
                    Err(error) if may_pass(&error) && tries.another().await => {}
                    told => return told,
                }
            }
        })
    }

    /// Tells the store once. It may be told again, also where the answer was lost.
    async fn tell(&self, settlement: &mut Settlement) -> Result<Settled, StoreError> {
        let Some(token) = &self.token else {
            return Ok(Settled::Applied);
        };
        let told = self.send(token, settlement).await;
        self.guard.signal(match (&told, settlement) {
            (Ok(Settled::Refused(_)), _) => Signal::Stale,
            (Ok(_), Settlement::Complete(outcome)) => signal_of(outcome.kind()),
            (Ok(_), Settlement::Release) => Signal::Released,
            (Ok(_), Settlement::Unknown) => Signal::MarkedUnknown,
            (Err(_), _) => Signal::StoreError,
        });
        told
    }

    async fn send(
        &self,
        token: &Token,
        settlement: &mut Settlement,
    ) -> Result<Settled, StoreError> {
        let (store, identity) = (self.store(), &self.identity);
        let retention = self.guard.policy.retention;
        let mut applied = Settled::Applied;
        let sent = match settlement {
            Settlement::Complete(outcome) => {
                match store.complete(identity, token, outcome, retention).await {
                    Err(error) if error.kind() == StoreErrorKind::TooLarge => {
                        applied = Settled::Omitted;
                        *outcome = outcome.to_omitted();
                        store.complete(identity, token, outcome, retention).await
                    }
                    sent => sent,
                }
            }
            Settlement::Release => {
                if let Some((mark, kept)) = self.left_by_release().await? {
                    match store.keep_step(identity, token, &mark, kept).await? {
                        // Other steps are kept, by a call whose answer was lost: they say enough.
                        Fenced::Applied | Fenced::Refused(Refusal::OtherSteps) => {}
                        Fenced::Refused(refusal) => return Ok(Settled::Refused(refusal)),
                    }
                }
                store.abandon(identity, token).await
            }
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

/// A claim that the store may have made, though nobody was told. Dropped as such it is looked for in
/// the background, by its nonce, and given back.
pub(super) struct InDoubt<'a, S: Store> {
    pub(super) guard: &'a Guard<S>,
    pub(super) asked: &'a Asked,
    pub(super) request: ClaimRequest,
    pub(super) is_doubtful: bool,
}

impl<S: Store> Drop for InDoubt<'_, S> {
    fn drop(&mut self) {
        let Some(identity) = self
            .asked
            .identity()
            .filter(|_| self.is_doubtful && in_runtime())
        else {
            return;
        };
        let (guard, asked, digest) = (self.guard.clone(), self.asked.clone(), *identity.digest());
        let nonce = self.request.nonce;
        self.guard.pursue(async move {
            let mut tries = guard.tries();
            // What is still on its way may arrive after the first look.
            let mut looked = false;
            loop {
                let sent = Instant::now();
                match guard.store().get(&digest).await {
                    Ok(Some(entry)) if entry.record.token.nonce == nonce => {
                        let acquired = Some(entry.record.acquired());
                        let claimed = Claimed::new(guard.clone(), &asked, digest, acquired, sent);
                        let released = Held::new(Arc::new(claimed)).release().await;
                        return released.map(drop);
                    }
                    Ok(_) if looked => return Ok(()),
                    Ok(_) => {
                        looked = true;
                        sleep(PATIENCE).await;
                    }
                    Err(error) if may_pass(&error) && tries.another().await => {}
                    Err(error) => return Err(error),
                }
            }
        });
    }
}

/// Whether a task can be spawned: not at the end of a program.
pub(super) fn in_runtime() -> bool {
    tokio::runtime::Handle::try_current().is_ok()
}

/// Tries of something that the store must be told, until the process drains.
pub(super) struct Tries<'a, S> {
    guard: &'a Guard<S>,
    backoff: Backoff,
    patience: Instant,
    is_deferred: bool,
}

impl<S: Store> Guard<S> {
    fn tries(&self) -> Tries<'_, S> {
        Tries {
            guard: self,
            backoff: Backoff::new(Duration::from_millis(10), Duration::from_secs(1)),
            patience: later(Instant::now(), PATIENCE),
            is_deferred: false,
        }
    }

    /// Runs `pursuit` in a task that is counted, and that a drain waits for.
    fn pursue<T: Send + 'static>(
        &self,
        pursuit: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let counted = Counted(Arc::clone(&self.shared));
        counted.0.pursuits.fetch_add(1, Ordering::Relaxed);
        self.spawn(async move {
            let _counted = counted;
            pursuit.await
        })
    }
}

struct Counted<S>(Arc<Shared<S>>);

impl<S> Drop for Counted<S> {
    fn drop(&mut self) {
        self.0.pursuits.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<S: Store> Tries<'_, S> {
    /// Pauses, and says whether to try again: not once a drain, and this, have waited long enough.
    async fn another(&mut self) -> bool {
        if !self.is_deferred && self.patience <= Instant::now() {
            self.is_deferred = true;
            self.guard.signal(Signal::Deferred);
        }
        let mut draining = self.guard.shared.draining.subscribe();
        let drained = async {
            let until = draining.wait_for(Option::is_some).await.map(|until| *until);
            match until {
                Ok(Some(until)) => sleep_until(until.max(self.patience)).await,
                _ => pending().await,
            }
        };
        tokio::select! {
            () = sleep(self.backoff.pause()) => true,
            () = drained => {
                self.guard.signal(Signal::GaveUp);
                false
            }
        }
    }
}
