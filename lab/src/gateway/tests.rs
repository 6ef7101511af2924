//! Hand-made histories: what is right is not called wrong, and each check sees what it is for.

use super::judge::*;
use super::records::*;

const MS: u64 = 1_000_000;
const KEY: Identity = Identity {
    service: 0,
    principal: 1,
    key: 7,
};

/// A run in the making; times are in ms.
struct Run {
    known: Known,
    calls: Vec<Call>,
    ledger: Vec<Entry>,
}

fn run() -> Run {
    let known = Known {
        on_lost: OnLost::Hold,
        lease: 1000 * MS,
        clockless: false,
        elects: 0,
        clients: 1,
        begun: 0,
        calm: 0,
        settling: None,
        troubles: Vec::new(),
        exits: Vec::new(),
    };
    Run {
        known,
        calls: Vec::new(),
        ledger: Vec::new(),
    }
}

fn answer(execution: u64, replayed: bool) -> Said {
    Said::Answer(Answer {
        execution,
        replayed,
        omitted: false,
        head: execution * 10,
        body: execution * 10 + 1,
    })
}

fn problem(status: u16, code: &str) -> Said {
    Said::Problem {
        status,
        code: code.into(),
    }
}

impl Run {
    fn on_lost(mut self, on_lost: OnLost) -> Self {
        self.known.on_lost = on_lost;
        self
    }

    fn trouble(mut self, from: u64, until: u64, place: Place) -> Self {
        self.known.troubles.push(Trouble {
            from: from * MS,
            until: until * MS,
            place,
        });
        self
    }

    /// Calls are numbered from 1, in order; each asks for body 5 at gateway 0 unless changed.
    fn call(mut self, sent: u64, answered: u64, said: Said) -> Self {
        self.calls.push(Call {
            id: self.calls.len() as u64 + 1,
            identity: KEY,
            body: 5,
            gateway: 0,
            http2: false,
            sent: sent * MS,
            answered: answered * MS,
            said,
        });
        self
    }

    fn changed(mut self, change: impl FnOnce(&mut Call)) -> Self {
        change(self.calls.last_mut().unwrap());
        self
    }

    fn done(mut self, at: u64, fence: u64, call: u64, done: Done) -> Self {
        self.ledger.push(Entry {
            at: at * MS,
            id: "id".into(),
            fence,
            identity: KEY,
            call,
            body: 5,
            done,
        });
        self
    }

    fn executed(self, at: u64, fence: u64, call: u64, number: u64) -> Self {
        let (head, body) = (number * 10, number * 10 + 1);
        self.done(at, fence, call, Done::Executed { number, head, body })
    }

    fn settling(mut self, at: u64) -> Self {
        self.known.settling = Some(at * MS);
        self
    }

    /// Only this is wrong.
    #[track_caller]
    fn is(self, check: &'static str) {
        self.are(&[check]);
    }

