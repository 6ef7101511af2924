//! Whether the store can be used, for every kind of store: told to the log, to `/readyz` and to the
//! metrics.
//!
//! Failures of calls do not decide it, since one call may fail for its own reasons. They have the
//! store asked at once, by a record of the gateway's own: one that is claimed and completed, as a
//! request's is. Without failures a record is looked up every second.

use std::convert::Infallible;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel::store::{Claim, ClaimRequest, Label, Nonce, OnLost, Retention, Store, StoreExt as _};
use semel::{Fingerprint, Identity, Key, Outcome, Scope, StoreError, StoreErrorKind};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::metrics::Metrics;

/// How often the store is asked, and how long it may take to answer.
const EVERY: Duration = Duration::from_secs(1);
/// How long the store may take to say that it is there.
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause after calls that failed had it asked, or where another gateway was just asking.
const REST: Duration = Duration::from_millis(200);
/// How often the log says something of a state that it told of before.
pub(crate) const REMIND_EVERY: Duration = Duration::from_secs(30);

/// In which state the store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// It does all that is asked.
    Up,
    /// It refuses new keys for want of room, and does the rest.
    Full(String),
    /// It cannot be used.
    Down(String),
}

/// What is known of the store.
#[derive(Debug)]
pub struct Health {
    known: Mutex<Known>,
    /// A call failed.
    trouble: Notify,
    metrics: Arc<Metrics>,
    times: Times,
    /// What this gateway asks where the common question cannot be asked. The same until its record is kept,
    /// too: what one that did not end leaves behind, the next takes over.
    own: Mutex<Option<Identity>>,
}

/// How long the steps took that requests wait for, in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// How many there were.
    pub(crate) steps: AtomicU64,
    /// All together.
    pub(crate) sum: AtomicU64,
    /// The slowest since somebody took this down.
    pub(crate) slowest: AtomicU64,
}

#[derive(Debug)]
struct Known {
    condition: Condition,
    since: Instant,
    /// When the log was last told.
    told: Option<Instant>,
    /// How many calls failed since it was last asked, and how the last of them did.
    failures: u64,
    last_failure: String,
}

