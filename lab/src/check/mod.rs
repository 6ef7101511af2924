//! The checker: from the merged history and the ledger to what the store did wrong. Pure, and
//! linear in the history but for sorting.
//!
//! It believes times only as far as they go: a call took effect at some instant between its sending
//! and its answer, and one without an answer at any time after it was sent, or never. A violation
//! is reported only where *no* choice of these instants obeys the protocol.
//!
//! | property | where | what is a violation |
//! |---|---|---|
//! | P1 | [`ownership`] | two owners at a time; an owner after one that did not end; a fence that is used twice, or goes back |
//! | P2, P5 | [`replays`] | a claim or read within retention, sent after the completion was acknowledged, that does not see it |
//! | P3 | [`fencing`] | a step with a token that is stale, forged or settled otherwise, and is answered "applied" |
//! | P4 | [`replays`] | a replay of anything but what this key's completions kept, byte for byte |
//! | P8 | [`settled`] | after the faults, a key that does not settle in the time given; a lapse that nobody notices; a wait that sleeps over its end |
//! | P9 | [`replays`], [`ownership`], [`answers`] | a mismatch that replays or takes over, or a request called a mismatch that is none |
//! | P10 | [`effects`] | an effect without an acquired claim |
//! | P11 | [`answers`], [`fencing`] | an attempt told that another holds what only it can hold; a refusal for which there is no cause |
//! | linear | [`linear`] | a history of one key that no order of its calls explains |

mod answers;
mod attempts;
mod effects;
mod fencing;
pub mod linear;
mod ownership;
mod replays;
mod settled;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::clock::{Nanos, millis};
use crate::history::{Answer, Call, Failed, KeyIndex, Op, Refused};
use crate::ledger::Effect;
use attempts::KeyHistory;

/// What the checker must know of the run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Options {
    /// How far the store's clock may be off over a run.
    pub tolerance: Nanos,
    /// The store has no clock: lapses are seen by observers only, a lease late or later.
    pub clockless: bool,
    /// When something was broken. A store repeats a step that it has no answer to by itself: one
    /// that was refused then tells nothing of the first time that it was sent.
    pub troubles: Vec<Trouble>,
    /// How long after a change a waiter may sleep on, where nothing was broken meanwhile.
    pub wait_grace: Nanos,
    /// When the faults were over and the keys were driven to an end; `None`: they were not.
    pub settling: Option<Nanos>,
    /// How long that may take for a key.
    pub settle_within: Nanos,
    /// How many keys there are.
    pub keys: KeyIndex,
}

/// A time in which something was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// From when.
    pub from: Nanos,
    /// Until when.
    pub until: Nanos,
    /// The worker that suffered alone; `None`: all of them.
    pub worker: Option<u32>,
}

impl Trouble {
    fn is_of(&self, worker: u32) -> bool {
        self.worker.is_none_or(|own| own == worker)
    }
}

impl Options {
    /// Whether something was broken for this worker between these instants.
    fn in_trouble(&self, worker: u32, from: Nanos, until: Nanos) -> bool {
        self.troubles
            .iter()
            .any(|trouble| trouble.from <= until && from <= trouble.until && trouble.is_of(worker))
    }

    /// When nothing is broken any more for this worker that was broken at `time`, or soon after.
    fn after_trouble(&self, worker: u32, mut time: Nanos) -> Nanos {
        const SOON: Nanos = 250_000_000;
        while let Some(trouble) = self.troubles.iter().find(|trouble| {
            trouble.from <= time.saturating_add(SOON)
                && time < trouble.until
                && trouble.is_of(worker)
        }) {
            time = trouble.until;
        }
        time
    }

    /// By when a call without an answer had its effect, if it has one: a server that stood still, or a
    /// connection, may give it only when the fault is over.
    fn arrived_by(&self, op: &Op) -> Nanos {
        self.after_trouble(op.worker, op.answered)
    }

    /// Whether the answer of a call may hide that its step was done when it was first sent: something
    /// was broken while it was under way, and its record has moved on since, or is gone. So may that
    /// of a claim that took as long as its lease, unless it is known not to have happened.
    fn hides(&self, op: &Op) -> bool {
        let may = match op.call {
            Call::Claim { lease, .. } => {
                let took = op.answered.saturating_sub(op.invoked);
                op.answer != Answer::Failed(Failed::Not)
                    && took.saturating_add(self.tolerance) >= lease
            }
            Call::Resolve { .. } | Call::Fenced { .. } => matches!(
                op.answer,
                Answer::Refused(Refused::Superseded | Refused::Missing | Refused::Unknown)
            ),
            _ => false,
        };
        may && self.in_trouble(op.worker, op.invoked, op.answered)
    }

