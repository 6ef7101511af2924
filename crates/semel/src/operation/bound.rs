//! An operation on a guard: calls go in, answers come out.

use std::error::Error as StdError;
use std::fmt::{self, Display};
use std::sync::Arc;

use super::{Asked, Call, Operation};
use crate::guard::{
    AttemptInfo, Guard, Ran, RunError, Steps, TransactInfo, TransactOptions, Value,
};
use crate::store::Store;
use crate::transaction::{Lent, Transactional};
use crate::{Fingerprint, Identity};

/// An [`Operation`] bound to a guard by [`Operation::on`]. Cloning shares it.
pub struct Bound<S> {
    operation: Arc<Operation>,
    guard: Guard<S>,
}

impl<S: Store> Bound<S> {
    pub(super) fn new(operation: Operation, guard: Guard<S>) -> Self {
        Self {
            operation: Arc::new(operation),
            guard,
        }
    }

    /// What was declared.
    pub fn operation(&self) -> &Operation {
        &self.operation
    }

    /// The guard, with the operation's policy.
    pub const fn guard(&self) -> &Guard<S> {
        &self.guard
    }

    /// Makes `work` happen once for what `call` asks, as [`Guard::run`] does. Without a client's key
    /// it runs plainly and no store call is made (R13), unless the operation requires one.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use semel::guard::{Guard, Policy, Ran, RunError};
    /// # use semel::memory::MemoryStore;
    /// # use semel::operation::{Call, Caller, KeyFrom, Operation, Part};
    /// # use semel::KeyRule;
    /// # let guard = Guard::new(MemoryStore::default(), Policy::default());
    /// let start = Operation::new("start", [Part::USER], KeyFrom::Client(KeyRule::STRICT));
    /// let required = start.clone().with_key_required(true).on(&guard);
    /// let start = start.on(&guard);
    /// let call = Call::by(&Caller::new().with(Part::USER, "u-7"));
    /// let work = |_| async { Ok::<_, std::io::Error>(()) };
    ///
    /// // Without a key it runs as often as it is called, and nothing is stored.
    /// assert_eq!(start.run(&call, work).await?, Ran::Unprotected(()));
    /// assert!(guard.store().is_empty());
    /// assert!(matches!(required.run(&call, work).await, Err(RunError::KeyRequired)));
    /// // With one, nothing is replayed as nothing.
    /// let call = call.key(Some("challenge:2026-11"));
    /// assert_eq!(start.run(&call, work).await?, Ran::First(()));
    /// assert_eq!(start.run(&call, work).await?, Ran::Replayed(()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`RunError`]; [`Call`](RunError::Call) where the call does not have what the operation
    /// needs.
    pub async fn run<T, E, F, W>(&self, call: &Call, work: F) -> Result<Ran<T>, RunError<E>>
    where
        T: Value + Send + 'static,
        E: Display + Send + 'static,
        F: FnOnce(AttemptInfo) -> W,
        W: Future<Output = Result<T, E>> + Send + 'static,
    {
        let (identity, fingerprint) = self.asked(call)?;
        self.guard
            .run_optional(identity.as_ref(), fingerprint, work)
            .await
    }

    /// Like [`run`](Self::run) for work in steps, as [`Guard::run_in_steps`] does it.
    ///
    /// # Errors
    /// See [`run`](Self::run) and [`Guard::run_in_steps`].
    pub async fn run_in_steps<T, E, F, W>(
        &self,
        call: &Call,
        work: F,
    ) -> Result<Ran<T>, RunError<E>>
    where
        T: Value + Send + 'static,
        E: Display + Send + 'static,
        F: FnOnce(Steps<S>) -> W,
        W: Future<Output = Result<T, E>> + Send + 'static,
    {
        let (identity, fingerprint) = self.asked(call)?;
        self.guard
            .run_in_steps_optional(identity.as_ref(), fingerprint, work)
            .await
    }

    fn asked(&self, call: &Call) -> Result<(Option<Identity>, Fingerprint), super::CallError> {
        Ok(match self.operation.identify(call)? {
            Some(Asked {
                identity,
                fingerprint,
            }) => (Some(identity), fingerprint),
            // Nothing is compared without a key.
            None => (None, Fingerprint::of(b"")),
        })
    }
}

impl<S: Transactional> Bound<S> {
    /// Like [`run`](Self::run) with the effect and its completion in one transaction, as
    /// [`Guard::transact`] does it. Without a key the work has a transaction all the same, and no
    /// record is made.
    ///
    /// # Errors
    /// See [`run`](Self::run) and [`Guard::transact`].
    pub async fn transact<T, E, F, W>(
        &self,
        call: &Call,
        options: TransactOptions,
        work: F,
    ) -> Result<Ran<T>, RunError<E>>
    where
        T: Value + Send + 'static,
        E: StdError + Send + 'static,
        F: FnMut(TransactInfo, Lent<S::Transaction>) -> W + Send + 'static,
        W: Future<Output = Result<T, E>> + Send + 'static,
    {
        let (identity, fingerprint) = self.asked(call)?;
        self.guard
            .transact_optional(identity.as_ref(), fingerprint, options, work)
            .await
    }
}

impl<S> Clone for Bound<S> {
    fn clone(&self) -> Self {
        Self {
            operation: Arc::clone(&self.operation),
            guard: self.guard.clone(),
        }
    }
}

impl<S> fmt::Debug for Bound<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bound")
            .field("operation", &self.operation)
            .finish_non_exhaustive()
    }
}
