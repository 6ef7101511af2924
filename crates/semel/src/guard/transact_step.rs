//! A step in a transaction of its own: its effects and its result are committed together, or neither.

use std::error::Error as StdError;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::attempt::insist;
use super::steps::finished;
use super::together::{certain, pause, roll_back};
use super::{Event, StepError, Steps, TransactInfo, TransactOptions, Value};
use crate::store::{Fenced, Refusal};
use crate::transaction::{
    Isolation, Lent, Loan, TransactionError, Transactional, comes_from_conflict,
};
use crate::{FinishedStep, Progress, StateKind, StoreError, StoreErrorKind};

/// What one transaction came to.
enum Tried<T, E> {
    Committed(T, Progress),
    /// Rolled back for the sake of others. What to say where it is not tried again.
    Conflict(StepError<E>),
}

/// Whether the commit of a lost answer was done.
enum Found {
    Committed,
    RolledBack,
}

/// Keeps renewals from beginning while a transaction is open that they do not go with.
struct Still<'a>(Option<&'a Arc<AtomicBool>>);

impl<'a> Still<'a> {
    fn held(still: Option<&'a Arc<AtomicBool>>) -> Self {
        if let Some(still) = still {
            still.store(true, Ordering::SeqCst);
        }
        Self(still)
    }
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        if let Some(still) = self.0 {
            still.store(false, Ordering::SeqCst);
        }
    }
}

impl<S: Transactional> Steps<S> {
    /// The result of the next step: kept by an earlier attempt, or made by `work` now, in a
    /// transaction of the store's database in which the result is kept as well. Both are committed
    /// together: a step that wrote is finished, and a step that is finished wrote once. An attempt
    /// that was taken over commits nothing.
    ///
    /// `work` gets the driver's transaction, and drops it when it is done with it; it must neither
    /// commit nor roll it back. It is called again after a conflict with other transactions, as
    /// often as `options` say: [`TransactInfo::again`] counts. On an error all is rolled back.
    ///
    /// ```
    /// # use semel::guard::{Steps, StepError, TransactOptions};
    /// # use semel::transaction::Transactional;
    /// # use std::io;
    /// # async fn reserve_in<T>(_: &mut T) -> io::Result<String> { Ok("shelf 4".into()) }
    /// # async fn charge_card(_: &str) -> io::Result<String> { Ok("ch_1".into()) }
    /// async fn order<S: Transactional>(mut steps: Steps<S>) -> Result<String, StepError<io::Error>> {
    ///     let options = TransactOptions::default();
    ///     // In the database, in one transaction with the step itself.
    ///     let place: String = steps
    ///         .transact("reserve", options, |_, mut tx| async move { reserve_in(&mut *tx).await })
    ///         .await?;
    ///     // Elsewhere, under a key that is the same in every attempt.
    ///     let charge: String = steps
    ///         .step("charge", |key| async move { charge_card(&key.to_string()).await })
    ///         .await?;
    ///     Ok(format!("{place}, {charge}"))
    /// }
    /// ```
    ///
    /// One statement in the transaction, beside those of `work`, its beginning and its commit.
    ///
    /// # Errors
    /// See [`StepError`].
    pub async fn transact<T, E, W>(
        &mut self,
        name: &str,
        options: TransactOptions,
        mut work: impl FnMut(TransactInfo, Lent<S::Transaction>) -> W,
    ) -> Result<T, StepError<E>>
    where
        T: Value,
        E: StdError + 'static,
        W: Future<Output = Result<T, E>>,
    {
        let progress = self.progress().await?;
        if let Some(value) = self.replayed(&progress, name)? {
            return Ok(value);
        }
        let attempt = self.info();
        let mut again = 0;
        loop {
            let info = TransactInfo {
                fence: attempt.fence,
                number: attempt.number,
                again,
            };
            let isolation = options.isolation();
            let work = |transaction| work(info, transaction);
            match self.once(name, &progress, isolation, again, work).await? {
                Tried::Committed(value, all) => {
                    self.guard.observe(Event::StepKept);
                    self.finish(all);
                    return Ok(value);
                }
                Tried::Conflict(error) if again >= options.retries() => return Err(error),
                Tried::Conflict(_) => {}
            }
            pause(again).await;
            again += 1;
        }
    }

