//! The judge: from the clients' calls and the upstream's ledger to what the gateways did wrong. Pure.
//!
//! It believes times as far as they go: the clients and the upstream share the machine's monotonic
//! clock, a request was at work at some time between its sending and its answer, and one without an
//! answer may be at work for as long as its attempt can last. Whatever is not an answer of the
//! operation needs a cause of its own: another call of the identity that was at work at the time, or a
//! fault that *this* call can have met.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::faults::AFTERMATH;
use super::records::{Call, Done, Entry, Identity, Said};
use crate::clock::{Nanos, millis, nanos};
use crate::nemesis::UPSTREAM_TIMEOUT;

/// The checks, in the order of the documentation.
#[cfg(test)]
pub(super) const CHECKS: &[&str] = &[
    "bytes",
    "whose",
    "mismatch",
    "executed",
    "once",
    "fence",
    "mark",
    "cause",
    "settled",
    "answered",
    "standstill",
    "drain",
];

/// What the judge must know of a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Known {
    pub(super) on_lost: OnLost,
    pub(super) lease: Nanos,
    /// Lapses are seen by observers only: a lease late.
    pub(super) clockless: bool,
    /// How long the store may be without a leader once a fault is over.
    #[serde(default)]
    pub(super) elects: Nanos,
    /// How many clients called.
    pub(super) clients: usize,
    pub(super) begun: Nanos,
    /// When the last fault was over, and what it broke had been well for a while.
    pub(super) calm: Nanos,
    /// When the faults were over; `None`: the run broke off.
    pub(super) settling: Option<Nanos>,
    pub(super) troubles: Vec<Trouble>,
    pub(super) exits: Vec<Exit>,
}

/// What becomes of lost attempts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnLost {
    /// They stay unknown.
    #[default]
    Hold,
    /// They are run again.
    Retry,
    /// Somebody who knows is asked.
    Reconcile,
}

/// A time in which something was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Trouble {
    pub(super) from: Nanos,
    pub(super) until: Nanos,
    pub(super) place: Place,
}

/// Where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Place {
    Gateway(usize),
    Store,
    Upstream,
    /// Nothing ran for a while, not even the lab.
    Machine,
}

impl Place {
    /// Whether this gateway can be kept from recording, or from claiming, by what is broken here.
    fn holds_up(self, gateway: usize) -> bool {
        [Self::Store, Self::Machine, Self::Gateway(gateway)].contains(&self)
    }
}

/// How a gateway ended that was asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Exit {
    pub(super) gateway: usize,
    pub(super) from: Nanos,
    pub(super) until: Nanos,
    pub(super) code: Option<i32>,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Violation {
    pub(super) check: &'static str,
    pub(super) at: Nanos,
    pub(super) identity: Option<Identity>,
    pub(super) what: String,
}

/// What the judge found.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Findings {
    #[serde(skip)]
    pub(super) violations: Vec<Violation>,
    pub(super) identities: usize,
    /// Those with an answer of their execution in the end.
    pub(super) answered: usize,
    /// Those that are held as unknown in the end.
    pub(super) unknown: usize,
    pub(super) executions: usize,
    pub(super) double_effects: usize,
    /// Second effects of identities whose first attempt was lost, under `retry`.
    pub(super) explained_effects: usize,
    #[serde(rename = "effects_refused")]
    pub(super) refused: usize,
    /// The share of the time until all was calm in which a gateway had no fault to blame for a refusal.
    #[serde(skip)]
    pub(super) unexcused: f64,
}

impl Findings {
    pub(super) fn by_check(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for violation in &self.violations {
            *counts.entry(violation.check).or_default() += 1;
        }
        counts
    }
}

/// So long after a fault is over what it delayed is settled, besides a lease.
const GRACE: Nanos = 2_000_000_000;

impl Known {
    /// Whether something that this sees was broken between these instants.
    fn trouble(&self, from: Nanos, until: Nanos, sees: impl Fn(Place) -> bool) -> bool {
        let overlaps = |t: &Trouble| t.from <= until && from <= t.until;
        self.troubles.iter().any(|t| overlaps(t) && sees(t.place))
    }

