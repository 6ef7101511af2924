//! Histories written by hand: good ones that must pass, and bad ones that must not.

use semel::StateKind;

use super::*;
use crate::history::{Answer, Call, Failed, Held, Kept, Refused, Step};

mod rules;

/// Makes a history of key 0, with milliseconds for times. Claims have a lease of 100 ms and the
/// policy to retry; completions are replayed for 1 s.
#[derive(Default)]
pub(super) struct History(Vec<Op>);

pub(super) const MS: Nanos = 1_000_000;
pub(super) const LEASE: Nanos = 100 * MS;

impl History {
    pub(super) fn op(&mut self, from: u64, by: u64, call: Call) -> &mut Self {
        self.0.push(Op {
            worker: 0,
            invoked: from * MS,
            answered: by * MS,
            call,
            answer: Answer::Lost,
        });
        self
    }

    pub(super) fn answered(&mut self, answer: Answer) {
        self.0.last_mut().unwrap().answer = answer;
    }

    pub(super) fn claim(&mut self, from: u64, by: u64, nonce: u128) -> &mut Self {
        self.claim_as(from, by, nonce, 1, true)
    }

    pub(super) fn claim_as(
        &mut self,
        from: u64,
        by: u64,
        nonce: u128,
        print: u64,
        retry: bool,
    ) -> &mut Self {
        let call = Call::Claim {
            key: 0,
            nonce,
            print,
            lease: LEASE,
            retry,
        };
        self.op(from, by, call)
    }

    pub(super) fn step(
        &mut self,
        from: u64,
        by: u64,
        fence: u64,
        nonce: u128,
        step: Step,
    ) -> &mut Self {
        let held = Held { fence, nonce };
        self.op(from, by, Call::Fenced { key: 0, held, step })
    }

    pub(super) fn complete(
        &mut self,
        from: u64,
        by: u64,
        fence: u64,
        nonce: u128,
        outcome: u64,
    ) -> &mut Self {
        self.step(from, by, fence, nonce, completing(outcome, 1_000, 0))
    }

    pub(super) fn resolve(&mut self, from: u64, by: u64, fence: u64) -> &mut Self {
        let call = Call::Resolve {
            key: 0,
            fence,
            nonce: 0xffff,
            happened: None,
        };
        self.op(from, by, call)
    }

    pub(super) fn acquired(&mut self, fence: u64) {
        self.answered(Answer::Acquired { fence, attempt: 1 });
    }

    pub(super) fn acquired_again(&mut self, fence: u64, attempt: u32) {
        self.answered(Answer::Acquired { fence, attempt });
    }

    pub(super) fn in_flight(&mut self, fence: u64) {
        let remaining = 10 * MS;
        self.answered(Answer::InFlight { fence, remaining });
    }

    pub(super) fn completed(&mut self, outcome: u64) {
        let remaining = 10 * MS;
        self.answered(Answer::Completed { outcome, remaining });
    }

    pub(super) fn applied(&mut self) {
        self.answered(Answer::Applied);
    }

    pub(super) fn refused(&mut self, refused: Refused) {
        self.answered(Answer::Refused(refused));
    }

    pub(super) fn lost(&mut self) {
        let op = self.0.last_mut().unwrap();
        (op.answered, op.answer) = (Nanos::MAX, Answer::Lost);
    }

    pub(super) fn failed(&mut self) {
        self.answered(Answer::Failed(Failed::Perhaps));
    }

    pub(super) fn ops(&self) -> Vec<Op> {
        let mut ops = self.0.clone();
        ops.sort_by_key(|op| op.invoked);
        ops
    }

    fn findings(&self, effects: &[Effect]) -> Findings {
        check(&self.ops(), effects, &Options::default())
    }

    /// The properties that are violated, each once; `linear` aside.
    fn violated(&self) -> Vec<&'static str> {
        self.violated_under(&Options::default())
    }

    /// Whether there is an order of its calls.
    pub(super) fn verdict_under(&self, options: &Options) -> linear::Verdict {
        let ops = self.ops();
        linear::search(&ops.iter().collect::<Vec<_>>(), options)
    }

    fn violated_under(&self, options: &Options) -> Vec<&'static str> {
        let counts = check(&self.ops(), &[], options).by_property();
        counts.into_keys().filter(|p| *p != "linear").collect()
    }
}

