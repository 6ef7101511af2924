//! What came of it: a line of JSON, the last one, and a line on standard error for each violation.

use anyhow::Result;
use serde::Serialize;

use crate::reasons::Reasons;

/// Killed between effect and completion, and asked again under `hold`.
#[derive(Debug, Default, Serialize)]
pub(super) struct Hold {
    pub(super) killed_before_effect: usize,
    pub(super) killed_after_effect: usize,
    /// Retries that were told so.
    pub(super) unknown: usize,
}

/// The same, with a reconciler in the background.
#[derive(Debug, Default, Serialize)]
pub(super) struct Reconcile {
    pub(super) killed_before_effect: usize,
    pub(super) killed_after_effect: usize,
    /// Records that were resolved before any client asked again.
    pub(super) resolved_by_themselves: usize,
    /// Retries of what had happened.
    pub(super) replayed: usize,
    /// Retries of what had not.
    pub(super) ran: usize,
}

/// Stopped before its effect until another took over, and then let go on, under `retry`.
#[derive(Debug, Default, Serialize)]
pub(super) struct Retry {
    pub(super) stopped: usize,
    pub(super) taken_over: usize,
    pub(super) stale_effects_refused: usize,
    pub(super) superseded: usize,
    pub(super) replayed: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct Report {
    store: String,
    seed: u64,
    kills: usize,
    pub(super) hold: Hold,
    pub(super) reconcile: Reconcile,
    /// `null` on a store that one process has open at a time.
    pub(super) retry: Option<Retry>,
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
            hold: Hold::default(),
            reconcile: Reconcile::default(),
            retry: None,
            double_effects: 0,
            lost_effects: 0,
            violations: 0,
            reasons: Reasons::default(),
        }
    }

    pub(super) const fn killed(&mut self) {
        self.kills += 1;
    }

    /// Counts one, where it holds; says why on standard error, where it does not.
    pub(super) fn must(&mut self, holds: bool, what: impl FnOnce() -> String) -> usize {
        if !holds {
            self.violations += 1;
            eprintln!("violation: {}", what());
        }
        usize::from(holds)
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
