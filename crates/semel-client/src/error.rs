//! What a call that got no answer says.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::Response;

use crate::BoxError;
use crate::decide::{Effect, Reason};

/// The call did not get the operation's answer.
pub struct Error {
    pub(crate) kind: ErrorKind,
    pub(crate) effect: Effect,
    pub(crate) tries: u32,
    pub(crate) answer: Option<Box<Response<Bytes>>>,
    pub(crate) source: Option<BoxError>,
}

/// Why a call ended without the operation's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Asking again changes nothing, or may do it twice.
    Stopped(Reason),
    /// The key has had no effect and never will: the intent may be begun anew with another one.
    NewKeyAllowed(Reason),
    /// The deadline would be over before the next try. Ask later, with the same key.
    GaveUp {
        /// How long the service asked to wait.
        retry_after: Duration,
    },
}

impl Error {
    /// Why.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the operation may have had its effect.
    pub const fn effect(&self) -> Effect {
        self.effect
    }

    /// How often the request was sent.
    pub const fn tries(&self) -> u32 {
        self.tries
    }

    /// Whether nobody can tell if the operation had its effect: somebody has to look.
    pub fn is_unknown(&self) -> bool {
        self.kind == ErrorKind::Stopped(Reason::Unknown)
    }

    /// The answer that said so, if one did, with up to 16 KiB of its body.
    pub fn answer(&self) -> Option<&Response<Bytes>> {
        self.answer.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            ErrorKind::GaveUp { .. } => "gave up waiting for an answer",
            ErrorKind::Stopped(reason) | ErrorKind::NewKeyAllowed(reason) => match reason {
                Reason::Mismatch => "the idempotency key was used with another request",
                Reason::Unknown => "the outcome is unknown",
                Reason::Expired => "the operation was done, or begun, too long ago for its answer",
                Reason::Invalid => "the request is refused as it is",
                Reason::Unauthorized => "the credentials are missing or refused",
                Reason::Precondition => "the precondition does not hold",
                Reason::InvalidKey => "the service does not take this idempotency key",
                Reason::AnswerLost => "the answer broke off",
                Reason::Busy => "the service refuses requests for the time being",
            },
        })?;
        if let Some(answer) = &self.answer {
            write!(f, " (status {})", answer.status().as_u16())?;
        }
        let tries = self.tries;
        write!(
            f,
            " after {tries} {}",
            if tries == 1 { "try" } else { "tries" }
        )?;
        f.write_str(match self.effect {
            Effect::None => "; the operation had no effect",
            Effect::Possible => "; the operation may have had its effect",
            Effect::Happened => "; the operation had its effect",
        })?;
        f.write_str(match self.kind {
            ErrorKind::GaveUp { .. } => ". Ask again later with the same key",
            ErrorKind::NewKeyAllowed(_) => ". It may be begun anew with another key",
            ErrorKind::Stopped(_) => "",
        })
    }
}

// Without the answer's fields and body, which may be private.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.kind)
            .field("effect", &self.effect)
            .field("tries", &self.tries)
            .field(
                "status",
                &self.answer.as_ref().map(|answer| answer.status()),
            )
            .field("source", &self.source)
            .finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
