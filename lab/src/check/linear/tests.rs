//! Orders that are there, and those that are not.

use super::*;
use crate::check::tests::{History, LEASE, broken};
use crate::history::{Refused, Step};

fn verdict(history: &History) -> Verdict {
    history.verdict_under(&Options::default())
}

#[test]
fn an_order_is_found_among_calls_at_the_same_time() {
    let mut history = History::default();
    // Three at once: one wins, two are told so, although one of them was sent before it.
    history.claim(0, 10, 1).in_flight(5);
    history.claim(1, 9, 2).acquired(5);
    history.claim(0, 8, 3).in_flight(5);
    history.complete(11, 12, 5, 2, 0xaa).applied();
    history.claim(11, 14, 4).completed(0xaa);
    assert_eq!(verdict(&history), Verdict::Orderly);
}

#[test]
fn two_winners_have_none() {
    let mut history = History::default();
    history.claim(0, 10, 1).acquired(5);
    history.claim(0, 10, 2).acquired(6);
    assert!(matches!(verdict(&history), Verdict::None(_)));
}

#[test]
fn what_was_never_answered_may_have_happened_or_not() {
    for happened in [true, false] {
        let mut history = History::default();
        history.claim(0, 10, 1).acquired(5);
        history.complete(11, 0, 5, 1, 0xaa).lost();
        if happened {
            history.claim(20, 21, 2).completed(0xaa);
        } else {
            history.claim(20, 21, 2).in_flight(5);
        }
        assert_eq!(verdict(&history), Verdict::Orderly);
    }
}

#[test]
fn what_was_not_answered_may_arrive_late() {
    let mut history = History::default();
    // Given up after 1 ms; a server that stood still takes it 200 ms later, for 100 ms.
    history.claim(0, 1, 1).failed();
    history.claim(250, 251, 2).in_flight(5);
    for (until, fine) in [(210, true), (100, false)] {
        let found = history.verdict_under(&broken(0, until, None));
        assert_eq!(found == Verdict::Orderly, fine, "{found:?}");
    }
}

#[test]
fn a_stale_read_has_none() {
    let mut history = History::default();
    history.claim(0, 10, 1).acquired(5);
    history.complete(11, 12, 5, 1, 0xaa).applied();
    history.claim(13, 14, 2).in_flight(5);
    assert!(matches!(verdict(&history), Verdict::None(_)));
}

#[test]
fn a_lapse_explains_a_takeover_only_when_it_is_due() {
    for (at, fine) in [(50, false), (120, true)] {
        let mut history = History::default();
        history.claim(0, 1, 1).acquired(5);
        history.claim(at, at + 1, 2).acquired(6);
        let found = verdict(&history);
        assert_eq!(found == Verdict::Orderly, fine, "{found:?}");
    }
}

#[test]
fn a_lost_claim_may_have_found_a_lapse() {
    let mut history = History::default();
    history.claim_as(0, 1, 1, 1, false).acquired(5);
    history.claim_as(110, 0, 2, 1, false).lost();
    let renew = Step::Renew { lease: 1 };
    history
        .step(120, 121, 5, 1, renew)
        .refused(Refused::Unknown);
    assert_eq!(verdict(&history), Verdict::Orderly);
}

#[test]
fn a_claim_that_took_long_may_have_won_twice() {
    let mut history = History::default();
    history.claim(0, 1_400, 1).acquired(9);
    history.claim(50, 51, 2).in_flight(5);
    history.claim(120, 121, 3).acquired(6);
    history.complete(122, 123, 6, 3, 0xaa).applied();
    // Only what broke while it was under way.
    for (options, fine) in [
        (broken(1_000, 1_100, None), true),
        (broken(1_500, 1_600, None), false),
        (Options::default(), false),
    ] {
        let found = history.verdict_under(&options);
        assert_eq!(found == Verdict::Orderly, fine, "{found:?}");
    }
}

#[test]
fn a_renewal_that_was_sent_again_may_have_extended_twice() {
    // At 95, before the claim, and at 190.
    let mut history = History::default();
    history.claim(0, 1, 1).acquired(5);
    history
        .step(90, 200, 5, 1, Step::Renew { lease: LEASE })
        .applied();
    history.claim(150, 151, 2).in_flight(5);
    history.claim(280, 281, 3).in_flight(5);
    assert_eq!(verdict(&history), Verdict::Orderly);
}

#[test]
fn a_lost_claim_may_hold_the_record() {
    let mut history = History::default();
    history.claim(0, 0, 1).lost();
    history.claim(5, 6, 2).in_flight(77);
    history.claim(7, 8, 1).acquired(77);
    assert_eq!(verdict(&history), Verdict::Orderly);
}

#[test]
fn a_lost_call_arrives_soon_but_for_a_fault_that_comes_soon() {
    // Its claim has to arrive at 405 at the earliest, for its lease to be there at 510.
    for (from, fine) in [(251, true), (252, false)] {
        let mut history = History::default();
        history.claim(0, 1, 1).failed();
        history.claim(510, 511, 2).in_flight(5);
        let found = history.verdict_under(&broken(from, 500, None));
        assert_eq!(found == Verdict::Orderly, fine, "{from}: {found:?}");
    }
}

#[test]
fn an_answer_that_hides_what_was_done_is_not_believed() {
    for (until, fine) in [(20, true), (9, false)] {
        let mut history = History::default();
        history.claim(0, 1, 1).acquired(5);
        history
            .complete(10, 30, 5, 1, 0xaa)
            .refused(Refused::Missing);
        history.claim(40, 41, 2).completed(0xaa);
        let found = history.verdict_under(&broken(0, until, None));
        assert_eq!(found == Verdict::Orderly, fine, "{until}: {found:?}");
    }
}

#[test]
fn what_did_not_happen_needs_no_place_and_a_read_does() {
    let get = Call::Get { key: 0 };
    for (call, answer, fine) in [
        (get, Answer::Failed(Failed::Not), true),
        (get, Answer::Absent, false),
        (Call::Purge, Answer::Lost, true),
    ] {
        let mut history = History::default();
        history.claim(0, 1, 1).acquired(5);
        history.op(10, 11, call).answered(answer);
        history
            .claim(20, 21, 2)
            .answered(Answer::Failed(Failed::Not));
        assert_eq!(verdict(&history) == Verdict::Orderly, fine, "{answer:?}");
    }
}

#[test]
fn a_search_is_given_up_at_its_bound() {
    let mut history = History::default();
    history.claim(0, 1, 1).acquired(5);
    history.complete(10, 11, 5, 1, 0xaa).applied();
    let ops = history.ops();
    let ops: Vec<&Op> = ops.iter().collect();
    // A step for each call, and one to see that there are no more.
    for (bound, verdict) in [(3, Verdict::Orderly), (2, Verdict::Undecided)] {
        assert_eq!(search_within(bound, &ops, &Options::default()), verdict);
    }
}
