//! Each rule of the judge: a history that it just allows, and one that it just does not.
//!
//! Times are in milliseconds. A lease is 100 of them, and the store's clock may be 5 off.

use super::*;
use crate::history::Step::{Abandon, MarkUnknown};

const RENEW: Step = Step::Renew { lease: LEASE };
const FINE: &[&str] = &[];
const LAPSE_LETS_RUN: bool = true;
const LAPSE_HOLDS: bool = false;

/// Nonce 1 holds fence 5 from 0 on, under a policy that lets nobody else run when it lapses.
fn held() -> History {
    let mut history = History::default();
    history.claim_as(0, 1, 1, 1, LAPSE_HOLDS).acquired(5);
    history
}

/// The same, with a step at 10 that was done by 11.
fn held_and(step: Step) -> History {
    let mut history = held();
    history.step(10, 11, 5, 1, step).applied();
    history
}

/// The same, with a step at 10 that was not answered: it may be done.
fn held_and_perhaps(step: Option<Step>) -> History {
    let mut history = held();
    if let Some(step) = step {
        history.step(10, 0, 5, 1, step).lost();
    }
    history
}

// Answers of claims.

#[test]
fn in_flight_until_the_lease_has_lapsed() {
    for (sent, violated) in [(106, FINE), (107, &["P8"])] {
        let mut history = held();
        history.claim(sent, sent + 1, 2).in_flight(5);
        assert_eq!(history.violated(), violated, "sent at {sent}");
    }
}

#[test]
fn unknown_once_the_lease_lapsed_or_the_attempt_was_marked() {
    for (step, by, violated) in [
        (None, 95, FINE),
        (None, 94, &["P1"]),
        (Some(MarkUnknown), 20, FINE),
        (Some(MarkUnknown), 9, &["P1"]),
        (Some(Abandon), 20, &["P1"]),
    ] {
        let mut history = held_and_perhaps(step);
        history
            .claim_as(by - 1, by, 2, 1, LAPSE_HOLDS)
            .answered(Answer::Unknown { fence: 5 });
        assert_eq!(history.violated(), violated, "{step:?}, by {by}");
    }
}

#[test]
fn unknown_is_not_said_to_who_would_retry() {
    for (retry, violated) in [(LAPSE_HOLDS, FINE), (LAPSE_LETS_RUN, &["P8"])] {
        let mut history = held();
        history
            .claim_as(150, 151, 2, 1, retry)
            .answered(Answer::Unknown { fence: 5 });
        assert_eq!(history.violated(), violated);
    }
}

#[test]
fn an_attempt_is_named_only_while_it_stands() {
    let in_flight = Answer::InFlight {
        fence: 5,
        remaining: MS,
    };
    let unknown = Answer::Unknown { fence: 5 };
    for (step, sent, answer, violated) in [
        (RENEW, 12, in_flight, FINE),
        (Abandon, 10, in_flight, FINE),
        (Abandon, 12, in_flight, &["P2"]),
        (MarkUnknown, 12, in_flight, &["P2"]),
        (MarkUnknown, 12, unknown, FINE),
        (Abandon, 200, unknown, &["P2"]),
    ] {
        let mut history = held_and(step);
        history
            .claim_as(sent, sent + 1, 2, 1, LAPSE_HOLDS)
            .answered(answer);
        assert_eq!(history.violated(), violated, "{step:?} {sent} {answer:?}");
    }
    // Another took its place by 151.
    for (sent, violated) in [(145, FINE), (155, &["P2"])] {
        let mut history = held();
        history.claim(150, 151, 2).acquired_again(6, 2);
        history
            .claim_as(sent, 160, 3, 1, LAPSE_HOLDS)
            .answered(unknown);
        assert_eq!(history.violated(), violated, "sent at {sent}");
    }
}

#[test]
fn expired_only_beside_a_tombstone_after_the_replays() {
    for (tombstone, by, violated) in [(100, 55, FINE), (100, 54, &["P2"]), (0, 200, &["P2"])] {
        let mut history = held_and_perhaps(Some(completing(0xaa, 50, tombstone)));
        history.claim(by - 1, by, 2).answered(Answer::Expired);
        assert_eq!(history.violated(), violated, "{tombstone}, by {by}");
    }
}