    /// A store that elects is broken until it has: as long as that may take, or until something new was done.
    fn with_elections(&self, calls: &[Call]) -> Self {
        let mut known = self.clone();
        let at_the_store = |trouble: &&mut Trouble| trouble.place == Place::Store;
        for trouble in known.troubles.iter_mut().filter(at_the_store) {
            let done = calls.iter().filter(|call| call.sent >= trouble.until);
            let done = done.filter(|call| call.said.is_new());
            let elected = trouble.until + self.elects;
            let done = done.map(|call| call.answered + AFTERMATH).min();
            trouble.until = elected.min(done.unwrap_or(elected));
        }
        known
    }

    /// The share of the time until all was calm in which a gateway that refuses can blame no fault of the
    /// store, the machine or its own: the mean of the gateways.
    fn unexcused(&self, calls: &[Call]) -> f64 {
        let gateways: BTreeSet<usize> = calls.iter().map(|call| call.gateway).collect();
        let well = |own: &usize| {
            let (mut well, mut since) = (0, self.begun);
            for trouble in &self.troubles {
                if !trouble.place.holds_up(*own) {
                    continue;
                }
                well += trouble.from.min(self.calm).saturating_sub(since);
                since = since.max(trouble.until);
            }
            well + self.calm.saturating_sub(since)
        };
        let all = (self.calm - self.begun) * gateways.len() as Nanos;
        let well: Nanos = gateways.iter().map(well).sum();
        if all == 0 {
            1.0
        } else {
            well as f64 / all as f64
        }
    }

    fn lapse(&self) -> Nanos {
        self.lease * if self.clockless { 2 } else { 1 }
    }
}

/// What is wrong in a run.
pub(super) fn judge(known: &Known, calls: &[Call], ledger: &[Entry]) -> Findings {
    let known = known.with_elections(calls);
    let mut judge = Judge::new(&known, calls, ledger);
    judge.effects();
    judge.fences();
    judge.names();
    let identities: Vec<_> = judge.by_identity.keys().copied().collect();
    for identity in identities {
        judge.identity(identity);
    }
    judge.answered();
    judge.standstill();
    for exit in &known.exits {
        judge.drained(exit);
    }
    judge.findings.unexcused = known.unexcused(calls);
    judge.findings.violations.sort_by_key(|v| v.at);
    judge.findings
}

struct Judge<'a> {
    known: &'a Known,
    by_identity: BTreeMap<Identity, Vec<&'a Call>>,
    by_id: HashMap<u64, &'a Call>,
    ledger: &'a [Entry],
    by_number: HashMap<u64, (&'a Entry, u64, u64)>,
    by_call: HashMap<u64, Vec<&'a Entry>>,
    findings: Findings,
}

impl<'a> Judge<'a> {
    fn new(known: &'a Known, calls: &'a [Call], ledger: &'a [Entry]) -> Self {
        let mut judge = Self {
            known,
            by_identity: BTreeMap::new(),
            by_id: HashMap::new(),
            ledger,
            by_number: HashMap::new(),
            by_call: HashMap::new(),
            findings: Findings::default(),
        };
        for call in calls {
            judge
                .by_identity
                .entry(call.identity)
                .or_default()
                .push(call);
            judge.by_id.insert(call.id, call);
        }
        for calls in judge.by_identity.values_mut() {
            calls.sort_by_key(|call| call.sent);
        }
        for entry in ledger {
            judge.by_call.entry(entry.call).or_default().push(entry);
            if let Done::Executed { number, head, body } = entry.done {
                judge.by_number.insert(number, (entry, head, body));
            }
        }
        judge.findings.identities = judge.by_identity.len();
        judge.findings.executions = judge.by_number.len();
        judge
    }

    fn wrong(
        &mut self,
        check: &'static str,
        at: Nanos,
        identity: Option<Identity>,
        what: impl Into<String>,
    ) {
        self.findings.violations.push(Violation {
            check,
            at,
            identity,
            what: what.into(),
        });
    }

