//! What a refusal means where the step was sent before it, and that answer was lost.

use semel::store::{Fenced, Result};
use semel::{StoreError, StoreErrorKind};

/// The answer of a step; `in_doubt`: an earlier sending of it may have been applied. Its retention may have ended since,
/// and another attempt have come after it, which then looks like a refusal.
///
/// # Errors
/// `Unknown` for a refusal in doubt.
pub(crate) fn undoubted(answer: Fenced, in_doubt: bool) -> Result<Fenced> {
    match answer {
        Fenced::Refused(refusal) if in_doubt => Err(StoreError::new(
            StoreErrorKind::Unknown,
            "the answer to the step was lost: it may have been applied, though it is refused now",
        )
        .with_source(refusal)),
        answer => Ok(answer),
    }
}
