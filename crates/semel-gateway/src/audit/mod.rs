//! The audit log: who did what to which record, from where and why, and what came of it.
//!
//! It is kept in the store whose records it is about, on every store, by the protocol's own steps. An
//! entry is a record:
//!
//! 1. *Its identity is its number*, so that it is read without a list, and nobody writes it twice: entry 17
//!    of a period of 30 days is `(["682"], "audit@", "17")`. No service's operation has a name that ends
//!    with an `@`.
//! 2. *A claim takes the number.* The first is 1, and who finds a number taken takes the next: there is no
//!    gap in a period, and the last one is found by doubling steps, in few reads.
//! 3. *Before the action* the intention is kept as a step of the claim; *after it* the outcome says what came
//!    of it. Nothing is done where the intention could not be kept. Where the program died between the two,
//!    the entry stays in flight, for good (R8), and is shown with the result `unknown`.
//! 4. *Nothing changes an entry*: its claim's token is needed, nobody resolves it, and its fingerprint is like
//!    no other's.
//! 5. *All entries of a period end together*: the retention of each lasts from the period's end.
//!
//! This costs no table, no migration and no code in any store. The price is a few reads for each entry, of
//! which there are not many.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::try_join_all;
use semel::store::{
    Acquired, Claim, ClaimRequest, Fenced, Label, Nonce, Retention, Store, StoreExt as _, Token,
};
use semel::{
    Clock as _, Fingerprint, FinishedStep, Identity, Key, Outcome, OutcomeKind, Record, Scope,
    State, StateKind, StoreError, StoreErrorKind, SystemClock, Timestamp,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::command::with_causes;
use crate::operations::view::time;
use crate::operations::{facts, insist};
use crate::reconcile::Decided;

/// What entries are claimed as.
const OPERATION: &str = "audit@";
/// The step that keeps the intention.
const INTENT: &str = "intent";
/// How long an entry counts as being written.
const LEASE: Duration = Duration::from_secs(60);
/// What shares a run of numbers, and an end.
const PERIOD: Duration = Duration::from_hours(24 * 30);
/// How many numbers others may take away before this gives up.
const TRIES: u64 = 10_000;
/// How many entries are read at once.
const AT_ONCE: u64 = 16;
/// How long entries are kept unless set.
pub const DEFAULT_RETENTION: Duration = Duration::from_hours(24 * 400);

/// Whether a record is an entry of the log.
pub(crate) fn is_entry(label: &Label) -> bool {
    &*label.operation == OPERATION
}

/// An entry's place: the period, and the number in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Number {
    period: u64,
    nth: u64,
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.period, self.nth)
    }
}

impl FromStr for Number {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('-').and_then(|(period, nth)| {
            Some(Self {
                period: period.parse().ok()?,
                nth: nth.parse().ok()?,
            })
        });
        parsed.ok_or_else(|| format!("`{text}` is no number of an entry; they are like 682-17"))
    }
}

impl Number {
    fn identity(self) -> Identity {
        self.named(&self.nth.to_string())
    }

    /// Of what is there once the proposal of this number is confirmed.
    fn confirmation(self) -> Identity {
        self.named(&format!("{}-confirmed", self.nth))
    }

    fn named(self, key: &str) -> Identity {
        let key = Key::new(key).expect("digits make a key");
        Identity::new(Scope::new([self.period.to_string()]), OPERATION, key)
    }
}

/// What somebody is about to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = AuditIntent)]
pub struct Intent {
    /// What it is.
    #[schema(required = false)]
    pub action: String,
    /// The record that it is about; none where it is about many.
    pub id: Option<String>,
    /// Who.
    #[schema(required = false)]
    pub by: String,
    /// The address, or the machine.
    #[schema(required = false)]
    pub from: String,
    /// Why.
    #[schema(required = false)]
    pub reason: String,
    /// What the record was.
    pub before: Option<Value>,
    /// The digest of all that is asked for, where somebody else has to confirm it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The entry of the proposal that this confirms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirms: Option<String>,
}

/// What came of an intention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = AuditResult)]
pub enum Came {
    /// It was done.
    Done,
    /// It waits for somebody else to confirm it.
    Proposed,
    /// It was not done.
    Refused,
    /// It may have been done. Also where the program ended before it could say.
    Unknown,
}

impl Came {
    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Proposed => "proposed",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
        }
    }
}

/// An entry as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = AuditEntry)]
pub struct Entry {
    /// Its place.
    pub number: String,
    /// When it was begun, by the store's clock.
    pub at: Option<String>,
    /// What somebody was about to do. None: they did not come to it, and nothing was done.
    #[serde(flatten)]
    #[schema(value_type = Intent)]
    pub intent: Option<Intent>,
    /// What came of it.
    pub result: Came,
    /// More about that.
    pub detail: Option<String>,
    /// What the record was afterwards.
    pub after: Option<Value>,
}