impl Health {
    /// Of a store that was just opened.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        metrics.store_is(&Condition::Up);
        Self {
            known: Mutex::new(Known {
                condition: Condition::Up,
                since: Instant::now(),
                told: None,
                failures: 0,
                last_failure: String::new(),
            }),
            trouble: Notify::new(),
            metrics,
            times: Times::default(),
            own: Mutex::default(),
        }
    }

    /// The state when the store was last asked.
    pub fn condition(&self) -> Condition {
        self.known().condition.clone()
    }

    /// Since when.
    pub(crate) fn since(&self) -> Duration {
        self.known().since.elapsed()
    }

    pub(crate) const fn times(&self) -> &Times {
        &self.times
    }

    /// A claim, or a change of its record, took so long.
    pub(super) fn took(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.times.steps.fetch_add(1, Relaxed);
        self.times.sum.fetch_add(nanos, Relaxed);
        self.times.slowest.fetch_max(nanos, Relaxed);
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call failed: has the store asked soon.
    pub(super) fn failed(&self, error: &StoreError) {
        // That an answer is too large is no trouble of the store.
        if error.kind() != StoreErrorKind::TooLarge {
            let mut known = self.known();
            known.failures += 1;
            known.last_failure = error.to_string();
            drop(known);
            self.trouble.notify_one();
        }
    }

    /// Asks the store again and again, and tells of every change. `store` is the one itself.
    pub async fn watch<S: Store>(self: Arc<Self>, store: S) -> Infallible {
        let mut suspected = false;
        loop {
            if !suspected {
                suspected = timeout(EVERY, self.trouble.notified()).await.is_ok();
            }
            let is_known = self.look(&store, suspected).await;
            if suspected || !is_known {
                sleep(REST).await;
            }
            suspected = !is_known;
        }
    }

    /// Asks the store until it is known how it is now: as before, where it does not become known.
    pub async fn look_again<S: Store>(&self, store: &S) -> Condition {
        let looking = async {
            while !self.look(store, true).await {
                sleep(REST).await;
            }
        };
        timeout(PROBE_TIMEOUT, looking).await.ok();
        self.condition()
    }

    /// Asks the store once; whether it takes new keys only where that is doubted. Whether something was
    /// learnt of it: another gateway may just be asking the same.
    async fn look<S: Store>(&self, store: &S, failed: bool) -> bool {
        let suspected = failed || self.condition() != Condition::Up;
        let asked = timeout(PROBE_TIMEOUT, self.ask(store, suspected)).await;
        let found = asked.unwrap_or_else(|_| {
            let reason = format!("no answer within {PROBE_TIMEOUT:?}");
            Some(Condition::Down(reason))
        });
        let is_known = found.is_some();
        found.into_iter().for_each(|found| self.found(found));
        is_known
    }

    /// Whether the store reads and, where that is doubted, whether it takes a new key and its answer.
    /// `None`: another gateway is just asking the same.
    async fn ask<S: Store>(&self, store: &S, suspected: bool) -> Option<Condition> {
        let reads = async { store.get(question(COMMON)?.digest()).await };
        if let Err(error) = reads.await {
            return Some(Condition::Down(error.to_string()));
        }
        if !suspected {
            return Some(Condition::Up);
        }
        match self.writes(store).await {
            Ok(true) => Some(Condition::Up),
            Ok(false) => None,
            Err(error) => Some(condition_of(&error)),
        }
    }

    /// Whether this could be asked.
    async fn writes<S: Store>(&self, store: &S) -> Result<bool, StoreError> {
        // Kept by a process whose clock is ahead of this one's, it is not to be asked until then.
        let common = question(COMMON)?;
        match timeout(PROBE_TIMEOUT / 2, asked(store, &common)).await {
            // Others are at it, perhaps with a lock: whether they are gateways the own one tells.
            Err(_) => {}
            Ok(Err(error)) if error.kind() == StoreErrorKind::Contended => {}
            Ok(Ok(Asked::Kept)) => {}
            Ok(asked) => return Ok(asked? == Asked::Answered),
        }
        let question = self.own_question()?;
        let asked = asked(store, &question).await?;
        if asked == Asked::Kept {
            *self.own() = None;
        }
        Ok(asked == Asked::Answered)
    }

    fn own(&self) -> MutexGuard<'_, Option<Identity>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn own_question(&self) -> Result<Identity, StoreError> {
        let mut own = self.own();
        if let Some(own) = &*own {
            return Ok(own.clone());
        }
        let name = u128::from_be_bytes(*Nonce::random()?.as_bytes());
        Ok(own.insert(question(&format!("{name:032x}"))?).clone())
    }

    /// Takes down what was found, and says what changed.
    pub(crate) fn found(&self, found: Condition) {
        let mut known = self.known();
        let failures = std::mem::take(&mut known.failures);
        let now = Instant::now();
        let changed = std::mem::discriminant(&found) != std::mem::discriminant(&known.condition);
        let may_remind = known.told.is_none_or(|told| now - told >= REMIND_EVERY);
        if changed {
            match &found {
                Condition::Up => tracing::info!(
                    "store: works again after {}",
                    humantime::format_duration(whole(now - known.since))
                ),
                trouble => tracing::error!("store: {trouble}"),
            }
        } else if found != Condition::Up && found != known.condition && may_remind {
            tracing::error!("store: {found}");
        } else if found == Condition::Up && failures > 0 && may_remind {
            tracing::warn!(
                failures,
                "store: calls failed, and it works again; the last said: {}",
                known.last_failure
            );
        } else {
            known.condition = found;
            return;
        }
        known.told = Some(now);
        if changed {
            known.since = now;
            self.metrics.store_is(&found);
        }
        known.condition = found;
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Up => f.write_str("works"),
            Self::Full(reason) => write!(
                f,
                "no room for new keys, which get 503 `capacity`; replays and what runs already go \
                 on: {reason}"
            ),
            Self::Down(reason) => write!(
                f,
                "cannot be used now, and requests with keys get 503; it is asked again every second: \
                 {reason}"
            ),
        }
    }
}

/// Milliseconds are enough for people.
fn whole(time: Duration) -> Duration {
    Duration::from_millis(time.as_millis().try_into().unwrap_or(u64::MAX))
}

/// What came of a question.
#[derive(PartialEq, Eq)]
enum Asked {
    /// The store took the claim, and its end.
    Answered,
    /// Another gateway is just asking it.
    ByAnother,
    /// It was, and its record is still there.
    Kept,
}

async fn asked<S: Store>(store: &S, question: &Identity) -> Result<Asked, StoreError> {
    let token = match store.claim(question, &request()?).await? {
        Claim::Acquired(acquired) => acquired.token,
        Claim::Completed { .. } => return Ok(Asked::Kept),
        _ => return Ok(Asked::ByAnother),
    };
    let (outcome, retention) = (Outcome::void(), Retention::new(Duration::ZERO));
    let completed = store.complete(question.digest(), &token, &outcome, retention);
    completed.await.map(|_| Asked::Answered)
}

fn request() -> Result<ClaimRequest, StoreError> {
    // What a gateway, or a store, that died leaves behind keeps the others from an answer no longer.
    let request = ClaimRequest::new(Nonce::random()?, Fingerprint::of(b""), REST);
    Ok(request.with_on_lost(OnLost::Retry))
}

fn condition_of(error: &StoreError) -> Condition {
    match error.kind() {
        StoreErrorKind::Capacity => Condition::Full(error.to_string()),
        _ => Condition::Down(error.to_string()),
    }
}

/// The scope and the operation of what the store is asked.
const QUESTION: (&str, &str) = ("semel", "check");

/// Whether a record is what the store was asked, and no operation of anybody's.
pub(crate) fn is_question(label: &Label) -> bool {
    label.scope.segments().eq([QUESTION.0]) && *label.operation == *QUESTION.1
}

/// The key that all gateways ask about: whoever finds a record that another left behind takes it over.
const COMMON: &str = "check";

