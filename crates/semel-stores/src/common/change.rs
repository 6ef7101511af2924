//! A fenced change, as it travels to the thread that decides and writes it.

use std::time::Duration;

use semel::record;
use semel::store::{Fence, Resolution, Retention, Token};
use semel::{FinishedStep, Outcome, Record, Timestamp};

/// A fenced change of one record.
pub(crate) enum Change {
    Renew(Token, Duration),
    Complete(Token, Outcome, Retention),
    KeepStep(Token, FinishedStep, usize),
    Abandon(Token),
    MarkUnknown(Token),
    Resolve(Box<Resolution>),
}

impl Change {
    /// Decides; `floor` is the highest fence given out.
    pub(crate) fn decide(
        &self,
        record: Option<&Record>,
        now: Timestamp,
        floor: Fence,
    ) -> record::Transition {
        match self {
            Self::Renew(token, lease) => record::renew(record, token, *lease, now),
            Self::Complete(token, outcome, retention) => {
                record::complete(record, token, outcome, *retention, now)
            }
            Self::KeepStep(token, step, kept) => record::keep_step(record, token, step, *kept),
            Self::Abandon(token) => record::abandon(record, token, now),
            Self::MarkUnknown(token) => record::mark_unknown(record, token, now),
            Self::Resolve(resolution) => record::resolve(record, resolution, now, floor),
        }
    }
}
