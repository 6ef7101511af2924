//! Is there an order? A search, after Wing and Gong, for one order of a key's calls in which a
//! small sequential [`model`](spec) gives every answer that was given.
//!
//! It knows nothing of the rules in the modules beside it, and so is a second opinion on them. The
//! search is exponential at worst: it goes over short histories only, remembers where it was, takes
//! what changes nothing as soon as it fits (which never spoils an order), and gives up at a bound;
//! how many keys it gave up is reported.

mod spec;

use std::collections::HashSet;

use super::attempts::KeyHistory;
use super::{Findings, Options};
use crate::clock::Nanos;
use crate::history::{Answer, Call, Failed, Op, Step};
use spec::State;

/// After this many steps a search is given up.
const BOUND: usize = 200_000;

/// What a search came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// There is an order.
    Orderly,
    /// There is none: the search got this far, in time.
    None(Nanos),
    /// Nobody knows.
    Undecided,
}

pub(super) fn check(history: &KeyHistory<'_>, options: &Options, findings: &mut Findings) {
    let calls = history.ops.len();
    match search(&history.ops, options) {
        Verdict::Orderly => findings.searched.add(calls),
        Verdict::Undecided => findings.undecided.add(calls),
        Verdict::None(at) => {
            findings.searched.add(calls);
            let what = "no order of this key's calls explains all their answers".to_owned();
            findings.report("linear", history.key, at, what);
        }
    }
}

/// Searches for an order of one key's calls, sorted by the time of sending.
pub fn search(ops: &[&Op], options: &Options) -> Verdict {
    search_within(BOUND, ops, options)
}

pub(super) fn search_within(bound: usize, ops: &[&Op], options: &Options) -> Verdict {
    let mut told = Vec::with_capacity(ops.len());
    for op in ops.iter().copied().filter(|op| counts(op)) {
        // What an answer may hide is left open.
        let (hidden, lost) = (options.hides(op), op.answer.is_ambiguous());
        if hidden || lost {
            told.push(Op {
                answered: options.arrived_by(op),
                answer: Answer::Lost,
                ..*op
            });
        }
        let is_sure = !hidden || matches!(op.answer, Answer::Acquired { .. });
        if is_sure && !lost {
            told.push(*op);
        }
    }
    let ops: Vec<&Op> = told.iter().collect();
    Search {
        ops: &ops,
        options,
        seen: HashSet::new(),
        left: bound,
        furthest: 0,
    }
    .run()
}

// A wait changes nothing and may end for no reason. A step that failed without an effect is none,
// and a read without an answer neither.
fn counts(op: &Op) -> bool {
    match op.call {
        Call::Wait { .. } | Call::Purge => false,
        Call::Get { .. } => !matches!(op.answer, Answer::Failed(_) | Answer::Lost),
        _ => op.answer != Answer::Failed(Failed::Not),
    }
}

/// Where a search is: which calls are in the order, and what they made of the record.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Place {
    /// All calls before this one are in the order, or never happened.
    start: usize,
    /// Of those from `start` on, these are too.
    taken: Vec<usize>,
    state: State,
}

impl Place {
    fn has(&self, at: usize) -> bool {
        at < self.start || self.taken.binary_search(&at).is_ok()
    }

    fn take(&mut self, at: usize) {
        if let Err(place) = self.taken.binary_search(&at) {
            self.taken.insert(place, at);
        }
        let passed = self
            .taken
            .iter()
            .enumerate()
            .take_while(|(i, t)| self.start + i == **t)
            .count();
        self.start += passed;
        self.taken.drain(..passed);
    }
}

struct Search<'a> {
    ops: &'a [&'a Op],
    options: &'a Options,
    seen: HashSet<Place>,
    /// After so many steps more it is given up.
    left: usize,
    /// The latest call that had to come next somewhere.
    furthest: Nanos,
}

impl Search<'_> {
    fn run(mut self) -> Verdict {
        let first = Place {
            start: 0,
            taken: Vec::new(),
            state: State::default(),
        };
        // Depth first, without recursion: histories are longer than stacks.
        let mut places = vec![first];
        while let Some(mut place) = places.pop() {
            let Some(left) = self.left.checked_sub(1) else {
                return Verdict::Undecided;
            };
            self.left = left;
            self.settle(&mut place);
            let (soonest, open) = self.open(&place);
            let definite = |at: &usize| !self.ops[*at].answer.is_ambiguous();
            let Some(next) = self.rest(&place).find(definite) else {
                return Verdict::Orderly;
            };
            self.furthest = self.furthest.max(self.ops[next].invoked);
            if !self.seen.insert(place.clone()) {
                continue;
            }
            // What was answered comes first off the stack; what nobody saw happen is tried last.
            let (sure, perhaps): (Vec<_>, Vec<_>) = open.into_iter().partition(definite);
            for at in perhaps.into_iter().chain(sure.into_iter().rev()) {
                // It comes before what is left, and so before that was answered. A renewal that was sent again
                // may extend its lease once more later.
                let mut op = *self.ops[at];
                if !matches!(
                    op.call,
                    Call::Fenced {
                        step: Step::Renew { .. },
                        ..
                    }
                ) {
                    op.answered = op.answered.min(soonest);
                }
                for state in place.state.after(&op, self.options) {
                    let mut next = place.clone();
                    next.state = state;
                    next.take(at);
                    places.push(next);
                }
            }
        }
        Verdict::None(self.furthest)
    }

    fn rest(&self, place: &Place) -> impl Iterator<Item = usize> {
        (place.start..self.ops.len()).filter(|at| !place.has(*at))
    }

    /// By when the first of those that are left was answered, and the calls that may come next: sent
    /// before that.
    fn open(&self, place: &Place) -> (Nanos, Vec<usize>) {
        let mut soonest = Nanos::MAX;
        let mut sent = Vec::new();
        for at in self.rest(place) {
            let op = self.ops[at];
            if op.invoked > soonest {
                break;
            }
            if !op.answer.is_ambiguous() {
                soonest = soonest.min(op.answered);
            }
            sent.push(at);
        }
        sent.retain(|at| self.ops[*at].invoked <= soonest);
        (soonest, sent)
    }

    /// Takes everything that may come next, fits, and changes nothing.
    fn settle(&self, place: &mut Place) {
        loop {
            let fits = self.open(place).1.into_iter().find(|at| {
                let op = self.ops[*at];
                !op.answer.is_ambiguous() && place.state.fits_unchanged(op, self.options)
            });
            let Some(at) = fits else {
                return;
            };
            place.take(at);
        }
    }
}
