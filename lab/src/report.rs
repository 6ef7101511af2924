//! What a run prints: a line of JSON, the last one, and for people an excerpt of the history around
//! each violation before it.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use crate::bugs::Bug;
use crate::check::{Findings, excerpt};
use crate::clock::{Nanos, millis};
use crate::history::{Answer, Failed, Op};
use crate::nemesis::Fault;
use crate::reasons::Reasons;
use crate::torture::{Options, Recovery};

/// How the calls of one step ended.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Counts {
    /// With an answer.
    pub ok: usize,
    /// With a refusal: nothing was changed.
    pub refused: usize,
    /// Without one: it may have happened.
    pub unknown: usize,
    /// With an error that says that it did not happen.
    pub failed: usize,
}

/// What came of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    store: String,
    seed: u64,
    processes: u32,
    tasks: u32,
    keys: u32,
    seconds: f64,
    operations: usize,
    per_second: usize,
    steps: BTreeMap<&'static str, Counts>,
    completions: usize,
    replays: usize,
    takeovers: usize,
    effects: usize,
    effects_refused: usize,
    faults: usize,
    faults_by_kind: BTreeMap<Fault, usize>,
    #[serde(flatten)]
    recovery: Option<Recovery>,
    violations: usize,
    violations_by_property: BTreeMap<&'static str, usize>,
    lost: usize,
    double_effects: usize,
    explained_effects: usize,
    /// Calls of histories that were searched for an order, and of those whose search was given up.
    linear_calls: usize,
    linear_undecided: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    bug: Option<Bug>,
    #[serde(flatten)]
    pub(crate) reasons: Reasons,
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<String>,
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

impl Report {
    pub(crate) fn new(store: String, options: &Options) -> Self {
        Self {
            store,
            seed: options.run.seed,
            processes: options.processes,
            tasks: options.tasks,
            keys: options.keys,
            seconds: 0.0,
            operations: 0,
            per_second: 0,
            steps: BTreeMap::new(),
            completions: 0,
            replays: 0,
            takeovers: 0,
            effects: 0,
            effects_refused: 0,
            faults: 0,
            faults_by_kind: BTreeMap::new(),
            recovery: None,
            violations: 0,
            violations_by_property: BTreeMap::new(),
            lost: 0,
            double_effects: 0,
            explained_effects: 0,
            linear_calls: 0,
            linear_undecided: 0,
            bug: options.bug,
            reasons: Reasons::default(),
            history: None,
        }
    }

    pub(crate) fn calls(&mut self, ops: &[Op]) {
        self.operations = ops.len();
        for op in ops {
            let counts = self.steps.entry(op.call.name()).or_default();
            let count = match op.answer {
                Answer::Refused(_) | Answer::Mismatch => &mut counts.refused,
                Answer::Lost | Answer::Failed(Failed::Perhaps) => &mut counts.unknown,
                Answer::Failed(Failed::Not) => &mut counts.failed,
                _ => &mut counts.ok,
            };
            *count += 1;
            match op.answer {
                Answer::Completed { .. } => self.replays += 1,
                Answer::Acquired { attempt, .. } if attempt > 1 => self.takeovers += 1,
                _ => {}
            }
        }
        self.completions = self.steps.get("complete").map_or(0, |c| c.ok);
    }

    pub(crate) const fn effects(&mut self, accepted: usize, refused: usize) {
        self.effects = accepted;
        self.effects_refused = refused;
    }

    pub(crate) fn faults(&mut self, struck: &[Fault]) {
        self.faults = struck.len();
        for fault in struck {
            *self.faults_by_kind.entry(*fault).or_default() += 1;
        }
    }

    pub(crate) fn findings(&mut self, ops: &[Op], findings: &Findings, begun: Nanos) {
        self.violations = findings.violations.len();
        self.violations_by_property = findings.by_property();
        self.lost = findings.lost;
        self.double_effects = findings.double_effects;
        self.explained_effects = findings.explained_effects;
        self.linear_calls = findings.searched.calls;
        self.linear_undecided = findings.undecided.calls;
        self.reasons.details = details(ops, findings, begun);
    }

    pub(crate) fn took(&mut self, begun: Nanos, ended: Nanos) {
        self.seconds = (millis(ended.saturating_sub(begun)) / 10.0).round() / 100.0;
        if self.seconds > 0.0 {
            self.per_second = (self.operations as f64 / self.seconds) as usize;
        }
    }

    pub(crate) fn recovery(&mut self, recovery: Recovery) {
        self.recovery = Some(recovery);
        if recovery.recovered_after.is_none() {
            // The machine may be slow for another reason.
            let why = "half of the rate before the faults did not come back in time after them";
            self.reasons.too_little(why);
        }
    }

    pub(crate) fn floor(&mut self, floor: usize) {
        if self.completions < floor {
            let why = format!(
                "{} completions were acknowledged, fewer than the floor of {floor}",
                self.completions
            );
            self.reasons.too_little(why);
        }
    }

    /// A run in which the search was given up for many calls proves too little.
    pub(crate) fn judge(&mut self, findings: &Findings) {
        self.reasons.counted([("violations", self.violations)]);
        let (searched, given_up) = (findings.searched.calls, findings.undecided.calls);
        if searched < 9 * given_up {
            self.reasons.too_little(format!(
                "the search for an order was given up for {given_up} of {} calls",
                searched + given_up
            ));
        }
    }

    pub(crate) fn left_in(&mut self, folder: &Path) {
        self.history = Some(folder.display().to_string());
    }

    /// How many acknowledged completions were not replayed.
    pub const fn lost(&self) -> usize {
        self.lost
    }
}