    /// These are, in the order of the alphabet.
    #[track_caller]
    fn are(self, checks: &[&'static str]) {
        assert!(checks.iter().all(|check| CHECKS.contains(check)));
        let findings = judge(&self.known, &self.calls, &self.ledger);
        let found: Vec<_> = findings.by_check().into_keys().collect();
        assert_eq!(found, checks, "{:#?}", findings.violations);
    }

    #[track_caller]
    fn right(self) -> Findings {
        let findings = judge(&self.known, &self.calls, &self.ledger);
        assert_eq!(findings.violations, []);
        findings
    }
}

/// Call 1 ran, and was told.
fn ran() -> Run {
    run().call(0, 10, answer(1, false)).executed(5, 1, 1, 1)
}

#[test]
fn a_replay_is_the_answer_byte_for_byte() {
    ran().call(20, 21, answer(1, true)).right();
    let twisted = |twist: fn(&mut Answer)| {
        ran().call(20, 21, answer(1, true)).changed(|call| {
            let Said::Answer(answer) = &mut call.said else {
                return;
            };
            twist(answer);
        })
    };
    twisted(|answer| answer.body += 1).is("bytes");
    twisted(|answer| answer.head += 1).is("bytes");
    twisted(|answer| answer.omitted = true).is("bytes");
    // A body that broke off is kept as omitted.
    let broke_off = twisted(|answer| (answer.omitted, answer.body) = (true, 0));
    broke_off.trouble(4, 8, Place::Upstream).right();
}

#[test]
fn an_answer_is_of_ones_own_execution() {
    run().call(20, 21, answer(2, false)).is("executed");
    let other = |call: &mut Call| call.identity.principal = 2;
    ran()
        .call(20, 21, answer(1, true))
        .changed(other)
        .is("whose");
    let other = |call: &mut Call| call.identity.service = 1;
    ran()
        .call(20, 21, answer(1, true))
        .changed(other)
        .is("whose");
    let mut shared = ran().call(20, 30, answer(2, false)).changed(other);
    shared = shared.executed(25, 2, 2, 2);
    shared.ledger[1].identity.service = 1;
    shared.is("whose");
}

#[test]
fn another_request_is_a_mismatch_and_nothing_else_is() {
    let other = |call: &mut Call| call.body = 6;
    ran()
        .call(20, 21, answer(1, true))
        .changed(other)
        .is("mismatch");
    ran()
        .call(20, 21, problem(422, "mismatch"))
        .changed(other)
        .right();
    ran().call(5, 6, problem(422, "mismatch")).is("mismatch");
    ran().call(20, 21, problem(422, "mismatch")).is("mismatch");
    // Who was refused, or released, holds nothing.
    let refused = run().call(0, 1, problem(422, "mismatch")).changed(other);
    refused.call(5, 6, problem(422, "mismatch")).is("mismatch");
    let released = run()
        .call(0, 10, Said::Failed { status: 500 })
        .done(5, 1, 1, Done::Failed { status: 500 })
        .changed(other);
    released
        .call(20, 21, problem(422, "mismatch"))
        .is("mismatch");
}

#[test]
fn nothing_runs_twice() {
    ran().executed(30, 2, 2, 2).is("once");
    // Nor where a fault could have lost the first, unless lost attempts are run again.
    let lost = || {
        run()
            .call(0, 50, Said::Broken("reset".into()))
            .executed(5, 1, 1, 1)
            .trouble(10, 40, Place::Gateway(0))
            .call(2000, 2010, answer(2, false))
            .executed(2005, 2, 2, 2)
    };
    lost().is("once");
    let findings = lost().on_lost(OnLost::Retry).right();
    assert_eq!(
        (findings.explained_effects, findings.double_effects),
        (1, 0)
    );
    // Each fault loses one attempt of each client at most.
    let two = || {
        let mut run = lost().on_lost(OnLost::Retry);
        let (mut calls, mut ledger) = (run.calls.clone(), run.ledger.clone());
        let other = Identity { key: 8, ..KEY };
        for call in &mut calls {
            (call.id, call.identity) = (call.id + 2, other);
        }
        for entry in &mut ledger {
            (entry.call, entry.identity, entry.id) = (entry.call + 2, other, "other".into());
            if let Done::Executed { number, .. } = &mut entry.done {
                *number += 2;
            }
        }
        calls[1].said = answer(4, false);
        if let Done::Executed { head, body, .. } = &mut ledger[1].done {
            (*head, *body) = (40, 41);
        }
        run.calls.extend(calls);
        run.ledger.extend(ledger);
        run
    };
    two().is("once");
    let mut clients = two();
    clients.known.clients = 2;
    assert_eq!(clients.right().explained_effects, 2);
    two().trouble(20, 60, Place::Store).right();
    // Another gateway's fault explains nothing.
    let mut elsewhere = lost().on_lost(OnLost::Retry);
    elsewhere.calls[0].said = Said::Left;
    elsewhere.known.troubles[0].place = Place::Gateway(1);
    elsewhere.is("once");
    // Nor does one after the answer was told.
    let told = ran().trouble(2, 40, Place::Store).executed(30, 2, 2, 2);
    told.on_lost(OnLost::Retry).is("once");
}

#[test]
fn what_was_told_stays() {
    let again = || {
        ran()
            .trouble(2, 400, Place::Store)
            .trouble(2, 400, Place::Upstream)
    };
    again()
        .call(20, 30, problem(503, "store-unavailable"))
        .right();
    again().call(20, 30, problem(409, "in-flight")).is("cause");
    again()
        .call(20, 30, problem(409, "outcome-unknown"))
        .is("cause");
    again()
        .call(20, 30, problem(504, "upstream-timeout"))
        .is("once");
    // Who asked before it was told may have been early.
    again().call(8, 30, problem(409, "in-flight")).right();
}

#[test]
fn a_fence_belongs_to_one_attempt() {
    let released = || {
        run()
            .call(0, 10, Said::Failed { status: 500 })
            .done(5, 1, 1, Done::Failed { status: 500 })
            .call(20, 30, answer(1, false))
    };
    released().executed(25, 2, 2, 1).right();
    released().executed(25, 1, 2, 1).is("fence");
    let late = || {
        run()
            .call(0, 3000, Said::Failed { status: 409 })
            .done(2900, 1, 1, Done::Refused)
    };
    late().is("fence");
    late().trouble(100, 2800, Place::Gateway(0)).right();
}

#[test]
fn marks_tell_who_ran_it() {
    ran().call(20, 21, answer(1, false)).is("mark");
    let marked = || run().call(0, 10, answer(1, true)).executed(5, 1, 1, 1);
    marked().is("mark");
    // Its claim was lost, and a reconciler found the answer.
    marked().trouble(2, 9, Place::Store).right();
}

#[test]
fn every_problem_has_a_cause_of_its_own() {
    let alone = |status, code: &str| run().call(100, 110, problem(status, code));
    for (status, code, place) in [
        (409, "in-flight", Place::Store),
        (409, "outcome-unknown", Place::Store),
        (503, "store-unavailable", Place::Store),
        (502, "upstream-failed", Place::Upstream),
        (504, "upstream-timeout", Place::Upstream),
        (502, "upstream-unreachable", Place::Upstream),
    ] {
        alone(status, code).is("cause");
        alone(status, code).trouble(0, 90, place).is("cause");
        let before_it_ends = alone(status, code).trouble(105, 200, place);
        before_it_ends.right();
    }
    for (place, status, code) in [
        (Place::Upstream, 503, "store-unavailable"),
        (Place::Store, 502, "upstream-failed"),
        (Place::Gateway(1), 504, "upstream-timeout"),
        (Place::Store, 503, "overloaded"),
    ] {
        alone(status, code).trouble(0, 200, place).is("cause");
    }
    let broken = || run().call(100, 110, Said::Broken("reset".into()));
    broken().is("cause");
    broken().trouble(0, 200, Place::Store).is("cause");
    broken().trouble(0, 200, Place::Gateway(1)).is("cause");
    broken().trouble(0, 200, Place::Gateway(0)).right();
    run()
        .call(100, 110, Said::Failed { status: 500 })
        .is("cause");
    // Who was told "in flight" began nothing that could be lost.
    let released = Said::Failed { status: 500 };
    run()
        .call(0, 8, released)
        .done(5, 1, 1, Done::Failed { status: 500 })
        .call(1, 10, problem(409, "in-flight"))
        .trouble(9, 20, Place::Upstream)
        .call(30, 31, problem(409, "outcome-unknown"))
        .is("cause");
}

#[test]
fn what_can_be_excused_is_counted() {
    let unexcused = |place| {
        let mut run = ran().trouble(20, 60, place);
        run.known.calm = 100 * MS;
        let run = run.call(20, 21, answer(1, true));
        run.changed(|call| call.gateway = 1).right().unexcused
    };
    assert_eq!(unexcused(Place::Store), 0.6);
    assert_eq!(unexcused(Place::Machine), 0.6);
    assert_eq!(unexcused(Place::Gateway(1)), 0.8);
    assert_eq!(unexcused(Place::Upstream), 1.0);
    assert_eq!(ran().right().unexcused, 1.0, "nothing was to break");
}

#[test]
fn in_flight_is_somebody_elses_attempt() {
    let beside = |sent| {
        run()
            .call(0, 10, answer(1, false))
            .executed(5, 1, 1, 1)
            .call(sent, sent + 1, problem(409, "in-flight"))
    };
    beside(8).right();
    beside(11).is("cause");
    // One that was left goes on, for as long as it can.
    let left = |sent| {
        run()
            .call(0, 10, Said::Left)
            .call(sent, sent + 1, problem(409, "in-flight"))
    };
    left(500).right();
    left(5000).is("cause");
    // The upstream was asked so late.
    left(5000).executed(3500, 1, 1, 1).right();
    // One whose gateway was killed holds its lease.
    let killed = left(3000).trouble(5, 900, Place::Gateway(0));
    killed.right();
    // One whose end the store could not be told of is recorded soon after, whatever breaks then.
    let held_up = |sent| left(sent).trouble(1500, 2500, Place::Store);
    held_up(5000).right();
    held_up(6000).is("cause");
    held_up(7000).trouble(5000, 6000, Place::Store).is("cause");
    // A machine that stood still prolongs the work itself.
    let late = left(7900).trouble(1500, 4500, Place::Machine);
    late.trouble(4600, 5000, Place::Store).right();
    // Without a clock it takes a lease from the first look.
    let lost = || {
        let mut run = run().trouble(5, 900, Place::Gateway(0));
        run.known.clockless = true;
        let run = run.call(0, 10, Said::Broken("reset".into()));
        run.call(9000, 9001, problem(409, "in-flight"))
    };
    lost().right();
    lost()
        .call(10_000, 10_001, problem(409, "in-flight"))
        .right();
    let late = || lost().call(15_000, 15_001, problem(409, "in-flight"));
    late().is("cause");
    // What a process has watched ends with it.
    let restarted = |gateway| late().trouble(11_000, 12_000, Place::Gateway(gateway));
    restarted(0).right();
    restarted(1).is("cause");
    // What was seen of an attempt while it was renewed is none of the lease that it left.
    let mut renewed = run()
        .call(0, 500, Said::Broken("reset".into()))
        .changed(|call| call.gateway = 1)
        .call(100, 101, problem(409, "in-flight"))
        .trouble(500, 900, Place::Gateway(1));
    renewed.known.clockless = true;
    renewed.call(9000, 9001, problem(409, "in-flight")).right();
    let mut with_a_clock = lost();
    with_a_clock.known.clockless = false;
    with_a_clock.is("cause");
    // An attempt that was held up, settled by others meanwhile, and told what they kept.
    let held_up = |place| {
        run()
            .on_lost(OnLost::Reconcile)
            .trouble(10, 2000, place)
            .call(0, 2000, answer(1, true))
            .executed(5, 1, 1, 1)
            .call(20, 21, problem(409, "in-flight"))
            .changed(|call| call.gateway = 1)
    };
    held_up(Place::Gateway(0)).right();
    held_up(Place::Upstream).are(&["cause", "mark"]);
    // What was replayed is known from then on, whatever is broken.
    run()
        .trouble(0, 2000, Place::Store)
        .call(0, 10, answer(1, false))
        .executed(5, 1, 1, 1)
        .call(100, 101, answer(1, true))
        .call(2500, 2501, problem(409, "in-flight"))
        .is("cause");
    // A duplicate that was told "in flight" itself is no attempt.
    let two = run()
        .call(0, 10, problem(409, "in-flight"))
        .trouble(0, 1, Place::Store);
    two.call(9000, 9001, problem(409, "in-flight")).is("cause");
}

#[test]
fn everything_has_an_end() {
    let ends = |said| ran().settling(500).call(600, 601, said);
    assert_eq!(ends(answer(1, true)).right().answered, 1);
    let mut none = ran().settling(500);
    none.calls[0].said = Said::Left;
    let findings = judge(&none.known, &none.calls, &none.ledger);
    assert!(findings.by_check().contains_key("settled"));
    // Unknown is one where it is held.
    let lost = |on_lost| {
        let run = run().on_lost(on_lost).settling(500);
        run.trouble(0, 10, Place::Upstream)
            .call(0, 10, problem(504, "upstream-timeout"))
            .call(600, 601, problem(409, "outcome-unknown"))
    };
    // It alone is fewer than 95 in 100.
    lost(OnLost::Hold).is("answered");
    let unknown = lost(OnLost::Retry);
    let findings = judge(&unknown.known, &unknown.calls, &unknown.ledger);
    assert!(findings.by_check().contains_key("settled"));
}

#[test]
fn the_gateways_do_not_stand_still() {
    let still = |until| {
        ran()
            .settling(until)
            .call(until, until + 1, answer(1, true))
    };
    still(1900).right();
    still(3000).is("standstill");
    still(3000).trouble(10, 500, Place::Store).right();
    // A cluster may be without a leader after a fault, and only then.
    let elects = |until| {
        let mut run = still(until);
        run.known.elects = 9000 * MS;
        run
    };
    elects(3000).is("standstill");
    elects(4000)
        .trouble(10, 500, Place::Upstream)
        .is("standstill");
    elects(12_400).trouble(10, 500, Place::Store).right();
    elects(12_600)
        .trouble(10, 500, Place::Store)
        .is("standstill");
}

#[test]
fn a_cluster_without_a_leader_explains_refusals() {
    let refused = |place| {
        let mut run = ran().trouble(0, 30, place);
        run.known.elects = 9000 * MS;
        run.call(9000, 9020, problem(503, "store-unavailable"))
    };
    refused(Place::Store).right();
    refused(Place::Upstream).is("cause");
    refused(Place::Store)
        .call(9040, 9050, problem(503, "store-unavailable"))
        .is("cause");
    // It has one again.
    let mut elected = refused(Place::Store)
        .call(1500, 1550, answer(2, false))
        .executed(1520, 2, 3, 2);
    let other = Identity { key: 8, ..KEY };
    elected.calls[2].identity = other;
    elected.ledger[1].identity = other;
    elected.ledger[1].id = "other".into();
    elected.is("cause");
}

#[test]
fn a_gateway_that_is_asked_to_end_does() {
    let ended = |code| {
        let mut run = ran();
        run.known.exits.push(Exit {
            gateway: 0,
            from: 20 * MS,
            until: 90 * MS,
            code,
        });
        run
    };
    ended(Some(0)).right();
    ended(Some(1)).is("drain");
    ended(None).is("drain");
    ended(Some(1)).trouble(0, 30, Place::Store).right();
}
