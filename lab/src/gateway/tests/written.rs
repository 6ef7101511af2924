//! Runs through gateways as the tests write them down.
//!
//! A run is a list, with times in ms. `20-30 call: replay 1` is a call of one identity at gateway 0, for body 5; calls
//! are numbered from 1 on. `principal`, `service`, `key`, `body` and `gateway` may be others: `body=6`.
//! `5 for 2 under 3: ran 1` is a line of the upstream's ledger: execution 1, for call 2, under fence 3; or
//! it `failed 500`, or was `refused`. Something is `broken store 10-20`, and so on.

use super::super::judge::*;
use super::super::records::*;
use crate::tables::{MS, ms, number, span};

/// Call 1 ran and was told; or its attempt was lost with its gateway, and another one ran.
const BEGINNINGS: [(&str, &str); 5] = [
    ("nothing", ""),
    ("ran", "0-10 call: answer 1; 5 for 1 under 1: ran 1"),
    (
        "lost",
        "0-50 call: broken; 5 for 1 under 1: ran 1; broken gateway-0 10-40;
        2000-2010 call: answer 2; 2005 for 2 under 2: ran 2",
    ),
    (
        "two lost",
        "retry; 0-50 call: broken; 5 for 1 under 1: ran 1; broken gateway-0 10-40;
        2000-2010 call: answer 2; 2005 for 2 under 2: ran 2;
        0-50 call key=8: broken; 5 for 3 under 1 key=8 id=other: ran 3;
        2000-2010 call key=8: answer 4; 2005 for 4 under 2 key=8 id=other: ran 4",
    ),
    (
        "released",
        "0-10 call: failed 500; 5 for 1 under 1: failed 500",
    ),
];

/// A row's verdict are the checks that find something, and the second effects that are explained.
pub(super) fn judged(table: &str) {
    crate::tables::judged(table, &BEGINNINGS, |text| {
        let findings = Run::read(text).findings();
        let mut said: Vec<_> = findings.by_check().into_keys().collect();
        assert!(said.iter().all(|check| CHECKS.contains(check)));
        said.extend(std::iter::repeat_n("explained", findings.explained_effects));
        said.join(" ")
    });
}

pub(super) struct Run {
    known: Known,
    calls: Vec<Call>,
    ledger: Vec<Entry>,
}

impl Run {
    pub(super) fn read(text: &str) -> Self {
        let mut run = Self {
            known: Known {
                lease: 1000 * MS,
                clients: 1,
                ..Known::default()
            },
            calls: Vec::new(),
            ledger: Vec::new(),
        };
        for item in text.split(';') {
            let (what, said) = item.split_once(": ").unwrap_or((item, ""));
            let words: Vec<&str> = what.split_whitespace().collect();
            run.push(&words, &said.split_whitespace().collect::<Vec<_>>());
        }
        run
    }

    pub(super) fn findings(&self) -> Findings {
        judge(&self.known, &self.calls, &self.ledger)
    }

    fn push(&mut self, words: &[&str], answer: &[&str]) {
        let known = &mut self.known;
        match *words {
            [] => {}
            ["retry"] => known.on_lost = OnLost::Retry,
            ["reconcile"] => known.on_lost = OnLost::Reconcile,
            ["clockless"] => known.clockless = true,
            ["elects", within] => known.elects = ms(within),
            ["clients", count] => known.clients = number(count),
            ["calm", at] => known.calm = ms(at),
            ["settling", at] => known.settling = Some(ms(at)),
            ["broken", place, times] => {
                let (from, until) = span(times);
                let place = match place {
                    "store" => Place::Store,
                    "upstream" => Place::Upstream,
                    "machine" => Place::Machine,
                    gateway => Place::Gateway(number(&gateway["gateway-".len()..])),
                };
                known.troubles.push(Trouble { from, until, place });
            }
            ["exit", code, times] => {
                let (from, until) = span(times);
                known.exits.push(Exit {
                    gateway: 0,
                    from,
                    until,
                    code: code.parse().ok(),
                });
            }
            [times, "call", ref other @ ..] => {
                let (sent, answered) = span(times);
                let of = Of::read(other);
                self.calls.push(Call {
                    id: self.calls.len() as u64 + 1,
                    identity: of.identity,
                    body: of.body,
                    gateway: of.gateway,
                    http2: false,
                    sent,
                    answered,
                    said: said(answer),
                });
            }
            [at, "for", call, "under", fence, ref other @ ..] => {
                let of = Of::read(other);
                self.ledger.push(Entry {
                    at: ms(at),
                    id: of.id,
                    fence: number(fence),
                    identity: of.identity,
                    call: number(call),
                    body: of.body,
                    done: done(answer),
                });
            }
            _ => panic!("nothing is {words:?}"),
        }
    }
}

/// Whose call or entry it is.
struct Of {
    identity: Identity,
    body: u64,
    gateway: usize,
    id: String,
}

impl Of {
    fn read(words: &[&str]) -> Self {
        let mut of = Self {
            identity: Identity {
                service: 0,
                principal: 1,
                key: 7,
            },
            body: 5,
            gateway: 0,
            id: "id".into(),
        };
        for word in words {
            match word.split_once('=').expect("what it is") {
                ("id", id) => of.id = id.into(),
                ("service", service) => of.identity.service = number(service),
                ("principal", principal) => of.identity.principal = number(principal),
                ("key", key) => of.identity.key = number(key),
                ("body", body) => of.body = number(body),
                ("gateway", gateway) => of.gateway = number(gateway),
                _ => panic!("nothing has {word}"),
            }
        }
        of
    }
}

/// Of the answer of an execution.
const fn digests(execution: u64) -> (u64, u64) {
    (execution * 10, execution * 10 + 1)
}

fn done(words: &[&str]) -> Done {
    match *words {
        ["ran", execution] => {
            let number = number(execution);
            let (head, body) = digests(number);
            Done::Executed { number, head, body }
        }
        ["failed", status] => Done::Failed {
            status: number(status),
        },
        ["refused"] => Done::Refused,
        _ => panic!("nothing is done by {words:?}"),
    }
}

fn said(words: &[&str]) -> Said {
    match *words {
        [how @ ("answer" | "replay"), execution, ref twisted @ ..] => {
            let execution = number(execution);
            let (head, body) = digests(execution);
            let is = |what| u64::from(twisted == [what]);
            Said::Answer(Answer {
                execution,
                replayed: how == "replay",
                omitted: twisted == ["omitted"],
                head: head + is("other-head"),
                body: body + is("other-body"),
            })
        }
        ["failed", status] => Said::Failed {
            status: number(status),
        },
        ["broken"] => Said::Broken("reset".into()),
        ["left"] => Said::Left,
        [status, code] => Said::Problem {
            status: number(status),
            code: code.into(),
        },
        _ => panic!("nobody says {words:?}"),
    }
}
