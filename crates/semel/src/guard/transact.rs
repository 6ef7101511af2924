//! Work in one transaction with its completion: both are committed, or neither.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::sleep;

use super::attempt::insist;
use super::run::{joined, replay};
use super::{Attempt, Begin, Event, Guard, OnFailure, Ran, RunError, Settled, Value};
use crate::store::{Fence, Fenced, Nonce, Refusal};
use crate::transaction::{
    Isolation, Lent, Loan, TransactionError, Transactional, comes_from_conflict,
};
use crate::{Fingerprint, Identity, Outcome, OutcomeKind, StateKind, StoreError, StoreErrorKind};

/// How a transaction is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactOptions {
    isolation: Isolation,
    retries: u32,
}

impl TransactOptions {
    /// How strictly it is kept apart from others. [`Isolation::ReadCommitted`] unless set.
    #[must_use]
    pub const fn with_isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// How often the work is run again after a deadlock or a serialization failure. 8 unless set.
    #[must_use]
    pub const fn with_retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// How strictly it is kept apart from others.
    pub const fn isolation(&self) -> Isolation {
        self.isolation
    }

    /// How often the work is run again.
    pub const fn retries(&self) -> u32 {
        self.retries
    }
}

impl Default for TransactOptions {
    fn default() -> Self {
        Self {
            isolation: Isolation::default(),
            retries: 8,
        }
    }
}

/// What work in a transaction may know of the attempt that it runs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactInfo {
    /// Grows with every claim on the identity.
    pub fence: Fence,
    /// Which attempt this is, from 1.
    pub number: u32,
    /// How often the work was run and rolled back in this attempt. It may be run again until it is
    /// committed: what it does beside the transaction happens as often.
    pub again: u32,
}

/// What became of a transaction. Where it holds the attempt, that is still to be settled.
#[derive(Debug)]
#[must_use = "an attempt that is not settled lapses"]
pub enum Committed<S> {
    /// The effects and the outcome are committed.
    Done(Settled),
    /// Another attempt took over; all was rolled back.
    Refused(Refusal),
    /// All was rolled back; run again it may go through.
    Conflict(Attempt<S>, StoreError),
    /// All was rolled back.
    Failed(Attempt<S>, StoreError),
    /// Nobody knows: neither the commit nor the reading back was answered. The record tells, as
    /// soon as it can be read.
    Unknown(StoreError),
}

/// Begins the transaction of one attempt. See [`Attempt::opening`].
pub struct Opening<S> {
    guard: Guard<S>,
    still: Arc<AtomicBool>,
}

impl<S: Transactional> Opening<S> {
    /// Begins it. Where renewals do not go with such a transaction, there are none from now on: the
    /// lease is to be longer than the transaction.
    ///
    /// # Errors
    /// Nothing was done.
    pub async fn begin(&self, isolation: Isolation) -> Result<S::Transaction, TransactionError> {
        if !S::renews_beside(isolation) {
            self.still.store(true, Ordering::SeqCst);
        }
        self.guard.store().begin(isolation).await
    }
}

impl<S> fmt::Debug for Opening<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening").finish_non_exhaustive()
    }
}

impl<S: Transactional> Attempt<S> {
    /// Begins transactions for this attempt, inside [`hold`](Self::hold), which has the attempt
    /// itself.
    pub fn opening(&mut self) -> Opening<S> {
        let still = self.still.get_or_insert_with(Arc::default);
        still.store(false, Ordering::SeqCst);
        Opening {
            guard: self.guard.clone(),
            still: Arc::clone(still),
        }
    }

