//! The port to a store whose database can commit more than the record at once.

#[cfg(feature = "conformance")]
pub mod suite;

use std::error::Error as StdError;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::record::Change;
use crate::store::{Fenced, Store};
use crate::{IdentityDigest, StoreError, StoreErrorKind};

/// How strictly a transaction is kept apart from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Isolation {
    /// Each statement sees what was committed before it.
    #[default]
    ReadCommitted,
    /// All statements see what was committed before the first.
    RepeatableRead,
    /// As if transactions ran one after the other.
    Serializable,
}

/// Why a transaction is not known to be committed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransactionError {
    /// The database rolled it back because of a deadlock or a serialization failure. Nothing of it was
    /// committed; it is safe to run again.
    #[error("the transaction was rolled back because of a conflict with others; run it again")]
    Conflict(#[source] StoreError),
    /// Nothing of it was committed, nor will be.
    #[error("the transaction was not committed")]
    NotCommitted(#[source] StoreError),
    /// Its commit was sent, and the answer was lost.
    #[error("whether the transaction was committed is not known")]
    Unknown(#[source] StoreError),
}

impl TransactionError {
    /// What the store said.
    pub fn into_source(self) -> StoreError {
        match self {
            Self::Conflict(source) | Self::NotCommitted(source) | Self::Unknown(source) => source,
        }
    }
}

/// The same as an error of the store's, for steps that have no other. A conflict stays among its
/// sources: work that passes it on is run again.
impl From<TransactionError> for StoreError {
    fn from(error: TransactionError) -> Self {
        match error {
            TransactionError::Conflict(ref source) => {
                Self::new(source.kind(), source.to_string()).with_source(error)
            }
            error => error.into_source(),
        }
    }
}

/// How a transaction ended that was [sealed](Transactional::seal) with changes of records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sealing {
    /// It is committed, and all changes with it.
    Committed {
        /// The places of the completions whose outcomes are too large for the store: they were recorded as
        /// [omitted](crate::OutcomeKind::Omitted).
        omitted: Vec<usize>,
    },
    /// It was rolled back, because the record at this place refused its change.
    Refused(usize),
}

/// A store whose database keeps the application's own data too, so that an effect and its
/// completion are committed together.
///
/// The claim is not part of the transaction: it is committed before, so that an attempt that stands
/// still keeps others off for no longer than its lease. It need not be on disk by then
/// ([`ClaimRequest::is_forgettable`](crate::store::ClaimRequest::is_forgettable)).
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no transactions of an application's database",
    note = "`SqliteStore`, `PostgresStore` and `MysqlStore` have; each is opened with its type by `open(url)`",
    note = "`semel_stores::open` gives an `AnyStore`, which has none: the store is chosen when the program runs"
)]
pub trait Transactional: Store {
    /// The driver's transaction, with its connection. Dropped without [`commit`](Self::commit) it
    /// is rolled back, and its connection is used by nobody else.
    type Transaction: Send + 'static;

    /// Begins one.
    fn begin(
        &self,
        isolation: Isolation,
    ) -> impl Future<Output = Result<Self::Transaction, TransactionError>> + Send;

    /// Changes a record inside the transaction: one fenced statement, the last before its commit.
    /// [`Fenced::Applied`] only where *this* transaction wrote it. A change that was made before is
    /// [refused](Change::made_before), also where it is the same, because the effects beside it would
    /// be the second ones. A guard sends completions and finished steps.
    fn change_in(
        &self,
        transaction: &mut Self::Transaction,
        identity: &IdentityDigest,
        change: &Change,
    ) -> impl Future<Output = Result<Fenced, TransactionError>> + Send;

    /// Commits it, and wakes the callers that wait for the attempts that it ends.
    fn commit(
        &self,
        transaction: Self::Transaction,
    ) -> impl Future<Output = Result<(), TransactionError>> + Send;

    /// Changes these records as [`change_in`](Self::change_in) does, in this order, and commits the
    /// transaction: all of it, or nothing. A store that can does it in one round trip.
    ///
    /// # Errors
    /// Those of [`change_in`](Self::change_in), after which it is rolled back, and of
    /// [`commit`](Self::commit).
    fn seal(
        &self,
        transaction: Self::Transaction,
        changes: &[(IdentityDigest, Change)],
    ) -> impl Future<Output = Result<Sealing, TransactionError>> + Send {
        seal_one_by_one(self, transaction, changes)
    }

    /// Rolls it back. If the database cannot be reached, closing the connection does.
    fn rollback(&self, transaction: Self::Transaction) -> impl Future<Output = ()> + Send;

