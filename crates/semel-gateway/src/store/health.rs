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

    /// Asks the store until it is known how it is now.
    pub async fn look_again<S: Store>(&self, store: &S) {
        let looking = async {
            while !self.look(store, true).await {
                sleep(REST).await;
            }
        };
        // As before, where it does not become known.
        timeout(PROBE_TIMEOUT, looking).await.ok();
    }

    /// Asks the store once; whether it takes new keys only where that is doubted. Whether something was
    /// learnt of it: another gateway may just be asking the same.
    async fn look<S: Store>(&self, store: &S, failed: bool) -> bool {
        let suspected = failed || self.condition() != Condition::Up;
        let asked = timeout(PROBE_TIMEOUT, ask(store, suspected)).await;
        let found = asked.unwrap_or_else(|_| {
            let reason = format!("no answer within {PROBE_TIMEOUT:?}");
            Some(Condition::Down(reason))
        });
        let is_known = found.is_some();
        found.into_iter().for_each(|found| self.found(found));
        is_known
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

/// Asks the store whether it reads and, where that is doubted, whether it takes a new key and its
/// answer. `None`: another gateway is just asking the same.
async fn ask<S: Store>(store: &S, suspected: bool) -> Option<Condition> {
    let (identity, request) = match question() {
        Ok(question) => question,
        Err(reason) => return Some(Condition::Down(reason)),
    };
    if let Err(error) = store.get(identity.digest()).await {
        return Some(Condition::Down(error.to_string()));
    }
    if !suspected {
        return Some(Condition::Up);
    }
    let token = match store.claim(&identity, &request).await {
        Ok(Claim::Acquired(acquired)) => acquired.token,
        Ok(_) => return None,
        Err(error) => return Some(condition_of(&error)),
    };
    let retention = Retention::new(Duration::ZERO);
    let outcome = Outcome::void();
    let completed = store.complete(identity.digest(), &token, &outcome, retention);
    Some(
        completed
            .await
            .map_or_else(|e| condition_of(&e), |_| Condition::Up),
    )
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

/// A record of no request's, the same for all gateways: whoever finds one that another left behind
/// takes it over.
fn question() -> Result<(Identity, ClaimRequest), String> {
    let key = Key::new("check").map_err(|e| e.to_string())?;
    let identity = Identity::new(Scope::new([QUESTION.0]), QUESTION.1, key);
    let request = ClaimRequest::new(
        Nonce::random().map_err(|e| e.to_string())?,
        Fingerprint::of(b""),
        // What a gateway, or a store, that died leaves behind keeps the others from an answer no longer.
        REST,
    )
    .with_on_lost(OnLost::Retry);
    Ok((identity, request))
}

#[cfg(test)]
mod tests {
    use semel::SystemClock;
    use semel::memory::{Limits, MemoryStore};

    use super::*;

    #[test]
    fn a_question_can_be_asked_and_is_known_as_one() {
        let (identity, _) = question().unwrap();
        assert!(is_question(&Label::from(&identity)));
        let theirs = Identity::new(Scope::new(["semel", "x"]), "check", Key::new("k").unwrap());
        assert!(!is_question(&Label::from(&theirs)));
    }

    /// A store that dies may take the end of a question with it.
    #[tokio::test(start_paused = true)]
    async fn a_question_that_was_left_behind_delays_the_next_by_a_moment() {
        let store = MemoryStore::with_clock(Limits::default(), SystemClock::new());
        let health = Health::new(Arc::new(Metrics::new()));
        let left = || async {
            let (identity, request) = question().unwrap();
            let claim = store.claim(&identity, &request).await.unwrap();
            assert!(matches!(claim, Claim::Acquired(_)), "{claim:?}");
            health.found(Condition::Down("gone".to_owned()));
        };
        left().await;
        health.look_again(&store).await;
        assert_eq!(health.condition(), Condition::Up);
        left().await;
        let (health, begun) = (Arc::new(health), Instant::now());
        let watching = tokio::spawn(Arc::clone(&health).watch(store));
        while health.condition() != Condition::Up {
            sleep(Duration::from_millis(10)).await;
        }
        assert!(begun.elapsed() < EVERY + 2 * REST, "{:?}", begun.elapsed());
        watching.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_doubt_stays_until_a_question_of_its_own_has_an_answer() {
        let store = Arc::new(MemoryStore::with_clock(
            Limits::default(),
            SystemClock::new(),
        ));
        let (identity, request) = question().unwrap();
        let claim = store.claim(&identity, &request).await.unwrap();
        assert!(matches!(claim, Claim::Acquired(_)), "{claim:?}");
        let health = Arc::new(Health::new(Arc::new(Metrics::new())));
        health.failed(&StoreError::new(StoreErrorKind::NotApplied, "read-only"));
        let watching = tokio::spawn(Arc::clone(&health).watch(Arc::clone(&store)));
        sleep(2 * REST).await;
        // It took over, and completed what is kept no longer.
        assert_eq!(store.get(identity.digest()).await.unwrap(), None);
        watching.abort();
    }
}