// One owner after the other.

#[test]
fn the_next_owner_comes_after_an_end_or_where_the_policy_allows_a_lapse() {
    for (step, by, retry, violated) in [
        (None, 95, LAPSE_LETS_RUN, FINE),
        (None, 94, LAPSE_LETS_RUN, &["P1"]),
        (None, 200, LAPSE_HOLDS, &["P1"]),
        (Some(MarkUnknown), 20, LAPSE_LETS_RUN, FINE),
        (Some(MarkUnknown), 9, LAPSE_LETS_RUN, &["P1"]),
        (Some(MarkUnknown), 200, LAPSE_HOLDS, &["P1"]),
        (Some(Abandon), 20, LAPSE_HOLDS, FINE),
        (Some(Abandon), 9, LAPSE_HOLDS, &["P1"]),
        (Some(completing(0xaa, 50, 20)), 75, LAPSE_HOLDS, FINE),
        (Some(completing(0xaa, 50, 20)), 74, LAPSE_HOLDS, &["P1"]),
        (Some(completing(0xaa, 50, 20)), 20, LAPSE_LETS_RUN, &["P1"]),
    ] {
        let mut history = held_and_perhaps(step);
        history
            .claim_as(by - 1, by, 2, 1, retry)
            .acquired_again(6, 2);
        assert_eq!(history.violated(), violated, "{step:?}, by {by}, {retry}");
    }
}

#[test]
fn retention_is_kept_from_the_completion_on() {
    for (by, violated) in [(1_495, FINE), (1_494, &["P1", "P2"])] {
        let mut history = held();
        history.complete(500, 501, 5, 1, 0xaa).applied();
        history.claim(by - 1, by, 2).acquired_again(6, 2);
        assert_eq!(history.violated(), violated, "by {by}");
    }
}

#[test]
fn a_lapse_lets_the_same_request_run_only() {
    for (print, somebody_between, violated) in [
        (1, false, FINE),
        (2, false, &["P9"]),
        // Who got no answer may have held the key, and its attempt be resolved.
        (2, true, FINE),
    ] {
        let mut history = held();
        if somebody_between {
            history.claim(120, 0, 3).lost();
        }
        history
            .claim_as(150, 151, 2, print, LAPSE_LETS_RUN)
            .acquired_again(6, 2);
        assert_eq!(history.violated(), violated, "{print} {somebody_between}");
    }
}

#[test]
fn attempts_are_counted_anew_only_when_the_record_is_gone() {
    for (step, by, violated) in [
        (None, 200, &["P1"][..]),
        (Some(MarkUnknown), 100_000, &["P1"]),
        (Some(Abandon), 60_005, FINE),
        (Some(Abandon), 60_004, &["P1"]),
        (Some(completing(0xaa, 50, 20)), 75, FINE),
    ] {
        let mut history = held_and_perhaps(step);
        history.claim(by - 1, by, 2).acquired(6);
        assert_eq!(history.violated(), violated, "{step:?}, by {by}");
    }
}

#[test]
fn a_fence_that_goes_back_is_said_to() {
    let mut history = History::default();
    for (at, fence, nonce) in [(0, 5, 1), (200, 7, 2), (400, 6, 3), (600, 8, 4)] {
        history
            .claim(at, at + 1, nonce)
            .acquired_again(fence, nonce as u32);
    }
    let findings = history.findings(&[]);
    let said = findings.violations.iter().map(|found| found.what.as_str());
    let back: Vec<_> = said.filter(|what| what.contains("went back")).collect();
    assert_eq!(back, ["the fence went back: 6 was given out after 7 was"]);
}

// Steps.

#[test]
fn what_is_settled_is_not_settled_otherwise() {
    let (this, other) = (completing(0xaa, 1_000, 0), completing(0xbb, 1_000, 0));
    for (first, sent, then, violated) in [
        (this, 12, this, FINE),
        (this, 12, other, &["P3"]),
        (this, 12, RENEW, &["P3"]),
        (this, 12, Abandon, &["P3"]),
        // Sent before the first was answered: it may have come first.
        (this, 11, RENEW, FINE),
        (Abandon, 12, Abandon, FINE),
        (Abandon, 12, RENEW, &["P3"]),
        (Abandon, 12, this, &["P3"]),
        (Abandon, 11, RENEW, FINE),
        (MarkUnknown, 12, this, FINE),
        (MarkUnknown, 12, RENEW, &["P3"]),
        (MarkUnknown, 11, RENEW, FINE),
    ] {
        let mut history = held_and(first);
        history.step(sent, sent + 1, 5, 1, then).applied();
        assert_eq!(history.violated(), violated, "{first:?} {sent} {then:?}");
    }
}

