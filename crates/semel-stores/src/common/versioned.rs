//! What stores of versioned records share.

use semel::versioned::rule::{self, Change, Decision, Row};
use semel::versioned::{Expected, Version, WriteError};

/// What is expected, as one number: -1 anything, 0 no record, else a version. One that no record can
/// have is one that none has.
pub(crate) fn number(expected: Expected) -> i64 {
    match expected {
        Expected::Any => -1,
        Expected::Absent => 0,
        Expected::Version(Version(0)) => i64::MAX,
        Expected::Version(Version(version)) => i64::try_from(version).unwrap_or(i64::MAX),
    }
}

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
