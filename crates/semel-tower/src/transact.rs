//! The store's transaction in the hands of the handler, and the answer as its outcome.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use http::Extensions;
use semel::guard::{AttemptInfo, Held, Opening, TransactOptions, Transacted};
use semel::store::Retention;
use semel::transaction::{Lent, TransactionError, Transactional};
use semel::{Outcome, Store};

use crate::config::Config;

/// Offers the handler a transaction `T` of the store's database, for instance a
/// `PostgresTransaction`. Stands among the request's extensions
/// where the layer was given [`with_transactions`](crate::IdempotencyLayer::with_transactions) and
/// the request has a key.
///
/// A handler that does not begin it is served as without. One that does has its answer committed
/// with its effects: before the answer goes out, where it is one to be kept; any other answer rolls
/// back.
pub struct TransactionHandle<T> {
    opening: Arc<dyn Begin<T>>,
    info: AttemptInfo,
}

/// Hides the store of an [`Opening`].
trait Begin<T>: Send + Sync {
    fn begin(&self) -> Boxed<'_, Result<Lent<T>, TransactionError>>;
}

impl<S: Transactional> Begin<S::Transaction> for Opening<S> {
    fn begin(&self) -> Boxed<'_, Result<Lent<S::Transaction>, TransactionError>> {
        Box::pin(Self::begin(self))
    }
}

impl<T: Send> TransactionHandle<T> {
    /// Begins the transaction; there is one. It is given back by dropping it, before the answer is
    /// there: one that is kept longer is not committed, and the answer is 503.
    ///
    /// # Errors
    /// Those of the store; and where it was begun before, or the answer is there already.
    pub async fn begin(&self) -> Result<Lent<T>, TransactionError> {
        self.opening.begin().await
    }

    /// What the handler may know of its attempt: it may run again, after a conflict.
    pub const fn info(&self) -> &AttemptInfo {
        &self.info
    }
}

impl<T> Clone for TransactionHandle<T> {
    fn clone(&self) -> Self {
        Self {
            opening: Arc::clone(&self.opening),
            info: self.info.clone(),
        }
    }
}

impl<T> fmt::Debug for TransactionHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransactionHandle").finish_non_exhaustive()
    }
}

/// Among an answer's extensions: the database rolled the transaction back because of a conflict, and
/// the handler is to be run again. The last time the answer goes to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunAgain;

/// Among an answer's extensions: what the handler wrote is committed together with its kept failure
/// (see [`Disposition`](crate::Disposition)). Unless it says so, a failure rolls back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CommitFailure;

/// Among the extensions of a request that has no key, and therefore no transaction.
#[derive(Clone)]
#[cfg_attr(
    not(feature = "axum"),
    expect(dead_code, reason = "read by the extractor")
)]
pub(crate) struct Unkeyed(pub(crate) Arc<Config>);

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An outcome, and how long it is kept where the handler says so.
pub(crate) type Kept = (Outcome, Option<Retention>);

/// What is to be committed of an answer; the error: run it again.
pub(crate) type Calling<'a> = Boxed<'a, Result<Option<Kept>, ()>>;

/// Calls the handler with these extensions of its request.
pub(crate) type Call<'a> = dyn FnMut(Extensions) -> Calling<'a> + Send + 'a;

/// Runs the handler with a transaction on offer; hides that the store is [`Transactional`] from a
/// service that is for every store.
pub(crate) trait Transactions<S: Store>: Send + Sync {
    fn run<'a>(
        &'a self,
        held: &'a mut Held<S>,
        call: Box<Call<'a>>,
    ) -> Boxed<'a, Transacted<Option<Kept>, ()>>;
}

impl<S: Transactional> Transactions<S> for TransactOptions {
    fn run<'a>(
        &'a self,
        held: &'a mut Held<S>,
        mut call: Box<Call<'a>>,
    ) -> Boxed<'a, Transacted<Option<Kept>, ()>> {
        let call = move |info: AttemptInfo, opening: Opening<S>| {
            let mut extensions = Extensions::new();
            extensions.insert(info.clone());
            extensions.insert(TransactionHandle::<S::Transaction> {
                opening: Arc::new(opening),
                info,
            });
            call(extensions)
        };
        Box::pin(held.transact(*self, call, |()| true, Clone::clone))
    }
}
