//! What a consumer tells its broker.

use std::error::Error as StdError;
use std::time::Duration;

use super::Reason;
use crate::guard::{Failed, Ran, Settled};
use crate::{StoreError, StoreErrorKind};

/// The event needs no further delivery: acknowledge it. Given only after the commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "tells whether the broker may forget the event"]
pub enum Receipt {
    /// This delivery was handled, and that is recorded.
    Handled,
    /// An earlier delivery was handled. Nothing ran.
    Duplicate,
    /// It was handed to the callback for dead letters, now or at an earlier delivery, and is not run
    /// again. Where the broker has a place for dead letters, it belongs there.
    DeadLettered,
}

pub(super) type Answer<E> = Result<Receipt, InboxError<E>>;

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
    #[error("an earlier attempt may have handled this event, but its outcome was not recorded")]
    Unknown,
    /// The same, where a reconciler is to say what happened
    /// ([`OnLost::Reconcile`](crate::store::OnLost::Reconcile)), and could not yet. Nothing ran. It is not
    /// handed over: once set aside, it would not run where the answer is that it did not happen.
    #[error(
        "an earlier attempt may have handled this event, and the reconciler cannot say yet whether it did"
    )]
    Unresolved,
    /// An event with this id and another content came before. Nothing ran.
    #[error("an event with this id and another content came before")]
    Mismatch,
    /// The work failed or panicked. The failure is kept with the event.
    #[error("{failed}")]
    Failed {
        /// What it failed with; [without an error](Failed::error) it panicked.
        failed: Failed<E>,
        /// How many attempts have failed so far, this one among them.
        attempt: u32,
    },
    /// The callback for dead letters failed: the event is not set aside.
    #[error("the event could not be set aside")]
    NotDeadLettered {
        /// How many attempts have failed so far; 0 where it was to be set aside without one.
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
    /// The work ended and kept its transaction, which was therefore not committed. It counts as a
    /// failure.
    #[error("the work kept its transaction, which was not committed")]
    TransactionKept,
    /// The database did not commit what the work did, as where a constraint is checked at the end.
    /// It counts as a failure, unless it came from conflicts with others.
    #[error("the database did not commit it")]
    NotCommitted {
        /// How many attempts have failed so far.
        attempt: u32,
        /// What the database said.
        source: StoreError,
    },
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
            | Self::NotDeadLettered { attempt, .. }
            | Self::NotCommitted { attempt, .. }
                if *attempt > 0 =>
            {
                let doubled = 1 << (attempt - 1).min(6);
                Duration::from_secs(doubled).min(LONGEST)
            }
            Self::Store { source, .. } if !passes(source) => LONGEST,
            Self::Superseded { .. } | Self::Store { .. } => Duration::from_secs(1),
            Self::Unresolved => Duration::from_secs(10),
            _ => LONGEST,
        }
    }

    /// Whether the event may be handled at a later delivery without anybody's help.
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::InFlight { .. }
            | Self::Failed { .. }
            | Self::NotDeadLettered { .. }
            | Self::Superseded { .. }
            | Self::Unresolved
            | Self::NotCommitted { .. } => true,
            Self::Store { source, .. } => source.is_retryable(),
            Self::NoId | Self::Unknown | Self::Mismatch | Self::TransactionKept => false,
        }
    }

    /// Whether this call had an effect.
    pub const fn ran(&self) -> Ran {
        match self {
            Self::Failed { failed, .. } => failed.ran(),
            Self::Superseded { ran } | Self::Store { ran, .. } => *ran,
            Self::NoId
            | Self::InFlight { .. }
            | Self::Unknown
            | Self::Unresolved
            | Self::Mismatch
            | Self::NotDeadLettered { .. }
            | Self::NotCommitted { .. }
            | Self::TransactionKept => Ran::No,
        }
    }

    /// Why an event with this answer, of which nothing runs, is set aside where somebody takes it.
    pub(super) const fn reason(&self) -> Option<Reason> {
        match self {
            Self::NoId => Some(Reason::NoId),
            Self::Unknown => Some(Reason::Unknown),
            Self::Mismatch => Some(Reason::Mismatch),
            _ => None,
        }
    }

    /// The work failed; how often so far is said later.
    pub(super) const fn failed(failed: Failed<E>) -> Self {
        Self::Failed { failed, attempt: 0 }
    }

    /// The same after so many attempts that failed.
    pub(super) const fn after(mut self, attempts: u32) -> Self {
        if let Self::Failed { attempt, .. } | Self::NotCommitted { attempt, .. } = &mut self {
            *attempt = attempts;
        }
        self
    }

    pub(super) const fn store(ran: Ran, source: StoreError) -> Self {
        Self::Store { ran, source }
    }
}

/// Whether the store, or another process with one of its own, may soon do what it did not do now.
const fn passes(source: &StoreError) -> bool {
    source.is_retryable() || matches!(source.kind(), StoreErrorKind::Closed)
}

/// The answer once the store was told of it.
pub(super) fn told<E>(
    settled: Result<Settled, StoreError>,
    receipt: Receipt,
    ran: Ran,
) -> Answer<E> {
    match settled {
        Ok(Settled::Applied | Settled::Omitted) => Ok(receipt),
        Ok(Settled::Refused(_)) => Err(InboxError::Superseded { ran }),
        Err(source) => Err(InboxError::store(ran, source)),
    }
}