    /// Records the outcome in the transaction and commits it. A lost answer is resolved by reading
    /// the record back; an outcome too large for the store is recorded as omitted.
    pub async fn commit(self, mut transaction: S::Transaction, outcome: &Outcome) -> Committed<S> {
        let mut kept = outcome.kind();
        let mut done = self.complete_in(&mut transaction, outcome).await;
        if let Err(TransactionError::NotCommitted(error)) = &done
            && error.kind() == StoreErrorKind::TooLarge
        {
            kept = OutcomeKind::Omitted;
            done = self
                .complete_in(&mut transaction, &outcome.to_omitted())
                .await;
        }
        let store = self.guard.store();
        let committed = match done {
            Ok(Fenced::Applied) => store.commit(transaction).await,
            Ok(Fenced::Refused(refusal)) => {
                store.rollback(transaction).await;
                self.guard.observe(Event::Stale);
                return Committed::Refused(refusal);
            }
            Err(error) => {
                store.rollback(transaction).await;
                Err(match error {
                    // The commit was not sent, and will not be.
                    TransactionError::Unknown(error) => TransactionError::NotCommitted(error),
                    certain => certain,
                })
            }
        };
        match committed {
            Ok(()) => self.committed(outcome.kind(), kept),
            Err(TransactionError::Conflict(error)) => Committed::Conflict(self, error),
            Err(TransactionError::NotCommitted(error)) => {
                self.guard.observe(Event::StoreError);
                Committed::Failed(self, error)
            }
            Err(TransactionError::Unknown(error)) => {
                self.guard.observe(Event::StoreError);
                self.read_back(error, outcome.kind(), kept).await
            }
        }
    }

    async fn complete_in(
        &self,
        transaction: &mut S::Transaction,
        outcome: &Outcome,
    ) -> Result<Fenced, TransactionError> {
        let retention = self.guard.policy().retention();
        let store = self.guard.store();
        store
            .complete_in(transaction, &self.identity, &self.token, outcome, retention)
            .await
    }

    fn committed(self, asked: OutcomeKind, kept: OutcomeKind) -> Committed<S> {
        self.guard.observe(match kept {
            OutcomeKind::Omitted => Event::Omitted,
            OutcomeKind::Success | OutcomeKind::Failure => Event::Completed,
        });
        Committed::Done(if kept == asked {
            Settled::Applied
        } else {
            Settled::Omitted
        })
    }

    /// Asks the record whether the transaction was committed, by renewing: a write waits for the
    /// transaction's lock, so that its answer is final, where a read might come before a commit
    /// that is still on its way.
    async fn read_back(
        self,
        lost: StoreError,
        asked: OutcomeKind,
        kept: OutcomeKind,
    ) -> Committed<S> {
        let lease = self.guard.policy().lease();
        let renewed = insist(&self.guard, || {
            self.guard.store().renew(&self.identity, &self.token, lease)
        });
        match renewed.await {
            // Our token is proof that it was this attempt.
            Ok(Fenced::Refused(Refusal::Settled(StateKind::Completed))) => {
                self.committed(asked, kept)
            }
            Ok(Fenced::Applied | Fenced::Refused(Refusal::Settled(StateKind::Unknown))) => {
                Committed::Conflict(self, lost)
            }
            Ok(Fenced::Refused(refusal)) => {
                self.guard.observe(Event::Stale);
                Committed::Refused(refusal)
            }
            Err(error) => Committed::Unknown(error),
        }
    }
}

impl<S: Transactional> Guard<S> {
    /// Like [`run`](Self::run), with the effect of `work` and its completion in one transaction of
    /// the store's database: a crash at any point leaves both or neither, and an attempt that was
    /// taken over commits nothing.
    ///
    /// `work` gets the driver's transaction, and drops it when it is done with it; it must neither
    /// commit nor roll it back. It may be called again, after a conflict with other transactions:
    /// [`TransactInfo::again`] counts. On an error all is rolled back, and the identity is released,
    /// or the failure kept, as the policy says.
    ///
    /// The policy for a store that is down does not count here: without the database there is no
    /// transaction either.
    ///
    /// # Errors
    /// See [`RunError`]. With [`Store`](RunError::Store) nothing was committed, unless the work ran
    /// and the source is of kind [`Unknown`](StoreErrorKind::Unknown).
    pub async fn transact<T, E, F, W>(
        &self,
        identity: &Identity,
        fingerprint: Fingerprint,
        options: TransactOptions,
        mut work: F,
    ) -> Result<Ran<T>, RunError<E>>
    where
        T: Value + Send + 'static,
        E: StdError + Send + 'static,
        F: FnMut(TransactInfo, Lent<S::Transaction>) -> W + Send + 'static,
        W: Future<Output = Result<T, E>> + Send + 'static,
    {
        let unreached = |source| RunError::Store { ran: false, source };
        let begun = self.begin_detached(identity, fingerprint).await;
        let attempt = match begun.map_err(unreached)? {
            Begin::Acquired(attempt) => attempt,
            Begin::Completed(outcome) => return replay(&outcome).map(Ran::Replayed),
            Begin::InFlight { retry_after } => return Err(RunError::InFlight { retry_after }),
            Begin::Unknown => return Err(RunError::Unknown),
            Begin::Mismatch => return Err(RunError::Mismatch),
            Begin::Expired => return Err(RunError::Expired),
            Begin::Unprotected(source) => return Err(unreached(source)),
        };
        joined(self.spawn(async move { tries(attempt, options, &mut work).await })).await
    }
}