    async fn once<T, E, W>(
        &self,
        name: &str,
        progress: &Progress,
        isolation: Isolation,
        again: u32,
        work: impl FnOnce(Lent<S::Transaction>) -> W,
    ) -> Result<Tried<T, E>, StepError<E>>
    where
        T: Value,
        E: StdError + 'static,
        W: Future<Output = Result<T, E>>,
    {
        let beside = S::renews_beside(isolation);
        let _still = Still::held(self.still.as_ref().filter(|_| !beside));
        let begun = self.guard.store().begin(isolation).await;
        let begun = begun.map_err(|error| self.failed(again > 0, error))?;
        let loan = Loan::none();
        let done = work(loan.lend(begun)).await;
        let transaction = loan.take_back();
        let value = match done {
            Ok(value) => value,
            Err(error) => {
                roll_back(&self.guard, transaction).await;
                let conflict = comes_from_conflict::<S>(&error);
                let failed = StepError::Failed(error);
                return if conflict {
                    Ok(Tried::Conflict(failed))
                } else {
                    Err(failed)
                };
            }
        };
        let Some(transaction) = transaction else {
            return Err(StepError::TransactionKept(name.into()));
        };
        let (step, all) = match finished(progress, name, &value) {
            Ok(finished) => finished,
            Err(too_large) => {
                roll_back(&self.guard, Some(transaction)).await;
                return Err(too_large);
            }
        };
        match self.commit_step(transaction, progress, &step).await {
            Ok(()) => Ok(Tried::Committed(value, all)),
            Err(Uncommitted::Superseded) => {
                self.guard.observe(Event::Stale);
                Err(StepError::Superseded { ran: true })
            }
            Err(Uncommitted::Failed(TransactionError::Conflict(error))) => {
                let error = TransactionError::Conflict(error);
                Ok(Tried::Conflict(self.failed(true, error)))
            }
            Err(Uncommitted::Failed(error)) => Err(self.failed(true, error)),
        }
    }

    /// Keeps the step in the transaction and commits it. A lost answer is resolved by the record.
    async fn commit_step(
        &self,
        mut transaction: S::Transaction,
        progress: &Progress,
        step: &FinishedStep,
    ) -> Result<(), Uncommitted> {
        let store = self.guard.store();
        // A call without protection has no record.
        if let Some(token) = &self.token {
            let before = progress.as_bytes().len();
            let kept = store.keep_step_in(&mut transaction, &self.identity, token, step, before);
            match kept.await {
                Ok(Fenced::Applied) => {}
                Ok(Fenced::Refused(_)) => {
                    store.rollback(transaction).await;
                    return Err(Uncommitted::Superseded);
                }
                Err(error) => {
                    store.rollback(transaction).await;
                    // The commit was not sent, and will not be.
                    return Err(Uncommitted::Failed(match error {
                        TransactionError::Unknown(error) => TransactionError::NotCommitted(error),
                        certain => certain,
                    }));
                }
            }
        }
        match store.commit(transaction).await {
            Ok(()) => Ok(()),
            Err(TransactionError::Unknown(lost)) => {
                self.guard.observe(Event::StoreError);
                match self.read_back(progress, step, &lost).await? {
                    Found::Committed => Ok(()),
                    Found::RolledBack => Err(Uncommitted::Failed(TransactionError::Conflict(lost))),
                }
            }
            Err(error) => Err(Uncommitted::Failed(error)),
        }
    }

    /// Asks the record whether the transaction was committed. First a renewal: a write waits for the
    /// transaction's lock, so that what is read after it is final, where a read alone might come
    /// before a commit that is still on its way.
    async fn read_back(
        &self,
        progress: &Progress,
        step: &FinishedStep,
        lost: &StoreError,
    ) -> Result<Found, Uncommitted> {
        let unknown = |error: StoreError| Uncommitted::Failed(TransactionError::Unknown(error));
        let Some(token) = &self.token else {
            let lost = StoreError::new(StoreErrorKind::Unknown, lost.to_string());
            return Err(unknown(lost));
        };
        let (store, lease) = (self.guard.store(), self.guard.policy().lease());
        let renewed = insist(&self.guard, || store.renew(&self.identity, token, lease));
        match renewed.await.map_err(unknown)? {
            Fenced::Applied | Fenced::Refused(Refusal::Settled(StateKind::Unknown)) => {}
            Fenced::Refused(_) => return Err(Uncommitted::Superseded),
        }
        let read = insist(&self.guard, || store.get(&self.identity));
        let entry = read.await.map_err(unknown)?;
        let record = entry.map(|entry| entry.record);
        let Some(record) = record.filter(|record| record.token == *token) else {
            return Err(Uncommitted::Superseded);
        };
        let now = record.progress.as_bytes();
        match now.strip_prefix(progress.as_bytes()) {
            Some([]) => Ok(Found::RolledBack),
            Some(later) if later == step.as_bytes() => Ok(Found::Committed),
            _ => Err(Uncommitted::Superseded),
        }
    }

    fn failed<E>(&self, ran: bool, error: TransactionError) -> StepError<E> {
        self.guard.observe(Event::StoreError);
        let source = match error {
            TransactionError::Unknown(source) => StoreError::new(
                StoreErrorKind::Unknown,
                "whether the step's transaction was committed is not known",
            )
            .with_source(source),
            TransactionError::Conflict(source) | TransactionError::NotCommitted(source) => {
                certain(source)
            }
        };
        StepError::Store { ran, source }
    }
}

/// Why a transaction is not known to be committed.
enum Uncommitted {
    Superseded,
    Failed(TransactionError),
}