/// The step that keeps this outcome, with its times in milliseconds.
pub(super) const fn completing(outcome: u64, replay: u64, tombstone: u64) -> Step {
    Step::Complete(Kept {
        outcome,
        replay: replay * MS,
        tombstone: tombstone * MS,
    })
}

/// Something is broken for this worker, or for all, from one instant to another in milliseconds.
pub(super) fn broken(from: u64, until: u64, worker: Option<u32>) -> Options {
    let (from, until) = (from * MS, until * MS);
    Options {
        troubles: vec![Trouble {
            from,
            until,
            worker,
        }],
        ..Options::default()
    }
}

fn effect(at: u64, fence: u64, nonce: u128) -> Effect {
    Effect {
        at: at * MS,
        key: 0,
        fence,
        nonce: Some(nonce),
        fenced: true,
    }
}

#[test]
fn a_plain_life_is_fine() {
    let mut history = History::default();
    history.claim(0, 1, 1).acquired(5);
    history.claim(0, 2, 2).in_flight(5);
    history
        .step(50, 51, 5, 1, Step::Renew { lease: LEASE })
        .applied();
    history.complete(120, 121, 5, 1, 0xaa).applied();
    history.complete(122, 123, 5, 1, 0xaa).applied();
    history.claim(124, 125, 3).completed(0xaa);
    history
        .claim_as(126, 127, 4, 2, true)
        .answered(Answer::Mismatch);
    history
        .step(130, 131, 5, 1, Step::Abandon)
        .refused(Refused::Completed);
    history.claim(1_200, 1_201, 6).acquired(9);
    history
        .step(1_202, 1_203, 5, 1, Step::Abandon)
        .refused(Refused::Superseded);
    history.step(1_204, 1_205, 9, 6, Step::Abandon).applied();
    history
        .claim_as(1_206, 1_207, 7, 2, true)
        .acquired_again(10, 2);
    let findings = history.findings(&[effect(60, 5, 1), effect(1_210, 10, 7)]);
    assert_eq!(findings.violations, []);
    let counts = (
        findings.lost,
        findings.double_effects,
        findings.explained_effects,
    );
    assert_eq!(counts, (0, 0, 1));
}

#[test]
fn two_owners() {
    let mut history = History::default();
    history.claim(0, 10, 1).acquired(5);
    history.claim(1, 11, 2).acquired(6);
    assert_eq!(history.violated(), ["P1"]);
    let findings = history.findings(&[effect(12, 5, 1), effect(13, 6, 2)]);
    assert_eq!(findings.double_effects, 1);
}

#[test]
fn one_fence_for_two() {
    let mut history = History::default();
    history.claim(0, 10, 1).acquired(5);
    history.claim(200, 201, 2).acquired_again(5, 2);
    assert_eq!(history.violated(), ["P1"]);
}

#[test]
fn a_fence_that_goes_back() {
    let mut history = History::default();
    history.claim(0, 1, 1).acquired(5);
    history.complete(2, 3, 5, 1, 0xaa).applied();
    history.claim(1_100, 1_101, 2).acquired(4);
    assert_eq!(history.violated(), ["P1"]);
}

#[test]
fn a_takeover_after_the_lapse_is_fine_and_before_it_is_not() {
    for (at, renewed, violated) in [
        (104, false, &[][..]),
        (80, false, &["P1"]),
        (104, true, &["P1"]),
        (155, true, &[]),
    ] {
        let mut history = History::default();
        history.claim(0, 1, 1).acquired(5);
        if renewed {
            history
                .step(50, 51, 5, 1, Step::Renew { lease: LEASE })
                .applied();
        }
        history.claim(at, at + 1, 2).acquired_again(6, 2);
        assert_eq!(history.violated(), violated, "taken over at {at}");
    }
}

#[test]
fn under_hold_only_a_resolution_lets_another_run() {
    for resolved in [true, false] {
        let mut history = History::default();
        history.claim_as(0, 1, 1, 1, false).acquired(5);
        history
            .claim_as(150, 151, 2, 1, false)
            .answered(Answer::Unknown { fence: 5 });
        if resolved {
            history.resolve(160, 161, 5).applied();
        }
        history.claim_as(170, 171, 3, 1, false).acquired_again(6, 2);
        let findings = history.findings(&[effect(10, 5, 1), effect(172, 6, 3)]);
        assert_eq!(findings.double_effects, usize::from(!resolved));
        let violated = if resolved { &[][..] } else { &["P1"] };
        assert_eq!(history.violated(), violated);
    }
}

