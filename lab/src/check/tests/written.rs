//! Histories as the tests write them down, and what is said of them by both judges: the rules, and the search for
//! an order.
//!
//! A history is a list of calls on one key. `10-30 hold 2: unknown 5` is sent at 10 ms and answered at 30; `10` is
//! answered a millisecond later, `10-` never. Without an answer the call is lost.
//!
//! | call | |
//! |---|---|
//! | `claim N`, `hold N` | under nonce N, with the policy to retry or to hold; `xP` asks for request P instead of 1 |
//! | `renew F/N`, `keep`, `abandon`, `mark` | with fence F and nonce N; a lease is 100 ms |
//! | `complete F/N aa 100+50` | keeps the outcome aa: replayed for 100 ms, and a tombstone for 50 more |
//! | `resolve F by N aa 100+50` | as "did not happen", where it keeps nothing |
//! | `get`, `wait F`, `purge` | |
//!
//! A history also has effects (`10 effect F/N`), times in which something is `broken 10-30` (`of 1`: for that
//! worker alone), and whether the keys are driven to an end: `settling 100 keys 1 within 3000`.

use semel::StateKind;

use super::super::{Findings, Options, Trouble, check};
use crate::clock::Nanos;
use crate::history::{Answer, Call, Failed, Held, Kept, Op, Step};
use crate::ledger::Effect;
use crate::tables::{MS, ms, number, span};

const LEASE: Nanos = 100 * MS;

#[derive(Default)]
pub(super) struct History {
    pub(super) ops: Vec<Op>,
    effects: Vec<Effect>,
    options: Options,
}

/// What histories begin with, and its name.
const BEGINNINGS: [(&str, &str); 10] = [
    ("nothing", ""),
    // Nonce 1 has fence 5, under a policy that lets nobody else run when it lapses.
    ("held", "0 hold 1: acquired 5"),
    // Under one that lets its request run again.
    ("taken", "0 claim 1: acquired 5"),
    (
        "kept",
        "0 claim 1: acquired 5; 2 complete 5/1 aa 1000+0: applied",
    ),
    (
        "done",
        "0 hold 1: acquired 5; 10 complete 5/1 aa 100+50: applied",
    ),
    ("marked", "0 hold 1: acquired 5; 10 mark 5/1: applied"),
    ("renewed", "0 hold 1: acquired 5; 10 renew 5/1: applied"),
    ("released", "0 hold 1: acquired 5; 10 abandon 5/1: applied"),
    // Released with a part of the work kept.
    (
        "partly",
        "0 hold 1: acquired 5; 10 keep 5/1: applied; 12 abandon 5/1: applied",
    ),
    (
        "life",
        "0 claim 1: acquired 5; 0-2 claim 2: in-flight 5; 50 renew 5/1: applied;
        120 complete 5/1 aa 1000+0: applied; 122 complete 5/1 aa 1000+0: applied;
        124 claim 3: completed aa; 126 claim 4 x2: mismatch; 130 abandon 5/1: refused Completed;
        1200 claim 6: acquired 9; 1202 abandon 5/1: refused Superseded;
        1204 abandon 9/6: applied; 1206 claim 7 x2: acquired 10 #2",
    ),
];

/// A row's verdict are the properties that it violates, and the completions and effects that are counted.
pub(super) fn judged(table: &str) {
    crate::tables::judged(table, &BEGINNINGS, |text| History::read(text).verdict());
}

impl History {
    pub(super) fn read(text: &str) -> Self {
        let mut history = Self::default();
        for item in text.split(';') {
            let (asked, answer) = item.split_once(':').unwrap_or((item, ""));
            let asked: Vec<&str> = asked.split_whitespace().collect();
            history.push(&asked, &answer.split_whitespace().collect::<Vec<_>>());
        }
        history.ops.sort_by_key(|op| op.invoked);
        history
    }

    fn push(&mut self, asked: &[&str], answer: &[&str]) {
        match *asked {
            [] => {}
            ["broken", times, ref of @ ..] => {
                let (from, until) = span(times);
                self.options.troubles.push(Trouble {
                    from,
                    until,
                    worker: of.last().map(|worker| number(worker)),
                });
            }
            ["settling", from, "keys", keys, "within", within] => {
                self.options.settling = Some(ms(from));
                self.options.keys = number(keys);
                self.options.settle_within = ms(within);
            }
            [at, "effect", token] => {
                let Held { fence, nonce } = held(token);
                self.effects.push(Effect {
                    at: ms(at),
                    key: 0,
                    fence,
                    nonce: Some(nonce),
                    fenced: true,
                });
            }
            [times, ref call @ ..] => {
                let (from, answered) = match times.split_once('-') {
                    None => (times, ms(times) + MS),
                    Some((from, "")) => (from, Nanos::MAX),
                    Some((from, by)) => (from, ms(by)),
                };
                self.ops.push(Op {
                    worker: 0,
                    invoked: ms(from),
                    answered,
                    call: self::call(call),
                    answer: self::answer(answer),
                });
            }
        }
    }