    fn wrong_call(&mut self, check: &'static str, call: &Call, what: &str) {
        let what = format!("call {}, {}: {what}", call.id, call.said.name());
        self.wrong(check, call.answered, Some(call.identity), what);
    }

    /// Until when an attempt that this call began may be in flight; `None`: it began none.
    ///
    /// It is at work until its caller has an answer; where the caller does not wait for one, for as long as
    /// the upstream may take. A fault of the store or of its gateway that begins by then keeps its end from
    /// being recorded: a gateway tells a store that is away once a second at least, and one that is killed
    /// leaves a lease. Either is over a lease and `GRACE` after the fault. What begins to be broken after the
    /// attempt's end finds nothing that it could prolong: stores are well for longer than a second between
    /// their faults.
    fn works_until(&self, call: &Call) -> Option<Nanos> {
        let known = self.known;
        let holds_up = |place: Place| place.holds_up(call.gateway);
        let held_up = known.trouble(call.sent, call.answered, holds_up);
        // The upstream was asked by it.
        let asked = self.by_call.get(&call.id).into_iter().flatten();
        let asked = asked.map(|entry| entry.at).max();
        let mut work = match &call.said {
            // Recorded before it is told.
            Said::Answer(answer) if !answer.replayed => return Some(call.answered),
            // Its attempt may have been lost, and settled by others while it was held up.
            Said::Answer(_) if held_up => return Some(call.answered),
            Said::Answer(_) => return None,
            Said::Failed { .. } => call.answered,
            Said::Problem { code, .. } => match code.as_str() {
                // Held up, the claim may have been done although it was not answered.
                "in-flight" | "outcome-unknown" if !held_up && asked.is_none() => return None,
                "in-flight" | "outcome-unknown" | "store-unavailable" => call.answered,
                "upstream-unreachable" | "upstream-failed" | "upstream-timeout" => call.answered,
                _ => return None,
            },
            // It waits for the upstream, which may have been asked late.
            Said::Broken(_) | Said::Left => {
                call.answered.max(asked.unwrap_or(0)) + nanos(UPSTREAM_TIMEOUT)
            }
        };
        let mut end = work;
        // Troubles stand in the order of their beginning.
        for trouble in &known.troubles {
            let met = trouble.from <= work && call.sent <= trouble.until;
            if !met || !holds_up(trouble.place) {
                continue;
            }
            end = end.max(trouble.until + known.lapse() + GRACE);
            if trouble.place == Place::Machine {
                work += trouble.until - trouble.from;
            }
        }
        Some(end.max(work))
    }

    /// Whether an attempt that this call began may have been lost before `time`.
    fn may_be_lost(&self, call: &Call, time: Nanos) -> bool {
        let Some(until) = self.works_until(call) else {
            return false;
        };
        let own = Place::Gateway(call.gateway);
        let sees = |place| !matches!(place, Place::Gateway(_)) || place == own;
        self.known.trouble(call.sent, until.min(time), sees)
    }

    /// When an answer of this execution was first told, if it was.
    fn told(&self, identity: Identity, number: u64) -> Option<Nanos> {
        let calls = self.by_identity.get(&identity)?;
        let of = |call: &&&Call| call.said.answer().is_some_and(|a| a.execution == number);
        calls.iter().filter(of).map(|call| call.answered).min()
    }

    /// No second effect, but of an attempt that took over from one that may have been lost.
    fn effects(&mut self) {
        let mut last: HashMap<Identity, (&Entry, u64)> = HashMap::new();
        for entry in self.ledger {
            let Done::Executed { number, .. } = entry.done else {
                continue;
            };
            let Some((first, earlier)) = last.insert(entry.identity, (entry, number)) else {
                continue;
            };
            let lost = self
                .by_id
                .get(&first.call)
                .is_some_and(|call| self.may_be_lost(call, entry.at));
            let told = self.told(entry.identity, earlier);
            let what = match told {
                Some(told) if told < entry.at => "although its answer had been told",
                _ if self.known.on_lost != OnLost::Retry => {
                    "although lost attempts are not run again"
                }
                _ if !lost => "although the first attempt cannot have been lost",
                _ => {
                    self.findings.explained_effects += 1;
                    continue;
                }
            };
            self.findings.double_effects += 1;
            let what = format!("executions {earlier} and {number}, {what}");
            self.wrong("once", entry.at, Some(entry.identity), what);
        }
        let (explained, most) = (self.findings.explained_effects, self.most_lost());
        if explained > most {
            let what =
                format!("{explained} second effects, of {most} attempts that faults can lose");
            self.wrong("once", self.known.calm, None, what);
        }
    }