#[test]
fn a_claim_given_back_was_made_by_the_one_that_was_lost() {
    for retry in [true, false] {
        let mut history = History::default();
        history.claim(0, 1, 1).acquired(5);
        history.claim_as(150, 151, 2, 1, retry).lost();
        history.claim_as(160, 161, 2, 1, false).acquired_again(6, 2);
        history.step(162, 163, 6, 2, Step::Abandon).applied();
        let violated = if retry { &[][..] } else { &["P1"] };
        assert_eq!(history.violated(), violated);
    }
}

#[test]
fn a_completion_that_is_forgotten() {
    let mut history = History::default();
    history.claim(0, 1, 1).acquired(5);
    history.complete(2, 3, 5, 1, 0xaa).applied();
    history.claim(200, 201, 2).acquired_again(6, 2);
    let findings = history.findings(&[]);
    assert_eq!(findings.lost, 1);
    assert_eq!(history.violated(), ["P1", "P2"]);
}

#[test]
fn retention_counts_from_the_first_of_repeated_resolutions() {
    let mut history = History::default();
    history.claim(0, 0, 1).lost();
    let kept = Kept {
        outcome: 0xaa,
        replay: 500 * MS,
        tombstone: 500 * MS,
    };
    for from in [200, 600] {
        let resolve = Call::Resolve {
            key: 0,
            fence: 5,
            nonce: 0xffff,
            happened: Some(kept),
        };
        history.op(from, from + 10, resolve).applied();
    }
    history
        .op(710, 711, Call::Get { key: 0 })
        .answered(Answer::Found {
            state: StateKind::Completed,
            held: Held {
                fence: 6,
                nonce: 0xffff,
            },
            outcome: Some(0xaa),
        });
    history.claim(720, 721, 2).answered(Answer::Expired);
    assert_eq!(history.violated(), [""; 0]);
}

#[test]
fn replays_that_are_not_what_was_kept() {
    let mut history = History::default();
    history.claim(0, 1, 1).acquired(5);
    history.complete(2, 3, 5, 1, 0xaa).applied();
    history.claim(4, 5, 2).completed(0xab);
    assert_eq!(history.violated(), ["P4"]);

    let mut history = History::default();
    history.claim(0, 1, 1).acquired(5);
    history.complete(2, 3, 5, 1, 0xaa).applied();
    history.claim(1_100, 1_101, 2).completed(0xaa);
    assert_eq!(history.violated(), ["P2"], "after retention");
}

#[test]
fn a_mismatch_that_replays_or_is_none() {
    let mut history = History::default();
    history.claim(0, 1, 1).acquired(5);
    history.complete(2, 3, 5, 1, 0xaa).applied();
    history.claim_as(4, 5, 2, 9, true).completed(0xaa);
    assert_eq!(history.violated(), ["P9"]);

    let mut history = History::default();
    history.claim(0, 1, 1).acquired(5);
    history.claim(4, 5, 2).answered(Answer::Mismatch);
    assert_eq!(history.violated(), ["P9"]);
}

#[test]
fn a_mismatch_beside_a_claim_whose_answer_hides_that_it_held_the_key() {
    let replayed = Answer::Completed {
        outcome: 0xaa,
        remaining: 10 * MS,
    };
    // Whether it took its lease, whether something was broken meanwhile, and what it was told.
    for (sent, from, answer, expected) in [
        (0, 20, replayed, &[][..]),
        (0, 160, replayed, &["P9"]),
        (100, 20, replayed, &["P9"]),
        (0, 20, Answer::Failed(Failed::Not), &["P9"]),
    ] {
        let mut history = History::default();
        history.claim_as(sent, 150, 1, 9, true).answered(answer);
        history.claim(110, 111, 2).answered(Answer::Mismatch);
        history.claim_as(120, 121, 3, 9, true).acquired_again(6, 2);
        history.complete(125, 126, 6, 3, 0xaa).applied();
        let options = broken(from, from + 100, None);
        let violated = history.violated_under(&options);
        assert_eq!(violated, expected, "{sent} {from} {answer:?}");
    }
}

#[test]
fn stale_and_forged_tokens() {
    let mut history = History::default();
    history.claim(0, 1, 1).acquired(5);
    history.claim(150, 151, 2).acquired_again(6, 2);
    history.complete(160, 161, 5, 1, 0xaa).applied();
    assert_eq!(history.violated(), ["P1", "P3"]);

    for (fence, nonce) in [(5, 2), (4, 1)] {
        let mut history = History::default();
        history.claim(0, 1, 1).acquired(5);
        history
            .step(2, 3, fence, nonce, Step::Renew { lease: LEASE })
            .applied();
        assert_eq!(history.violated(), ["P3"]);
    }
}

