//! What operators do with records: find them, look at them, decide about them. The same code stands behind
//! the admin API (`api`) and behind `semel records` on a store (`command/records`).
//!
//! 1. *Nothing is scanned without bound.* A page looks at so many records, for so long, and says where it
//!    stopped ([`Found::next`]).
//! 2. *An action is about what the viewer saw*: it carries the fence of that attempt, and is refused with
//!    [`Code::RecordChanged`] where the record has another one.
//! 3. *An attempt that runs is not decided about*: the store says so by its own clock
//!    ([`Code::AttemptRunning`]).
//! 4. *What is configured so needs two*: one proposes, another confirms (`four_eyes`).
//! 5. *The intention is in the audit log before anything happens* (`audit`); where it cannot be written
//!    there, nothing happens.

mod act;
mod filter;
mod four_eyes;
pub mod order;
mod refused;
pub mod view;

use std::sync::Arc;

use semel::IdentityDigest;
use semel::store::{Entry, Store};

use crate::audit::{self, Log};
use crate::events::Events;
pub use act::{Action, Actor, Decided};
pub(crate) use act::{facts, insist};
pub use filter::{Filter, Found, MOST, Position};
pub(crate) use four_eyes::ACTIONS;
pub use refused::{Code, Refused};
use view::{Detail, Done};

/// What can be done on a store.
#[derive(Debug)]
pub struct Operations<S> {
    store: S,
    log: Log<S>,
    four_eyes: Vec<String>,
    events: Option<Arc<Events>>,
}

impl<S: Store + Clone> Operations<S> {
    /// On this store, which also keeps the audit log.
    pub const fn new(store: S, log: Log<S>) -> Self {
        Self {
            store,
            log,
            four_eyes: Vec::new(),
            events: None,
        }
    }

    /// What happens to records in this process is shown with them, and what is done here is told there.
    #[must_use]
    pub fn with_events(mut self, events: Arc<Events>) -> Self {
        self.events = Some(events);
        self
    }

    /// These actions have to be confirmed by somebody else than who proposes them.
    #[must_use]
    pub fn with_four_eyes(mut self, actions: Vec<String>) -> Self {
        self.four_eyes = actions;
        self
    }

    /// The log of what was done.
    pub const fn log(&self) -> &Log<S> {
        &self.log
    }

    /// The store.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// One record.
    ///
    /// # Errors
    /// [`Code::NoRecord`], or the store's.
    pub async fn find(&self, id: &IdentityDigest) -> Result<Entry, Refused> {
        let found = self.store.get(id).await?;
        // The log's own are read there.
        let found = found.filter(|entry| !audit::is_entry(&entry.label));
        found.ok_or_else(|| {
            Refused::new(
                Code::NoRecord,
                "the store has no such record: it was never claimed, or its retention ended",
            )
        })
    }

    /// All that is known of a record.
    pub fn detail(&self, entry: &Entry) -> Detail {
        let events = self.events.as_ref();
        let lately = events.map(|events| events.of(&entry.label.digest));
        Detail::of(entry, &lately.unwrap_or_default())
    }

    /// A record after an action.
    pub fn done(&self, decided: Decided) -> Done {
        Done {
            audit: decided.number,
            proposed: decided.is_proposed,
            record: self.detail(&decided.entry),
        }
    }

    /// Some of the records that the filter lets through.
    ///
    /// # Errors
    /// The store's.
    pub async fn list(
        &self,
        filter: &Filter,
        from: &Position,
        limit: usize,
    ) -> Result<Found, Refused> {
        filter::page(&self.store, filter, from, limit).await
    }
}
