//! Why something was not done.

use std::fmt;

use http::StatusCode;
use semel::store::Refusal;
use semel::{StoreError, StoreErrorKind};

use crate::command::with_causes;

/// Why something was not done: a code for programs, a sentence for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Which of the reasons.
    pub code: Code,
    /// What is the matter here.
    pub detail: String,
}

/// The reasons. `docs/operate.md` has a row for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// What was asked cannot be understood.
    InvalidRequest,
    /// An action says why it is done.
    MissingReason,
    /// There is no such record.
    NoRecord,
    /// An attempt holds its lease.
    AttemptRunning,
    /// The record is not any more as the viewer saw it.
    RecordChanged,
    /// From the record's state this cannot be done.
    WrongState,
    /// Somebody else has to confirm it.
    NotConfirmed,
    /// The store keeps nothing as large as this.
    OutcomeTooLarge,
    /// The store did not do it.
    StoreUnavailable,
    /// The store did it, or not.
    ActionUnknown,
}

impl Code {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::InvalidRequest,
        Self::MissingReason,
        Self::NoRecord,
        Self::AttemptRunning,
        Self::RecordChanged,
        Self::WrongState,
        Self::NotConfirmed,
        Self::OutcomeTooLarge,
        Self::StoreUnavailable,
        Self::ActionUnknown,
    ];

    /// The stable name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid-request",
            Self::MissingReason => "missing-reason",
            Self::NoRecord => "no-record",
            Self::AttemptRunning => "attempt-running",
            Self::RecordChanged => "record-changed",
            Self::WrongState => "wrong-state",
            Self::NotConfirmed => "not-confirmed",
            Self::OutcomeTooLarge => "outcome-too-large",
            Self::StoreUnavailable => "store-unavailable",
            Self::ActionUnknown => "action-unknown",
        }
    }

    /// The status of the answer.
    pub const fn status(self) -> StatusCode {
        match self {
            Self::InvalidRequest | Self::MissingReason => StatusCode::BAD_REQUEST,
            Self::NoRecord => StatusCode::NOT_FOUND,
            Self::AttemptRunning | Self::RecordChanged | Self::WrongState => StatusCode::CONFLICT,
            Self::NotConfirmed => StatusCode::FORBIDDEN,
            Self::OutcomeTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::StoreUnavailable | Self::ActionUnknown => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// In a few words, the same for all.
    pub const fn title(self) -> &'static str {
        match self {
            Self::InvalidRequest => "The request is not understood",
            Self::MissingReason => "An action needs a reason",
            Self::NoRecord => "There is no such record",
            Self::AttemptRunning => "An attempt is running",
            Self::RecordChanged => "The record has changed since it was looked at",
            Self::WrongState => "The record's state does not allow it",
            Self::NotConfirmed => "Somebody else has to confirm it",
            Self::OutcomeTooLarge => "The store cannot keep an answer of this size",
            Self::StoreUnavailable => "The store did not do it",
            Self::ActionUnknown => "It is not known whether the store did it",
        }
    }
}

impl Refused {
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self { code, detail }
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(Code::InvalidRequest, detail)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.as_str(), self.detail)
    }
}

impl std::error::Error for Refused {}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        let code = match error.kind() {
            StoreErrorKind::Unknown => Code::ActionUnknown,
            StoreErrorKind::TooLarge => Code::OutcomeTooLarge,
            _ => Code::StoreUnavailable,
        };
        Self::new(code, with_causes(&error))
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        let (code, detail) = match refusal {
            Refusal::Missing => (Code::NoRecord, "its retention ended in the meantime".to_owned()),
            Refusal::Running => (
                Code::AttemptRunning,
                "an attempt holds its lease and may complete at any moment; wait for its end, or for \
                 its lease to lapse"
                    .to_owned(),
            ),
            Refusal::Superseded => (
                Code::RecordChanged,
                "a later attempt, or another operator, came first; look at it again".to_owned(),
            ),
            Refusal::Settled(state) => (
                Code::WrongState,
                format!("the record is {}; look at it again", state.as_str()),
            ),
            other => (Code::WrongState, other.to_string()),
        };
        Self { code, detail }
    }
}
