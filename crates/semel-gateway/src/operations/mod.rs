//! What operators do with records: find them, look at them, decide about them. The same code stands behind
//! the admin API (`api`) and behind `semel records` on a store (`command/records`).
//!
//! 1. *Nothing is scanned without bound.* A page looks at so many records, for so long, and says where it
//!    stopped ([`Found::next`]).
//! 2. *An action is about what the viewer saw*: it carries the fence of that attempt, and is refused with
//!    `record-changed` where the record has another one.
//! 3. *An attempt that runs is not decided about*: the store says so by its own clock
//!    (`attempt-running`).
//! 4. *What is configured so needs two*: one proposes, another confirms (`four_eyes`).
//! 5. *The intention is in the audit log before anything happens* (`audit`); where it cannot be written
//!    there, nothing happens.

mod act;
mod entered;
mod filter;
mod four_eyes;
mod many;
pub mod order;
mod reseal;
#[cfg(test)]
mod tests;
pub mod view;

use std::sync::Arc;
use std::time::Duration;

use order::Lookup;
use semel::guard::name_of;
use semel::sealed::Sealed;
use semel::secrets::Secrets;
use semel::store::{Entry, Label, ListQuery, Refusal, Store};
use semel::{AnyStore, IdentityDigest, StateKind, StoreError, StoreErrorKind};
use semel_stores::objects::{self, Offloaded};
use semel_tower::ProblemCode;
use tokio::time::{Instant, timeout_at};

use crate::audit::{self, Log};
use crate::command::with_causes;
use crate::events::Events;
use crate::refused::{Code, Refused};
use crate::store::Opened;
use crate::store::is_question;
pub use act::{Action, Decided};
pub use entered::Actor;
pub(crate) use entered::{facts, insist};
pub(crate) use filter::about_now;
pub use filter::{Filter, Found, MOST, Position};
pub(crate) use four_eyes::ACTIONS;
use view::{Count, Counts, Detail, Done};

/// How far it is counted.
const COUNTED: usize = 1_000;
/// For how long.
const COUNTING: Duration = Duration::from_millis(500);

/// What can be done on a store.
#[derive(Debug)]
pub struct Operations<S> {
    store: S,
    log: Log<S>,
    four_eyes: Vec<String>,
    events: Option<Arc<Events>>,
    sealed: Option<Sealed<AnyStore>>,
    offloaded: Option<Arc<Offloaded<AnyStore>>>,
    secrets: Option<Secrets>,
}

impl<S: Store + Clone> Operations<S> {
    /// On this store, which also keeps the audit log.
    pub const fn new(store: S, log: Log<S>) -> Self {
        Self {
            store,
            log,
            four_eyes: Vec::new(),
            events: None,
            sealed: None,
            offloaded: None,
            secrets: None,
        }
    }

    /// What happens to records in this process is shown with them, and what is done here is told there.
    #[must_use]
    pub fn with_events(mut self, events: Arc<Events>) -> Self {
        self.events = Some(events);
        self
    }

    /// What the store was opened with: keys, large answers, the secrets of identities.
    #[must_use]
    pub fn with_opened(mut self, opened: Opened) -> Self {
        (self.sealed, self.offloaded) = (opened.sealed, opened.offloaded);
        self.secrets = opened.secrets;
        self
    }

    /// These actions have to be confirmed by somebody else than who proposes them.
    #[must_use]
    pub fn with_four_eyes(mut self, actions: Vec<String>) -> Self {
        self.four_eyes = actions;
        self
    }

