//! One key's history, put in order: who claimed it when, and how each attempt ended.

use std::collections::HashMap;

use super::Options;
use crate::clock::Nanos;
use crate::history::{Answer, Call, Held, Kept, KeyIndex, Op, Step};

/// A claim operation, taken apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClaimOp<'a> {
    pub(super) op: &'a Op,
    pub(super) nonce: u128,
    pub(super) print: u64,
    pub(super) lease: Nanos,
    pub(super) retry: bool,
}

/// A fenced operation, taken apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct FencedOp<'a> {
    pub(super) op: &'a Op,
    pub(super) held: Held,
    pub(super) step: Step,
}

/// How an attempt ended, or may have.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    pub(super) how: How,
    /// When it was sent: it did not happen before.
    pub(super) from: Nanos,
    /// When it was acknowledged; `None` where nobody knows whether it happened.
    pub(super) acked: Option<Nanos>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// Completed by its own token.
    Completed(Kept),
    /// Abandoned by its own token.
    Abandoned,
    /// Marked unknown by its own token: not yet an end, but its ownership is.
    Marked,
    /// Resolved: it happened.
    ResolvedDone(Kept),
    /// Resolved: it did not happen.
    ResolvedFree,
}

/// A released record goes on for this long.
const RELEASED_FOR: Nanos = 60_000_000_000;

impl End {
    /// From when on its record may be gone: retention is over, or a release long past.
    pub(super) fn gone_from(&self) -> Nanos {
        let lasts = match self.how {
            How::Abandoned | How::ResolvedFree => RELEASED_FOR,
            How::Completed(kept) | How::ResolvedDone(kept) => kept.lasts(),
            How::Marked => Nanos::MAX,
        };
        self.from.saturating_add(lasts)
    }

    /// Whether somebody resolved it.
    pub(super) const fn is_resolved(&self) -> bool {
        matches!(self.how, How::ResolvedDone(_) | How::ResolvedFree)
    }
}

impl How {
    /// What is replayed from then on.
    pub(super) const fn kept(self) -> Option<Kept> {
        match self {
            Self::Completed(kept) | Self::ResolvedDone(kept) => Some(kept),
            _ => None,
        }
    }

    pub(super) const fn frees(self) -> bool {
        matches!(self, Self::Abandoned | Self::ResolvedFree)
    }
}

/// A claim that was acquired: one token.
#[derive(Debug, Clone)]
pub(super) struct Attempt {
    pub(super) held: Held,
    pub(super) number: u32,
    pub(super) print: u64,
    pub(super) retry: bool,
    pub(super) worker: u32,
    /// It was not acquired before.
    pub(super) from: Nanos,
    /// It was acquired by then.
    pub(super) known: Nanos,
    /// Its lease had not lapsed before, by the store's clock.
    pub(super) lapse_from: Nanos,
    /// Its lease had lapsed by then.
    pub(super) lapse_by: Nanos,
    pub(super) ends: Vec<End>,
}

impl Attempt {
    /// A completion that was acknowledged: nothing but the end of its retention ends it.
    pub(super) fn acked_kept(&self) -> Option<(End, Kept)> {
        let acked = self.ends.iter().filter(|end| end.acked.is_some());
        acked.filter_map(|e| Some((*e, e.how.kept()?))).next()
    }

    /// The earliest time at which this outcome may have been completed by this attempt.
    pub(super) fn completed_from(&self, outcome: u64) -> Nanos {
        let same = |end: &&End| end.how.kept().is_some_and(|k| k.outcome == outcome);
        let times = self.ends.iter().filter(same).map(|end| end.from);
        times.min().unwrap_or(Nanos::MAX)
    }

    /// When it was certainly no longer in flight.
    pub(super) fn ended_by(&self) -> Nanos {
        let acked = self.ends.iter().filter_map(|end| end.acked);
        acked.min().unwrap_or(Nanos::MAX)
    }
}

/// Everything about one key.
#[derive(Debug)]
pub(super) struct KeyHistory<'a> {
    pub(super) key: KeyIndex,
    pub(super) ops: Vec<&'a Op>,
    pub(super) claims: Vec<ClaimOp<'a>>,
    pub(super) fenced: Vec<FencedOp<'a>>,
    /// By fence.
    pub(super) attempts: Vec<Attempt>,
    by_held: HashMap<Held, usize>,
    by_fence: HashMap<u64, usize>,
    /// For each attempt: by when a later one was certainly there.
    pub(super) superseded_by: Vec<Nanos>,
    /// Resolutions by the fence they name: every end they may have made, for fences of attempts
    /// that nobody knows too.
    pub(super) resolved: HashMap<u64, Vec<End>>,
    /// Claims that may have made an attempt which nobody knows of: without an answer, or with one that
    /// [hides](Options::hides) it. By time.
    pub(super) ghosts: Vec<(Nanos, u128)>,
}

