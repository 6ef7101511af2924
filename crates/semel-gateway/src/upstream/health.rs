//! Whether an address can be used: what becomes of connections to it and of requests, and of checks where a
//! path is named for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::Address;
use crate::metrics::Metrics;

/// After so many connections in a row that failed, others are preferred.
const FAILURES: u32 = 3;
/// How long they are; then one request tries again. It costs nothing: nothing is sent.
const PAUSE: Duration = Duration::from_secs(10);
/// After so many requests in a row without an answer of the service, others are preferred. This and the
/// pauses are Envoy's.
const BAD_ANSWERS: u32 = 5;
/// How long they are for the first time; as much longer after each trial that failed, up to the longest. It
/// can cost an outcome that nobody knows.
const ANSWER_PAUSE: Duration = Duration::from_secs(30);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// After so many checks in a row that failed, others are preferred.
const BAD_CHECKS: u32 = 2;

/// What is known of an address. Times are in milliseconds after `since`.
pub(crate) struct Health {
    address: Address,
    /// Connections in a row that failed.
    failures: AtomicU32,
    /// Requests in a row that were not answered.
    bad_answers: AtomicU32,
    /// How often it went out for those, with the trials that failed.
    ejections: AtomicU32,
    /// When it came back after that.
    returned: AtomicU64,
    /// When the next request may try it, while it is out.
    trial: AtomicU64,
    /// Whether a trial was begun after bad answers, of which nothing is known yet.
    is_tried: AtomicBool,
    since: Instant,
    /// Checks in a row that failed.
    bad_checks: AtomicU32,
    was_up: AtomicBool,
    /// Requests under way, where there is a choice.
    pub(super) busy: Arc<AtomicUsize>,
    metrics: Arc<Metrics>,
}

impl Health {
    pub(crate) fn new(address: &Address, metrics: Arc<Metrics>) -> Self {
        Self {
            address: address.clone(),
            failures: AtomicU32::new(0),
            bad_answers: AtomicU32::new(0),
            ejections: AtomicU32::new(0),
            returned: AtomicU64::new(0),
            trial: AtomicU64::new(0),
            is_tried: AtomicBool::new(false),
            since: Instant::now(),
            bad_checks: AtomicU32::new(0),
            was_up: AtomicBool::new(true),
            busy: Arc::default(),
            metrics,
        }
    }

    pub(crate) const fn address(&self) -> &Address {
        &self.address
    }

    /// Whether nothing speaks against it.
    pub(crate) fn is_up(&self) -> bool {
        self.is_reachable() && !self.answers_badly()
    }

    /// Whether nothing but its answers speaks against it.
    pub(super) fn is_reachable(&self) -> bool {
        !self.is_unreached() && !self.is_ill()
    }

    fn is_unreached(&self) -> bool {
        self.failures.load(Ordering::Relaxed) >= FAILURES
    }

    fn is_ill(&self) -> bool {
        self.bad_checks.load(Ordering::Relaxed) >= BAD_CHECKS
    }

    fn answers_badly(&self) -> bool {
        self.bad_answers.load(Ordering::Relaxed) >= BAD_ANSWERS
    }

    /// Whether it is time to try again what failed. Of all who ask at that time one tries.
    pub(super) fn takes_trial(&self) -> bool {
        let answers_badly = self.answers_badly();
        if self.is_ill() || !(self.is_unreached() || answers_badly) {
            return false;
        }
        let (trial, now) = (self.trial.load(Ordering::Relaxed), self.now());
        if now < trial {
            return false;
        }
        // The shortest there is: from a client that leaves nothing is learnt.
        let pause = match answers_badly {
            true => ANSWER_PAUSE,
            false => PAUSE,
        };
        let next = now.saturating_add(millis(pause));
        let is_first = self
            .trial
            .compare_exchange(trial, next, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok();
        if is_first {
            self.is_tried.store(answers_badly, Ordering::Relaxed);
        }
        is_first
    }

    fn now(&self) -> u64 {
        millis(self.since.elapsed())
    }

    /// No requests until then, but for a trial.
    fn rest(&self, pause: Duration) {
        let until = self.now().saturating_add(millis(pause));
        self.trial.fetch_max(until, Ordering::Relaxed);
    }

    /// A connection was made.
    pub(crate) fn reached(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
            self.tell("connected");
        }
    }

    /// No connection was made.
    pub(crate) fn unreached(&self) {
        self.metrics.upstream_unreached(&self.address);
        // Those who are late have nothing to add.
        if self.failures.fetch_add(1, Ordering::Relaxed) == FAILURES - 1 {
            self.rest(PAUSE);
        }
        self.tell("3 connections in a row failed");
    }

    /// A request was answered by the service, or not: without an answer, or with one that says that the
    /// service was not there.
    pub(crate) fn answered(&self, is_good: bool) {
        if !is_good {
            let before = self.bad_answers.fetch_add(1, Ordering::Relaxed);
            if before == BAD_ANSWERS - 1 {
                self.ejected();
            } else if before >= BAD_ANSWERS && self.is_tried.swap(false, Ordering::Relaxed) {
                // One of them for each trial: what was under way before it prolongs nothing.
                self.rest_longer();
            }
            self.tell("5 requests in a row had no answer, or 502");
        } else if self.bad_answers.load(Ordering::Relaxed) != 0 {
            if self.answers_badly() {
                self.returned.store(self.now(), Ordering::Relaxed);
                self.trial.store(0, Ordering::Relaxed);
            }
            self.bad_answers.store(0, Ordering::Relaxed);
            self.tell("answered");
        }
    }

