//! Work in one transaction with its completion: both are committed, or neither.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::run::{joined, replay};
use super::seal::{Sealed, seal};
use super::together::{Together, Tried};
use super::{Attempt, AttemptInfo, Begin, Guard, OnFailure, Ran, RunError, Settled, Value};
use crate::store::{Fence, Refusal};
use crate::transaction::{Isolation, Lent, TransactionError, Transactional};
use crate::{Fingerprint, Identity, Outcome, StoreError};

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
    pub(super) guard: Guard<S>,
    pub(super) still: Arc<AtomicBool>,
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
        let still = self.still.get_or_init(Arc::default);
        still.store(false, Ordering::SeqCst);
        Opening {
            guard: self.guard.clone(),
            still: Arc::clone(still),
        }
    }

    /// Records the outcome in the transaction and commits it. A lost answer is resolved by reading
    /// the record back; an outcome too large for the store is recorded as omitted.
    pub async fn commit(self, transaction: S::Transaction, outcome: &Outcome) -> Committed<S> {
        match seal(&self.guard, &[&self], transaction, outcome).await {
            Sealed::Done(kept) => Committed::Done(if kept.contains(&outcome.kind()) {
                Settled::Applied
            } else {
                Settled::Omitted
            }),
            Sealed::Refused(_, refusal) => Committed::Refused(refusal),
            Sealed::Conflict(error) => Committed::Conflict(self, error),
            Sealed::Failed(error) => Committed::Failed(self, error),
            Sealed::Unknown(error) => Committed::Unknown(error),
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
    /// and the source is of kind [`Unknown`](crate::StoreErrorKind::Unknown).
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
        let guard = self.clone();
        joined(self.spawn(async move {
            let AttemptInfo { fence, number } = attempt.info();
            let mut held = Together::new(guard, [(0, attempt)]);
            let mut work = |again, transaction| {
                let info = TransactInfo {
                    fence,
                    number,
                    again,
                };
                work(info, transaction)
            };
            let tried = held.transact(&[0], options, T::to_outcome, &mut work).await;
            settle(held.take(0), tried).await
        }))
        .await
    }
}

/// What the caller is told, and what becomes of an attempt that is not settled yet.
async fn settle<S: Transactional, T, E: StdError>(
    attempt: Option<Attempt<S>>,
    tried: Tried<T, E>,
) -> Result<Ran<T>, RunError<E>> {
    let error = match tried {
        Tried::Done(value) => return Ok(Ran::First(value)),
        Tried::Superseded(_) => return Err(RunError::Superseded),
        Tried::Unknown(source) => return Err(RunError::Store { ran: true, source }),
        Tried::Panicked(panic) => {
            if let Some(attempt) = attempt {
                attempt.panicked().await.ok();
            }
            resume_unwind(panic)
        }
        Tried::Failed { error, conflict } => {
            if let Some(attempt) = attempt {
                // The failure of the work, not of the store, is what the caller must see. A
                // conflict is none that lasts.
                if !conflict && attempt.guard.policy().on_failure == OnFailure::Keep {
                    let failure = Outcome::failure(error.to_string().as_bytes());
                    attempt.complete(&failure).await.ok();
                } else {
                    attempt.abandon().await.ok();
                }
            }
            return Err(RunError::Failed(error));
        }
        Tried::NotBegun { ran, source } => RunError::Store { ran, source },
        Tried::Kept => RunError::TransactionKept,
        Tried::NotCommitted { source, .. } => RunError::Store { ran: true, source },
    };
    if let Some(attempt) = attempt {
        attempt.abandon().await.ok();
    }
    Err(error)
}