    /// Whether a claim may have made an attempt that its answer does not tell of: it has none, or
    /// [hides](Self::hides) that the key was held meanwhile.
    fn may_be_a_ghost(&self, claim: &Op) -> bool {
        claim.answer.is_ambiguous() || self.hides(claim)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tolerance: 5_000_000,
            clockless: false,
            troubles: Vec::new(),
            wait_grace: 2_000_000_000,
            settling: None,
            settle_within: 3_000_000_000,
            keys: 0,
        }
    }
}

/// One thing that the store did wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// `P1` … `P11`, or `linear`.
    pub property: &'static str,
    /// The key it happened to.
    pub key: KeyIndex,
    /// What happened, in words.
    pub what: String,
    /// When it was plain, for the history's excerpt.
    pub at: Nanos,
}

/// What the checker found.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    /// Everything that the store did wrong.
    pub violations: Vec<Violation>,
    /// Acknowledged completions that a later claim or read within retention did not see.
    pub lost: usize,
    /// Effects that were taken although the same identity's earlier effect stood and nothing
    /// explains a second one; see [`effects`].
    pub double_effects: usize,
    /// Second effects that a lapse, a resolution or the end of retention explains.
    pub explained_effects: usize,
    /// Keys whose search for an order came to an end, and the calls in their histories.
    pub searched: Searched,
    /// Keys whose search was given up, and their calls.
    pub undecided: Searched,
}

/// How much was searched for an order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Searched {
    /// So many keys.
    pub keys: usize,
    /// So many calls of theirs.
    pub calls: usize,
}

impl Searched {
    const fn add(&mut self, calls: usize) {
        self.keys += 1;
        self.calls += calls;
    }
}

impl Findings {
    fn report(&mut self, property: &'static str, key: KeyIndex, at: Nanos, what: String) {
        self.violations.push(Violation {
            property,
            key,
            what,
            at,
        });
    }

    /// How many violations there are of each property.
    pub fn by_property(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for violation in &self.violations {
            *counts.entry(violation.property).or_default() += 1;
        }
        counts
    }
}

/// Checks a run. `ops` must be sorted by the time of sending, `accepted` by that of arrival.
pub fn check(ops: &[Op], accepted: &[Effect], options: &Options) -> Findings {
    let mut findings = Findings::default();
    let mut keys: BTreeMap<KeyIndex, KeyHistory<'_>> = BTreeMap::new();
    for op in ops {
        if let Some(key) = op.call.key() {
            keys.entry(key)
                .or_insert_with(|| KeyHistory::new(key))
                .push(op);
        }
    }
    for history in keys.values_mut() {
        history.gather(options);
    }
    for history in keys.values() {
        ownership::check(history, options, &mut findings);
        fencing::check(history, options, &mut findings);
        replays::check(history, options, &mut findings);
        answers::check(history, options, &mut findings);
        settled::check_waits(history, options, &mut findings);
        linear::check(history, options, &mut findings);
    }
    settled::check(&keys, options, &mut findings);
    effects::check(&keys, accepted, options, &mut findings);
    findings.violations.sort_by_key(|v| v.at);
    findings
}

/// The part of a key's history around an instant, for people: times in milliseconds from `origin`.
pub fn excerpt(ops: &[Op], key: KeyIndex, at: Nanos, origin: Nanos, lines: usize) -> Vec<String> {
    let of_key: Vec<&Op> = ops.iter().filter(|o| o.call.key() == Some(key)).collect();
    let after = of_key.partition_point(|op| op.invoked <= at);
    let end = (after + lines / 4).min(of_key.len());
    let start = end.saturating_sub(lines);
    of_key[start..end].iter().map(|o| show(o, origin)).collect()
}

fn show(op: &Op, origin: Nanos) -> String {
    let at = |time: Nanos| format!("{:>10.3}", millis(time.saturating_sub(origin)));
    let answered = match op.answered {
        Nanos::MAX => "         …".into(),
        answered => at(answered),
    };
    format!(
        "{} {answered} worker {:<3} {:?} -> {:?}",
        at(op.invoked),
        op.worker,
        op.call,
        op.answer
    )
}