async fn tries<S, T, E, F, W>(
    mut attempt: Attempt<S>,
    options: TransactOptions,
    work: &mut F,
) -> Result<Ran<T>, RunError<E>>
where
    S: Transactional,
    T: Value,
    E: StdError + 'static,
    F: FnMut(TransactInfo, Lent<S::Transaction>) -> W,
    W: Future<Output = Result<T, E>>,
{
    let mut again = 0;
    loop {
        let last = again >= options.retries;
        let guard = attempt.guard.clone();
        let info = TransactInfo {
            fence: attempt.info().fence,
            number: attempt.info().number,
            again,
        };
        let opening = attempt.opening();
        let loan = Loan::none();
        let ran = attempt
            .hold_catching(async {
                let begun = opening.begin(options.isolation).await?;
                Ok::<_, TransactionError>(work(info, loan.lend(begun)).await)
            })
            .await;
        let transaction = loan.take_back();
        let done = match ran {
            Ok(Ok(done)) => done,
            Ok(Err(begun)) => {
                attempt.abandon().await.ok();
                return Err(RunError::Store {
                    ran: again > 0,
                    source: begun.into_source(),
                });
            }
            Err(panic) => {
                roll_back(&guard, transaction).await;
                attempt.panicked().await.ok();
                resume_unwind(panic)
            }
        };
        let value = match done {
            Ok(value) => value,
            Err(error) => {
                roll_back(&guard, transaction).await;
                if !last && comes_from_conflict::<S>(&error) {
                    pause(again).await;
                    again += 1;
                    continue;
                }
                // The failure of the work, not of the store, is what the caller must see. A conflict
                // is none that lasts.
                let lasts = !comes_from_conflict::<S>(&error);
                if lasts && guard.policy().on_failure == OnFailure::Keep {
                    let failure = Outcome::failure(error.to_string().as_bytes());
                    attempt.complete(&failure).await.ok();
                } else {
                    attempt.abandon().await.ok();
                }
                return Err(RunError::Failed(error));
            }
        };
        let Some(transaction) = transaction else {
            attempt.abandon().await.ok();
            return Err(RunError::TransactionKept);
        };
        match attempt.commit(transaction, &value.to_outcome()).await {
            Committed::Done(_) => return Ok(Ran::First(value)),
            Committed::Refused(_) => return Err(RunError::Superseded),
            Committed::Conflict(unsettled, _) if !last => {
                attempt = unsettled;
                pause(again).await;
                again += 1;
            }
            Committed::Conflict(unsettled, source) | Committed::Failed(unsettled, source) => {
                unsettled.abandon().await.ok();
                let source = certain(source);
                return Err(RunError::Store { ran: true, source });
            }
            Committed::Unknown(source) => {
                let source = StoreError::new(
                    StoreErrorKind::Unknown,
                    "whether the transaction was committed is not known",
                )
                .with_source(source);
                return Err(RunError::Store { ran: true, source });
            }
        }
    }
}

pub(super) async fn roll_back<S: Transactional>(
    guard: &Guard<S>,
    transaction: Option<S::Transaction>,
) {
    if let Some(transaction) = transaction {
        guard.store().rollback(transaction).await;
    }
}

/// The error of a transaction that was certainly rolled back, whatever its answer was.
pub(super) fn certain(error: StoreError) -> StoreError {
    match error.kind() {
        StoreErrorKind::Unknown => {
            StoreError::new(StoreErrorKind::NotApplied, error.to_string()).with_source(error)
        }
        _ => error,
    }
}

/// Lets others go first: up to 10 ms, up to 20 ms, … and not all for the same time.
pub(super) async fn pause(again: u32) {
    let most = Duration::from_millis(10 << again.min(6));
    let chance = Nonce::random().map_or(255, |nonce| nonce.as_bytes()[0]);
    sleep(most * u32::from(chance) / 255).await;
}