/// A page of the log, the newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = AuditPage)]
pub struct Page {
    /// The entries.
    pub entries: Vec<Entry>,
    /// Where the next page begins; none at the end.
    pub next: Option<String>,
}

impl Page {
    /// Its entries as JSON Lines.
    pub(crate) fn lines(&self) -> String {
        let lines = self.entries.iter().map(serde_json::to_string);
        lines.flatten().map(|line| line + "\n").collect()
    }
}

/// An entry whose intention is kept.
#[derive(Debug)]
pub struct Begun {
    number: Number,
    identity: Identity,
    token: Token,
    began: Timestamp,
    intent: Intent,
}

impl Begun {
    /// Its place.
    pub const fn number(&self) -> Number {
        self.number
    }

    /// When it began, by the store's clock.
    pub(crate) const fn at(&self) -> Timestamp {
        self.began
    }

    /// What is intended.
    pub(crate) const fn intent(&self) -> &Intent {
        &self.intent
    }
}

/// What an entry's outcome holds.
#[derive(Serialize, Deserialize)]
struct Kept {
    #[serde(flatten)]
    intent: Intent,
    result: Came,
    detail: Option<String>,
    after: Option<Value>,
}

/// The log on a store.
#[derive(Debug)]
pub struct Log<S> {
    store: S,
    retention: Duration,
    /// Numbers known to be taken, by period: where looking for the last one begins.
    taken: Mutex<BTreeMap<u64, u64>>,
}

type Answer<T> = Result<T, StoreError>;

impl<S: Store> Log<S> {
    /// The log on this store, with entries kept for so long.
    pub const fn new(store: S, retention: Duration) -> Self {
        Self {
            store,
            retention,
            taken: Mutex::new(BTreeMap::new()),
        }
    }

    /// Keeps an intention.
    ///
    /// # Errors
    /// The store's. What was intended must not be done then.
    pub async fn begin(&self, intent: Intent) -> Answer<Begun> {
        let step = to_json(&intent)?;
        let step = FinishedStep::new(INTENT, &step).map_err(|error| {
            StoreError::new(StoreErrorKind::TooLarge, "the entry is too large").with_source(error)
        })?;
        let (number, acquired) = self.take().await?;
        let identity = number.identity();
        let token = acquired.token;
        let kept = insist(|| self.store.keep_step(identity.digest(), &token, &step, 0)).await?;
        is_applied(kept)?;
        Ok(Begun {
            number,
            identity,
            token,
            began: acquired.since,
            intent,
        })
    }

    /// Keeps what came of it.
    ///
    /// # Errors
    /// The store's. The entry's result is not known then.
    pub async fn end(
        &self,
        begun: Begun,
        result: Came,
        detail: Option<String>,
        after: Option<Value>,
    ) -> Answer<()> {
        let Begun {
            number,
            identity,
            token,
            began,
            intent,
        } = begun;
        let kept = Kept {
            intent,
            result,
            detail,
            after,
        };
        let outcome = Outcome::success(&to_json(&kept)?);
        let retention = self.kept_from(number, began);
        let done = insist(|| {
            self.store
                .complete(identity.digest(), &token, &outcome, retention)
        });
        is_applied(done.await?)
    }

    /// How long what began then is kept: all of a period ends together, some time after it. The period is by
    /// this machine's clock, which may be ahead of the store's.
    fn kept_from(&self, number: Number, began: Timestamp) -> Retention {
        let end = (u128::from(number.period) + 1) * PERIOD.as_micros();
        let rest = end.saturating_sub(began.as_micros().into());
        let rest = Duration::from_micros(u64::try_from(rest).unwrap_or(u64::MAX));
        Retention::new(self.retention.saturating_add(rest))
    }

    /// Confirms a proposal: true for one caller, ever. Whether it was one is for the caller to know.
    ///
    /// # Errors
    /// The store's. What was proposed must not be done then.
    pub(crate) async fn confirm(&self, proposal: Number) -> Answer<bool> {
        let identity = proposal.confirmation();
        let nonce = Nonce::random()?;
        let fingerprint = Fingerprint::of(nonce.as_bytes());
        let request = ClaimRequest::new(nonce, fingerprint, LEASE);
        let Claim::Acquired(acquired) = insist(|| self.store.claim(&identity, &request)).await?
        else {
            return Ok(false);
        };
        let outcome = Outcome::builder(OutcomeKind::Success).void();
        let retention = self.kept_from(proposal, acquired.since);
        let (digest, token) = (identity.digest(), acquired.token);
        let done = insist(|| self.store.complete(digest, &token, &outcome, retention)).await?;
        is_applied(done).map(|()| true)
    }

