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
//!   is possible; what then happens the policy says ([`Inbox::with_policy`]).
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
mod dead_letter;
mod event;
mod failure;
mod receipt;
mod receive;

use std::fmt;
use std::sync::Arc;

use crate::guard::{Guard, Policy};
use crate::store::Store;

pub use batch::NewEvents;
pub use dead_letter::{DeadLetter, Reason};
pub use event::Event;
pub use receipt::{InboxError, Receipt};

use dead_letter::{Callback, CallbackError};

/// How many attempts an event gets unless it is said otherwise.
const MAX_ATTEMPTS: u32 = 5;
/// The most attempts there can be: their failures are kept in one record.
const MOST_ATTEMPTS: u32 = 1000;

/// Handles each event once, for one consumer. Cloning shares it.
pub struct Inbox<S> {
    guard: Guard<S>,
    policy: Policy,
    consumer: Arc<str>,
    max_attempts: u32,
    count_deliveries: bool,
    dead_letters: Option<Arc<Callback>>,
}

impl<S: Store> Inbox<S> {
    /// The inbox of a consumer, over a store or a guard, whose observer, reconciler and tasks it
    /// shares. Its policy it does not: see [`with_policy`](Self::with_policy).
    /// Two consumers of one source each handle each event; the instances of one consumer share its
    /// name.
    pub fn new(guard: impl Into<Guard<S>>, consumer: &str) -> Self {
        Self {
            guard: guard.into(),
            policy: Policy::event(),
            consumer: consumer.into(),
            max_attempts: MAX_ATTEMPTS,
            count_deliveries: false,
            dead_letters: None,
        }
    }

    /// How events are held. [`Policy::event`] unless set: begin with that one.
    ///
    /// An error or a panic gives the event back, whatever the policy says: a broker delivers again.
    /// A batch never waits for an attempt in flight.
    #[must_use]
    pub const fn with_policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// How events are held.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// After how many failed attempts an event is set aside: 5 unless set, 1 at least and 1000 at
    /// most. Nothing is set aside without [`with_dead_letters`](Self::with_dead_letters).
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

    /// Takes the events that are set aside as dead letters: those that failed too often, and those
    /// of which no delivery would ever run ([`Reason`]). Where the answer is an error the event is
    /// not set aside, and is handed over again at its next delivery; so it is after a crash. Without
    /// such a callback no event is ever set aside: nothing is acknowledged that nobody took.
    #[must_use]
    pub fn with_dead_letters<F, W, E>(mut self, callback: F) -> Self
    where
        F: Fn(DeadLetter) -> W + Send + Sync + 'static,
        W: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<CallbackError>,
    {
        self.dead_letters = Some(Arc::new(move |letter| {
            let answer = callback(letter);
            Box::pin(async move { answer.await.map_err(Into::into) })
        }));
        self
    }
}

impl<S> Inbox<S> {
    /// The guard that it works with: its store, and what ends a program
    /// ([`drain`](Guard::drain), [`close`](Guard::close)), which is for all that share the guard.
    pub const fn guard(&self) -> &Guard<S> {
        &self.guard
    }
}

impl<S> Clone for Inbox<S> {
    fn clone(&self) -> Self {
        Self {
            guard: self.guard.clone(),
            policy: self.policy,
            consumer: self.consumer.clone(),
            max_attempts: self.max_attempts,
            count_deliveries: self.count_deliveries,
            dead_letters: self.dead_letters.clone(),
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
