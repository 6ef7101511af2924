//! Why an event was not handled. No error holds an event's id (R12) or what it brought.

use std::time::Duration;

use semel::inbox::InboxError;

/// Any error of a handler's.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What a handler failed with, as an error whose source it is: the store looks for conflicts between
/// transactions among the sources.
#[derive(Debug, thiserror::Error)]
#[error("the handler failed: {0}")]
pub struct HandlerError(#[source] BoxError);

impl HandlerError {
    pub(crate) fn of(error: impl Into<BoxError>) -> Self {
        Self(error.into())
    }

    /// The handler's own error.
    pub fn into_inner(self) -> BoxError {
        self.0
    }
}

/// Why something is no event that this crate reads.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvelopeError {
    /// It is no JSON.
    #[error("expected JSON: {0}")]
    NotJson(#[source] serde_json::Error),
    /// The invocation brings none of the shapes that are known.
    #[error(
        "expected a batch of SQS (`Records`) or an event of EventBridge (`id`, `source`, \
         `detail-type`, `detail`), but {found}"
    )]
    UnknownShape {
        /// What there is, in words.
        found: Box<str>,
    },
    /// It is marked as one of the shapes that are known, and lacks a part of it.
    #[error("{shape} needs {kind} in `{field}`")]
    Missing {
        /// Which shape it is marked as.
        shape: &'static str,
        /// The field.
        field: Box<str>,
        /// What should stand there.
        kind: &'static str,
    },
    /// A message that is neither an event of EventBridge nor a notification of SNS does not say of
    /// which type it is.
    #[error(
        "expected an event of EventBridge (`id`, `source`, `detail-type`, `detail`), one in a \
         notification of SNS, or the event's type in {expected}"
    )]
    NoType {
        /// Where the type is looked for.
        expected: Box<str>,
    },
}

/// Why an event was not handled: it is to be delivered again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// It cannot be read. Nothing ran.
    #[error(transparent)]
    Envelope(#[from] EnvelopeError),
    /// Nobody handles events of this type. Nothing ran.
    #[error("no handler for events of type {given:?}; there are handlers for {known:?}")]
    UnknownType {
        /// The event's type.
        given: Box<str>,
        /// The types that have a handler, in alphabetical order.
        known: Box<[Box<str>]>,
    },
    /// What the event brings is not what its type's handler takes. Nothing ran.
    #[error(
        "an event of type {event_type:?} with another detail than its handler takes, at line {line}, \
         column {column} of the detail"
    )]
    WrongDetail {
        /// The event's type.
        event_type: Box<str>,
        /// The line of the detail, from 1. What stands there is the event's, as its id may be.
        line: usize,
        /// The column in that line.
        column: usize,
    },
    /// The inbox gave no receipt: the handler failed, another delivery is in flight, …
    #[error(transparent)]
    Inbox(#[from] InboxError<HandlerError>),
    /// What handles it panicked, outside of the handler.
    #[error("the function panicked")]
    Panicked,
    /// The invocation's time was too short to begin with it. Nothing ran.
    #[error("not begun: {left:?} before the invocation's deadline")]
    OutOfTime {
        /// How much was left.
        left: Duration,
    },
    /// An earlier message of its group failed, and the group's order is kept. Nothing ran.
    #[error("not begun: an earlier message of its group failed")]
    AfterFailure,
}

/// Why an invocation failed as a whole: Lambda delivers all of it again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FunctionError {
    /// The event of a direct invocation was not handled.
    #[error(transparent)]
    Event(#[from] EventError),
    /// Some messages of the batch were not handled, and the function is told not to report which
    /// ([`with_whole_batches`](crate::Function::with_whole_batches)).
    #[error("{failed} of {of} messages were not handled")]
    Batch {
        /// How many were not.
        failed: usize,
        /// How many there were.
        of: usize,
    },
}

impl FunctionError {
    /// A short name for the kind of error, as Lambda reports it in `errorType`. It does not change
    /// between releases.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Event(event) => event.name(),
            Self::Batch { .. } => "Batch",
        }
    }
}

impl EventError {
    /// A short name for the kind of error. It does not change between releases.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Envelope(_) => "Envelope",
            Self::UnknownType { .. } => "UnknownType",
            Self::WrongDetail { .. } => "WrongDetail",
            Self::Inbox(inbox) => match inbox {
                InboxError::NoId => "NoId",
                InboxError::InFlight { .. } => "InFlight",
                InboxError::Unknown => "Unknown",
                InboxError::Unresolved => "Unresolved",
                InboxError::Mismatch => "Mismatch",
                InboxError::Failed { failed, .. } => match failed.error() {
                    Some(_) => "Failed",
                    None => "Panicked",
                },
                InboxError::NotDeadLettered { .. } => "NotDeadLettered",
                InboxError::Superseded { .. } => "Superseded",
                InboxError::NotCommitted { .. } => "NotCommitted",
                InboxError::TransactionKept => "TransactionKept",
                InboxError::Store { .. } => "Store",
                _ => "Inbox",
            },
            Self::Panicked => "Panicked",
            Self::OutOfTime { .. } => "OutOfTime",
            Self::AfterFailure => "AfterFailure",
        }
    }
}

impl From<FunctionError> for lambda_runtime::Diagnostic {
    fn from(error: FunctionError) -> Self {
        Self {
            error_type: error.name().to_owned(),
            error_message: error.to_string(),
        }
    }
}
