//! What came of it: a line of JSON, the last one, and a line on standard error for each violation.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;

use crate::gateway::OnLost;
use crate::named::Named as _;
use crate::reasons::Reasons;

#[derive(Debug, Serialize)]
pub(super) struct Report {
    store: String,
    seed: u64,
    pub(super) kills: usize,
    /// How often what happened, under each policy that was tried.
    #[serde(flatten)]
    counts: BTreeMap<String, BTreeMap<&'static str, usize>>,
    pub(super) double_effects: usize,
    pub(super) lost_effects: usize,
    violations: usize,
    #[serde(flatten)]
    reasons: Reasons,
}

impl Report {
    pub(super) fn new(store: String, seed: u64) -> Self {
        Self {
            store,
            seed,
            kills: 0,
            counts: BTreeMap::new(),
            double_effects: 0,
            lost_effects: 0,
            violations: 0,
            reasons: Reasons::default(),
        }
    }

    pub(super) fn count(&mut self, policy: OnLost, what: &'static str, times: usize) {
        let counts = self.counts.entry(policy.name()).or_default();
        *counts.entry(what).or_default() += times;
    }

    /// Counts one, where it holds; says why on standard error, where it does not.
    pub(super) fn must(
        &mut self,
        policy: OnLost,
        what: &'static str,
        holds: bool,
        wrong: impl FnOnce() -> String,
    ) {
        self.count(policy, what, usize::from(holds));
        if !holds {
            self.violations += 1;
            eprintln!("violation: {}: {}", policy.name(), wrong());
        }
    }

    /// Prints it. Whether nothing is wrong, and something was shown.
    pub(super) fn tell(mut self) -> Result<bool> {
        self.reasons.counted([("violations", self.violations)]);
        if self.kills == 0 {
            self.reasons.too_little("nobody was killed");
        }
        self.reasons.tell(&self)
    }
}