    /// Enters what a reconciler decides, and once `drained` is over what it decided before. The record has
    /// its own note of it ([`Record::resolved`]), which is the first to be there: what is not entered where
    /// the gateway dies between the two is still found with the record.
    pub(crate) async fn enter(
        &self,
        mut decided: mpsc::UnboundedReceiver<Decided>,
        drained: oneshot::Receiver<()>,
    ) {
        let mut drained = std::pin::pin!(drained);
        let mut accepts = true;
        loop {
            let next = tokio::select! {
                biased;
                next = decided.recv() => next,
                _ = &mut drained, if accepts => {
                    accepts = false;
                    decided.close();
                    continue;
                }
            };
            let Some(decided) = next else { return };
            if let Err(error) = self.enter_one(decided).await {
                let identity = decided.id;
                tracing::warn!(%identity, "audit: what the reconciler decided could not be entered: {error}");
            }
        }
    }

    async fn enter_one(&self, Decided { id, fence }: Decided) -> Answer<()> {
        let Some(entry) = insist(|| self.store.get(&id)).await? else {
            return Ok(());
        };
        let record = entry.record;
        // Somebody else came after it: that is theirs.
        let Some(resolved) = record
            .resolved
            .as_deref()
            .filter(|resolved| resolved.fence == fence)
        else {
            return Ok(());
        };
        let action = match resolved.after {
            StateKind::Completed => "reconcile-happened",
            _ => "reconcile-did-not-happen",
        };
        let before = serde_json::json!({
            "state": resolved.before.as_str(),
            "fence": resolved.fence.0,
        });
        let intent = Intent {
            action: action.to_owned(),
            id: Some(id.to_string()),
            by: resolved.by.to_string(),
            from: "the reconciler".to_owned(),
            reason: resolved.reason.to_string(),
            before: Some(before),
            digest: None,
            confirms: None,
        };
        let begun = self.begin(intent).await?;
        self.end(begun, Came::Done, None, Some(facts(&record)))
            .await
    }

    /// Takes the number after the last.
    async fn take(&self) -> Answer<(Number, Acquired)> {
        let period = period_of(now());
        let last = self.last(period).await?;
        for nth in last + 1..=last + TRIES {
            let number = Number { period, nth };
            let nonce = Nonce::random()?;
            // Like no other's: whoever comes second is told so.
            let fingerprint = Fingerprint::of(nonce.as_bytes());
            let request = ClaimRequest::new(nonce, fingerprint, LEASE);
            let identity = number.identity();
            let claim = insist(|| self.store.claim(&identity, &request)).await?;
            self.is_taken(number);
            if let Claim::Acquired(acquired) = claim {
                return Ok((number, acquired));
            }
        }
        let why = "others took every number that was tried";
        Err(StoreError::new(StoreErrorKind::Contended, why))
    }

    fn is_taken(&self, number: Number) {
        let mut taken = self
            .taken
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let last = taken.entry(number.period).or_default();
        *last = number.nth.max(*last);
    }

    fn known(&self, period: u64) -> u64 {
        let taken = self
            .taken
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        taken.get(&period).copied().unwrap_or_default()
    }

    /// A record of the log; what is damaged is there, too.
    async fn record(&self, number: Number) -> Answer<Option<Answer<Record>>> {
        match self.store.get(number.identity().digest()).await {
            Ok(entry) => Ok(entry.map(|entry| Ok(entry.record))),
            Err(error) if error.kind() == StoreErrorKind::Corrupt => Ok(Some(Err(error))),
            Err(error) => Err(error),
        }
    }

    /// The last number of a period; 0 where there is none.
    async fn last(&self, period: u64) -> Answer<u64> {
        let mut low = self.known(period);
        let mut step = 1;
        let mut high = loop {
            let nth = low + step;
            match self.record(Number { period, nth }).await? {
                Some(_) => (low, step) = (nth, step * 2),
                None => break nth,
            }
        };
        while high - low > 1 {
            let nth = low.midpoint(high);
            match self.record(Number { period, nth }).await? {
                Some(_) => low = nth,
                None => high = nth,
            }
        }
        if low > 0 {
            self.is_taken(Number { period, nth: low });
        }
        Ok(low)
    }

    /// One entry.
    ///
    /// # Errors
    /// The store's.
    pub async fn entry(&self, number: Number) -> Answer<Option<Entry>> {
        let record = self.record(number).await?;
        record.map(|record| shown(number, &record?)).transpose()
    }

