//! What stores of versioned records share.

use semel::versioned::rule::{self, Change, Decision, Row};
use semel::versioned::{Version, WriteError};

/// What the row that a change left, or found, answers: `None` where by the rules the change should
/// have been written, so that the row became this meanwhile. Ask again. `resent`: an earlier sending
/// of the same change may have arrived.
pub(crate) fn answer(
    row: Option<&Row>,
    change: &Change,
    resent: bool,
) -> Option<Result<Version, WriteError>> {
    match rule::decide(row, change) {
        Decision::Write(_) => None,
        Decision::Done(version) => Some(Ok(version)),
        Decision::Conflict(_) if resent => Some(Err(rule::after_lost_answer(row, change))),
        Decision::Conflict(found) => Some(Err(WriteError::ConcurrentModification {
            expected: change.expected,
            found,
        })),
    }
}