    /// Whether an error of the driver's means a [`Conflict`](TransactionError::Conflict). Looks at
    /// this one error, not at its sources.
    fn is_conflict(error: &(dyn StdError + 'static)) -> bool;

    /// Whether a lease may be renewed while such a transaction is open. Not where the completion
    /// would then conflict with the renewal, or the renewal wait for the transaction.
    fn renews_beside(isolation: Isolation) -> bool;
}

/// [`Transactional::seal`] by [`change_in`](Transactional::change_in) and [`commit`](Transactional::commit), for
/// stores that have nothing faster and for those around others.
///
/// # Errors
/// Those of [`Transactional::seal`].
pub async fn seal_one_by_one<S: Transactional + ?Sized>(
    store: &S,
    mut transaction: S::Transaction,
    changes: &[(IdentityDigest, Change)],
) -> Result<Sealing, TransactionError> {
    let mut omitted = Vec::new();
    for (place, (identity, change)) in changes.iter().enumerate() {
        let mut changed = store.change_in(&mut transaction, identity, change).await;
        if let Err(TransactionError::NotCommitted(error)) = &changed
            && error.kind() == StoreErrorKind::TooLarge
            && let Some(smaller) = change.omitting()
        {
            omitted.push(place);
            changed = store.change_in(&mut transaction, identity, &smaller).await;
        }
        let ended = match changed {
            Ok(Fenced::Applied) => continue,
            Ok(Fenced::Refused(_)) => Ok(Sealing::Refused(place)),
            Err(TransactionError::Conflict(error)) => Err(TransactionError::Conflict(error)),
            // The commit was not sent, and will not be.
            Err(error) => Err(TransactionError::NotCommitted(error.into_source())),
        };
        store.rollback(transaction).await;
        return ended;
    }
    store.commit(transaction).await?;
    Ok(Sealing::Committed { omitted })
}

impl<S: Transactional> Transactional for Arc<S> {
    type Transaction = S::Transaction;

    async fn begin(&self, isolation: Isolation) -> Result<Self::Transaction, TransactionError> {
        S::begin(self, isolation).await
    }

    async fn change_in(
        &self,
        transaction: &mut Self::Transaction,
        identity: &IdentityDigest,
        change: &Change,
    ) -> Result<Fenced, TransactionError> {
        S::change_in(self, transaction, identity, change).await
    }

    async fn commit(&self, transaction: Self::Transaction) -> Result<(), TransactionError> {
        S::commit(self, transaction).await
    }

    async fn seal(
        &self,
        transaction: Self::Transaction,
        changes: &[(IdentityDigest, Change)],
    ) -> Result<Sealing, TransactionError> {
        S::seal(self, transaction, changes).await
    }

    async fn rollback(&self, transaction: Self::Transaction) {
        S::rollback(self, transaction).await;
    }

    fn is_conflict(error: &(dyn StdError + 'static)) -> bool {
        S::is_conflict(error)
    }

    fn renews_beside(isolation: Isolation) -> bool {
        S::renews_beside(isolation)
    }
}

/// Whether an error, or one of those that it comes from, is a conflict: by the driver, or told by a
/// step of the store's inside the transaction.
pub(crate) fn comes_from_conflict<S: Transactional>(error: &(dyn StdError + 'static)) -> bool {
    std::iter::successors(Some(error), |&error| error.source()).any(|error| {
        let told = error.downcast_ref::<TransactionError>();
        matches!(told, Some(TransactionError::Conflict(_))) || S::is_conflict(error)
    })
}

/// A transaction that is lent to the work: dropping this gives it back, and it is committed when
/// the work is done. Whoever keeps it longer than the work lasts keeps it from being committed.
#[must_use]
pub struct Lent<T> {
    // Taken when it is dropped, only.
    transaction: Option<T>,
    lender: Weak<Mutex<Option<T>>>,
}

/// The lender's side of a [`Lent`].
pub struct Loan<T>(Arc<Mutex<Option<T>>>);

impl<T> Lent<T> {
    /// Lends `transaction` until the first is dropped; the second takes it back.
    pub fn new(transaction: T) -> (Self, Loan<T>) {
        let loan = Loan(Arc::default());
        let lent = Self {
            transaction: Some(transaction),
            lender: Arc::downgrade(&loan.0),
        };
        (lent, loan)
    }
}

impl<T> Loan<T> {
    /// What was lent; `None` where it was not given back. Then it is not taken back later either,
    /// but dropped by whoever has it.
    pub fn take_back(self) -> Option<T> {
        self.0.lock().take()
    }
}

const LENT: &str = "what is lent is given back by dropping only";

impl<T> Deref for Lent<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.transaction.as_ref().expect(LENT)
    }
}

impl<T> DerefMut for Lent<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.transaction.as_mut().expect(LENT)
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        if let Some(lender) = self.lender.upgrade() {
            *lender.lock() = self.transaction.take();
        }
    }
}

impl<T> fmt::Debug for Lent<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Loan<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loan").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_comes_back_and_what_is_kept_does_not() {
        let (mut lent, loan) = Lent::new(vec![1]);
        lent.push(2);
        drop(lent);
        assert_eq!(loan.take_back(), Some(vec![1, 2]));

        let held = Arc::new(());
        let (lent, loan) = Lent::new(held.clone());
        assert_eq!(loan.take_back(), None);
        drop(lent);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
