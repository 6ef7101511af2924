//! What a consumer tells its broker.

use std::error::Error as StdError;
use std::time::Duration;

use crate::StoreError;
use crate::guard::Ran;

/// The event needs no further delivery: acknowledge it. Given only after the commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "tells whether the broker may forget the event"]
pub enum Receipt {
    /// This delivery was handled, and that is recorded.
    Handled,
    /// An earlier delivery was handled. Nothing ran.
    Duplicate,
    /// It is not handled, and never will be: it was handed to the callback for such events, now or
    /// at an earlier delivery. Where the broker has a place for dead letters, it belongs there.
    DeadLettered,
}

/// Why there is no receipt: do not acknowledge the event. Delivered again it may get one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InboxError<E> {
    /// The event has an empty id, by which it cannot be told from others. Nothing ran.
    #[error("the event has no id")]
    NoId,
    /// Another delivery of it is being handled. Nothing ran.
    #[error("another delivery of this event is being handled")]
    InFlight {
        /// When to deliver it again.
        retry_after: Duration,
    },
    /// An earlier attempt may have had its effect, and nobody recorded it (R7). Nothing ran; an
    /// operator or a reconciler decides.
    #[error("an earlier attempt may have handled this event; nobody recorded it")]
    Unknown,
    /// An event with this id and another content came before. Nothing ran.
    #[error("an event with this id and another content came before")]
    Mismatch,
    /// The work failed. The failure is kept with the event.
    #[error("{error}")]
    Failed {
        /// What it failed with.
        error: E,
        /// How many attempts have failed so far, this one among them.
        attempt: u32,
        /// Whether what it did stands: not in a transaction.
        ran: Ran,
    },
    /// The work panicked, which is a failure like another.
    #[error("the work panicked: {message}")]
    Panicked {
        /// The panic's text.
        message: String,
        /// How many attempts have failed so far, this one among them.
        attempt: u32,
        /// Whether what it did stands: not in a transaction.
        ran: Ran,
    },
    /// The callback for events that are set aside failed: the event is not set aside.
    #[error("the event could not be set aside")]
    NotDeadLettered {
        /// How many attempts have failed so far.
        attempt: u32,
        /// What the callback failed with.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// Another attempt had taken the place of this one: its outcome was not recorded (R4), and a
    /// transaction was rolled back.
    #[error("another attempt took the place of this one")]
    Superseded {
        /// Whether the effects of this one stand.
        ran: Ran,
    },
    /// The work ended and kept its transaction, which was therefore not committed.
    #[error("the work kept its transaction, which was not committed")]
    TransactionKept,
    /// The store failed. After the work ran without a transaction, its outcome is recorded as soon
    /// as the store takes it (R14).
    #[error("the store failed{}", if *ran == Ran::No { "" } else { " after the work ran" })]
    Store {
        /// Whether the work had an effect.
        ran: Ran,
        /// What the store said.
        source: StoreError,
    },
}

/// The longest that an event is kept back.
const LONGEST: Duration = Duration::from_secs(60);

impl<E> InboxError<E> {
    /// How long to keep the event back before it is delivered again: for a failure 1 s, 2 s, 4 s …
    /// up to a minute; a minute where time alone will not help.
    pub fn retry_after(&self) -> Duration {
        match self {
            Self::InFlight { retry_after } => *retry_after,
            Self::Failed { attempt, .. }
            | Self::Panicked { attempt, .. }
            | Self::NotDeadLettered { attempt, .. } => {
                let doubled = 1 << attempt.saturating_sub(1).min(6);
                Duration::from_secs(doubled).min(LONGEST)
            }
            Self::Superseded { .. } | Self::Store { .. } => Duration::from_secs(1),
            Self::NoId | Self::Unknown | Self::Mismatch | Self::TransactionKept => LONGEST,
        }
    }

    /// Whether this call had an effect.
    pub const fn ran(&self) -> Ran {
        match self {
            Self::Failed { ran, .. }
            | Self::Panicked { ran, .. }
            | Self::Superseded { ran }
            | Self::Store { ran, .. } => *ran,
            Self::NoId
            | Self::InFlight { .. }
            | Self::Unknown
            | Self::Mismatch
            | Self::NotDeadLettered { .. }
            | Self::TransactionKept => Ran::No,
        }
    }
}
