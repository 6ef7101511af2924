//! Attempts that are held together, some of which are committed in one transaction.

use std::any::Any;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::error::Error as StdError;
use std::future::{Future, pending};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::time::sleep;

use super::attempt::{beside, caught};
use super::seal::{Sealed, seal};
use super::{Attempt, Guard, Opening, TransactOptions};
use crate::store::Nonce;
use crate::transaction::{Lent, Loan, TransactionError, Transactional, comes_from_conflict};
use crate::{Outcome, StoreError, StoreErrorKind};

/// Attempts by the places that their owner gave them. All are renewed while any of them run.
pub(crate) struct Together<S> {
    guard: Guard<S>,
    attempts: BTreeMap<usize, Attempt<S>>,
    still: Arc<AtomicBool>,
}

/// What became of work in a transaction, run again after conflicts within the bound. The attempts
/// that it was for are settled with [`Done`](Self::Done), and given up with
/// [`Unknown`](Self::Unknown); [`Superseded`](Self::Superseded) names one that is lost. All others
/// are still to be settled.
pub(crate) enum Tried<T, E> {
    Done(T),
    /// All was rolled back.
    Superseded(usize),
    /// There was no transaction; `ran`: there was one before, which was rolled back.
    NotBegun {
        ran: bool,
        source: StoreError,
    },
    /// The work's error. All was rolled back.
    Failed {
        error: E,
        /// It comes from a conflict, and the bound is reached.
        conflict: bool,
    },
    /// All was rolled back.
    Panicked(Box<dyn Any + Send>),
    /// The work kept the transaction.
    Kept,
    /// All was rolled back by the database.
    NotCommitted {
        source: StoreError,
        /// For the sake of others, and the bound is reached.
        conflict: bool,
    },
    /// Nobody knows whether it is committed.
    Unknown(StoreError),
}

impl<S: Transactional> Together<S> {
    pub(crate) fn new(
        guard: Guard<S>,
        attempts: impl IntoIterator<Item = (usize, Attempt<S>)>,
    ) -> Self {
        let still = Arc::new(AtomicBool::new(false));
        let attempts = attempts.into_iter().map(|(place, mut attempt)| {
            attempt.still = OnceLock::from(still.clone());
            (place, attempt)
        });
        Self {
            attempts: attempts.collect(),
            guard,
            still,
        }
    }

    pub(crate) fn get(&self, place: usize) -> Option<&Attempt<S>> {
        self.attempts.get(&place)
    }

    /// Gives one up to whoever settles it.
    pub(crate) fn take(&mut self, place: usize) -> Option<Attempt<S>> {
        let mut attempt = self.attempts.remove(&place)?;
        attempt.still = OnceLock::new();
        Some(attempt)
    }

    /// Renews those of which a third of the lease is over: between transactions, where there are no
    /// renewals beside one.
    pub(crate) async fn renew(&mut self) {
        join_all(self.attempts.values_mut().map(Attempt::renew_if_due)).await;
    }

    async fn hold<F: Future>(&mut self, work: F) -> Result<F::Output, Box<dyn Any + Send>> {
        beside(caught(work), keep(&mut self.attempts)).await
    }

    /// Runs `work` in a transaction that completes the attempts at `places`, and commits it. Runs
    /// it again after conflicts; `work` is told how often.
    pub(crate) async fn transact<T, E, F, W>(
        &mut self,
        places: &[usize],
        options: TransactOptions,
        outcome: impl Fn(&T) -> Outcome,
        work: &mut F,
    ) -> Tried<T, E>
    where
        E: StdError + 'static,
        F: FnMut(u32, Lent<S::Transaction>) -> W,
        W: Future<Output = Result<T, E>>,
    {
        let isolation = options.isolation();
        let mut again = 0;
        loop {
            let last = again >= options.retries();
            self.still.store(false, Ordering::SeqCst);
            let opening = Opening {
                guard: self.guard.clone(),
                still: self.still.clone(),
            };
            let loan = Loan::none();
            let ran = self
                .hold(async {
                    let begun = opening.begin(isolation).await?;
                    Ok::<_, TransactionError>(work(again, loan.lend(begun)).await)
                })
                .await;
            let transaction = loan.take_back();
            let value = match ran {
                Ok(Ok(Ok(value))) => value,
                Ok(Ok(Err(error))) => {
                    roll_back(&self.guard, transaction).await;
                    let conflict = comes_from_conflict::<S>(&error);
                    if conflict && !last {
                        pause(again).await;
                        again += 1;
                        continue;
                    }
                    return Tried::Failed { error, conflict };
                }
                Ok(Err(begun)) => {
                    return Tried::NotBegun {
                        ran: again > 0,
                        source: begun.into_source(),
                    };
                }
                Err(panic) => {
                    roll_back(&self.guard, transaction).await;
                    return Tried::Panicked(panic);
                }
            };
            let Some(transaction) = transaction else {
                return Tried::Kept;
            };
            match self.seal(places, transaction, &outcome(&value)).await {
                Sealed::Done(_) => {
                    self.forget(places);
                    return Tried::Done(value);
                }
                Sealed::Refused(place, _) => {
                    self.attempts.remove(&place);
                    return Tried::Superseded(place);
                }
                Sealed::Conflict(_) if !last => {
                    pause(again).await;
                    again += 1;
                }
                Sealed::Conflict(source) => {
                    let (source, conflict) = (certain(source), true);
                    return Tried::NotCommitted { source, conflict };
                }
                Sealed::Failed(source) => {
                    let (source, conflict) = (certain(source), false);
                    return Tried::NotCommitted { source, conflict };
                }
                Sealed::Unknown(source) => {
                    self.forget(places);
                    let what = "whether the transaction was committed is not known";
                    let unknown = StoreError::new(StoreErrorKind::Unknown, what);
                    return Tried::Unknown(unknown.with_source(source));
                }
            }
        }
    }

    async fn seal(
        &self,
        places: &[usize],
        transaction: S::Transaction,
        outcome: &Outcome,
    ) -> Sealed {
        let found = places
            .iter()
            .filter_map(|place| Some((*place, self.attempts.get(place)?)));
        let mut attempts: Vec<_> = found.collect();
        attempts.sort_unstable_by_key(|(_, attempt)| attempt.identity);
        let (places, attempts): (Vec<usize>, Vec<&Attempt<S>>) = attempts.into_iter().unzip();
        match seal(&self.guard, &attempts, transaction, outcome).await {
            Sealed::Refused(at, refusal) => Sealed::Refused(places[at], refusal),
            sealed => sealed,
        }
    }

    fn forget(&mut self, places: &[usize]) {
        for place in places {
            self.attempts.remove(place);
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

async fn keep<S: Transactional>(attempts: &mut BTreeMap<usize, Attempt<S>>) -> Infallible {
    let mut all: FuturesUnordered<_> = attempts.values_mut().map(Attempt::keep).collect();
    match all.next().await {
        Some(never) => match never {},
        None => pending().await,
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