/// A record of no request's.
fn question(key: &str) -> Result<Identity, StoreError> {
    let key = Key::new(key).map_err(|e| StoreError::new(StoreErrorKind::Config, e.to_string()))?;
    Ok(Identity::new(Scope::new([QUESTION.0]), QUESTION.1, key))
}

#[cfg(test)]
mod tests {
    use semel::SystemClock;
    use semel::memory::{Limits, MemoryStore};
    use semel::record::Change;
    use semel::store::{Fenced, Token};

    use super::*;

    /// What a gateway asks.
    fn common() -> Identity {
        question(COMMON).unwrap()
    }

    /// A question is asked, and not ended.
    async fn left(store: &MemoryStore<SystemClock>, question: &Identity) -> Token {
        let claim = store.claim(question, &request().unwrap()).await.unwrap();
        let Claim::Acquired(acquired) = claim else {
            panic!("{claim:?}");
        };
        acquired.token
    }

    fn store() -> Arc<MemoryStore<SystemClock>> {
        Arc::new(MemoryStore::with_clock(
            Limits::default(),
            SystemClock::new(),
        ))
    }

    #[test]
    fn a_question_is_known_as_one() {
        assert!(is_question(&Label::from(&common())));
        let theirs = Identity::new(Scope::new(["semel", "x"]), "check", Key::new("k").unwrap());
        assert!(!is_question(&Label::from(&theirs)));
    }

    /// A store that dies may take the end of a question with it.
    #[tokio::test(start_paused = true)]
    async fn a_question_that_was_left_behind_delays_the_next_by_a_moment() {
        let store = store();
        let health = Arc::new(Health::new(Arc::new(Metrics::new())));
        left(&store, &common()).await;
        health.found(Condition::Down("gone".to_owned()));
        assert_eq!(health.look_again(&store).await, Condition::Up);
        left(&store, &common()).await;
        health.found(Condition::Down("gone".to_owned()));
        let begun = Instant::now();
        let watching = tokio::spawn(Arc::clone(&health).watch(store));
        while health.condition() != Condition::Up {
            sleep(Duration::from_millis(10)).await;
        }
        assert!(begun.elapsed() < EVERY + 2 * REST, "{:?}", begun.elapsed());
        watching.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_doubt_stays_until_a_question_of_its_own_has_an_answer() {
        let store = store();
        left(&store, &common()).await;
        let health = Arc::new(Health::new(Arc::new(Metrics::new())));
        health.failed(&StoreError::new(StoreErrorKind::NotApplied, "read-only"));
        let watching = tokio::spawn(Arc::clone(&health).watch(Arc::clone(&store)));
        sleep(2 * REST).await;
        // It took over, and completed what is kept no longer.
        assert_eq!(store.get(common().digest()).await.unwrap(), None);
        watching.abort();
    }

    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Others {
        /// They have the record that gateways share locked, and that is waited for.
        Lock,
        /// They keep changing it, and that is said at once.
        Change,
        /// The same with all records.
        ChangeAll,
    }

    #[derive(Debug)]
    struct Contended {
        inner: Arc<MemoryStore<SystemClock>>,
        others: Others,
    }

    impl Store for Contended {
        async fn claim(
            &self,
            identity: &Identity,
            request: &ClaimRequest,
        ) -> Result<Claim, StoreError> {
            if self.others == Others::Lock && *identity == common() {
                std::future::pending::<()>().await;
            }
            if self.others == Others::ChangeAll || *identity == common() {
                return Err(StoreError::new(StoreErrorKind::Contended, "locked"));
            }
            self.inner.claim(identity, request).await
        }

        semel::delegate!(inner: change, get, list, purge, wait, probe, close);
    }

    #[tokio::test(start_paused = true)]
    async fn others_at_the_record_are_other_gateways_unless_they_are_everywhere() {
        for (others, found) in [
            (Others::Lock, Condition::Up),
            (Others::Change, Condition::Up),
            (Others::ChangeAll, Condition::Down("locked".into())),
        ] {
            let health = Health::new(Arc::new(Metrics::new()));
            health.found(Condition::Down("gone".to_owned()));
            let inner = store();
            assert_eq!(health.look_again(&Contended { inner, others }).await, found);
        }
    }

    /// A process whose clock is ahead ends a question in the future of the others.
    #[tokio::test(start_paused = true)]
    async fn a_question_that_seems_to_be_kept_is_asked_elsewhere_and_leaves_one_record() {
        let store = store();
        let hour = Retention::new(Duration::from_hours(1));
        let kept = async |token| {
            let change = Change::complete(&token, &Outcome::void(), hour);
            let changed = store.change(common().digest(), &change).await;
            assert_eq!(changed.unwrap(), Fenced::Applied);
        };
        kept(left(&store, &common()).await).await;
        let health = Health::new(Arc::new(Metrics::new()));
        for _ in 0..3 {
            health.found(Condition::Down("gone".to_owned()));
            left(&store, &health.own_question().unwrap()).await;
            assert_eq!(health.look_again(&store).await, Condition::Up);
        }
        assert_eq!(store.len(), 2);
    }
}