    /// How many attempts the faults can have lost. Each: those that are under way when it strikes, one for
    /// each client. The upstream besides breaks no more than one request in twelve while it is in a mood.
    fn most_lost(&self) -> usize {
        let known = self.known;
        let in_a_mood = |entry: &&Entry| {
            matches!(entry.done, Done::Executed { .. })
                && known.trouble(entry.at, entry.at, |place| place == Place::Upstream)
        };
        let in_a_mood = self.ledger.iter().filter(in_a_mood).count();
        // Chance may double it.
        known.troubles.len() * known.clients + in_a_mood / 6
    }

    /// A fence belongs to one attempt, and is refused only behind a fault.
    fn fences(&mut self) {
        let mut seen = HashSet::new();
        for entry in self.ledger {
            match entry.done {
                Done::Closed => continue,
                Done::Refused => {
                    self.findings.refused += 1;
                    let call = self.by_id.get(&entry.call);
                    if !call.is_some_and(|call| self.may_be_lost(call, entry.at)) {
                        let what = format!("stale fence {} of call {}", entry.fence, entry.call);
                        self.wrong("fence", entry.at, Some(entry.identity), what);
                    }
                }
                _ => {}
            }
            if !seen.insert((&entry.id, entry.fence)) {
                let what = format!("fence {} came twice", entry.fence);
                self.wrong("fence", entry.at, Some(entry.identity), what);
            }
        }
    }

    /// An `Idempotency-Id` names one identity, and an identity has one.
    fn names(&mut self) {
        let mut identities: HashMap<&str, Identity> = HashMap::new();
        let mut names: HashMap<Identity, &str> = HashMap::new();
        for entry in self.ledger.iter().filter(|e| e.done != Done::Closed) {
            let identity = *identities.entry(&entry.id).or_insert(entry.identity);
            let name = *names.entry(entry.identity).or_insert(&entry.id);
            if identity != entry.identity || name != entry.id {
                let what = format!("{} names {identity} and {}", entry.id, entry.identity);
                self.wrong("whose", entry.at, Some(entry.identity), what);
            }
        }
    }

    fn identity(&mut self, identity: Identity) {
        let calls = self.by_identity[&identity].clone();
        let first = calls
            .iter()
            .filter_map(|call| Some((call.answered, call.said.answer()?, call.body)))
            .min_by_key(|(answered, ..)| *answered);
        for call in &calls {
            match &call.said {
                Said::Answer(_) => self.answer(call),
                Said::Problem { .. } | Said::Failed { .. } => self.excuse(call, &calls),
                Said::Broken(_) => {
                    let own = Place::Gateway(call.gateway);
                    let sees = |place| place == own || place == Place::Upstream;
                    if !self.known.trouble(call.sent, call.answered, sees) {
                        self.wrong_call("cause", call, "nothing was broken");
                    }
                }
                Said::Left => {}
            }
            let Some((told, answer, body)) = first.filter(|(told, ..)| *told < call.sent) else {
                continue;
            };
            let told = millis(call.sent - told);
            let after = format!("{told} ms after answer {} was told", answer.execution);
            match &call.said {
                Said::Answer(other) if other.execution != answer.execution => {
                    let what = format!("answer {} {after}", other.execution);
                    self.wrong_call("once", call, &what);
                }
                Said::Failed { .. } => self.wrong_call("once", call, &after),
                Said::Problem { code, .. } => match code.as_str() {
                    "in-flight" | "outcome-unknown" => self.wrong_call("cause", call, &after),
                    "mismatch" if call.body == body => self.wrong_call("mismatch", call, &after),
                    "mismatch" | "store-unavailable" => {}
                    _ => self.wrong_call("once", call, &after),
                },
                _ => {}
            }
        }
        self.settled(identity, &calls);
    }

