//! Answers to requests whose precondition was not met, or could not be.

use bytes::Bytes;
use http::header::HeaderName;
use http::{Response, StatusCode};
use semel::versioned::{Version, WriteError};
use semel::{StoreError, StoreErrorKind};

use crate::Disposition;
use crate::problem::{ProblemCode, write};

/// Where these answers are described.
const DOCS: &str = "https://github.com/semel-rs/semel/blob/main/docs/versioned.md#";

/// Why a conditional write is not answered with its success.
///
/// With axum a response, so that handlers return `Result<_, Rejection>`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    /// 400 `invalid-precondition`: the field cannot be read.
    #[error("the field {field} {reason}")]
    Malformed {
        /// `If-Match` or `If-None-Match`.
        field: HeaderName,
        /// What is wrong, and what would be right.
        reason: &'static str,
    },
    /// 428 `precondition-required`: the operation is done under a precondition only.
    #[error("the operation needs a precondition")]
    Required,
    /// 412 `precondition-failed`: the record is in another version, or not there. Nothing was changed.
    #[error("the precondition does not hold")]
    Failed {
        /// What is there; `None` where there is no record.
        found: Option<Version>,
    },
    /// 503 `contended`: others changed the record between each look at it and the write, so that nobody
    /// can say that the precondition did not hold. Nothing was changed; the key is released.
    #[error("others changed the record at each look")]
    Contended,
    /// The store failed: 503 `store-unavailable`, `contended` or `capacity`, 413 `too-large`, and 409
    /// `outcome-unknown` where the write may have happened.
    #[error(transparent)]
    Store(StoreError),
}

/// What kind of answer a [`Rejection`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// `invalid-precondition`.
    InvalidPrecondition,
    /// `precondition-required`.
    PreconditionRequired,
    /// `precondition-failed`.
    PreconditionFailed,
    /// `contended`.
    Contended,
    /// One of the layer's.
    Of(ProblemCode),
}

impl Code {
    /// The stable `code` member.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidPrecondition => "invalid-precondition",
            Self::PreconditionRequired => "precondition-required",
            Self::PreconditionFailed => "precondition-failed",
            Self::Contended => "contended",
            Self::Of(code) => code.as_str(),
        }
    }

    /// The status of the answer.
    pub const fn status(self) -> StatusCode {
        match self {
            Self::InvalidPrecondition => StatusCode::BAD_REQUEST,
            Self::PreconditionRequired => StatusCode::PRECONDITION_REQUIRED,
            Self::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
            Self::Contended => StatusCode::SERVICE_UNAVAILABLE,
            Self::Of(code) => code.status(),
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::InvalidPrecondition => "The precondition is not valid",
            Self::PreconditionRequired => "A precondition is required",
            Self::PreconditionFailed => "The precondition does not hold",
            Self::Contended => "Others keep changing the record",
            Self::Of(ProblemCode::TooLarge) => "The value is too large",
            Self::Of(ProblemCode::Capacity) => "The store is full",
            Self::Of(code @ ProblemCode::OutcomeUnknown) => code.title(),
            Self::Of(_) => "The store is not available",
        }
    }
}

impl From<WriteError> for Rejection {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::ConcurrentModification { found, .. } => Self::Failed { found },
            WriteError::Store(error) => Self::Store(error),
            other => Self::Store(StoreError::new(StoreErrorKind::Unknown, other.to_string())),
        }
    }
}

impl From<StoreError> for Rejection {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Rejection {
    /// What kind of answer it is.
    pub fn code(&self) -> Code {
        match self {
            Self::Malformed { .. } => Code::InvalidPrecondition,
            Self::Required => Code::PreconditionRequired,
            Self::Failed { .. } => Code::PreconditionFailed,
            Self::Contended => Code::Contended,
            Self::Store(error) if error.kind() == StoreErrorKind::Contended => Code::Contended,
            Self::Store(error) => Code::Of(match error.kind() {
                StoreErrorKind::Unknown => ProblemCode::OutcomeUnknown,
                StoreErrorKind::Capacity => ProblemCode::Capacity,
                StoreErrorKind::TooLarge => ProblemCode::TooLarge,
                _ => ProblemCode::StoreUnavailable,
            }),
        }
    }

