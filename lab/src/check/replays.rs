//! P2, P5, P4, P9: what was completed is replayed, all of it and nothing else, for as long as was
//! promised, and to nobody who asked for something else.

use std::collections::{HashMap, HashSet};

use semel::StateKind;

use super::attempts::{End, KeyHistory};
use super::{Findings, Options};
use crate::clock::{Nanos, millis};
use crate::history::{Answer, Call, Kept, Op};

/// A completion that was acknowledged: from `acked` to `until` everybody sees it.
struct Promise {
    acked: Nanos,
    until: Nanos,
    kept: Kept,
    /// `None` where the attempt that was resolved is not known.
    print: Option<u64>,
}

pub(super) fn check(history: &KeyHistory<'_>, options: &Options, findings: &mut Findings) {
    promised(history, options, findings);
    genuine(history, options, findings);
}

fn promises(history: &KeyHistory<'_>, options: &Options) -> Vec<Promise> {
    // A completion that was repeated may have been done when it was first sent.
    let mut first: HashMap<u64, Nanos> = HashMap::new();
    for (kept, end, _) in history.completions() {
        let from = first.entry(kept.outcome).or_insert(end.from);
        *from = end.from.min(*from);
    }
    let promise = |(kept, end, of): (Kept, End, Option<usize>)| {
        let attempt = of.map(|at| &history.attempts[at]);
        let from = first[&kept.outcome];
        Some(Promise {
            acked: end.acked?,
            until: from
                .saturating_add(kept.replay)
                .saturating_sub(options.tolerance),
            kept,
            print: attempt.map(|a| a.print),
        })
    };
    let mut promises: Vec<Promise> = history.completions().filter_map(promise).collect();
    promises.sort_by_key(|p| p.acked);
    promises
}

fn promised(history: &KeyHistory<'_>, options: &Options, findings: &mut Findings) {
    let promises = promises(history, options);
    if promises.is_empty() {
        return;
    }
    let mut broken = HashSet::new();
    for op in &history.ops {
        let next = promises.partition_point(|p| p.acked < op.invoked);
        let Some(at) = next.checked_sub(1) else {
            continue;
        };
        let promise = &promises[at];
        if op.answered >= promise.until {
            continue;
        }
        let outcome = promise.kept.outcome;
        let (kept, bytes) = match (op.call, op.answer) {
            (_, Answer::Failed(_) | Answer::Lost) => continue,
            (Call::Claim { print, .. }, answer) => {
                let same = promise.print.is_none_or(|p| p == print);
                let other = promise.print.is_none_or(|p| p != print);
                match answer {
                    Answer::Completed { outcome: seen, .. } => (same, seen == outcome),
                    Answer::Mismatch => (other, true),
                    _ => (false, true),
                }
            }
            (
                Call::Get { .. },
                Answer::Found {
                    state,
                    outcome: seen,
                    ..
                },
            ) => {
                let completed = state == StateKind::Completed;
                (completed, !completed || seen == Some(outcome))
            }
            (Call::Get { .. }, _) => (false, true),
            _ => continue,
        };
        if kept && bytes {
            continue;
        }
        let property = match (op.call, op.answer) {
            _ if !bytes => "P4",
            (_, Answer::Completed { .. }) => "P9",
            _ => "P2",
        };
        if property == "P2" {
            broken.insert(at);
        }
        findings.report(
            property,
            history.key,
            op.answered,
            format!(
                "{} did not see the completion acknowledged {:.3} ms before, and {:.3} ms of its \
                 retention were left",
                op.call.name(),
                millis(op.invoked - promise.acked),
                millis(promise.until - op.answered),
            ),
        );
    }
    findings.lost += broken.len();
}

/// Whether each replay is one of this key's completions, still current and within retention.
fn genuine(history: &KeyHistory<'_>, options: &Options, findings: &mut Findings) {
    for op in &history.ops {
        if let Some((property, what)) = fault(history, op, options) {
            findings.report(property, history.key, op.answered, what);
        }
    }
}

fn fault(history: &KeyHistory<'_>, op: &Op, options: &Options) -> Option<(&'static str, String)> {
    let (outcome, print) = match (op.call, op.answer) {
        (Call::Claim { print, .. }, Answer::Completed { outcome, .. }) => (outcome, Some(print)),
        (
            Call::Get { .. },
            Answer::Found {
                outcome: Some(outcome),
                ..
            },
        ) => (outcome, None),
        _ => return None,
    };
    let mut found = None;
    for (kept, end, of) in history.completions() {
        if kept.outcome != outcome || end.from >= op.answered {
            continue;
        }
        let attempt = of.map(|at| &history.attempts[at]);
        if let (Some(print), Some(attempt)) = (print, attempt)
            && attempt.print != print
        {
            found = Some(("P9", "replayed to another request: a mismatch".to_owned()));
            continue;
        }
        // A read shows a record as long as there is one, its tombstone too.
        let lasts = match print {
            Some(_) => kept.replay,
            None => kept.lasts(),
        };
        let over = end
            .acked
            .map_or(Nanos::MAX, |at| at.saturating_add(lasts))
            .saturating_add(options.tolerance);
        if op.invoked > over && !options.clockless {
            let late = millis(op.invoked - over);
            found = Some((
                "P2",
                format!("replayed {late:.3} ms after retention had ended"),
            ));
            continue;
        }
        if of.is_some_and(|at| history.superseded_by[at] < op.invoked) {
            found = Some((
                "P2",
                "replayed, although a later attempt was there".to_owned(),
            ));
            continue;
        }
        return None;
    }
    Some(found.unwrap_or_else(|| {
        let what = "replayed what no completion of this key kept";
        ("P4", what.to_owned())
    }))
}
