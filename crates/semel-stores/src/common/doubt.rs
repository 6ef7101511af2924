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

/// The answer to a claim; `in_doubt`: an earlier sending of it may be on its way still. It then arrives when what is in
/// its way has ended, for nobody, unless somebody looks for it.
///
/// # Errors
/// `Unknown` for an answer in doubt that is about another attempt.
#[cfg(any(
    feature = "dynamodb",
    feature = "mysql",
    feature = "postgres",
    feature = "redis"
))]
pub(crate) fn undoubted_claim(
    claim: semel::store::Claim,
    in_doubt: bool,
) -> Result<semel::store::Claim> {
    use semel::store::Claim;

    match claim {
        Claim::InFlight { .. } | Claim::Mismatch | Claim::Unknown { .. } if in_doubt => {
            let why = StoreError::new(StoreErrorKind::Contended, "another attempt has the record");
            Err(StoreError::new(
                StoreErrorKind::Unknown,
                "the answer to the claim was lost: it may still be made, though another is in its way now",
            )
            .with_source(why))
        }
        claim => Ok(claim),
    }
}

/// The error of a step whose last trip met it; `in_doubt`: an earlier sending of it may have been applied.
#[cfg(any(feature = "dynamodb", feature = "redis"))]
pub(crate) fn doubtful(error: StoreError, in_doubt: bool) -> StoreError {
    use StoreErrorKind::{Capacity, Config, Contended, NotApplied};
    match error.kind() {
        NotApplied | Contended | Capacity | Config if in_doubt => {
            let message = format!("{error}; an earlier try may have happened");
            StoreError::new(StoreErrorKind::Unknown, message).with_source(error)
        }
        _ => error,
    }
}

#[cfg(all(
    test,
    any(
        feature = "dynamodb",
        feature = "mysql",
        feature = "postgres",
        feature = "redis"
    )
))]
mod tests {
    use semel::store::Claim;

    use super::*;

    /// So that nobody runs unprotected beside it.
    #[test]
    fn who_was_met_is_known_where_the_claim_is_in_doubt() {
        let error = undoubted_claim(Claim::Mismatch, true).unwrap_err();
        assert_eq!(
            (error.kind(), error.met_others()),
            (StoreErrorKind::Unknown, true)
        );
        let error = StoreError::new(StoreErrorKind::Unknown, "no answer");
        assert!(!error.met_others());
    }
}