    fn ejected(&self) {
        let returned = self.returned.load(Ordering::Relaxed);
        if self.now().saturating_sub(returned) >= millis(LONGEST_PAUSE) {
            self.ejections.store(0, Ordering::Relaxed);
        }
        self.is_tried.store(false, Ordering::Relaxed);
        self.rest_longer();
    }

    fn rest_longer(&self) {
        let before = self.ejections.fetch_add(1, Ordering::Relaxed);
        self.rest(answer_pause(before.saturating_add(1)));
    }

    /// A check was answered as it should be, or not.
    pub(crate) fn checked(&self, is_good: bool, why: &str) {
        if is_good {
            self.bad_checks.store(0, Ordering::Relaxed);
        } else {
            self.bad_checks.fetch_add(1, Ordering::Relaxed);
        }
        self.tell(why);
    }

    /// Tells what has changed, if anything has.
    fn tell(&self, why: &str) {
        let is_up = self.is_up();
        if self.was_up.swap(is_up, Ordering::Relaxed) == is_up {
            return;
        }
        let upstream = &self.address;
        if is_up {
            tracing::info!(%upstream, "upstream: up again: {why}");
        } else {
            tracing::warn!(%upstream, "upstream: down: {why}");
        }
    }
}

fn answer_pause(ejections: u32) -> Duration {
    ANSWER_PAUSE.saturating_mul(ejections).min(LONGEST_PAUSE)
}

fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health() -> Health {
        let address = "http://127.0.0.1:9".parse().unwrap();
        Health::new(&address, Arc::new(Metrics::new()))
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_fails_is_tried_by_one_after_a_pause() {
        let health = health();
        health.unreached();
        health.unreached();
        assert!(health.is_up());
        health.reached();
        for _ in 0..3 {
            assert!(health.is_up());
            health.unreached();
        }
        assert!(!health.is_up());
        assert!(!health.takes_trial());
        tokio::time::advance(PAUSE).await;
        assert_eq!([(); 3].map(|()| health.takes_trial()), [true, false, false]);
        health.unreached();
        tokio::time::advance(PAUSE).await;
        assert!(health.takes_trial());
        health.reached();
        assert!(health.is_up());
        assert!(!health.takes_trial());
    }

    fn fail(health: &Health) {
        for _ in 0..BAD_ANSWERS {
            assert!(health.is_up());
            health.answered(false);
        }
        assert!(!health.is_up());
    }

    /// How long it takes until somebody tries, to a second.
    async fn until_trial(health: &Health) -> u64 {
        for seconds in 0..1000 {
            if health.takes_trial() {
                return seconds;
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        panic!("nobody tries");
    }

    #[tokio::test(start_paused = true)]
    async fn the_pauses_of_an_address_that_does_not_answer_grow() {
        let health = health();
        for _ in 1..BAD_ANSWERS {
            health.answered(false);
        }
        health.answered(true);
        fail(&health);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            pauses.push(until_trial(&health).await);
            assert!(!health.takes_trial());
            health.answered(false);
            // Nor is a connection an answer.
            health.reached();
            assert!(!health.is_up());
        }
        assert_eq!(pauses[..4], [30, 60, 90, 120]);
        assert_eq!(pauses[9..], [300, 300, 300]);
        health.answered(true);
        assert!(health.is_up());
        assert!(!health.takes_trial());
        // Not well for long: not as if nothing had been.
        fail(&health);
        assert_eq!(until_trial(&health).await, 300);
        health.answered(true);
        tokio::time::advance(LONGEST_PAUSE).await;
        fail(&health);
        assert_eq!(until_trial(&health).await, 30);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_under_way_when_an_address_went_out_prolongs_nothing() {
        let health = health();
        fail(&health);
        for _ in 0..100 {
            health.answered(false);
        }
        assert_eq!(until_trial(&health).await, 30);
        // An answer to any of them brings it back at once.
        health.answered(true);
        assert!(health.is_up());
        for _ in 0..FAILURES {
            health.unreached();
        }
        assert_eq!(until_trial(&health).await, 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_trial_of_which_nothing_is_learnt_makes_no_pause_longer() {
        let health = health();
        fail(&health);
        for _ in 0..4 {
            assert_eq!(until_trial(&health).await, 30);
        }
        for _ in 0..100 {
            health.answered(false);
        }
        assert_eq!(until_trial(&health).await, 60);
    }

    #[tokio::test]
    async fn an_answer_overrules_no_check() {
        let health = health();
        health.checked(false, "503");
        health.checked(false, "503");
        health.answered(false);
        health.answered(true);
        assert!(!health.is_up());
        (0..BAD_ANSWERS).for_each(|_| health.answered(false));
        assert!(!health.takes_trial());
        health.checked(true, "200");
        assert!(!health.is_up());
    }

    #[tokio::test]
    async fn bad_checks_count_until_a_good_one() {
        let health = health();
        health.checked(false, "503");
        assert!(health.is_up());
        health.checked(false, "503");
        assert!(!health.is_up());
        health.reached();
        assert!(!health.is_up());
        health.checked(true, "200");
        assert!(health.is_up());
    }
}
