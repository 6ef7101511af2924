//! Events of a queue or a stream, each handled once however often it is delivered.
//!
//! Brokers deliver at least once: after a crash, a lost acknowledgement, a rebalance, the same event
//! comes again, to another consumer and maybe at the same time. An [`Inbox`] stands before the work:
//! it claims the event by consumer, source and id, runs the work, records that it is done, and only
//! then gives the [`Receipt`] that allows to acknowledge.
//!
//! * [`Inbox::transact`]: the effects and the record are one transaction of the database (a store
//!   that is [`Transactional`](crate::transaction::Transactional)). Applied once, wherever the
//!   consumer dies.
//! * [`Inbox::transact_batch`]: the same for many events in one transaction.
//! * [`Inbox::receive`]: effects elsewhere, on any store. Between an effect and its record a crash
//!   is possible; what then happens the policy says ([`Inbox::with_on_lost`]).
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use semel::inbox::{Event, Inbox, Receipt};
//! use semel::memory::MemoryStore;
//!
//! let inbox = Inbox::new(MemoryStore::default(), "billing");
//! let event = Event::new("orders", "order-4711/placed", r#"{"total": 300}"#);
//!
//! let work = |_| async { Ok::<_, std::io::Error>(()) };
//! assert_eq!(inbox.receive(&event, work).await?, Receipt::Handled);
//! // The acknowledgement is lost, and the broker delivers it again:
//! assert_eq!(inbox.receive(&event, work).await?, Receipt::Duplicate);
//! # Ok(())
//! # }
//! ```

mod batch;
mod claim;
mod event;
mod failure;
mod poison;
mod receipt;
mod receive;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::guard::{Guard, InFlight, Observer, Policy, ReconcileOptions, Reconciler};
use crate::store::{OnLost, Retention, Store};

pub use batch::Fresh;
pub use event::Event;
pub use poison::{Poison, Reason};
pub use receipt::{InboxError, Receipt};

use poison::{Callback, CallbackError};

/// How many attempts an event gets unless it is said otherwise.
const MAX_ATTEMPTS: u32 = 5;
/// The most attempts there can be: their failures are kept in one record.
const MOST_ATTEMPTS: u32 = 1000;

/// Handles each event once, for one consumer. Cloning shares it; set it up before.
pub struct Inbox<S> {
    guard: Guard<S>,
    consumer: Arc<str>,
    on_lost: Option<OnLost>,
    max_attempts: u32,
    count_deliveries: bool,
    on_poison: Option<Arc<Callback>>,
}

impl<S: Store> Inbox<S> {
    /// The inbox of a consumer. Two consumers of one source each handle each event; the instances
    /// of one consumer share its name.
    pub fn new(store: S, consumer: &str) -> Self {
        let policy = Policy::default().with_retention(Retention::EVENT);
        Self {
            guard: Guard::new(store, policy),
            consumer: consumer.into(),
            on_lost: None,
            max_attempts: MAX_ATTEMPTS,
            count_deliveries: false,
            on_poison: None,
        }
    }

    /// How long a handled event is remembered: longer than the broker may deliver it again.
    /// [`Retention::EVENT`] (30 days) unless set.
    #[must_use]
    pub fn with_retention(self, retention: Retention) -> Self {
        self.policy(|policy| policy.with_retention(retention))
    }

    /// How long an event is held without renewal. See [`Policy::with_lease`]: 30 s unless set.
    #[must_use]
    pub fn with_lease(self, lease: Duration) -> Self {
        self.policy(|policy| policy.with_lease(lease))
    }

    /// What a delivery gets while another one is being handled: [`InboxError::InFlight`] at once
    /// unless set, or after a wait for its end. A batch never waits.
    #[must_use]
    pub fn with_in_flight(self, in_flight: InFlight) -> Self {
        self.policy(|policy| policy.with_in_flight(in_flight))
    }

    /// What happens with an event whose consumer died, once its lease is over (R7).
    ///
    /// Unless set: in a transaction it is run again, because nothing of an attempt that did not
    /// commit has happened; without one it is held as [`InboxError::Unknown`], because the effect
    /// may have happened. Set [`OnLost::Retry`] where the effect may be repeated, or is fenced.
    #[must_use]
    pub const fn with_on_lost(mut self, on_lost: OnLost) -> Self {
        self.on_lost = Some(on_lost);
        self
    }

    /// After how many failed attempts an event is set aside: 5 unless set, 1 at least and 1000 at
    /// most. Nothing is set aside without [`with_on_poison`](Self::with_on_poison).
    #[must_use]
    pub fn with_max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts.clamp(1, MOST_ATTEMPTS);
        self
    }

    /// Whether the broker's count of deliveries counts as attempts, where it is larger than the
    /// store's. Not unless set: the store forgets no attempt, but a broker also counts deliveries
    /// that were sent back without an attempt, and after an outage the first failure would be the
    /// last. Right for a store that lives as long as the process.
    #[must_use]
    pub const fn with_deliveries_counted(mut self, counted: bool) -> Self {
        self.count_deliveries = counted;
        self
    }

    /// Who takes the events that are set aside: those that failed too often, and those that come
    /// with the id of another one. Where the answer is an error the event is not set aside, and is
    /// handed over again at its next delivery; so it is after a crash. Without such a callback no
    /// event is ever set aside: nothing is acknowledged that nobody took.
    #[must_use]
    pub fn with_on_poison<F, W, E>(mut self, callback: F) -> Self
    where
        F: Fn(Poison) -> W + Send + Sync + 'static,
        W: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<CallbackError>,
    {
        self.on_poison = Some(Arc::new(move |poison| {
            let answer = callback(poison);
            Box::pin(async move { answer.await.map_err(Into::into) })
        }));
        self
    }

    /// Somebody who is told of what happens. See [`Guard::with_observer`].
    #[must_use]
    pub fn with_observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.guard = self.guard.with_observer(observer);
        self
    }

    /// Somebody who is asked about unknown outcomes, under [`OnLost::Reconcile`]. See
    /// [`Guard::with_reconciler`].
    #[must_use]
    pub fn with_reconciler(mut self, reconciler: Arc<dyn Reconciler>) -> Self {
        self.guard = self.guard.with_reconciler(reconciler);
        self
    }

    /// How the reconciler is asked. See [`Guard::with_reconcile_options`].
    #[must_use]
    pub fn with_reconcile_options(mut self, options: ReconcileOptions) -> Self {
        self.guard = self.guard.with_reconcile_options(options);
        self
    }

    /// Returns once nothing that was received is being handled. Call it when no more come.
    pub async fn drain(&self) {
        self.guard.drain().await;
    }

    fn policy(mut self, set: impl FnOnce(Policy) -> Policy) -> Self {
        let policy = set(*self.guard.policy());
        self.guard = self.guard.with_policy(policy);
        self
    }
}

impl<S> Inbox<S> {
    /// The consumer's name.
    pub fn consumer(&self) -> &str {
        &self.consumer
    }

    /// The store that it works on.
    pub fn store(&self) -> &S {
        self.guard.store()
    }
}

impl<S> Clone for Inbox<S> {
    fn clone(&self) -> Self {
        Self {
            guard: self.guard.clone(),
            consumer: self.consumer.clone(),
            on_lost: self.on_lost,
            max_attempts: self.max_attempts,
            count_deliveries: self.count_deliveries,
            on_poison: self.on_poison.clone(),
        }
    }
}

impl<S> fmt::Debug for Inbox<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox")
            .field("consumer", &self.consumer)
            .field("max_attempts", &self.max_attempts)
            .finish_non_exhaustive()
    }
}