    /// Whether these actions have to be confirmed. Either of `resolve` and `release` gives a key back:
    /// who has to confirm the one confirms both.
    pub fn needs_two(&self, family: &str) -> bool {
        let also = match family {
            "resolve" => "release",
            "release" => "resolve",
            family => family,
        };
        let mut four_eyes = self.four_eyes.iter();
        four_eyes.any(|action| action == family || action == also)
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
    /// `no-record`, or the store's.
    pub async fn find(&self, id: &IdentityDigest) -> Result<Entry, Refused> {
        let found = self.store.get(id).await.map_err(of_store)?;
        let found = found.filter(|entry| !is_internal(&entry.label));
        found.ok_or_else(|| {
            Refused::new(
                Code::NoRecord,
                "the store has no such record: it was never claimed, or its retention ended",
            )
        })
    }

    /// The record of a key.
    ///
    /// # Errors
    /// What cannot be part of an identity, `no-record`, or the store's.
    pub async fn look_up(&self, lookup: &Lookup) -> Result<Entry, Refused> {
        self.find(&self.name(lookup).await?).await
    }

    /// The name of that record.
    ///
    /// # Errors
    /// What cannot be part of an identity, or the store's.
    pub async fn name(&self, lookup: &Lookup) -> Result<IdentityDigest, Refused> {
        let identity = lookup.identity(self.secrets.as_ref())?;
        let name = name_of(&self.store, &identity).await.map_err(of_store)?;
        Ok(*name.digest())
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

    /// How many records somebody may have to look at.
    pub async fn counts(&self) -> Counts {
        let (unknown, lapsed, in_flight) = tokio::join!(
            self.count(StateKind::Unknown, false),
            self.count(StateKind::InFlight, true),
            self.count(StateKind::InFlight, false),
        );
        Counts {
            unknown,
            lapsed,
            in_flight,
        }
    }

    /// A store that reads all its records for it may take longer than anybody waits. That none of the first
    /// is one says nothing.
    async fn count(&self, state: StateKind, lapsed: bool) -> Option<Count> {
        let until = Instant::now() + COUNTING;
        let mut query = ListQuery {
            lapsed,
            limit: COUNTED,
            ..ListQuery::new(state)
        };
        let mut found = None::<Count>;
        loop {
            let Ok(page) = timeout_at(until, self.store.list(&query)).await else {
                return found.filter(|found| found.records > 0);
            };
            let page = page.ok()?;
            let entries = page.entries.iter();
            let operations = entries.filter(|entry| !is_internal(&entry.label));
            let records = found.map_or(0, |found| found.records) + operations.count();
            let more = page.next.is_some();
            found = Some(Count { records, more });
            query.after = page.next;
            if !more || records >= COUNTED {
                return found;
            }
        }
    }
}

/// Whether a record is nobody's operation: an entry of the audit log, which is read there, the one that says
/// where large answers are, or what a gateway asked to see whether the store works.
pub(crate) fn is_internal(label: &Label) -> bool {
    audit::is_entry(label) || objects::is_own(label) || is_question(label)
}

/// What the store did not do. Operators may know why.
#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
pub(crate) fn of_store(error: StoreError) -> Refused {
    let why = with_causes(&error);
    match error.kind() {
        StoreErrorKind::Unknown => Refused::new(Code::ActionUnknown, why),
        StoreErrorKind::TooLarge => Refused::new(Code::OutcomeTooLarge, why),
        _ => Refused::of_layer(ProblemCode::StoreUnavailable, why),
    }
}

fn of_refusal(refusal: Refusal) -> Refused {
    match refusal {
        Refusal::Missing => Refused::new(Code::NoRecord, "its retention ended in the meantime"),
        Refusal::Running => Refused::new(
            Code::AttemptRunning,
            "an attempt holds its lease and may complete at any moment; wait for its end, or for its lease \
             to lapse",
        ),
        Refusal::Superseded => Refused::new(
            Code::RecordChanged,
            "a later attempt, or another operator, came first; look at it again",
        ),
        Refusal::Settled(state) => {
            let why = format!("the record is {}; look at it again", state.as_str());
            Refused::new(Code::WrongState, why)
        }
        other => Refused::new(Code::WrongState, other.to_string()),
    }
}