#[test]
fn what_is_resolved_or_taken_over_is_left_alone() {
    for (sent, violated) in [(160, FINE), (162, &["P3"])] {
        let mut history = held();
        history.resolve(160, 161, 5).applied();
        history.complete(sent, 170, 5, 1, 0xaa).applied();
        assert_eq!(history.violated(), violated, "resolved, {sent}");

        let mut history = held();
        history.claim(160, 161, 2).acquired_again(6, 2);
        let part = Step::Keep { part: 7, after: 0 };
        history.step(sent, 170, 5, 1, part).applied();
        assert_eq!(history.violated(), violated, "taken over, {sent}");
    }
}

#[test]
fn a_token_comes_from_a_claim_even_from_one_without_an_answer() {
    for (nonce, violated) in [(1, FINE), (2, &["P3"])] {
        let mut history = History::default();
        history.claim(0, 0, 1).lost();
        history.step(10, 11, 5, nonce, RENEW).applied();
        assert_eq!(history.violated(), violated, "nonce {nonce}");
    }
}

#[test]
fn a_refusal_says_what_was_so() {
    use Refused::{Completed, Missing, OtherSteps, Released, Superseded, Unknown};
    let complete = completing(0xaa, 100, 50);
    for (step, by, refused, violated) in [
        (None, 95, Unknown, FINE),
        (None, 94, Unknown, &["P11"]),
        (None, 20, OtherSteps, &["P11"]),
        (Some(MarkUnknown), 20, Unknown, FINE),
        (Some(Abandon), 20, Unknown, &["P11"]),
        (Some(Abandon), 20, Released, FINE),
        (Some(Abandon), 9, Released, &["P11"]),
        (Some(MarkUnknown), 20, Released, &["P11"]),
        (Some(complete), 20, Completed, FINE),
        (Some(Abandon), 20, Completed, &["P11"]),
        (Some(complete), 155, Missing, FINE),
        (Some(complete), 154, Missing, &["P11"]),
        (Some(Abandon), 60_005, Missing, FINE),
        (Some(Abandon), 60_004, Missing, &["P11"]),
        (Some(MarkUnknown), 100_000, Missing, &["P11"]),
        (Some(Abandon), 20, Superseded, &["P11"]),
    ] {
        let mut history = held_and_perhaps(step);
        history.step(by - 1, by, 5, 1, RENEW).refused(refused);
        let violation = history.violated();
        assert_eq!(violation, violated, "{step:?}, by {by}, {refused:?}");
    }
}

#[test]
fn a_refusal_may_come_of_a_later_attempt() {
    for refused in [Refused::Superseded, Refused::Missing] {
        for (by, violated) in [(155, FINE), (149, &["P11"])] {
            let mut history = held();
            history.claim(150, 151, 2).acquired_again(6, 2);
            history.step(140, by, 5, 1, RENEW).refused(refused);
            assert_eq!(history.violated(), violated, "by {by}, {refused:?}");
        }
    }
}

#[test]
fn a_refusal_may_come_of_the_same_nonce_sent_again_after_the_end() {
    for (ended, again, violated) in [
        (Some(10), true, FINE),
        (None, true, &["P11"]),
        (Some(40), true, &["P11"]),
        (Some(10), false, &["P11"]),
    ] {
        let mut history = held();
        if let Some(at) = ended {
            history.step(at, at + 1, 5, 1, Abandon).applied();
        }
        if again {
            history.claim_as(20, 0, 1, 1, LAPSE_HOLDS).lost();
        }
        history
            .step(30, 31, 5, 1, RENEW)
            .refused(Refused::Superseded);
        assert_eq!(history.violated(), violated, "{ended:?} {again}");
    }
}

