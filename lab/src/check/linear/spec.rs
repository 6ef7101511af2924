//! The sequential model of one key, for the search. Time is kept as bounds: a lease that was taken
//! between two instants lapses between two instants, and an answer fits if it does anywhere in
//! between.

use semel::StateKind;

use super::super::Options;
use crate::clock::Nanos;
use crate::history::{Answer, Call, Held, Kept, Op, Refused, Step};

const RELEASED_FOR: Nanos = 60_000_000_000;
const RELEASED_WITH_PARTS_FOR: Nanos = 7 * 24 * 3_600_000_000_000;

/// An instant that is known to lie between two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct When {
    from: Nanos,
    by: Nanos,
}

impl When {
    const fn after(op: &Op, length: Nanos) -> Self {
        Self {
            from: op.invoked.saturating_add(length),
            by: op.answered.saturating_add(length),
        }
    }

    const fn later(self, length: Nanos) -> Self {
        Self {
            from: self.from.saturating_add(length),
            by: self.by.saturating_add(length),
        }
    }

    /// It may have passed when this call took effect.
    const fn may_be_past(self, op: &Op, options: &Options) -> bool {
        op.answered.saturating_add(options.tolerance) >= self.from
    }

    /// It may be still to come when this call took effect.
    const fn may_be_ahead(self, op: &Op, options: &Options) -> bool {
        options.clockless || op.invoked < self.by.saturating_add(options.tolerance)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    Running {
        lapses: When,
    },
    Unknown,
    Done {
        kept: u64,
        expires: When,
        gone: When,
    },
    Released {
        gone: When,
    },
}

/// What one key's record may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Row {
    phase: Phase,
    /// `None`: given to a claim whose answer does not say it. Of a resolved record: that of the attempt.
    fence: Option<u64>,
    nonce: u128,
    print: u64,
    /// Parts of the work are finished: a release does not make room for another request then.
    parts: bool,
}

/// No record, or one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct State(Option<Row>);

impl Row {
    fn has_fence(&self, fence: u64) -> bool {
        self.fence.is_none_or(|own| own == fence)
    }

    fn is(&self, held: Held) -> bool {
        self.nonce == held.nonce && self.has_fence(held.fence)
    }

    fn may_be_gone(&self, op: &Op, options: &Options) -> bool {
        match self.phase {
            Phase::Done { gone, .. } | Phase::Released { gone } => gone.may_be_past(op, options),
            Phase::Running { .. } | Phase::Unknown => false,
        }
    }

    fn done(&self, op: &Op, kept: Kept) -> Self {
        let expires = When::after(op, kept.replay);
        Self {
            phase: Phase::Done {
                kept: kept.outcome,
                expires,
                gone: expires.later(kept.tombstone),
            },
            parts: false,
            ..*self
        }
    }

    fn freed(&self, op: &Op) -> Self {
        let lasts = match self.parts {
            true => RELEASED_WITH_PARTS_FOR,
            false => RELEASED_FOR,
        };
        let gone = When::after(op, lasts);
        Self {
            phase: Phase::Released { gone },
            ..*self
        }
    }
}

impl State {
    /// Whether this answer may be given now, and the record stays as it is.
    pub(super) fn fits_unchanged(&self, op: &Op, options: &Options) -> bool {
        match op.call {
            Call::Claim { nonce, print, .. } => self.claim_unchanged(op, nonce, print, options),
            Call::Get { .. } => self.found(op, options),
            Call::Fenced { held, step, .. } => match op.answer {
                Answer::Refused(refused) => self.refuses(op, held, refused, options),
                // Done before.
                Answer::Applied => self.0.is_some_and(|row| {
                    row.is(held)
                        && match (step, row.phase) {
                            (Step::Complete(kept), Phase::Done { kept: has, .. }) => {
                                has == kept.outcome
                            }
                            (Step::Abandon, Phase::Released { .. }) => true,
                            (Step::MarkUnknown, Phase::Unknown) => true,
                            (Step::Keep { .. }, Phase::Running { .. } | Phase::Unknown) => {
                                row.parts
                            }
                            _ => false,
                        }
                }),
                _ => false,
            },
            Call::Resolve { nonce, .. } => match op.answer {
                // What refuses a resolution is left to the conformance suite.
                Answer::Refused(_) => true,
                Answer::Applied => self.0.is_some_and(|row| row.nonce == nonce),
                _ => false,
            },
            Call::Wait { .. } | Call::Purge => true,
        }
    }

