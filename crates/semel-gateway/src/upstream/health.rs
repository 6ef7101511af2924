//! Whether an address can be used: what becomes of connections to it, and of checks where a path is named
//! for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::Address;
use crate::metrics::Metrics;

/// After so many connections in a row that failed, others are preferred.
const FAILURES: u32 = 3;
/// How long they are; then one request tries again.
const PAUSE: Duration = Duration::from_secs(10);
/// After so many checks in a row that failed, others are preferred.
const BAD_CHECKS: u32 = 2;

/// What is known of an address.
pub(crate) struct Health {
    address: Address,
    /// Connections in a row that failed.
    failures: AtomicU32,
    /// When the last one did, in milliseconds after `since`.
    failed: AtomicU64,
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
            failed: AtomicU64::new(0),
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
        !self.is_ejected() && self.bad_checks.load(Ordering::Relaxed) < BAD_CHECKS
    }

    fn is_ejected(&self) -> bool {
        self.failures.load(Ordering::Relaxed) >= FAILURES
    }

    /// Whether it is time to try again where connections failed. Of all who ask at that time one tries.
    pub(super) fn takes_trial(&self) -> bool {
        if !self.is_ejected() || self.bad_checks.load(Ordering::Relaxed) >= BAD_CHECKS {
            return false;
        }
        let failed = self.failed.load(Ordering::Relaxed);
        let now = self.now();
        now.saturating_sub(failed) >= PAUSE.as_millis().try_into().unwrap_or(u64::MAX)
            && self
                .failed
                .compare_exchange(failed, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    fn now(&self) -> u64 {
        self.since
            .elapsed()
            .as_millis()
            .try_into()
            .unwrap_or(u64::MAX)
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
        self.failed.store(self.now(), Ordering::Relaxed);
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.tell("3 connections in a row failed");
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