#[test]
fn a_refusal_may_hide_that_the_step_was_done_while_something_was_broken() {
    let complete = completing(0xaa, 50, 0);
    for (step, refused, options, violated) in [
        (complete, Refused::Missing, broken(100, 150, None), FINE),
        (complete, Refused::Missing, broken(100, 150, Some(0)), FINE),
        (complete, Refused::Missing, broken(0, 9, None), &["P11"]),
        (
            complete,
            Refused::Missing,
            broken(100, 150, Some(1)),
            &["P11"],
        ),
        // It would be answered "applied" again.
        (MarkUnknown, Refused::Unknown, broken(0, 50, None), &["P11"]),
    ] {
        let mut history = held();
        let by = if step == complete { 200 } else { 11 };
        history.step(10, by, 5, 1, step).refused(refused);
        let violation = history.violated_under(&options);
        assert_eq!(violation, violated, "{step:?} {options:?}");
    }
}

// Replays and reads.

#[test]
fn what_was_completed_is_seen() {
    let found = |state, outcome| Answer::Found {
        state,
        held: Held { fence: 5, nonce: 1 },
        outcome,
    };
    let get = Call::Get { key: 0 };
    let claim = Call::Claim {
        key: 0,
        nonce: 2,
        print: 1,
        lease: LEASE,
        retry: true,
    };
    for (call, answer, violated) in [
        (claim, Answer::Lost, FINE),
        (claim, Answer::Failed(Failed::Not), FINE),
        (get, Answer::Lost, FINE),
        (get, found(StateKind::Completed, Some(0xaa)), FINE),
        (get, found(StateKind::Completed, Some(0xbb)), &["P4"]),
        (get, found(StateKind::InFlight, None), &["P2"]),
        (get, Answer::Absent, &["P2"]),
    ] {
        let mut history = held_and(completing(0xaa, 1_000, 0));
        history.op(12, 13, call).answered(answer);
        assert_eq!(history.violated(), violated, "{call:?} {answer:?}");
    }
}

#[test]
fn what_is_read_was_kept() {
    for (outcome, by, violated) in [(0xaa, 20, FINE), (0xbb, 20, &["P4"]), (0xaa, 9, &["P4"])] {
        let mut history = held_and_perhaps(Some(completing(0xaa, 1_000, 0)));
        let found = Answer::Found {
            state: StateKind::Completed,
            held: Held { fence: 5, nonce: 1 },
            outcome: Some(outcome),
        };
        let get = Call::Get { key: 0 };
        history.op(by - 1, by, get).answered(found);
        assert_eq!(history.violated(), violated, "{outcome}, by {by}");
    }
}

#[test]
fn a_replay_ends_with_its_retention_and_a_read_with_the_tombstone() {
    let get = Answer::Found {
        state: StateKind::Completed,
        held: Held { fence: 5, nonce: 1 },
        outcome: Some(0xaa),
    };
    for (sent, read, violated) in [
        (116, false, FINE),
        (117, false, &["P2"]),
        (166, true, FINE),
        (167, true, &["P2"]),
    ] {
        let mut history = held_and(completing(0xaa, 100, 50));
        if read {
            history
                .op(sent, sent + 1, Call::Get { key: 0 })
                .answered(get);
        } else {
            history.claim(sent, sent + 1, 2).completed(0xaa);
        }
        assert_eq!(history.violated(), violated, "sent at {sent}");
    }
}

#[test]
fn a_replay_ends_with_the_next_attempt() {
    for (sent, violated) in [(1_100, FINE), (1_102, &["P2"])] {
        let mut history = held_and_perhaps(Some(completing(0xaa, 1_000, 0)));
        history.claim(1_100, 1_101, 2).acquired_again(6, 2);
        history.claim(sent, 1_110, 3).completed(0xaa);
        assert_eq!(history.violated(), violated, "sent at {sent}");
    }
}

// Settling and waits.

