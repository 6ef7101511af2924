//! The end of a transaction: the completion of its attempts, and the commit.

use super::attempt::insist;
use super::{Attempt, Event, Guard};
use crate::store::{Fenced, Refusal};
use crate::transaction::{TransactionError, Transactional};
use crate::{Outcome, OutcomeKind, StateKind, StoreError, StoreErrorKind};

/// What became of a transaction that completes some attempts.
pub(super) enum Sealed {
    /// Committed; what kind of outcome was kept of each.
    Done(Vec<OutcomeKind>),
    /// Another attempt took the place of the one at this place; all was rolled back.
    Refused(usize, Refusal),
    /// All was rolled back; run again it may go through.
    Conflict(StoreError),
    /// All was rolled back.
    Failed(StoreError),
    /// Nobody knows: neither the commit nor the reading back was answered.
    Unknown(StoreError),
}

/// Records the outcome for each of `attempts` in the transaction, and commits it. They come in the
/// order of their digests: transactions that complete some of the same records, as those of an
/// attempt and of a zombie do, then wait for each other instead of locking each other out.
pub(super) async fn seal<S: Transactional>(
    guard: &Guard<S>,
    attempts: &[&Attempt<S>],
    mut transaction: S::Transaction,
    outcome: &Outcome,
) -> Sealed {
    let store = guard.store();
    let mut kept = Vec::with_capacity(attempts.len());
    for (place, attempt) in attempts.iter().enumerate() {
        match complete_in(attempt, &mut transaction, outcome).await {
            Ok((Fenced::Applied, kind)) => kept.push(kind),
            Ok((Fenced::Refused(refusal), _)) => {
                store.rollback(transaction).await;
                guard.observe(Event::Stale);
                return Sealed::Refused(place, refusal);
            }
            Err(error) => {
                store.rollback(transaction).await;
                return match error {
                    TransactionError::Conflict(error) => Sealed::Conflict(error),
                    // The commit was not sent, and will not be.
                    TransactionError::NotCommitted(error) | TransactionError::Unknown(error) => {
                        guard.observe(Event::StoreError);
                        Sealed::Failed(error)
                    }
                };
            }
        }
    }
    match store.commit(transaction).await {
        Ok(()) => done(guard, kept),
        Err(TransactionError::Conflict(error)) => Sealed::Conflict(error),
        Err(TransactionError::NotCommitted(error)) => {
            guard.observe(Event::StoreError);
            Sealed::Failed(error)
        }
        Err(TransactionError::Unknown(error)) => {
            guard.observe(Event::StoreError);
            read_back(guard, attempts, error, kept).await
        }
    }
}

/// With the outcome omitted where it is too large for the store.
async fn complete_in<S: Transactional>(
    attempt: &Attempt<S>,
    transaction: &mut S::Transaction,
    outcome: &Outcome,
) -> Result<(Fenced, OutcomeKind), TransactionError> {
    let (store, retention) = (attempt.guard.store(), attempt.guard.policy().retention());
    let (identity, token) = (&attempt.identity, &attempt.token);
    let done = store.complete_in(transaction, identity, token, outcome, retention);
    match done.await {
        Err(TransactionError::NotCommitted(error)) if error.kind() == StoreErrorKind::TooLarge => {
            let omitted = outcome.to_omitted();
            let done = store.complete_in(transaction, identity, token, &omitted, retention);
            Ok((done.await?, OutcomeKind::Omitted))
        }
        done => Ok((done?, outcome.kind())),
    }
}

fn done<S>(guard: &Guard<S>, kept: Vec<OutcomeKind>) -> Sealed {
    for kind in &kept {
        guard.observe(match kind {
            OutcomeKind::Omitted => Event::Omitted,
            OutcomeKind::Success | OutcomeKind::Failure => Event::Completed,
        });
    }
    Sealed::Done(kept)
}

/// Asks a record whether the transaction was committed, by renewing: a write waits for the
/// transaction's lock, so that its answer is final, where a read might come before a commit that
/// is still on its way. One record tells of all: they are committed together.
async fn read_back<S: Transactional>(
    guard: &Guard<S>,
    attempts: &[&Attempt<S>],
    lost: StoreError,
    kept: Vec<OutcomeKind>,
) -> Sealed {
    let Some(attempt) = attempts.first() else {
        return Sealed::Unknown(lost);
    };
    let (store, lease) = (guard.store(), guard.policy().lease());
    let renewed = insist(guard, || {
        store.renew(&attempt.identity, &attempt.token, lease)
    });
    match renewed.await {
        // Our token is proof that it was this attempt.
        Ok(Fenced::Refused(Refusal::Settled(StateKind::Completed))) => done(guard, kept),
        Ok(Fenced::Applied | Fenced::Refused(Refusal::Settled(StateKind::Unknown))) => {
            Sealed::Conflict(lost)
        }
        Ok(Fenced::Refused(refusal)) => {
            guard.observe(Event::Stale);
            Sealed::Refused(0, refusal)
        }
        Err(error) => Sealed::Unknown(error),
    }
}
