//! What a run prints: a line of JSON, the last one, and for people an excerpt of the history around
//! each violation before it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;

use crate::bugs::Bug;
use crate::check::{Findings, excerpt};
use crate::clock::{Nanos, millis};
use crate::history::{Answer, Failed, Op};
use crate::reasons::{Faults, Reasons};
use crate::torture::Recovery;

/// How the calls of one step ended.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Counts {
    /// With an answer.
    ok: usize,
    /// With a refusal: nothing was changed.
    refused: usize,
    /// Without one: it may have happened.
    unknown: usize,
    /// With an error that says that it did not happen.
    failed: usize,
}

/// What was found in a history, in numbers.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Found {
    violations: usize,
    violations_by_property: BTreeMap<&'static str, usize>,
    lost: usize,
    double_effects: usize,
    explained_effects: usize,
    /// Calls of histories that were searched for an order, and of those whose search was given up.
    linear_calls: usize,
    linear_undecided: usize,
}

impl From<&Findings> for Found {
    fn from(findings: &Findings) -> Self {
        Self {
            violations: findings.violations.len(),
            violations_by_property: findings.by_property(),
            lost: findings.lost,
            double_effects: findings.double_effects,
            explained_effects: findings.explained_effects,
            linear_calls: findings.searched.calls,
            linear_undecided: findings.undecided.calls,
        }
    }
}

/// What came of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub(crate) store: String,
    pub(crate) seed: u64,
    pub(crate) processes: u32,
    pub(crate) tasks: u32,
    pub(crate) keys: u32,
    pub(crate) seconds: f64,
    #[serde(flatten)]
    pub(crate) calls: Calls,
    pub(crate) per_second: usize,
    pub(crate) effects: usize,
    pub(crate) effects_refused: usize,
    #[serde(flatten)]
    pub(crate) faults: Faults,
    #[serde(flatten)]
    pub(crate) recovery: Option<Recovery>,
    #[serde(flatten)]
    pub(crate) found: Found,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bug: Option<Bug>,
    #[serde(flatten)]
    pub(crate) reasons: Reasons,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) history: Option<PathBuf>,
}

impl Report {
    /// How many acknowledged completions were not replayed.
    pub const fn lost(&self) -> usize {
        self.found.lost
    }
}

/// How the calls of a run ended.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Calls {
    pub(crate) operations: usize,
    steps: BTreeMap<&'static str, Counts>,
    pub(crate) completions: usize,
    replays: usize,
    takeovers: usize,
}

impl Calls {
    pub(crate) fn of(ops: &[Op]) -> Self {
        let mut calls = Self {
            operations: ops.len(),
            ..Self::default()
        };
        for op in ops {
            let counts = calls.steps.entry(op.call.name()).or_default();
            let count = match op.answer {
                Answer::Refused(_) | Answer::Mismatch => &mut counts.refused,
                Answer::Lost | Answer::Failed(Failed::Perhaps) => &mut counts.unknown,
                Answer::Failed(Failed::Not) => &mut counts.failed,
                _ => &mut counts.ok,
            };
            *count += 1;
            match op.answer {
                Answer::Completed { .. } => calls.replays += 1,
                Answer::Acquired { attempt, .. } if attempt > 1 => calls.takeovers += 1,
                _ => {}
            }
        }
        calls.completions = calls.steps.get("complete").map_or(0, |c| c.ok);
        calls
    }
}

/// So many violations are shown in detail.
const SHOWN: usize = 8;
const EXCERPT: usize = 32;

/// The first violations with the history around them, in ms from `begun`.
pub(crate) fn details(ops: &[Op], findings: &Findings, begun: Nanos) -> Vec<String> {
    let mut lines = Vec::new();
    for violation in findings.violations.iter().take(SHOWN) {
        let at = millis(violation.at.saturating_sub(begun));
        lines.push(format!(
            "{} at {at:.3} ms, key {}: {}",
            violation.property, violation.key, violation.what
        ));
        lines.extend(excerpt(ops, violation.key, violation.at, begun, EXCERPT));
    }
    lines
}
