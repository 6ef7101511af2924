//! P3: a token that is stale, forged or settled changes nothing; and P11: one that is current is
//! not refused.

use super::attempts::{Attempt, End, FencedOp, How, KeyHistory};
use super::{Findings, Options};
use crate::clock::Nanos;
use crate::history::{Answer, Refused, Step};

pub(super) fn check(history: &KeyHistory<'_>, options: &Options, findings: &mut Findings) {
    // What each attempt's earlier steps settled: when it was acknowledged.
    let mut settled: Vec<Settled> = history.attempts.iter().map(|_| Settled::NOT).collect();
    for fenced in &history.fenced {
        let found = match history.attempt(fenced.held) {
            None => match (fenced.op.answer, history.ghost_with(fenced.held.nonce)) {
                (Answer::Applied, false) => Err((
                    "P3",
                    "a token that no claim was given was obeyed".to_owned(),
                )),
                _ => Ok(()),
            },
            Some((at, attempt)) => match fenced.op.answer {
                Answer::Applied => applied(history, at, attempt, fenced, settled[at]),
                Answer::Refused(refused) => cause(history, at, attempt, fenced, refused, options),
                _ => Ok(()),
            },
        };
        if let Err((property, what)) = found {
            let what = format!(
                "{} under fence {}: {what}",
                fenced.op.call.name(),
                fenced.held.fence
            );
            findings.report(property, history.key, fenced.op.invoked, what);
        }
        if let (Some((at, _)), Answer::Applied) = (history.attempt(fenced.held), fenced.op.answer) {
            settled[at].note(fenced);
        }
    }
}

type Found = Result<(), (&'static str, String)>;

/// By when an attempt's own steps were acknowledged.
#[derive(Clone, Copy)]
struct Settled {
    completed: (Nanos, u64),
    abandoned: Nanos,
    marked: Nanos,
}

impl Settled {
    const NOT: Self = Self {
        completed: (Nanos::MAX, 0),
        abandoned: Nanos::MAX,
        marked: Nanos::MAX,
    };

    fn note(&mut self, fenced: &FencedOp<'_>) {
        let at = fenced.op.answered;
        match fenced.step {
            Step::Complete(kept) => self.completed = self.completed.min((at, kept.outcome)),
            Step::Abandon => self.abandoned = self.abandoned.min(at),
            Step::MarkUnknown => self.marked = self.marked.min(at),
            Step::Renew { .. } | Step::Keep { .. } => {}
        }
    }
}

fn applied(
    history: &KeyHistory<'_>,
    at: usize,
    attempt: &Attempt,
    fenced: &FencedOp<'_>,
    settled: Settled,
) -> Found {
    let sent = fenced.op.invoked;
    if history.superseded_by[at] < sent {
        return Err((
            "P3",
            "applied, although a later attempt had taken its place".into(),
        ));
    }
    let mut ends = attempt.ends.iter();
    let resolved = ends.any(|end| end.is_resolved() && end.acked.is_some_and(|by| by < sent));
    if resolved {
        return Err(("P3", "applied, although it had been resolved".into()));
    }
    let (completed, outcome) = settled.completed;
    let repeated = matches!(fenced.step, Step::Complete(kept) if kept.outcome == outcome);
    if completed < sent && !repeated {
        return Err(("P3", "applied, although it was completed otherwise".into()));
    }
    if settled.abandoned < sent && fenced.step != Step::Abandon {
        return Err(("P3", "applied, although it was abandoned".into()));
    }
    if settled.marked < sent && matches!(fenced.step, Step::Renew { .. }) {
        return Err(("P3", "renewed, although it was marked unknown".into()));
    }
    Ok(())
}

/// Whether there is a cause for which a step with a genuine token may be refused so.
fn cause(
    history: &KeyHistory<'_>,
    at: usize,
    attempt: &Attempt,
    fenced: &FencedOp<'_>,
    refused: Refused,
    options: &Options,
) -> Found {
    let by = fenced.op.answered;
    let late = by.saturating_add(options.tolerance);
    let superseded = history.attempts[at + 1..].iter().any(|a| a.from < by)
        || history.ghost_by(by, Some(attempt.held.nonce))
        // The attempt's own nonce, sent again after the attempt had ended.
        || history.ghost_by(by, None) && attempt.ended_by() < by;
    let own = |end: &End| end.from == fenced.op.invoked;
    // Where stores repeat steps, this one may have been done, and its record be gone.
    let hidden = options.hides(fenced.op) && refused == Refused::Missing;
    let others = |end: &&End| end.from < by && (hidden || !own(end));
    let mut ends = attempt.ends.iter().filter(others);
    let known = match refused {
        Refused::Superseded => superseded || ends.any(End::is_resolved),
        Refused::Missing => superseded || ends.any(|end| late >= end.gone_from()),
        Refused::Completed => ends.any(|e| matches!(e.how, How::Completed(_))),
        Refused::Released => ends.any(|e| e.how == How::Abandoned),
        // By the attempt itself, or by a claim that found it lapsed.
        Refused::Unknown => ends.any(|e| e.how == How::Marked) || late >= attempt.lapse_from,
        // Which steps are kept is not followed here.
        Refused::OtherSteps => matches!(fenced.step, Step::Keep { .. }),
        Refused::InFlight | Refused::Running => false,
    };
    if known {
        return Ok(());
    }
    let what = format!("refused ({refused:?}), and nothing explains it");
    Err(("P11", what))
}

impl KeyHistory<'_> {
    /// Whether a claim with this nonce went without an answer: its token may exist.
    fn ghost_with(&self, nonce: u128) -> bool {
        self.ghosts.iter().any(|(_, ghost)| *ghost == nonce)
    }
}