#[test]
fn a_refusal_needs_a_cause() {
    let mut history = History::default();
    history.claim(0, 1, 1).acquired(5);
    history
        .complete(2, 3, 5, 1, 0xaa)
        .refused(Refused::Superseded);
    assert_eq!(history.violated(), ["P11"]);
    // Somebody's claim was lost: it may have taken over.
    history.claim(1, 2, 2).lost();
    assert_eq!(history.violated(), [""; 0]);

    let mut history = History::default();
    history.claim(0, 1, 1).acquired(5);
    history.complete(2, 3, 5, 1, 0xaa).refused(Refused::Missing);
    assert_eq!(history.violated(), ["P11"], "a record in flight was purged");
}

#[test]
fn the_winner_does_not_lose_to_itself() {
    let mut history = History::default();
    history
        .claim(0, 1, 1)
        .answered(Answer::Failed(Failed::Perhaps));
    history.claim(2, 3, 1).in_flight(5);
    assert_eq!(history.violated(), ["P11"]);

    let mut history = History::default();
    history
        .claim(0, 1, 1)
        .answered(Answer::Failed(Failed::Perhaps));
    history.claim(2, 3, 1).acquired(5);
    assert_eq!(history.violated(), [""; 0]);
    // "It did not happen" is no excuse for a record that is there.
    let mut history = History::default();
    history.claim(0, 1, 1).answered(Answer::Failed(Failed::Not));
    history.claim(2, 3, 2).in_flight(5);
    assert_eq!(history.violated(), ["P11"]);
}

#[test]
fn a_lapse_must_be_noticed() {
    let mut history = History::default();
    history.claim(0, 1, 1).acquired(5);
    history.claim(180, 181, 2).in_flight(5);
    assert_eq!(history.violated(), ["P8"]);
}

#[test]
fn no_lease_is_longer_than_what_was_asked_for() {
    // Its lease may have been renewed while it was asked, and the store's clock be 5 ms off.
    for (by, longer, violated) in [(11, 6, &[][..]), (11, 7, &["P8"]), (60, 55, &[])] {
        let mut history = History::default();
        history.claim(0, 1, 1).acquired(5);
        history.claim(10, by, 2).answered(Answer::InFlight {
            fence: 5,
            remaining: LEASE + longer * MS,
        });
        assert_eq!(
            history.violated(),
            violated,
            "answered at {by}, {longer} longer"
        );
    }
}

#[test]
fn an_effect_without_a_claim() {
    let mut history = History::default();
    history.claim(10, 11, 1).acquired(5);
    let findings = history.findings(&[effect(5, 5, 1)]);
    assert_eq!(findings.by_property()["P10"], 1);
    let findings = history.findings(&[effect(20, 7, 1)]);
    assert_eq!(findings.by_property()["P10"], 1);
}

#[test]
fn keys_must_settle_after_the_faults() {
    let mut history = History::default();
    history.claim(0, 1, 1).acquired(5);
    history.claim(100, 5_000, 2).acquired_again(6, 2);
    history.complete(5_000, 5_001, 6, 2, 0xaa).applied();
    let mut options = Options {
        settling: Some(100 * MS),
        keys: 1,
        ..Options::default()
    };
    let violated = |options: &Options| check(&history.ops(), &[], options).by_property();
    assert_eq!(violated(&options)["P8"], 1);
    options.settle_within = 6_000 * MS;
    assert_eq!(violated(&options).get("P8"), None);
    options.keys = 2;
    assert_eq!(violated(&options)["P8"], 1, "nobody asked for the second");
}

#[test]
fn a_wait_that_sleeps_on() {
    let mut history = History::default();
    history.claim(0, 1, 1).acquired(5);
    history.complete(2, 3, 5, 1, 0xaa).applied();
    for (by, violated) in [(1_500, &[][..]), (3_000, &["P8"])] {
        let mut history = History(history.0.clone());
        let timeout = 3_000 * MS;
        let wait = Call::Wait {
            key: 0,
            fence: 5,
            timeout,
        };
        history.op(2, by, wait).answered(Answer::TimedOut);
        assert_eq!(history.violated(), violated);
    }
}
