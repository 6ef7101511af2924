//! P8: after the faults every key settles, and nobody sleeps on.

use std::collections::BTreeMap;

use super::attempts::KeyHistory;
use super::{Findings, Options};
use crate::clock::{Nanos, millis};
use crate::history::{Answer, Call, KeyIndex, Op, Step};

/// Whether every key was driven to an end once the faults were over.
pub(super) fn check(
    keys: &BTreeMap<KeyIndex, KeyHistory<'_>>,
    options: &Options,
    findings: &mut Findings,
) {
    let Some(begun) = options.settling else {
        return;
    };
    for key in 0..options.keys {
        let after = keys
            .get(&key)
            .into_iter()
            .flat_map(|history| &history.ops)
            .filter(|op| op.invoked >= begun);
        let mut first = None;
        let mut settled = None;
        for op in after {
            first.get_or_insert(op.invoked);
            if settles(op) {
                settled = Some(op.answered);
                break;
            }
        }
        let what = match (first, settled) {
            (None, _) => "nobody asked for it after the faults".to_owned(),
            (Some(_), None) => "it did not settle after the faults".to_owned(),
            (Some(from), Some(at)) if at > from.saturating_add(options.settle_within) => {
                let took = millis(at - from);
                format!("it took {took:.0} ms to settle after the faults")
            }
            _ => continue,
        };
        findings.report("P8", key, first.unwrap_or(begun), what);
    }
}

fn settles(op: &Op) -> bool {
    match op.call {
        Call::Claim { .. } => matches!(op.answer, Answer::Completed { .. } | Answer::Expired),
        Call::Fenced {
            step: Step::Complete(_),
            ..
        } => op.answer == Answer::Applied,
        _ => false,
    }
}

/// Whether a wait slept on after what it waited for.
pub(super) fn check_waits(history: &KeyHistory<'_>, options: &Options, findings: &mut Findings) {
    for op in &history.ops {
        let (Call::Wait { fence, .. }, Answer::TimedOut) = (op.call, op.answer) else {
            continue;
        };
        let Some((at, attempt)) = history.attempt_of(fence) else {
            continue;
        };
        let ended: Nanos = attempt.ended_by().min(history.superseded_by[at]);
        let since = ended.max(op.invoked);
        // A wake-up may be lost with its connection: the waiter looks again when that is back.
        let since = options.after_trouble(op.worker, since);
        if op.answered > since.saturating_add(options.wait_grace) {
            let slept = millis(op.answered - since);
            findings.report(
                "P8",
                history.key,
                op.answered,
                format!("a wait slept {slept:.0} ms although the attempt {fence} had ended"),
            );
        }
    }
}