    /// An answer is that of an execution of the same request, byte for byte, and marked where another
    /// call ran it.
    fn answer(&mut self, call: &Call) {
        let Some(answer) = call.said.answer() else {
            return;
        };
        let Some((entry, head, body)) = self.by_number.get(&answer.execution).copied() else {
            return self.wrong_call("executed", call, "the upstream knows no such execution");
        };
        let runner = self.by_id.get(&entry.call).copied().unwrap_or(call);
        if entry.identity != call.identity {
            let what = format!("the answer of {}", entry.identity);
            return self.wrong_call("whose", call, &what);
        }
        if entry.body != call.body {
            return self.wrong_call("mismatch", call, "the answer to another request");
        }
        if answer.head != head {
            self.wrong_call("bytes", call, "another status, or other fields");
        }
        if answer.omitted {
            let until = entry.at + nanos(UPSTREAM_TIMEOUT);
            if !self
                .known
                .trouble(runner.sent, until, |place| place == Place::Upstream)
            {
                self.wrong_call("bytes", call, "its body did not break off");
            }
        } else if answer.body != body {
            self.wrong_call("bytes", call, "another body");
        }
        let ran = entry.call == call.id;
        if !ran && !answer.replayed {
            self.wrong_call("mark", call, "another call ran it");
        }
        if ran && answer.replayed && !self.may_be_lost(call, call.answered) {
            self.wrong_call("mark", call, "this call ran it");
        }
    }

    /// What is not an answer of the operation has a cause.
    fn excuse(&mut self, call: &Call, calls: &[&Call]) {
        let known = self.known;
        let own = Place::Gateway(call.gateway);
        let met = |places: &[Place]| {
            let sees = |place| places.contains(&place);
            known.trouble(call.sent, call.answered, sees)
        };
        let sent_before = |other: &&&Call| other.sent < call.answered;
        let others = || calls.iter().filter(sent_before).filter(|o| o.id != call.id);
        let at_work = |other: &Call| self.works_until(other).is_some_and(|t| t >= call.sent);
        let code = match &call.said {
            Said::Failed { status } => {
                let sent = self.by_call.get(&call.id).into_iter().flatten();
                let said = |done| match done {
                    Done::Failed { status } => status,
                    Done::Executed { .. } => 504,
                    Done::Refused | Done::Closed => 409,
                };
                let mut said = sent.map(|entry| said(entry.done));
                if !said.any(|sent| sent == *status) {
                    self.wrong_call("cause", call, "the upstream did not say so");
                }
                return;
            }
            Said::Problem { status, code } => (*status, code.as_str()),
            _ => return,
        };
        let explained = match code {
            (409, "in-flight") => {
                others().any(|other| at_work(other))
                    || met(&[Place::Store, Place::Machine, own])
                    || self.is_watched(call, calls)
            }
            (409, "outcome-unknown") => calls
                .iter()
                .filter(sent_before)
                .any(|other| self.may_be_lost(other, call.answered)),
            (422, "mismatch") => {
                let holds = |other: &Call| match &other.said {
                    Said::Answer(_) | Said::Broken(_) | Said::Left => true,
                    Said::Problem { code, .. } => {
                        let none = ["mismatch", "in-flight", "upstream-unreachable"];
                        !none.contains(&code.as_str()) || at_work(other)
                    }
                    // Others are released.
                    Said::Failed { status } => [502, 504].contains(status) || at_work(other),
                };
                if !others().any(|other| other.body != call.body && holds(other)) {
                    self.wrong_call("mismatch", call, "nobody asked for something else");
                }
                return;
            }
            (503, "store-unavailable") => met(&[Place::Store, Place::Machine, own]),
            (502, "upstream-unreachable" | "upstream-failed") | (504, "upstream-timeout") => {
                met(&[Place::Upstream, Place::Machine, own])
            }
            _ => false,
        };
        if !explained {
            self.wrong_call("cause", call, "nothing explains it");
        }
    }

