//! The model: what may be answered beside a record in each state, and what may not.
//!
//! Times are in milliseconds. A lease is 100 of them, and the store's clock may be 5 off.

use super::super::Verdict;
use super::*;
use crate::check::tests::{History, LEASE, MS, completing};
use crate::history::Step::{Abandon, MarkUnknown};

const RENEW: Step = Step::Renew { lease: LEASE };
const PART: Step = Step::Keep { part: 7, after: 0 };
/// From 10 on replayed until 110, and there until 160.
const COMPLETE: Step = completing(0xaa, 100, 50);
const OTHERWISE: Step = completing(0xbb, 100, 50);
const WEEK: u64 = 7 * 24 * 3_600_000;

/// Nonce 1 holds fence 5 from 0 on, for the request 1. These steps followed, from 10 on.
fn record(steps: &[Step]) -> History {
    let mut history = History::default();
    history.claim_as(0, 1, 1, 1, false).acquired(5);
    for (step, at) in steps.iter().zip((10..).step_by(2)) {
        history.step(at, at + 1, 5, 1, *step).applied();
    }
    history
}

fn is_orderly(history: &History) -> bool {
    let found = history.verdict_under(&Options::default());
    assert_ne!(found, Verdict::Undecided);
    found == Verdict::Orderly
}

fn acquired(fence: u64) -> Answer {
    Answer::Acquired { fence, attempt: 2 }
}

fn in_flight(fence: u64) -> Answer {
    let remaining = MS;
    Answer::InFlight { fence, remaining }
}

fn unknown(fence: u64) -> Answer {
    Answer::Unknown { fence }
}

fn completed(outcome: u64) -> Answer {
    let remaining = MS;
    Answer::Completed { outcome, remaining }
}

#[test]
fn what_another_claim_is_told() {
    use Answer::{Expired, Mismatch};
    let (running, parts) = (&[][..], &[PART, Abandon][..]);
    for (steps, sent, print, answer, fits) in [
        (running, 20, 1, in_flight(5), true),
        (running, 20, 1, in_flight(6), false),
        (running, 20, 2, in_flight(5), false),
        (running, 105, 1, in_flight(5), true),
        (running, 106, 1, in_flight(5), false),
        (&[RENEW], 115, 1, in_flight(5), true),
        (&[RENEW], 116, 1, in_flight(5), false),
        (running, 20, 2, Mismatch, true),
        (running, 20, 1, Mismatch, false),
        (running, 20, 1, acquired(5), false),
        (running, 200, 1, acquired(6), false),
        (running, 94, 1, unknown(5), true),
        (running, 93, 1, unknown(5), false),
        (&[RENEW], 104, 1, unknown(5), true),
        (&[RENEW], 103, 1, unknown(5), false),
        (running, 94, 1, unknown(6), false),
        (running, 94, 2, unknown(5), false),
        (&[MarkUnknown], 20, 1, unknown(5), true),
        (&[MarkUnknown], 20, 1, unknown(6), false),
        (&[MarkUnknown], 20, 2, unknown(5), false),
        (&[MarkUnknown], 20, 1, in_flight(5), false),
        (&[MarkUnknown], 20, 1, acquired(6), false),
        (&[COMPLETE], 20, 1, completed(0xaa), true),
        (&[COMPLETE], 20, 1, completed(0xbb), false),
        (&[COMPLETE], 20, 2, completed(0xaa), false),
        (&[COMPLETE], 115, 1, completed(0xaa), true),
        (&[COMPLETE], 116, 1, completed(0xaa), false),
        (&[COMPLETE], 104, 1, Expired, true),
        (&[COMPLETE], 103, 1, Expired, false),
        (&[COMPLETE], 154, 2, acquired(6), true),
        (&[COMPLETE], 153, 1, acquired(6), false),
        (&[COMPLETE], 20, 1, in_flight(5), false),
        (&[Abandon], 20, 1, acquired(6), true),
        (&[Abandon], 20, 2, acquired(6), true),
        (&[Abandon], 20, 1, acquired(5), false),
        (&[Abandon], 20, 1, acquired(4), false),
        (&[Abandon], 20, 2, Mismatch, false),
        // Parts of the work are for the same request.
        (parts, 20, 1, acquired(6), true),
        (parts, 20, 2, acquired(6), false),
        (parts, 20, 2, Mismatch, true),
        (parts, 20, 1, Mismatch, false),
    ] {
        let mut history = record(steps);
        history
            .claim_as(sent, sent + 1, 2, print, false)
            .answered(answer);
        let told = (steps, sent, print, answer);
        assert_eq!(is_orderly(&history), fits, "{told:?}");
    }
}

#[test]
fn what_a_claim_that_would_retry_is_told() {
    for (steps, sent, print, answer, fits) in [
        (&[][..], 94, 1, acquired(6), true),
        (&[], 93, 1, acquired(6), false),
        (&[], 94, 2, acquired(6), false),
        (&[], 94, 1, unknown(5), false),
        (&[MarkUnknown], 20, 1, acquired(6), true),
        (&[MarkUnknown], 20, 2, acquired(6), false),
    ] {
        let mut history = record(steps);
        history
            .claim_as(sent, sent + 1, 2, print, true)
            .answered(answer);
        let told = (steps, sent, print, answer);
        assert_eq!(is_orderly(&history), fits, "{told:?}");
    }
}

