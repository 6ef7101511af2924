//! Faults for a store inside the process: answers that are dropped after the step was done, steps
//! that are refused before, and delays on either side. All the time, or in [spells](Flaky::in_spells),
//! in which half of the steps without an answer are sent again, as the stores on servers do.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use semel::record::Change;
use semel::store::{Claim, ClaimRequest, Entry, Fenced, Purged, Result};
use semel::{AnyStore, Identity, IdentityDigest, Store, StoreError, StoreErrorKind};

use crate::check::Trouble;
use crate::clock::{Nanos, now};

/// So many of a thousand calls are done, but nobody is told; not done, and the caller is told so; and
/// done late, or told late. In spells it is ten times as many.
const DROPPED: u32 = 10;
const REFUSED: u32 = 5;
const DELAYED: u32 = 20;

/// A store whose network is bad.
#[derive(Debug, Clone)]
pub struct Flaky {
    inner: AnyStore,
    chance: Arc<Mutex<fastrand::Rng>>,
    /// When it was made, if it is bad in spells.
    spells_from: Option<Nanos>,
}

/// How long a spell lasts, and the peace after it.
const SPELL: Nanos = 150_000_000;
const PEACE: Nanos = 450_000_000;

impl Flaky {
    /// A bad network before `inner`, the same for the same seed and order of calls.
    pub fn new(inner: AnyStore, seed: u64) -> Self {
        Self {
            inner,
            chance: Arc::new(Mutex::new(fastrand::Rng::with_seed(seed))),
            spells_from: None,
        }
    }

    /// The same with faults in spells only, ten times as many, beginning now.
    #[must_use]
    pub fn in_spells(mut self) -> Self {
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
        let times = if self.spells_from.is_some() { 10 } else { 1 };
        let fault = |kind, what: &str| Err(StoreError::new(kind, what));
        if roll < times * DROPPED {
            step().await?;
            if self.spells_from.is_some() && roll % 2 == 0 {
                tokio::time::sleep(pause).await;
                return step().await;
            }
            return fault(StoreErrorKind::Unknown, "the answer was dropped");
        }
        if roll < times * (DROPPED + REFUSED) {
            return fault(StoreErrorKind::NotApplied, "the connection was refused");
        }
        if roll < times * (DROPPED + REFUSED + DELAYED) {
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
