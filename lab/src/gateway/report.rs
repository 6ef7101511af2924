//! What a run prints: a line of JSON, and for people the history of each identity of the first
//! violations before it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use serde::Serialize;

use super::bugs::Bug;
use super::judge::{Findings, Known, OnLost};
use super::records::{Call, Entry, Said};
use crate::clock::millis;
use crate::reasons::{Faults, Reasons};

/// What came of a run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) store: String,
    pub(super) seed: u64,
    pub(super) on_lost: OnLost,
    pub(super) gateways: usize,
    pub(super) clients: u32,
    pub(super) seconds: f64,
    #[serde(flatten)]
    pub(super) found: Found,
    /// How many calls ended how.
    pub(super) said: BTreeMap<String, usize>,
    #[serde(flatten)]
    pub(super) faults: Faults,
    /// How often the machine stood still for longer than a quarter of a lease.
    pub(super) stalls: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bug: Option<Bug>,
    #[serde(flatten)]
    pub(super) reasons: Reasons,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) history: Option<PathBuf>,
}

/// What was found, in numbers.
#[derive(Debug, Serialize)]
pub(super) struct Found {
    calls: usize,
    /// Of 100 identities that were asked for.
    answered_percent: f64,
    /// Of 100 moments until the last fault was over: those at which a gateway had no fault to blame.
    unexcused_percent: f64,
    violations: usize,
    violations_by_check: BTreeMap<&'static str, usize>,
    #[serde(flatten)]
    findings: Findings,
}

impl Found {
    pub(super) fn new(calls: &[Call], findings: Findings) -> Self {
        let share = findings.answered as f64 / findings.identities.max(1) as f64;
        Self {
            calls: calls.len(),
            answered_percent: (share * 10_000.0).round() / 100.0,
            unexcused_percent: (findings.unexcused * 1000.0).round() / 10.0,
            violations: findings.violations.len(),
            violations_by_check: findings.by_check(),
            findings,
        }
    }

    /// Whether anything is wrong, and whether it is enough to say so.
    pub(super) fn judge(&self, enough: usize, reasons: &mut Reasons) {
        reasons.counted([("violations", self.violations)]);
        let few = self.findings.identities;
        if few < enough {
            reasons.too_little(format!(
                "{few} identities of {enough} in four times as long"
            ));
        }
        let unexcused = self.unexcused_percent;
        if unexcused < LEAST_UNEXCUSED {
            reasons.too_little(format!(
                "{unexcused} % of the time with faults was without an excuse"
            ));
        }
    }
}

/// So many violations are shown in detail.
const SHOWN: usize = 8;
/// Where it is less, most of what gateways did while things broke was excused.
const LEAST_UNEXCUSED: f64 = 30.0;

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