#[test]
fn a_key_is_settled_by_a_completion_or_by_seeing_one() {
    let replayed = Answer::Completed {
        outcome: 0xaa,
        remaining: MS,
    };
    let in_flight = Answer::InFlight {
        fence: 5,
        remaining: MS,
    };
    for (answer, by, settled) in [
        (replayed, 3_100, true),
        (replayed, 3_101, false),
        (Answer::Expired, 3_100, true),
        (in_flight, 101, false),
    ] {
        let mut history = held_and(completing(0xaa, 50, 9_000));
        history.claim(100, by, 2).answered(answer);
        let options = Options {
            settling: Some(100 * MS),
            keys: 1,
            ..Options::default()
        };
        let findings = check(&history.ops(), &[], &options);
        let mut said = findings.violations.iter().map(|found| &found.what);
        let accused = said.any(|what| what.contains("settle after the faults"));
        assert_eq!(accused, !settled, "{answer:?}, by {by}");
    }
}

fn wait(history: &mut History, by: u64) {
    let call = Call::Wait {
        key: 0,
        fence: 5,
        timeout: 5_000 * MS,
    };
    history.op(2, by, call).answered(Answer::TimedOut);
}

#[test]
fn a_wait_ends_soon_after_the_end() {
    for (by, violated) in [(2_011, FINE), (2_012, &["P8"])] {
        let mut history = held_and(Abandon);
        wait(&mut history, by);
        assert_eq!(history.violated(), violated, "by {by}");
    }
    for (by, violated) in [(2_151, FINE), (2_152, &["P8"])] {
        let mut history = held();
        history.claim(150, 151, 2).acquired_again(6, 2);
        wait(&mut history, by);
        assert_eq!(history.violated(), violated, "taken over, by {by}");
    }
    let mut history = held();
    wait(&mut history, 5_002);
    assert_eq!(history.violated(), FINE, "there was no end");
}

#[test]
fn a_wait_may_sleep_through_a_fault_that_is_there_or_comes_soon() {
    // Ended at 11, to be told within 2000; a fault counts that began within 250.
    for (options, by, violated) in [
        (broken(261, 1_000, None), 3_000, FINE),
        (broken(261, 1_000, None), 3_001, &["P8"]),
        (broken(262, 1_000, None), 2_012, &["P8"]),
        (broken(261, 1_000, Some(0)), 3_000, FINE),
        (broken(261, 1_000, Some(1)), 2_012, &["P8"]),
    ] {
        let mut history = held_and(Abandon);
        wait(&mut history, by);
        let violation = history.violated_under(&options);
        assert_eq!(violation, violated, "by {by}, {options:?}");
    }
}

// Effects, and what is said of the whole.

#[test]
fn effects_of_one_attempt_are_its_own() {
    let findings = held().findings(&[effect(10, 5, 1), effect(20, 5, 1)]);
    let counts = (findings.double_effects, findings.explained_effects);
    assert_eq!((counts, findings.violations), ((0, 0), Vec::new()));
}

#[test]
fn every_key_is_searched_for_an_order() {
    let mut history = held();
    let whole = |keys, calls| Searched { keys, calls };
    assert_eq!(history.findings(&[]).searched, whole(1, 1));
    assert_eq!(history.findings(&[]).by_property(), BTreeMap::new());
    history.claim(2, 3, 2).acquired(6);
    let findings = history.findings(&[]);
    assert_eq!(
        (findings.searched, findings.undecided),
        (whole(1, 2), whole(0, 0))
    );
    assert_eq!(findings.by_property()["linear"], 1);
}

#[test]
fn an_excerpt_shows_the_key_around_the_instant() {
    let mut history = History::default();
    for at in 0..40 {
        let get = Call::Get { key: at % 2 };
        let at = u64::from(at);
        history.op(at, at + 1, get).answered(Answer::Absent);
    }
    history.op(40, 0, Call::Get { key: 0 }).lost();
    // Of eight lines two come after the instant; times are from an origin on.
    let sent = |at| {
        let lines = excerpt(&history.ops(), 0, at * MS, 4 * MS, 8);
        let times = lines.iter().map(|line| line[..10].trim().to_owned());
        times.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        sent(20),
        "6.000 8.000 10.000 12.000 14.000 16.000 18.000 20.000"
    );
    assert_eq!(
        sent(99),
        "22.000 24.000 26.000 28.000 30.000 32.000 34.000 36.000"
    );
    let last = excerpt(&history.ops(), 0, 40 * MS, 4 * MS, 1);
    assert_eq!(
        last,
        ["    36.000          … worker 0   Get { key: 0 } -> Lost"]
    );
}