impl<'a> KeyHistory<'a> {
    pub(super) fn new(key: KeyIndex) -> Self {
        Self {
            key,
            ops: Vec::new(),
            claims: Vec::new(),
            fenced: Vec::new(),
            attempts: Vec::new(),
            by_held: HashMap::new(),
            by_fence: HashMap::new(),
            superseded_by: Vec::new(),
            resolved: HashMap::new(),
            ghosts: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, op: &'a Op) {
        self.ops.push(op);
        match op.call {
            Call::Claim {
                nonce,
                print,
                lease,
                retry,
                ..
            } => self.claims.push(ClaimOp {
                op,
                nonce,
                print,
                lease,
                retry,
            }),
            Call::Fenced { held, step, .. } => self.fenced.push(FencedOp { op, held, step }),
            _ => {}
        }
    }

    /// Makes the attempts, once all operations are here.
    pub(super) fn gather(&mut self, options: &Options) {
        self.gather_attempts(options);
        self.gather_ends(options);
        let mut soonest = Nanos::MAX;
        self.superseded_by = vec![Nanos::MAX; self.attempts.len()];
        for (at, attempt) in self.attempts.iter().enumerate().rev() {
            self.superseded_by[at] = soonest;
            soonest = soonest.min(attempt.known);
        }
    }

    fn gather_attempts(&mut self, options: &Options) {
        // When a claim with this nonce was first sent and not answered, and whether one was to
        // retry: a guard that gives back what it may have claimed asks again to hold.
        let mut unanswered: HashMap<u128, (Nanos, bool)> = HashMap::new();
        let mut found: HashMap<Held, Attempt> = HashMap::new();
        for claim in &self.claims {
            let ClaimOp { op, nonce, .. } = *claim;
            if op.answer.is_ambiguous() {
                let first = unanswered.entry(nonce).or_insert((op.invoked, false));
                first.1 |= claim.retry;
            }
            if options.may_be_a_ghost(op) {
                self.ghosts.push((op.invoked, nonce));
            }
            let Answer::Acquired { fence, attempt } = op.answer else {
                continue;
            };
            let (from, retried) = unanswered
                .get(&nonce)
                .copied()
                .unwrap_or((op.invoked, false));
            let held = Held { fence, nonce };
            let entry = found.entry(held).or_insert_with(|| Attempt {
                held,
                number: attempt,
                print: claim.print,
                retry: claim.retry || retried,
                worker: op.worker,
                from,
                known: op.answered,
                lapse_from: from.saturating_add(claim.lease),
                lapse_by: op.answered.saturating_add(claim.lease),
                ends: Vec::new(),
            });
            entry.from = entry.from.min(from);
            entry.known = entry.known.min(op.answered);
        }
        let mut attempts: Vec<Attempt> = found.into_values().collect();
        attempts.sort_by_key(|attempt| attempt.held);
        self.by_held = attempts.iter().map(|a| a.held).zip(0..).collect();
        self.by_fence = attempts.iter().map(|a| a.held.fence).zip(0..).collect();
        self.attempts = attempts;
    }

    fn gather_ends(&mut self, options: &Options) {
        let may_be_applied = |op: &Op| op.answer.may_be_applied() || options.hides(op);
        for fenced in &self.fenced {
            let FencedOp { op, held, step } = *fenced;
            let Some(&at) = self.by_held.get(&held) else {
                continue;
            };
            if !may_be_applied(op) {
                continue;
            }
            let acked = (op.answer == Answer::Applied).then_some(op.answered);
            let attempt = &mut self.attempts[at];
            let how = match step {
                Step::Renew { lease } => {
                    if acked.is_some() {
                        let until = op.invoked.saturating_add(lease);
                        attempt.lapse_from = attempt.lapse_from.max(until);
                    }
                    let until = acked.map_or(Nanos::MAX, |at| at.saturating_add(lease));
                    attempt.lapse_by = attempt.lapse_by.max(until);
                    continue;
                }
                Step::Complete(kept) => How::Completed(kept),
                Step::Keep { .. } => continue,
                Step::Abandon => How::Abandoned,
                Step::MarkUnknown => How::Marked,
            };
            let from = op.invoked;
            attempt.ends.push(End { how, from, acked });
        }
        for op in &self.ops {
            let Call::Resolve {
                fence, happened, ..
            } = op.call
            else {
                continue;
            };
            if !may_be_applied(op) {
                continue;
            }
            let end = End {
                how: happened.map_or(How::ResolvedFree, How::ResolvedDone),
                from: op.invoked,
                acked: (op.answer == Answer::Applied).then_some(op.answered),
            };
            self.resolved.entry(fence).or_default().push(end);
            if let Some(&at) = self.by_fence.get(&fence) {
                self.attempts[at].ends.push(end);
            }
        }
    }

    pub(super) fn attempt(&self, held: Held) -> Option<(usize, &Attempt)> {
        let at = *self.by_held.get(&held)?;
        Some((at, &self.attempts[at]))
    }

    pub(super) fn attempt_of(&self, fence: u64) -> Option<(usize, &Attempt)> {
        let at = *self.by_fence.get(&fence)?;
        Some((at, &self.attempts[at]))
    }

    /// Whether a claim that nobody knows the answer of may have been acquired by `time`, under
    /// another nonce than `except`.
    pub(super) fn ghost_by(&self, time: Nanos, except: Option<u128>) -> bool {
        self.ghosts
            .iter()
            .take_while(|(from, _)| *from < time)
            .any(|(_, nonce)| Some(*nonce) != except)
    }

    /// All completions that may have happened: their outcome, when, and whose.
    pub(super) fn completions(&self) -> impl Iterator<Item = (Kept, End, Option<usize>)> {
        let own = self.attempts.iter().enumerate().flat_map(|(at, attempt)| {
            let kept = move |e: &End| Some((e.how.kept()?, *e, Some(at)));
            attempt.ends.iter().filter_map(kept)
        });
        let others = self.resolved.iter().flat_map(|(fence, ends)| {
            let known = self.by_fence.contains_key(fence);
            let kept = |e: &End| Some((e.how.kept()?, *e, None));
            ends.iter().filter(move |_| !known).filter_map(kept)
        });
        own.chain(others)
    }
}
