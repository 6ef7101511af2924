//! Deduplicated events over a guard.

use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use semel::guard::{AttemptInfo, Guard, Policy, Ran, RunError, TransactInfo, TransactOptions};
use semel::store::{OnLapse, Retention};
use semel::transaction::{Lent, Transactional};
use semel::{Fingerprint, Identity, Key, Scope, Store, StoreError};

/// Events of one consumer.
#[derive(Debug, Clone)]
pub struct Inbox<S> {
    store: std::sync::Arc<S>,
    policy: Policy,
    consumer: Box<str>,
}

/// One event as it was delivered.
#[derive(Debug, Clone)]
pub struct Event {
    source: Box<str>,
    id: Box<str>,
    body: Bytes,
}

impl Event {
    /// An event.
    pub fn new(source: &str, id: &str, body: Bytes) -> Self {
        Self {
            source: source.into(),
            id: id.into(),
            body,
        }
    }
}

/// What became of an event: acknowledge it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receipt {
    /// This delivery was handled.
    Handled,
    /// An earlier one was.
    Duplicate,
    /// Set aside.
    SetAside,
}

/// Why an event is not to be acknowledged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InboxError<E> {
    /// In flight.
    #[error("in flight")]
    InFlight {
        /// When to ask again.
        retry_after: Duration,
    },
    /// Unknown.
    #[error("unknown")]
    Unknown,
    /// Mismatch.
    #[error("mismatch")]
    Mismatch,
    /// Failed.
    #[error("{error}")]
    Failed {
        /// The work's.
        error: E,
        /// Which attempt.
        attempt: u32,
    },
    /// Store.
    #[error("store")]
    Store {
        /// What it said.
        source: Option<StoreError>,
    },
}

impl<S: Store> Inbox<S> {
    /// An inbox.
    pub fn new(store: S, consumer: &str) -> Self {
        let policy = Policy::default()
            .with_on_lapse(OnLapse::Retry)
            .with_retention(Retention::EVENT);
        Self {
            store: std::sync::Arc::new(store),
            policy,
            consumer: consumer.into(),
        }
    }

    /// With a lease.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.policy = self.policy.with_lease(lease);
        self
    }

    fn guard(&self) -> Guard<std::sync::Arc<S>> {
        Guard::new(self.store.clone(), self.policy)
    }

    fn identity(&self, event: &Event) -> Identity {
        let key = Key::new(&event.id).expect("short");
        let scope = Scope::new(["inbox", &self.consumer, &event.source]);
        Identity::new(scope, "event", key)
    }

    /// Handles an event once.
    ///
    /// # Errors
    /// See [`InboxError`].
    pub async fn receive<E, F, W>(&self, event: &Event, work: F) -> Result<Receipt, InboxError<E>>
    where
        E: Display + Send + 'static,
        F: FnOnce(AttemptInfo) -> W,
        W: Future<Output = Result<(), E>> + Send + 'static,
    {
        let ran = self
            .guard()
            .run(&self.identity(event), Fingerprint::of(&event.body), work)
            .await;
        receipt(ran)
    }
}

impl<S: Transactional> Inbox<S> {
    /// Handles an event once, in a transaction.
    ///
    /// # Errors
    /// See [`InboxError`].
    pub async fn transact<E, F, W>(
        &self,
        event: &Event,
        options: TransactOptions,
        work: F,
    ) -> Result<Receipt, InboxError<E>>
    where
        E: std::error::Error + Send + 'static,
        F: FnMut(TransactInfo, Lent<S::Transaction>) -> W + Send + 'static,
        W: Future<Output = Result<(), E>> + Send + 'static,
    {
        let fingerprint = Fingerprint::of(&event.body);
        let ran = self
            .guard()
            .transact(&self.identity(event), fingerprint, options, work)
            .await;
        receipt(ran)
    }
}

fn receipt<E>(ran: Result<Ran<()>, RunError<E>>) -> Result<Receipt, InboxError<E>> {
    match ran {
        Ok(Ran::First(()) | Ran::Unprotected(())) => Ok(Receipt::Handled),
        Ok(Ran::Replayed(())) => Ok(Receipt::Duplicate),
        Err(RunError::InFlight { retry_after }) => Err(InboxError::InFlight { retry_after }),
        Err(RunError::Unknown) => Err(InboxError::Unknown),
        Err(RunError::Mismatch) => Err(InboxError::Mismatch),
        Err(RunError::Failed(error)) => Err(InboxError::Failed { error, attempt: 1 }),
        Err(RunError::Store { source, .. }) => Err(InboxError::Store {
            source: Some(source),
        }),
        Err(_) => Err(InboxError::Store { source: None }),
    }
}