    /// The status of the answer.
    pub fn status(&self) -> StatusCode {
        self.code().status()
    }

    fn detail(&self) -> String {
        match self {
            Self::Malformed { field, reason } => {
                format!("The field `{field}` {reason}. Nothing was run.")
            }
            Self::Required => "Send `If-Match` with the ETag that was read last, or \
                               `If-None-Match: *` to make what is not there. Nothing was run."
                .into(),
            Self::Failed { found: None } => "There is no such record. Nothing was changed.".into(),
            Self::Failed { found: Some(_) } => "The record was changed since it was read, or was \
                                                there already. Nothing was changed; read it \
                                                again."
                .into(),
            Self::Contended => "Others changed the record each time it was looked at. Nothing was \
                                changed; ask again with the same key."
                .into(),
            Self::Store(error) => match error.kind() {
                StoreErrorKind::Unknown => {
                    "The write may have happened: its answer was lost. Read the record before \
                     anything else."
                        .into()
                }
                StoreErrorKind::TooLarge => "Nothing was changed.".into(),
                _ => "Nothing was changed. Ask again.".into(),
            },
        }
    }

    /// The whole answer: `application/problem+json`, never cached. An unknown write makes the
    /// record of an idempotency key unknown, too ([`Disposition::Unknown`]).
    pub fn to_response(&self) -> Response<Bytes> {
        let code = self.code();
        let retry_after = match code {
            Code::Contended | Code::Of(ProblemCode::StoreUnavailable | ProblemCode::Capacity) => {
                Some(std::time::Duration::from_secs(1))
            }
            _ => None,
        };
        let uri = format!("{DOCS}{}", code.as_str());
        let mut response = write(
            &uri,
            code.as_str(),
            code.status(),
            code.title(),
            &self.detail(),
            retry_after,
        );
        if code == Code::Of(ProblemCode::OutcomeUnknown) {
            response.extensions_mut().insert(Disposition::Unknown);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use http::header::IF_MATCH;

    use super::*;

    #[test]
    fn each_rejection_says_what_it_is_and_what_was_done() {
        let malformed = Rejection::Malformed {
            field: IF_MATCH,
            reason: "is not a list of tags",
        };
        let store = |kind| Rejection::Store(StoreError::new(kind, "why"));
        #[rustfmt::skip]
        let rejections = [
            (malformed, 400, "invalid-precondition", "The precondition is not valid", "`if-match` is not a list of tags. Nothing was run."),
            (Rejection::Required, 428, "precondition-required", "A precondition is required", "Nothing was run."),
            (Rejection::Failed { found: None }, 412, "precondition-failed", "The precondition does not hold", "There is no such record. Nothing was changed."),
            (Rejection::Failed { found: Some(Version(7)) }, 412, "precondition-failed", "The precondition does not hold", "read it again."),
            (Rejection::Contended, 503, "contended", "Others keep changing the record", "ask again with the same key."),
            (store(StoreErrorKind::Unknown), 409, "outcome-unknown", "The outcome of the operation is not known", "The write may have happened: its answer was lost. Read the record before anything else."),
            (store(StoreErrorKind::Capacity), 503, "capacity", "The store is full", "Nothing was changed. Ask again."),
            (store(StoreErrorKind::TooLarge), 413, "too-large", "The value is too large", "Nothing was changed."),
            (store(StoreErrorKind::Contended), 503, "contended", "Others keep changing the record", "Nothing was changed. Ask again."),
            (store(StoreErrorKind::NotApplied), 503, "store-unavailable", "The store is not available", "Nothing was changed. Ask again."),
        ];
        for (rejection, status, code, title, detail) in rejections {
            assert_eq!(rejection.status(), status, "{rejection}");
            let response = rejection.to_response();
            assert_eq!(response.status(), status, "{rejection}");
            let problem: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
            assert_eq!(problem["code"], code);
            assert_eq!(problem["title"], title);
            let told = problem["detail"].as_str().unwrap();
            assert!(told.ends_with(detail), "{told}");
        }
    }
}
