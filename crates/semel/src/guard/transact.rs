//! `Guard::transact`: the effects and the completion in one transaction.

use std::error::Error as StdError;
use std::future::Future;
use std::sync::Arc;

use super::run::Answer;
use super::{
    Asked, AttemptInfo, Effects, Failed, Guard, Opening, Ran, RunError, Settlement,
    TransactOptions, Transacted, join,
};
use crate::sync::Mutex;
use crate::transaction::{Lent, Transactional, comes_from_conflict};
use crate::{OutcomeKind, Value};

impl<S: Transactional> Guard<S> {
    /// Like [`run`](Self::run), with the effect of `work` and its completion in one transaction of
    /// the store's database: a crash at any point leaves both or neither, and an attempt that was
    /// taken over commits nothing.
    ///
    /// `work` gets the driver's transaction, and drops it when it is done with it; it must neither
    /// commit nor roll it back. It may be called again, after a conflict with other transactions:
    /// [`AttemptInfo::retry`] counts. On an error all is rolled back, and the identity is released,
    /// or the failure kept outside the transaction, as the policy says. So is a value that is kept as
    /// a failure, as the error of a `Result`.
    ///
    /// Without a key the work has its transaction all the same, which is committed without a record;
    /// if the answer to its commit is lost, nobody can tell what became of it.
    ///
    /// The policy for a store that is down does not count here: without the database there is no
    /// transaction either.
    ///
    /// # Errors
    /// See [`RunError`]; [`RunError::ran`] says whether the effects may be committed.
    pub async fn transact<T, E, F, W>(
        &self,
        asked: impl Into<Asked>,
        options: TransactOptions,
        work: F,
    ) -> Answer<T, E>
    where
        T: Value + Send + 'static,
        E: StdError + Send + 'static,
        F: FnMut(AttemptInfo, Lent<S::Transaction>) -> W + Send + 'static,
        W: Future<Output = Result<T, E>> + Send + 'static,
    {
        let asked = asked.into().with_effects(Effects::InTransaction);
        let guard = self.clone();
        let running = self.spawn(async move {
            let mut held = match guard.turn(&asked).await {
                Ok(held) => held,
                Err(answer) => return answer,
            };
            let claimed = Arc::clone(held.claimed());
            let work = &Mutex::new(work);
            let work = |info, opening: Opening<S>| async move {
                let done = opening.lend(work, info).await;
                done.map_err(RunError::store(Ran::No))?
                    .map_err(|error| RunError::Failed(Failed::now(error, Ran::No)))
            };
            let is_conflict = |error: &RunError<E>| {
                matches!(error, RunError::Failed(failed)
                    if failed.error().is_some_and(|error| comes_from_conflict::<S>(error)))
            };
            // A failure is kept beside the transaction, not committed with it.
            let outcome = |value: &T| {
                let outcome = value.to_outcome();
                (outcome.kind() != OutcomeKind::Failure).then_some((outcome, None))
            };
            let transacted = held.transact(options, work, is_conflict, outcome).await;
            let (settlement, answer) = match transacted {
                Transacted::Committed(value) => return Ok(claimed.done(value)),
                Transacted::Superseded(_) => return Err(RunError::Superseded { ran: Ran::No }),
                Transacted::Panicked(panic) => held.panicked(panic).await,
                Transacted::RolledBack(value) => {
                    let failure = value.to_outcome();
                    (Settlement::Complete(failure, None), Ok(claimed.done(value)))
                }
                Transacted::Failed { error, conflict } => {
                    let settlement = match &error {
                        // The failure of the work is what lasts, a conflict does not.
                        RunError::Failed(failed) if !conflict => {
                            failed.error().map(|error| claimed.after(&asked, error))
                        }
                        _ => None,
                    };
                    let settlement = settlement.unwrap_or(Settlement::Release);
                    let error = match error {
                        RunError::Failed(failed) => {
                            RunError::Failed(failed.settled(&settlement, true))
                        }
                        error => error,
                    };
                    (settlement, Err(error))
                }
                Transacted::NotCommitted { source, .. } => {
                    (Settlement::Release, Err(RunError::store(Ran::No)(source)))
                }
                Transacted::Unknown(source) => {
                    return Err(match held.give_up().await {
                        true => RunError::store(Ran::No)(source.known_not_applied()),
                        false => RunError::store(Ran::Unknown)(source),
                    });
                }
                Transacted::Kept | Transacted::NotTaken(_) => {
                    (Settlement::Release, Err(RunError::TransactionKept))
                }
            };
            // What the caller must see is not what the store says to this.
            held.settle(settlement).await.ok();
            answer
        });
        join(running).await
    }
}
