//! P11, and what the other answers of a claim say: whom they name must be there, and may not be
//! the one who asks.

use std::collections::HashMap;

use super::attempts::{Attempt, ClaimOp, How, KeyHistory};
use super::{Findings, Options};
use crate::clock::{Nanos, millis};
use crate::history::Answer;

pub(super) fn check(history: &KeyHistory<'_>, options: &Options, findings: &mut Findings) {
    let prints = first_of_each_print(history, options);
    for claim in &history.claims {
        let fault = match claim.op.answer {
            Answer::InFlight { fence, remaining } => {
                in_flight(history, claim, fence, remaining, options)
            }
            Answer::Unknown { fence } => unknown(history, claim, fence, options),
            Answer::Mismatch => mismatch(&prints, claim),
            Answer::Expired => expired(history, claim, options),
            _ => None,
        };
        if let Some((property, what)) = fault {
            findings.report(property, history.key, claim.op.answered, what);
        }
    }
}

type Fault = Option<(&'static str, String)>;

fn in_flight(
    history: &KeyHistory<'_>,
    claim: &ClaimOp<'_>,
    fence: u64,
    remaining: Nanos,
    options: &Options,
) -> Fault {
    let sent = claim.op.invoked;
    // The store may look at its clock as soon as it is asked, and then see a renewal that was made
    // just before it answers.
    let took = claim.op.answered.saturating_sub(sent);
    if remaining > claim.lease.saturating_add(took + options.tolerance) {
        let what = format!(
            "in flight for {:.3} ms, longer than any lease",
            millis(remaining)
        );
        return Some(("P8", what));
    }
    let Some((at, attempt)) = history.attempt_of(fence) else {
        return nobody(history, claim, fence, "in flight");
    };
    if attempt.held.nonce == claim.nonce {
        let what = format!("the winner lost to itself: its own claim {fence} is in flight");
        return Some(("P11", what));
    }
    stands(history, at, attempt, claim, "in flight").or_else(|| {
        let lapsed = attempt.lapse_by.saturating_add(options.tolerance);
        if !options.clockless && sent > lapsed {
            let what = format!(
                "attempt {fence} is said to be in flight {:.3} ms after its lease had lapsed",
                millis(sent - lapsed)
            );
            return Some(("P8", what));
        }
        None
    })
}

fn unknown(history: &KeyHistory<'_>, claim: &ClaimOp<'_>, fence: u64, options: &Options) -> Fault {
    if claim.retry {
        let what = "a claim whose policy is to retry was answered \"unknown\"";
        return Some(("P8", what.to_owned()));
    }
    let Some((at, attempt)) = history.attempt_of(fence) else {
        return nobody(history, claim, fence, "unknown");
    };
    let marked = attempt
        .ends
        .iter()
        .any(|end| end.how == How::Marked && end.from < claim.op.answered);
    let by = claim.op.answered.saturating_add(options.tolerance);
    if !marked && by < attempt.lapse_from {
        let what = format!("attempt {fence} is said to be unknown while it holds its lease");
        return Some(("P1", what));
    }
    stands(history, at, attempt, claim, "unknown")
}

/// An answer that names an attempt is right only while that one stands.
fn stands(
    history: &KeyHistory<'_>,
    at: usize,
    attempt: &Attempt,
    claim: &ClaimOp<'_>,
    said: &str,
) -> Fault {
    let fence = attempt.held.fence;
    if attempt.from >= claim.op.answered {
        let what = format!("attempt {fence} is said to be {said} before it was claimed");
        return Some(("P11", what));
    }
    if attempt.print != claim.print {
        let what = format!("attempt {fence} was another request: this is a mismatch, not {said}");
        return Some(("P9", what));
    }
    let mut ends = attempt.ends.iter();
    let over = ends.any(|end| {
        let stays = said == "unknown" && end.how == How::Marked;
        !stays && end.acked.is_some_and(|by| by < claim.op.invoked)
    });
    if over || history.superseded_by[at] < claim.op.invoked {
        let what = format!("attempt {fence} is said to be {said} after it had ended: a stale read");
        return Some(("P2", what));
    }
    None
}

/// The answer names a fence that no attempt is known to have: there must be a claim whose answer
/// was lost, and not only the asker's own.
fn nobody(history: &KeyHistory<'_>, claim: &ClaimOp<'_>, fence: u64, said: &str) -> Fault {
    // An unknown attempt may be the asker's own: it lapsed.
    let except = (said == "in flight").then_some(claim.nonce);
    if history.ghost_by(claim.op.answered, except) {
        return None;
    }
    let own = history.ghost_by(claim.op.answered, None);
    let what = if own {
        format!("the winner lost to itself: only its own lost claim can be {said} under {fence}")
    } else {
        format!("{said} under {fence}, which nobody was given")
    };
    Some(("P11", what))
}

/// When each request that may have held the key was first sent.
fn first_of_each_print(history: &KeyHistory<'_>, options: &Options) -> HashMap<u64, Nanos> {
    let mut first = HashMap::new();
    for claim in &history.claims {
        if matches!(claim.op.answer, Answer::Acquired { .. }) || options.may_be_a_ghost(claim.op) {
            first.entry(claim.print).or_insert(claim.op.invoked);
        }
    }
    first
}

fn mismatch(first: &HashMap<u64, Nanos>, claim: &ClaimOp<'_>) -> Fault {
    let other = |(print, from): (&u64, &Nanos)| *print != claim.print && *from < claim.op.answered;
    if first.iter().any(other) {
        return None;
    }
    let what = "called a mismatch, and nobody asked for anything else";
    Some(("P9", what.to_owned()))
}

fn expired(history: &KeyHistory<'_>, claim: &ClaimOp<'_>, options: &Options) -> Fault {
    let by = claim.op.answered.saturating_add(options.tolerance);
    let over = history
        .completions()
        .any(|(kept, end, _)| kept.tombstone > 0 && end.from.saturating_add(kept.replay) <= by);
    if over {
        return None;
    }
    let what = "called expired, and no tombstone can be there";
    Some(("P2", what.to_owned()))
}
