//! Operations whose key is optional: without one they run plainly, and no record is made (R13).

use std::error::Error as StdError;
use std::fmt::Display;
use std::future::Future;

use super::run::{joined, unprotected};
use super::together::{certain, pause, roll_back};
use super::{
    AttemptInfo, Event, Guard, Ran, RunError, Steps, TransactInfo, TransactOptions, Value,
};
use crate::store::{Nonce, Store};
use crate::transaction::{Lent, TransactionError, Transactional, comes_from_conflict};
use crate::{Fingerprint, Identity, IdentityDigest, StoreError, StoreErrorKind};

impl<S: Store> Guard<S> {
    /// Like [`run`](Self::run) for operations whose key is optional: without one, `work` runs
    /// plainly and no store call is made (R13).
    ///
    /// # Errors
    /// See [`RunError`]; [`KeyRequired`](RunError::KeyRequired) where the policy demands a key.
    pub async fn run_optional<T, E, F, W>(
        &self,
        identity: Option<&Identity>,
        fingerprint: Fingerprint,
        work: F,
    ) -> Result<Ran<T>, RunError<E>>
    where
        T: Value + Send + 'static,
        E: Display + Send + 'static,
        F: FnOnce(AttemptInfo) -> W,
        W: Future<Output = Result<T, E>> + Send + 'static,
    {
        match identity {
            Some(identity) => self.run(identity, fingerprint, work).await,
            None => {
                self.unkeyed()?;
                unprotected(work(AttemptInfo::UNPROTECTED)).await
            }
        }
    }

    /// Like [`run_in_steps`](Self::run_in_steps) for operations whose key is optional: without one,
    /// no step is kept, and each call has step keys of its own.
    ///
    /// # Errors
    /// See [`run_optional`](Self::run_optional) and [`run_in_steps`](Self::run_in_steps).
    pub async fn run_in_steps_optional<T, E, F, W>(
        &self,
        identity: Option<&Identity>,
        fingerprint: Fingerprint,
        work: F,
    ) -> Result<Ran<T>, RunError<E>>
    where
        T: Value + Send + 'static,
        E: Display + Send + 'static,
        F: FnOnce(Steps<S>) -> W,
        W: Future<Output = Result<T, E>> + Send + 'static,
    {
        match identity {
            Some(identity) => self.run_in_steps(identity, fingerprint, work).await,
            None => {
                self.unkeyed()?;
                let nobody = nobody().map_err(|source| RunError::Store { ran: false, source })?;
                let steps = Steps::new(self.clone(), nobody, None, 1);
                unprotected(work(steps)).await
            }
        }
    }

    fn unkeyed<E>(&self) -> Result<(), RunError<E>> {
        if self.policy().key_required() {
            return Err(RunError::KeyRequired);
        }
        self.observe(Event::Unkeyed);
        Ok(())
    }
}

/// An identity that no other call has: two calls without a key are two, also for the services that
/// their steps call.
fn nobody() -> Result<IdentityDigest, StoreError> {
    let mut digest = [0; 32];
    let (one, other) = digest.split_at_mut(16);
    one.copy_from_slice(Nonce::random()?.as_bytes());
    other.copy_from_slice(Nonce::random()?.as_bytes());
    Ok(IdentityDigest::from_bytes(digest))
}

impl<S: Transactional> Guard<S> {
    /// Like [`transact`](Self::transact) for operations whose key is optional: without one, `work`
    /// has its transaction, which is committed without a record. It is run again after conflicts
    /// as with a record; but if the answer to the commit is lost, nobody can tell what became of
    /// it.
    ///
    /// # Errors
    /// See [`run_optional`](Self::run_optional) and [`transact`](Self::transact).
    pub async fn transact_optional<T, E, F, W>(
        &self,
        identity: Option<&Identity>,
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
        match identity {
            Some(identity) => self.transact(identity, fingerprint, options, work).await,
            None => {
                self.unkeyed()?;
                let guard = self.clone();
                let task = self.spawn(async move { plainly(&guard, options, &mut work).await });
                joined(task).await.map(Ran::Unprotected)
            }
        }
    }
}

/// Runs `work` in transactions until one is committed or it fails for good. A panic drops the
/// transaction, which rolls it back.
async fn plainly<S, T, E, F, W>(
    guard: &Guard<S>,
    options: TransactOptions,
    work: &mut F,
) -> Result<T, RunError<E>>
where
    S: Transactional,
    E: StdError + 'static,
    F: FnMut(TransactInfo, Lent<S::Transaction>) -> W,
    W: Future<Output = Result<T, E>>,
{
    let AttemptInfo { fence, number } = AttemptInfo::UNPROTECTED;
    let mut again = 0;
    loop {
        let last = again >= options.retries();
        let begun = guard.store().begin(options.isolation()).await;
        let transaction = begun.map_err(|error| RunError::Store {
            ran: again > 0,
            source: error.into_source(),
        })?;
        let (lent, loan) = Lent::new(transaction);
        let info = TransactInfo {
            fence,
            number,
            again,
        };
        let done = work(info, lent).await;
        let transaction = loan.take_back();
        let value = match done {
            Ok(value) => value,
            Err(error) => {
                roll_back(guard, transaction).await;
                if last || !comes_from_conflict::<S>(&error) {
                    return Err(RunError::Failed(error));
                }
                pause(again).await;
                again += 1;
                continue;
            }
        };
        let transaction = transaction.ok_or(RunError::TransactionKept)?;
        let source = match guard.store().commit(transaction).await {
            Ok(()) => return Ok(value),
            Err(TransactionError::Conflict(_)) if !last => {
                pause(again).await;
                again += 1;
                continue;
            }
            Err(TransactionError::Unknown(source)) => StoreError::new(
                StoreErrorKind::Unknown,
                "whether the transaction was committed is not known",
            )
            .with_source(source),
            Err(error) => certain(error.into_source()),
        };
        guard.observe(Event::StoreError);
        return Err(RunError::Store { ran: true, source });
    }
}