    /// A page of at most `limit` entries, the newest first: from this number on, or from the last one. One
    /// that cannot be read is said to be so.
    ///
    /// # Errors
    /// The store's.
    pub async fn page(&self, from: Option<Number>, limit: usize) -> Answer<Page> {
        let limit = limit.clamp(1, crate::operations::MOST);
        let newest = period_of(now());
        // Others' clocks may be ahead, and the last ones of the oldest period end with it.
        let kept = self.retention.as_micros() / PERIOD.as_micros();
        let kept = u64::try_from(kept).unwrap_or(u64::MAX);
        let oldest = newest.saturating_sub(kept.saturating_add(1));
        let first = from.map_or(newest + 1, |from| from.period.min(newest + 1));
        let mut entries = Vec::new();
        for period in (oldest..=first).rev() {
            let mut nth = self.last(period).await?;
            if let Some(from) = from.filter(|from| from.period == period) {
                nth = nth.min(from.nth);
            }
            while nth > 0 {
                if entries.len() == limit {
                    let next = Some(Number { period, nth }.to_string());
                    return Ok(Page { entries, next });
                }
                let most = AT_ONCE.min((limit - entries.len()) as u64);
                let numbers = (nth.saturating_sub(most) + 1..=nth).rev();
                let numbers: Vec<_> = numbers.map(|nth| Number { period, nth }).collect();
                let records = numbers.iter().map(|number| self.record(*number));
                let records = try_join_all(records).await?;
                for (number, record) in numbers.into_iter().zip(records) {
                    let entry = record.map(|record| shown(number, &record?));
                    entries.extend(
                        entry.map(|entry| entry.unwrap_or_else(|why| damaged(number, &why))),
                    );
                }
                nth = nth.saturating_sub(most);
            }
        }
        Ok(Page {
            entries,
            next: None,
        })
    }
}

/// This machine's clock chooses the period, and no more: entries have their time from the store's.
fn now() -> Timestamp {
    SystemClock::default().now()
}

fn period_of(at: Timestamp) -> u64 {
    at.as_micros() / u64::try_from(PERIOD.as_micros()).unwrap_or(u64::MAX)
}

/// Nothing is known of it but that it is there.
fn unread(number: Number) -> Entry {
    Entry {
        number: number.to_string(),
        at: None,
        intent: None,
        result: Came::Unknown,
        detail: None,
        after: None,
    }
}

fn damaged(number: Number, why: &StoreError) -> Entry {
    let detail = format!("the entry cannot be read: {}", with_causes(why));
    Entry {
        detail: Some(detail),
        ..unread(number)
    }
}

fn shown(number: Number, record: &Record) -> Answer<Entry> {
    let damaged = |error: serde_json::Error| {
        let why = format!("the audit log's entry {number} cannot be read");
        StoreError::new(StoreErrorKind::Corrupt, why).with_source(error)
    };
    let entry = Entry {
        at: time(record.created_at),
        ..unread(number)
    };
    if let State::Completed(outcome) = &record.state {
        let body = outcome.readable()?.body().unwrap_or_default();
        let Kept {
            intent,
            result,
            detail,
            after,
        } = serde_json::from_slice(&body).map_err(damaged)?;
        return Ok(Entry {
            intent: Some(intent),
            result,
            detail,
            after,
            ..entry
        });
    }
    let mut steps = record.progress.readable()?.steps();
    match steps.find(|(name, _)| *name == INTENT) {
        Some((_, intent)) => Ok(Entry {
            intent: Some(serde_json::from_slice(intent).map_err(damaged)?),
            detail: Some(
                "it is being done, or whoever did it ended before it could be said".to_owned(),
            ),
            ..entry
        }),
        None => Ok(Entry {
            result: Came::Refused,
            detail: Some("whoever began the entry did not come to do anything".to_owned()),
            ..entry
        }),
    }
}

fn to_json(value: &impl Serialize) -> Answer<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| {
        StoreError::new(StoreErrorKind::NotApplied, "the entry cannot be written")
            .with_source(error)
    })
}

fn is_applied(fenced: Fenced) -> Answer<()> {
    match fenced {
        Fenced::Applied => Ok(()),
        Fenced::Refused(refusal) => {
            let why = "somebody changed an entry of the audit log while it was written";
            Err(StoreError::new(StoreErrorKind::NotApplied, why).with_source(refusal))
        }
    }
}

#[cfg(test)]
mod tests {
    use semel::memory::MemoryStore;

    use super::*;

    /// Also those that began by a clock that was ahead of the store's.
    #[test]
    fn all_entries_of_a_period_end_together() {
        let log = Log::new(MemoryStore::default(), Duration::ZERO);
        let number = Number { period: 2, nth: 1 };
        let begins = Timestamp::default().after(PERIOD * 2);
        for early in [Duration::ZERO, Duration::from_secs(1)] {
            let began = begins.before(early);
            let kept = log.kept_from(number, began);
            assert_eq!(began.after(kept.replay), begins.after(PERIOD));
        }
    }
}
