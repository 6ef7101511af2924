//! Faults for a store inside the process: answers that are dropped after the step was done, steps
//! that are refused before, and delays on either side. All the time, or in [spells](Flaky::in_spells),
//! in which half of the steps without an answer are sent again, as the stores on servers do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use semel::record::Change;
use semel::store::{Claim, ClaimRequest, Entry, Fenced, Purged, Result};
use semel::{AnyStore, Identity, IdentityDigest, Store, StoreError, StoreErrorKind};

use crate::check::Trouble;
use crate::clock::{Nanos, now};

/// How many of a thousand calls meet which fault.
#[derive(Debug, Clone, Copy, Default)]
pub struct Odds {
    /// Done, but nobody is told.
    pub answers_dropped: u32,
    /// Not done, and the caller is told so.
    pub refused: u32,
    /// Done late, or told late.
    pub delayed: u32,
}

/// A store whose network is bad.
#[derive(Debug, Clone)]
pub struct Flaky {
    inner: AnyStore,
    odds: Odds,
    chance: Arc<Mutex<fastrand::Rng>>,
    dropped: Arc<AtomicUsize>,
    /// When it was made, if it is bad in spells.
    spells_from: Option<Nanos>,
}

/// How long a spell lasts, and the peace after it.
const SPELL: Nanos = 150_000_000;
const PEACE: Nanos = 450_000_000;

impl Flaky {
    /// A bad network before `inner`, the same for the same seed and order of calls.
    pub fn new(inner: AnyStore, odds: Odds, seed: u64) -> Self {
        Self {
            inner,
            odds,
            chance: Arc::new(Mutex::new(fastrand::Rng::with_seed(seed))),
            dropped: Arc::default(),
            spells_from: None,
        }
    }

    /// The same with faults in spells only, ten times as many, beginning now.
    #[must_use]
    pub fn in_spells(mut self) -> Self {
        self.odds.answers_dropped *= 10;
        self.odds.refused *= 10;
        self.odds.delayed *= 10;
        self.spells_from = Some(now());
        self
    }

    /// The spells until now.
    pub fn troubles(&self) -> Vec<Trouble> {
        let Some(begun) = self.spells_from else {
            return Vec::new();
        };
        let starts = (begun..now()).step_by(usize::try_from(SPELL + PEACE).unwrap_or(usize::MAX));
        starts
            .map(|from| Trouble {
                from,
                until: from + SPELL,
                worker: None,
            })
            .collect()
    }

    fn is_bad(&self) -> bool {
        self.spells_from
            .is_none_or(|begun| (now() - begun) % (SPELL + PEACE) < SPELL)
    }

    /// How many faults there were.
    pub fn faults(&self) -> usize {
        self.dropped.load(Ordering::Relaxed)
    }

    fn roll(&self) -> (u32, Duration) {
        let mut chance = self.chance.lock();
        (chance.u32(..1000), Duration::from_millis(chance.u64(1..20)))
    }

    async fn through<T, F>(&self, step: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        if !self.is_bad() {
            return step().await;
        }
        let (roll, pause) = self.roll();
        let Odds {
            answers_dropped,
            refused,
            delayed,
        } = self.odds;
        let fault = |kind, what: &str| {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            Err(StoreError::new(kind, what))
        };
        if roll < answers_dropped {
            step().await?;
            if self.spells_from.is_some() && roll % 2 == 0 {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(pause).await;
                return step().await;
            }
            return fault(StoreErrorKind::Unknown, "the answer was dropped");
        }
        if roll < answers_dropped + refused {
            return fault(StoreErrorKind::NotApplied, "the connection was refused");
        }
        if roll < answers_dropped + refused + delayed {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            if roll % 2 == 0 {
                tokio::time::sleep(pause).await;
                return step().await;
            }
            let answer = step().await;
            tokio::time::sleep(pause).await;
            return answer;
        }
        step().await
    }
}

impl Store for Flaky {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        self.through(|| self.inner.claim(identity, request)).await
    }

    async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        self.through(|| self.inner.change(identity, change)).await
    }

    async fn get(&self, identity: &IdentityDigest) -> Result<Option<Entry>> {
        self.through(|| self.inner.get(identity)).await
    }

    semel::delegate!(inner: list, wait, probe, close);

    async fn purge(&self, limit: usize) -> Result<Purged> {
        self.through(|| self.inner.purge(limit)).await
    }
}