    pub(super) fn findings(&self) -> Findings {
        check(&self.ops, &self.effects, &self.options)
    }

    fn verdict(&self) -> String {
        let findings = self.findings();
        let mut said: Vec<_> = findings.by_property().into_keys().collect();
        for (count, what) in [
            (findings.lost, "lost"),
            (findings.double_effects, "double"),
            (findings.explained_effects, "explained"),
            (findings.undecided.keys, "undecided"),
        ] {
            said.extend(std::iter::repeat_n(what, count));
        }
        said.join(" ")
    }
}

fn outcome(text: &str) -> u64 {
    u64::from_str_radix(text, 16).expect("an outcome is a hexadecimal number")
}

fn held(token: &str) -> Held {
    let (fence, nonce) = token.split_once('/').expect("a fence and a nonce");
    Held {
        fence: number(fence),
        nonce: number(nonce),
    }
}

fn kept(words: &[&str]) -> Kept {
    let &[kept, retention] = words else {
        panic!("an outcome and its retention, not {words:?}");
    };
    let (replay, tombstone) = retention.split_once('+').expect("with its tombstone's");
    Kept {
        outcome: outcome(kept),
        replay: ms(replay),
        tombstone: ms(tombstone),
    }
}

fn call(words: &[&str]) -> Call {
    let key = 0;
    match *words {
        [policy @ ("claim" | "hold"), nonce, ref request @ ..] => Call::Claim {
            key,
            nonce: number(nonce),
            print: request.first().map_or(1, |print| number(&print[1..])),
            lease: LEASE,
            retry: policy == "claim",
        },
        ["resolve", fence, "by", nonce, ref happened @ ..] => Call::Resolve {
            key,
            fence: number(fence),
            nonce: number(nonce),
            happened: (!happened.is_empty()).then(|| kept(happened)),
        },
        ["get"] => Call::Get { key },
        ["wait", fence] => Call::Wait {
            key,
            fence: number(fence),
            timeout: 5_000 * MS,
        },
        ["purge"] => Call::Purge,
        [step, token, ref more @ ..] => Call::Fenced {
            key,
            held: held(token),
            step: match step {
                "renew" => Step::Renew { lease: LEASE },
                "complete" => Step::Complete(kept(more)),
                "keep" => Step::Keep { part: 7, after: 0 },
                "abandon" => Step::Abandon,
                "mark" => Step::MarkUnknown,
                other => panic!("no call is {other:?}"),
            },
        },
        _ => panic!("{words:?} is no call"),
    }
}

fn answer(words: &[&str]) -> Answer {
    match *words {
        ["acquired", fence, ref attempt @ ..] => Answer::Acquired {
            fence: number(fence),
            attempt: attempt.first().map_or(1, |attempt| number(&attempt[1..])),
        },
        ["in-flight", fence, ref remaining @ ..] => Answer::InFlight {
            fence: number(fence),
            remaining: remaining.last().map_or(MS, |remaining| ms(remaining)),
        },
        ["completed", kept] => Answer::Completed {
            outcome: outcome(kept),
            remaining: MS,
        },
        ["unknown", fence] => Answer::Unknown {
            fence: number(fence),
        },
        ["found", state, token, ref kept @ ..] => Answer::Found {
            state: match state {
                "in-flight" => StateKind::InFlight,
                "unknown" => StateKind::Unknown,
                "completed" => StateKind::Completed,
                "released" => StateKind::Released,
                other => panic!("no state is {other:?}"),
            },
            held: held(token),
            outcome: kept.first().map(|kept| outcome(kept)),
        },
        // As histories have it.
        ["refused", why] => Answer::Refused(serde_json::from_value(why.into()).expect("a reason")),
        ["mismatch"] => Answer::Mismatch,
        ["expired"] => Answer::Expired,
        ["applied"] => Answer::Applied,
        ["absent"] => Answer::Absent,
        ["timed-out"] => Answer::TimedOut,
        ["failed", "not"] => Answer::Failed(Failed::Not),
        ["failed", "perhaps"] => Answer::Failed(Failed::Perhaps),
        [] => Answer::Lost,
        _ => panic!("{words:?} is no answer"),
    }
}
