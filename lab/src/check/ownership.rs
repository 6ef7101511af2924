//! P1: at most one owner at a time, a new one only after the last one ended, and fences that grow.

use super::attempts::{Attempt, End, How, KeyHistory};
use super::{Findings, Options};
use crate::clock::millis;

pub(super) fn check(history: &KeyHistory<'_>, options: &Options, findings: &mut Findings) {
    let mut wrong = |property, at, what| findings.report(property, history.key, at, what);
    let mut latest = 0;
    let mut first_of_latest = 0;
    for (at, next) in history.attempts.iter().enumerate() {
        let (fence, worker) = (next.held.fence, next.worker);
        if next.known < latest {
            let before = history.attempts[first_of_latest].held.fence;
            let what = format!("the fence went back: {before} was given out after {fence} was");
            wrong("P1", latest, what);
        }
        if next.from > latest {
            (latest, first_of_latest) = (next.from, at);
        }
        let Some(last) = at.checked_sub(1).map(|at| &history.attempts[at]) else {
            continue;
        };
        let (last_fence, last_worker) = (last.held.fence, last.worker);
        if last_fence == fence {
            let processes = format!("in processes {last_worker} and {worker}");
            let what = format!("fence {fence} was given to two nonces, {processes}");
            wrong("P1", next.known.max(last.known), what);
            continue;
        }
        let by = next.known.saturating_add(options.tolerance);
        let stood = last.ends.iter().all(|end| by < end.gone_from());
        // A claim whose answer was lost may have run in between, and been resolved.
        let direct = !history.ghost_by(next.known, None);
        let fault = match succession(last, next, options) {
            Err(why) => Some(("P1", format!("while the first {why}"))),
            Ok(false) if direct => Some(("P9", "although it is another request".into())),
            Ok(_) => None,
        };
        if let Some((property, why)) = fault {
            let this = format!("attempt {fence} of process {worker}");
            let before = format!("attempt {last_fence} of process {last_worker}");
            let what = format!("{this} was acquired after {before}, {why}");
            wrong(property, next.known, what);
        } else if next.number == 1 && direct && stood {
            let before = format!("after attempt {last_fence} whose record stood");
            let what = format!("attempt {fence} is counted as the first, {before}");
            wrong("P1", next.known, what);
        }
    }
}

/// Whether `last` may have ended by the time `next` was acquired at the latest, in a way that lets
/// others begin; and if not, how it stood. `Ok(false)`: it lapsed, which lets the same request
/// begin only, and `next` is another.
pub(super) fn succession(
    last: &Attempt,
    next: &Attempt,
    options: &Options,
) -> Result<bool, String> {
    let by = next.known.saturating_add(options.tolerance);
    let mut before = last.ends.iter().filter(|end| end.from < next.known);
    if let Some((_, kept)) = last.acked_kept() {
        let from = last.completed_from(kept.outcome);
        if by >= from.saturating_add(kept.lasts()) {
            return Ok(true);
        }
        return Err("was completed (acknowledged) and within retention".into());
    }
    let lets_others = |end: &End| end.how.frees() || by >= end.gone_from();
    if before.clone().any(lets_others) {
        return Ok(true);
    }
    if !next.retry {
        return Err("was neither released, resolved nor over; its policy is to hold".into());
    }
    let marked = before.any(|end| end.how == How::Marked);
    if !marked && by < last.lapse_from {
        return Err(format!(
            "held its lease for {:.3} ms more at least",
            millis(last.lapse_from - next.known)
        ));
    }
    // It lapsed.
    Ok(last.print == next.print)
}