    fn claim_unchanged(&self, op: &Op, nonce: u128, print: u64, options: &Options) -> bool {
        let Some(row) = self.0 else {
            return false;
        };
        let same = row.print == print;
        match (op.answer, row.phase) {
            (Answer::Acquired { fence, .. }, Phase::Running { .. }) => {
                same && row.nonce == nonce && row.fence == Some(fence)
            }
            (Answer::InFlight { fence, .. }, Phase::Running { lapses }) => {
                same && row.nonce != nonce
                    && row.has_fence(fence)
                    && lapses.may_be_ahead(op, options)
            }
            (Answer::Unknown { fence }, Phase::Unknown) => same && row.has_fence(fence),
            (Answer::Completed { outcome, .. }, Phase::Done { kept, expires, .. }) => {
                same && kept == outcome && expires.may_be_ahead(op, options)
            }
            (Answer::Expired, Phase::Done { expires, .. }) => expires.may_be_past(op, options),
            (Answer::Mismatch, Phase::Released { .. }) => !same && row.parts,
            (Answer::Mismatch, _) => !same,
            _ => false,
        }
    }

    fn found(&self, op: &Op, options: &Options) -> bool {
        match (op.answer, self.0) {
            (Answer::Absent, None) => true,
            (Answer::Absent, Some(row)) => row.may_be_gone(op, options),
            (Answer::Found { state, outcome, .. }, Some(row)) => match row.phase {
                Phase::Running { .. } => state == StateKind::InFlight,
                Phase::Unknown => state == StateKind::Unknown,
                Phase::Done { kept, .. } => outcome == Some(kept),
                Phase::Released { .. } => state == StateKind::Released,
            },
            _ => false,
        }
    }

    fn refuses(&self, op: &Op, held: Held, refused: Refused, options: &Options) -> bool {
        let Some(row) = self.0 else {
            return refused == Refused::Missing;
        };
        match refused {
            Refused::Missing => row.may_be_gone(op, options),
            Refused::Superseded => {
                row.nonce != held.nonce || row.fence.is_none_or(|fence| fence != held.fence)
            }
            Refused::Completed => row.is(held) && matches!(row.phase, Phase::Done { .. }),
            Refused::Released => row.is(held) && matches!(row.phase, Phase::Released { .. }),
            Refused::Unknown => row.is(held) && row.phase == Phase::Unknown,
            Refused::OtherSteps => row.is(held),
            Refused::InFlight | Refused::Running => false,
        }
    }

    /// The records that this call may leave, where it changes something.
    pub(super) fn after(&self, op: &Op, options: &Options) -> Vec<Self> {
        let next = match op.call {
            Call::Claim { .. } => self.claimed(op, options),
            Call::Fenced { held, step, .. } => self.stepped(op, held, step),
            Call::Resolve {
                fence,
                nonce,
                happened,
                ..
            } => self.resolved(op, fence, nonce, happened, options),
            Call::Get { .. } | Call::Wait { .. } | Call::Purge => None,
        };
        // A claim that nobody saw the answer of may have done that alone.
        let lapsed = match op.answer.is_ambiguous() {
            true => self.found_lapsed(op, options),
            false => None,
        };
        let rows = next.into_iter().chain(lapsed).chain(self.told(op));
        rows.map(|row| Self(Some(row))).collect()
    }

