//! What a refusal means where the step was sent before it, and that answer was lost.

use semel::record::{Change, Update};
use semel::store::{Fenced, Result};
use semel::{StoreError, StoreErrorKind};

/// The answer of a step; `in_doubt`: an earlier sending of it may have been applied. Its retention may have ended since,
/// and another attempt have come after it, which then looks like a refusal. A renewal that is refused is void, whatever
/// became of the one before it.
///
/// # Errors
/// `Unknown` for a refusal in doubt.
pub(crate) fn undoubted(change: &Change, answer: Fenced, in_doubt: bool) -> Result<Fenced> {
    match (change, answer) {
        (Change::Held(_, Update::Renew(_)), answer) => Ok(answer),
        (_, Fenced::Refused(refusal)) if in_doubt => Err(StoreError::new(
            StoreErrorKind::Unknown,
            "the answer to the step was lost: it may have been applied, though it is refused now",
        )
        .with_source(refusal)),
        (_, answer) => Ok(answer),
    }
}