#[test]
fn what_the_winner_is_told_again() {
    // Told 5 before; or not yet, but another was told of its claim.
    for (known, nonce, print, fence, fits) in [
        (true, 1, 1, 5, true),
        (true, 1, 1, 6, false),
        (true, 1, 2, 5, false),
        (true, 2, 1, 5, false),
        (true, 2, 1, 6, false),
        (false, 1, 1, 5, true),
        (false, 1, 2, 5, false),
        (false, 2, 1, 5, false),
        (false, 2, 1, 6, false),
    ] {
        let mut history = History::default();
        match known {
            true => history.claim(0, 1, 1).acquired(5),
            false => history.claim(0, 1, 1).failed(),
        }
        history.claim(10, 11, 3).in_flight(5);
        history.claim_as(20, 21, nonce, print, true).acquired(fence);
        let told = (known, nonce, print, fence);
        assert_eq!(is_orderly(&history), fits, "{told:?}");
    }
    // From then on its fence is known to all.
    for (fence, fits) in [(5, true), (6, false)] {
        let mut history = History::default();
        history.claim(0, 0, 1).lost();
        history.claim(20, 21, 1).acquired(5);
        history.claim(30, 31, 2).in_flight(fence);
        assert_eq!(is_orderly(&history), fits, "{fence}");
    }
}

#[test]
fn what_a_read_shows() {
    let found = |state, outcome| Answer::Found {
        state,
        held: Held { fence: 5, nonce: 1 },
        outcome,
    };
    let in_flight = found(StateKind::InFlight, None);
    let unknown = found(StateKind::Unknown, None);
    let released = found(StateKind::Released, None);
    let kept = |outcome| found(StateKind::Completed, Some(outcome));
    for (steps, sent, answer, fits) in [
        (&[][..], 20, in_flight, true),
        (&[], 20, unknown, false),
        (&[], 20, Answer::Absent, false),
        (&[MarkUnknown], 20, unknown, true),
        (&[MarkUnknown], 20, in_flight, false),
        (&[MarkUnknown], 20, Answer::Absent, false),
        (&[COMPLETE], 20, kept(0xaa), true),
        (&[COMPLETE], 20, kept(0xbb), false),
        (&[COMPLETE], 20, in_flight, false),
        (&[COMPLETE], 154, Answer::Absent, true),
        (&[COMPLETE], 153, Answer::Absent, false),
        (&[Abandon], 20, released, true),
        (&[Abandon], 20, in_flight, false),
        (&[Abandon], 60_004, Answer::Absent, true),
        (&[Abandon], 60_003, Answer::Absent, false),
        (&[PART, Abandon], WEEK + 6, Answer::Absent, true),
        (&[PART, Abandon], WEEK + 5, Answer::Absent, false),
    ] {
        let mut history = record(steps);
        let get = Call::Get { key: 0 };
        history.op(sent, sent + 1, get).answered(answer);
        assert_eq!(is_orderly(&history), fits, "{steps:?} {sent} {answer:?}");
    }
    for (answer, fits) in [(Answer::Absent, true), (in_flight, false)] {
        let mut history = History::default();
        history.op(0, 1, Call::Get { key: 0 }).answered(answer);
        assert_eq!(is_orderly(&history), fits, "no record, {answer:?}");
    }
}

#[test]
fn what_a_token_may_do() {
    for (steps, token, step, fits) in [
        (&[][..], (5, 1), RENEW, true),
        (&[], (6, 1), RENEW, false),
        (&[], (5, 2), RENEW, false),
        (&[MarkUnknown], (5, 1), COMPLETE, true),
        (&[MarkUnknown], (5, 1), PART, true),
        (&[MarkUnknown], (5, 1), Abandon, true),
        (&[MarkUnknown], (5, 1), RENEW, false),
        (&[COMPLETE], (5, 1), OTHERWISE, false),
        (&[COMPLETE], (5, 1), Abandon, false),
        (&[COMPLETE], (5, 1), PART, false),
        (&[Abandon], (5, 1), COMPLETE, false),
        (&[Abandon], (5, 1), RENEW, false),
        // Again.
        (&[COMPLETE], (5, 1), COMPLETE, true),
        (&[COMPLETE], (5, 2), COMPLETE, false),
        (&[Abandon], (5, 1), Abandon, true),
        (&[MarkUnknown], (5, 1), MarkUnknown, true),
        (&[PART], (5, 1), PART, true),
    ] {
        let mut history = record(steps);
        let (fence, nonce) = token;
        history.step(20, 21, fence, nonce, step).applied();
        assert_eq!(is_orderly(&history), fits, "{steps:?} {token:?} {step:?}");
    }
}

