//! The store's transaction in the hands of the handler, and the answer as its outcome.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::request::Parts;
use semel::guard::{Attempt, Committed, Guard, Opening, TransactInfo, TransactOptions};
use semel::transaction::{Lent, Loan, TransactionError, Transactional};
use semel::{Outcome, Store, StoreError, StoreErrorKind};

/// Offers the handler a transaction `T` of the store's database, for instance a
/// `PostgresTransaction`. Stands among the request's extensions
/// where the layer was given [`with_transactions`](crate::IdempotencyLayer::with_transactions) and
/// the request has a key.
///
/// A handler that does not begin it is served as without. One that does has its answer committed
/// with its effects: before the answer goes out, where it is one to be kept; any other answer rolls
/// back.
pub struct TransactionHandle<T>(Arc<Handle<T>>);

struct Handle<T> {
    begin: Box<dyn Fn() -> Boxed<'static, Result<T, TransactionError>> + Send + Sync>,
    info: TransactInfo,
    taken: AtomicBool,
    // None when the answer is there.
    loan: Mutex<Option<Loan<T>>>,
}

impl<T> Handle<T> {
    fn loan(&self) -> MutexGuard<'_, Option<Loan<T>>> {
        self.loan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send> TransactionHandle<T> {
    /// Begins the transaction; there is one. It is given back by dropping it, before the answer is
    /// there: one that is kept longer is not committed, and the answer is 503.
    ///
    /// # Errors
    /// Those of the store; and where it was begun before, or the answer is there already.
    pub async fn begin(&self) -> Result<Lent<T>, TransactionError> {
        let refused = |why: &str| {
            TransactionError::NotCommitted(StoreError::new(StoreErrorKind::NotApplied, why))
        };
        if self.0.taken.swap(true, Ordering::SeqCst) {
            return Err(refused("the request's transaction was begun before"));
        }
        let transaction = (self.0.begin)().await?;
        match &*self.0.loan() {
            Some(loan) => Ok(loan.lend(transaction)),
            None => Err(refused("the request was answered")),
        }
    }

    /// What the handler may know of its attempt: it may run again, after a conflict.
    pub fn info(&self) -> TransactInfo {
        self.0.info
    }
}

impl<T> Clone for TransactionHandle<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for TransactionHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransactionHandle").finish_non_exhaustive()
    }
}

/// Among an answer's extensions: the database rolled the transaction back for the sake of others,
/// and the handler is to be run again. The last time the answer goes to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunAgain;

/// Makes the offer for each request; hides that the store is [`Transactional`] from a service that
/// is for every store.
pub(crate) trait Transactions<S>: Send + Sync {
    fn offer(
        &self,
        attempt: &mut Attempt<Arc<S>>,
        again: u32,
        parts: &mut Parts,
    ) -> Box<dyn Offer<S>>;

    fn retries(&self) -> u32;
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What was offered to one call of the handler.
pub(crate) trait Offer<S>: Send {
    /// Whether the handler took it. If not, it no longer can.
    fn taken(&self) -> bool;

    fn commit<'a>(
        self: Box<Self>,
        attempt: Attempt<Arc<S>>,
        outcome: &'a Outcome,
    ) -> Boxed<'a, Committed<Arc<S>>>;

    fn roll_back(self: Box<Self>, guard: Guard<Arc<S>>) -> Boxed<'static, ()>;
}

impl<S: Transactional> Transactions<S> for TransactOptions {
    fn offer(
        &self,
        attempt: &mut Attempt<Arc<S>>,
        again: u32,
        parts: &mut Parts,
    ) -> Box<dyn Offer<S>> {
        let (opening, isolation) = (Arc::new(attempt.opening()), self.isolation());
        let begin = move || -> Boxed<'static, _> {
            let opening: Arc<Opening<_>> = Arc::clone(&opening);
            Box::pin(async move { opening.begin(isolation).await })
        };
        let handle = TransactionHandle(Arc::new(Handle::<S::Transaction> {
            begin: Box::new(begin),
            info: TransactInfo {
                fence: attempt.info().fence,
                number: attempt.info().number,
                again,
            },
            taken: AtomicBool::new(false),
            loan: Mutex::new(Some(Loan::none())),
        }));
        parts.extensions.insert(handle.clone());
        Box::new(Offered::<S>(handle))
    }

    fn retries(&self) -> u32 {
        Self::retries(self)
    }
}

struct Offered<S: Transactional>(TransactionHandle<S::Transaction>);

impl<S: Transactional> Offered<S> {
    fn take_back(&self) -> Option<S::Transaction> {
        let loan = self.0.0.loan().take();
        loan?.take_back()
    }
}

impl<S: Transactional> Offer<S> for Offered<S> {
    fn taken(&self) -> bool {
        self.0.0.taken.swap(true, Ordering::SeqCst)
    }

    fn commit<'a>(
        self: Box<Self>,
        attempt: Attempt<Arc<S>>,
        outcome: &'a Outcome,
    ) -> Boxed<'a, Committed<Arc<S>>> {
        Box::pin(async move {
            match self.take_back() {
                Some(transaction) => attempt.commit(transaction, outcome).await,
                None => Committed::Failed(
                    attempt,
                    StoreError::new(
                        StoreErrorKind::NotApplied,
                        "the handler kept its transaction, or could not begin it",
                    ),
                ),
            }
        })
    }

    fn roll_back(self: Box<Self>, guard: Guard<Arc<S>>) -> Boxed<'static, ()> {
        Box::pin(async move {
            if let Some(transaction) = self.take_back() {
                guard.store().rollback(transaction).await;
            }
        })
    }
}

// So that a service without transactions needs no more of its store.
impl<S: Store> fmt::Debug for dyn Transactions<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transactions")
    }
}