    /// Without a clock in the store a gateway takes a lost attempt to be alive until it has itself
    /// watched it for a lease, since it was last broken. What it saw while the lease may have been renewed says nothing.
    fn is_watched(&self, call: &Call, calls: &[&Call]) -> bool {
        let lost = |other: &&&Call| self.may_be_lost(other, call.sent);
        let Some(lost) = calls.iter().filter(|c| c.sent < call.sent).rfind(lost) else {
            return false;
        };
        let own = Place::Gateway(call.gateway);
        let troubles = self.known.troubles.iter();
        let restarts = troubles.filter(|t| t.place == own && t.from < call.sent);
        let started = restarts.map(|t| t.until).max().unwrap_or(0);
        let ended = self.works_until(lost).unwrap_or(lost.answered);
        let mut looks = calls.iter().filter(|other| {
            let after = other.sent > ended.max(started) && other.gateway == call.gateway;
            after && other.said.is_problem("in-flight")
        });
        let watched = self.known.lapse() + GRACE;
        let first = looks.next().map_or(call.sent, |first| first.answered);
        self.known.clockless && call.sent <= first + watched
    }

    /// After the faults every identity has an end.
    fn settled(&mut self, identity: Identity, calls: &[&Call]) {
        let Some(settling) = self.known.settling else {
            return;
        };
        let last = calls.iter().rfind(|call| call.sent >= settling);
        match last.map(|call| &call.said) {
            Some(Said::Answer(_)) => self.findings.answered += 1,
            Some(said)
                if self.known.on_lost == OnLost::Hold && said.is_problem("outcome-unknown") =>
            {
                self.findings.unknown += 1;
            }
            last => {
                let last = last.map_or_else(|| "not asked any more".into(), Said::name);
                let what = format!("it has no end after the faults: {last}");
                self.wrong("settled", settling, Some(identity), what);
            }
        }
    }

    /// Faults do not keep more than 5 in 100 from being answered.
    fn answered(&mut self) {
        let Some(settling) = self.known.settling else {
            return;
        };
        let (answered, all) = (self.findings.answered, self.findings.identities);
        if answered * 100 < all * 95 {
            let what = format!("{answered} of {all} identities were answered");
            self.wrong("answered", settling, None, what);
        }
    }

    /// While nothing is broken, new things are done.
    fn standstill(&mut self) {
        const LONG: Nanos = 2_000_000_000;
        let known = self.known;
        let Some(settling) = known.settling else {
            return;
        };
        let first = |call: &&&Call| call.said.is_new();
        let mut times: Vec<Nanos> = self
            .by_id
            .values()
            .filter(first)
            .map(|c| c.answered)
            .collect();
        // What a fault delayed is over by then.
        times.extend(known.troubles.iter().flat_map(|trouble| {
            let until = trouble.until + known.lapse();
            (trouble.from..=until)
                .step_by(LONG as usize / 4)
                .chain([until])
        }));
        times.extend([known.begun, settling]);
        times.sort_unstable();
        let still: Vec<_> = times
            .windows(2)
            .filter(|pair| pair[1] <= settling && pair[1] - pair[0] > LONG)
            .map(|pair| (pair[0], millis(pair[1] - pair[0])))
            .collect();
        for (at, time) in still {
            let what = format!("nothing new was done for {time} ms");
            self.wrong("standstill", at, None, what);
        }
    }

    /// A gateway that is asked to end does, with exit code 0.
    fn drained(&mut self, exit: &Exit) {
        let sees = |place| matches!(place, Place::Store | Place::Upstream);
        if exit.code != Some(0) && !self.known.trouble(exit.from, exit.until, sees) {
            let what = format!("gateway {} ended with {:?}", exit.gateway, exit.code);
            self.wrong("drain", exit.until, None, what);
        }
    }
}