#[test]
fn what_a_token_is_refused_for() {
    use Refused::{Completed, Missing, OtherSteps, Released, Superseded, Unknown};
    for (steps, token, sent, refused, fits) in [
        (&[][..], (4, 1), 20, Superseded, true),
        (&[], (5, 2), 20, Superseded, true),
        (&[], (5, 1), 20, Superseded, false),
        (&[], (5, 1), 20, Completed, false),
        (&[], (5, 1), 20, Released, false),
        (&[], (5, 1), 20, Unknown, false),
        (&[], (5, 1), 20, Missing, false),
        (&[], (5, 1), 20, OtherSteps, true),
        (&[], (5, 2), 20, OtherSteps, false),
        (&[COMPLETE], (5, 1), 20, Completed, true),
        (&[COMPLETE], (5, 2), 20, Completed, false),
        (&[COMPLETE], (5, 1), 154, Missing, true),
        (&[COMPLETE], (5, 1), 153, Missing, false),
        (&[Abandon], (5, 1), 20, Released, true),
        (&[Abandon], (5, 2), 20, Released, false),
        (&[MarkUnknown], (5, 1), 20, Unknown, true),
        (&[MarkUnknown], (5, 2), 20, Unknown, false),
        (&[MarkUnknown], (5, 1), 100_000, Missing, false),
    ] {
        let mut history = record(steps);
        let (fence, nonce) = token;
        history
            .step(sent, sent + 1, fence, nonce, OTHERWISE)
            .refused(refused);
        let told = (steps, token, sent, refused);
        assert_eq!(is_orderly(&history), fits, "{told:?}");
    }
    for (refused, fits) in [(Missing, true), (Superseded, false)] {
        let mut history = History::default();
        history.step(0, 1, 5, 1, RENEW).refused(refused);
        assert_eq!(is_orderly(&history), fits, "no record, {refused:?}");
    }
}

fn resolve(history: &mut History, sent: u64, fence: u64, nonce: u128, happened: bool) {
    let Step::Complete(kept) = COMPLETE else {
        unreachable!();
    };
    let call = Call::Resolve {
        key: 0,
        fence,
        nonce,
        happened: happened.then_some(kept),
    };
    history.op(sent, sent + 1, call);
}

#[test]
fn what_a_resolution_frees() {
    let refused = Answer::Refused(Refused::Superseded);
    for (steps, sent, fence, answer, next, fits) in [
        (
            &[MarkUnknown][..],
            20,
            5,
            Answer::Applied,
            acquired(7),
            true,
        ),
        (&[MarkUnknown], 20, 6, Answer::Applied, acquired(7), false),
        (&[MarkUnknown], 20, 5, Answer::Lost, acquired(7), true),
        (&[MarkUnknown], 20, 6, Answer::Lost, acquired(7), false),
        (&[MarkUnknown], 20, 5, refused, acquired(7), false),
        (&[MarkUnknown], 20, 5, refused, unknown(5), true),
        // It has a fence later than the attempt's.
        (&[MarkUnknown], 20, 5, Answer::Applied, acquired(5), false),
        (&[], 94, 5, Answer::Applied, acquired(7), true),
        (&[], 93, 5, Answer::Applied, acquired(7), false),
    ] {
        let mut history = record(steps);
        resolve(&mut history, sent, fence, 9, false);
        history.answered(answer);
        history
            .claim_as(sent + 10, sent + 11, 2, 1, false)
            .answered(next);
        let told = (steps, sent, fence, answer, next);
        assert_eq!(is_orderly(&history), fits, "{told:?}");
    }
}

#[test]
fn what_a_resolution_keeps() {
    for (answer, fits) in [
        (completed(0xaa), true),
        (completed(0xbb), false),
        (unknown(5), false),
    ] {
        let mut history = record(&[MarkUnknown]);
        resolve(&mut history, 20, 5, 9, true);
        history.applied();
        history.claim_as(30, 31, 2, 1, false).answered(answer);
        assert_eq!(is_orderly(&history), fits, "{answer:?}");
    }
    // The attempt's token is no longer the record's.
    for (refused, fits) in [(Refused::Superseded, true), (Refused::Completed, false)] {
        let mut history = record(&[MarkUnknown]);
        resolve(&mut history, 20, 5, 9, true);
        history.applied();
        history.step(30, 31, 5, 1, OTHERWISE).refused(refused);
        assert_eq!(is_orderly(&history), fits, "{refused:?}");
    }
    for (nonce, fits) in [(9, true), (8, false)] {
        let mut history = record(&[MarkUnknown]);
        resolve(&mut history, 20, 5, 9, true);
        history.applied();
        resolve(&mut history, 30, 5, nonce, true);
        history.applied();
        assert_eq!(is_orderly(&history), fits, "resolved again by {nonce}");
    }
}

#[test]
fn a_completion_leaves_no_parts() {
    let mut history = record(&[PART, COMPLETE]);
    history.claim_as(200, 201, 2, 2, false).acquired(6);
    history.step(202, 203, 6, 2, Abandon).applied();
    history.claim_as(204, 205, 3, 3, false).acquired(7);
    assert!(is_orderly(&history));
}
