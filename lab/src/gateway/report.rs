//! What a run prints: a line of JSON, and for people the history of each identity of the first
//! violations before it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::Serialize;

use super::bugs::Bug;
use super::judge::{Findings, Known, OnLost};
use super::options::Options;
use super::records::{Call, Entry, Said};
use crate::clock::millis;
use crate::named::Named as _;
use crate::nemesis::Fault;
use crate::reasons::Reasons;

/// What came of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    store: String,
    seed: u64,
    on_lost: OnLost,
    gateways: usize,
    clients: u32,
    seconds: f64,
    pub(super) calls: usize,
    /// How many calls ended how.
    said: BTreeMap<String, usize>,
    identities: usize,
    answered: usize,
    /// Of 100 identities that were asked for.
    answered_percent: f64,
    unknown: usize,
    executions: usize,
    double_effects: usize,
    explained_effects: usize,
    effects_refused: usize,
    faults: usize,
    faults_by_kind: BTreeMap<Fault, usize>,
    /// How often the machine stood still for longer than a quarter of a lease.
    stalls: usize,
    /// Of 100 moments until the last fault was over: those at which a gateway had no fault to blame.
    unexcused_percent: f64,
    violations: usize,
    violations_by_check: BTreeMap<&'static str, usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bug: Option<Bug>,
    #[serde(flatten)]
    pub(crate) reasons: Reasons,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) history: Option<String>,
}

/// So many violations are shown in detail.
const SHOWN: usize = 8;
/// Where it is less, most of what gateways did while things broke was excused.
const LEAST_UNEXCUSED: f64 = 30.0;

impl Report {
    pub(super) fn new(
        options: &Options,
        store: String,
        gateways: usize,
        known: &Known,
        calls: &[Call],
        findings: &Findings,
    ) -> Self {
        let mut said = BTreeMap::new();
        for call in calls {
            *said.entry(call.said.name()).or_default() += 1;
        }
        let end = known.settling.unwrap_or(known.begun);
        let share = findings.answered as f64 / findings.identities.max(1) as f64;
        Self {
            store,
            seed: options.run.seed,
            on_lost: known.on_lost,
            gateways,
            clients: options.tasks,
            seconds: (millis(end - known.begun) / 10.0).round() / 100.0,
            calls: calls.len(),
            said,
            identities: findings.identities,
            answered: findings.answered,
            answered_percent: (share * 10_000.0).round() / 100.0,
            unknown: findings.unknown,
            executions: findings.executions,
            double_effects: findings.double_effects,
            explained_effects: findings.explained_effects,
            effects_refused: findings.refused,
            faults: 0,
            faults_by_kind: BTreeMap::new(),
            stalls: 0,
            unexcused_percent: (findings.unexcused * 1000.0).round() / 10.0,
            violations: findings.violations.len(),
            violations_by_check: findings.by_check(),
            bug: options.bug,
            reasons: Reasons::default(),
            history: None,
        }
    }

    pub(super) fn faults(&mut self, planned: &[Fault], struck: &[Fault], stalls: usize) {
        self.stalls = stalls;
        self.faults = struck.len();
        for fault in struck {
            *self.faults_by_kind.entry(*fault).or_default() += 1;
        }
        for fault in planned.iter().collect::<BTreeSet<_>>() {
            if !struck.contains(fault) {
                let why = format!(
                    "the planned fault {} never fired: with more --seconds it may",
                    fault.name()
                );
                self.reasons.too_little(why);
            }
        }
    }

    /// Whether the run proves enough, and what it shows.
    pub(super) fn judge(&mut self, enough: usize, details: Vec<String>) {
        self.reasons.details = details;
        self.reasons.counted([("violations", self.violations)]);
        if self.identities < enough {
            let few = self.identities;
            let why = format!("{few} identities of {enough} in four times as long");
            self.reasons.too_little(why);
        }
        let unexcused = self.unexcused_percent;
        if unexcused < LEAST_UNEXCUSED {
            let why = format!("{unexcused} % of the time with faults was without an excuse");
            self.reasons.too_little(why);
        }
    }
}

/// The first violations, each with all that is known of its identity, in ms from the beginning.
pub(super) fn details(
    known: &Known,
    calls: &[Call],
    ledger: &[Entry],
    findings: &Findings,
) -> Vec<String> {
    let at = |time: u64| millis(time.saturating_sub(known.begun));
    let mut lines = Vec::new();
    let mut shown = BTreeSet::new();
    for violation in &findings.violations {
        // One of each check before a second of any.
        if lines.len() > SHOWN * 20 && !shown.insert(violation.check) {
            continue;
        }
        shown.insert(violation.check);
        let whose = violation
            .identity
            .map(|of| of.to_string())
            .unwrap_or_default();
        let (check, what) = (violation.check, &violation.what);
        lines.push(format!(
            "{check} at {:.3} ms, {whose}: {what}",
            at(violation.at)
        ));
        let Some(identity) = violation.identity else {
            continue;
        };
        let mut history: Vec<(u64, String)> = Vec::new();
        for call in calls.iter().filter(|call| call.identity == identity) {
            let mut line = format!(
                "  {:>10.3} {:>10.3} gateway {} http/{} call {} {:x}: {}",
                at(call.sent),
                at(call.answered),
                call.gateway,
                1 + u8::from(call.http2),
                call.id,
                call.body,
                call.said.name(),
            );
            let _ = match &call.said {
                Said::Answer(answer) => write!(line, " {}", answer.execution),
                Said::Broken(why) => write!(line, " ({why})"),
                _ => Ok(()),
            };
            history.push((call.sent, line));
        }
        for entry in ledger.iter().filter(|entry| entry.identity == identity) {
            let (fence, call, done) = (entry.fence, entry.call, &entry.done);
            let line = format!(
                "  {:>10.3} upstream: call {call} fence {fence}: {done:?}",
                at(entry.at)
            );
            history.push((entry.at, line));
        }
        for trouble in &known.troubles {
            let until = at(trouble.until);
            let line = format!(
                "  {:>10.3} {until:>10.3} trouble: {:?}",
                at(trouble.from),
                trouble.place
            );
            history.push((trouble.from, line));
        }
        history.sort();
        lines.extend(history.into_iter().map(|(_, line)| line));
    }
    lines
}