    fn claimed(&self, op: &Op, options: &Options) -> Option<Row> {
        let Call::Claim {
            nonce,
            print,
            lease,
            retry,
            ..
        } = op.call
        else {
            return None;
        };
        let given = match op.answer {
            Answer::Acquired { fence, .. } => Some(fence),
            Answer::Unknown { fence } => {
                return self
                    .found_lapsed(op, options)
                    .filter(|row| row.has_fence(fence));
            }
            answer if answer.is_ambiguous() => None,
            _ => return None,
        };
        let free = match self.0 {
            None => true,
            Some(row) => match row.phase {
                Phase::Released { .. } => !row.parts || row.print == print,
                Phase::Done { gone, .. } => gone.may_be_past(op, options),
                Phase::Running { lapses } => {
                    retry && row.print == print && lapses.may_be_past(op, options)
                }
                Phase::Unknown => retry && row.print == print,
            },
        };
        let grows = match (self.0.and_then(|row| row.fence), given) {
            (Some(before), Some(given)) => given > before,
            _ => true,
        };
        (free && grows).then_some(Row {
            phase: Phase::Running {
                lapses: When::after(op, lease),
            },
            fence: given,
            nonce,
            print,
            parts: self.0.is_some_and(|row| row.parts),
        })
    }

    /// The winner whose first answer was lost learns its fence.
    fn told(&self, op: &Op) -> Option<Row> {
        let (Call::Claim { nonce, print, .. }, Answer::Acquired { fence, .. }) =
            (op.call, op.answer)
        else {
            return None;
        };
        let row = self.0?;
        let own = row.nonce == nonce && row.print == print && row.fence.is_none();
        (own && matches!(row.phase, Phase::Running { .. })).then_some(Row {
            fence: Some(fence),
            ..row
        })
    }

    /// A claim that holds finds a lapsed lease, and writes that down.
    fn found_lapsed(&self, op: &Op, options: &Options) -> Option<Row> {
        let Call::Claim { print, retry, .. } = op.call else {
            return None;
        };
        let row = self.0?;
        let Phase::Running { lapses } = row.phase else {
            return None;
        };
        let may = !retry && row.print == print && lapses.may_be_past(op, options);
        may.then_some(Row {
            phase: Phase::Unknown,
            ..row
        })
    }

    fn stepped(&self, op: &Op, held: Held, step: Step) -> Option<Row> {
        let row = self.0?;
        if !row.is(held) || !op.answer.may_be_applied() {
            return None;
        }
        match (step, row.phase) {
            (Step::Renew { lease }, Phase::Running { lapses }) => {
                let to = When::after(op, lease);
                let lapses = When {
                    from: lapses.from.max(to.from),
                    by: lapses.by.max(to.by),
                };
                Some(Row {
                    phase: Phase::Running { lapses },
                    ..row
                })
            }
            (Step::Complete(kept), Phase::Running { .. } | Phase::Unknown) => {
                Some(row.done(op, kept))
            }
            (Step::Keep { .. }, Phase::Running { .. } | Phase::Unknown) => {
                Some(Row { parts: true, ..row })
            }
            (Step::Abandon, Phase::Running { .. } | Phase::Unknown) => Some(row.freed(op)),
            (Step::MarkUnknown, Phase::Running { .. }) => Some(Row {
                phase: Phase::Unknown,
                ..row
            }),
            _ => None,
        }
    }

    fn resolved(
        &self,
        op: &Op,
        fence: u64,
        nonce: u128,
        happened: Option<Kept>,
        options: &Options,
    ) -> Option<Row> {
        let row = self.0?;
        if !row.has_fence(fence) || !op.answer.may_be_applied() {
            return None;
        }
        let open = match row.phase {
            Phase::Unknown => true,
            Phase::Running { lapses } => lapses.may_be_past(op, options),
            Phase::Done { .. } | Phase::Released { .. } => false,
        };
        let next = match happened {
            Some(kept) => row.done(op, kept),
            None => row.freed(op),
        };
        // It has a new fence, which no answer tells: one that is later than the last.
        open.then_some(Row { nonce, ..next })
    }
}
