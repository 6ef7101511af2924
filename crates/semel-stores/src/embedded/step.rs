//! Steps as they travel to the committer, and their answers on the way back.

use semel::store::{Claim, ClaimRequest, Entry, Fenced, Label, Purged, Result};
use semel::{IdentityDigest, StoreError, StoreErrorKind};
use tokio::sync::oneshot;

use semel::record::Change;

/// Where a step's answer goes. Nobody may be there any more; the step is done all the same.
pub(super) type Done<T> = oneshot::Sender<Result<T>>;

pub(super) enum Step {
    Claim {
        label: Box<Label>,
        request: ClaimRequest,
        /// The caller found no record after this many groups: spares a look.
        absent: Option<u64>,
        done: Done<Claim>,
    },
    Fenced {
        digest: IdentityDigest,
        change: Change,
        done: Done<Fenced>,
    },
    Get {
        digest: IdentityDigest,
        done: Done<Option<Entry>>,
    },
    Purge {
        limit: usize,
        done: Done<Purged>,
    },
    /// Answered once all before it is on disk; `write` makes it write something of its own.
    Sync {
        write: bool,
        done: Done<()>,
    },
    Clear {
        done: Done<()>,
    },
}

/// An answer that waits for its group to be on disk.
pub(super) enum Answer {
    Claim(Done<Claim>, Result<Claim>),
    Fenced(Done<Fenced>, Result<Fenced>),
    // Boxed: the others are much smaller.
    Get(Done<Option<Entry>>, Box<Result<Option<Entry>>>),
    Purge(Done<Purged>, Result<Purged>),
    Unit(Done<()>),
}

impl Answer {
    pub(super) fn send(self) {
        // An error here means that the caller went away.
        match self {
            Self::Claim(done, answer) => drop(done.send(answer)),
            Self::Fenced(done, answer) => drop(done.send(answer)),
            Self::Get(done, answer) => drop(done.send(*answer)),
            Self::Purge(done, answer) => drop(done.send(answer)),
            Self::Unit(done) => drop(done.send(Ok(()))),
        }
    }

    pub(super) fn fail(self, error: StoreError) {
        match self {
            Self::Claim(done, _) => drop(done.send(Err(error))),
            Self::Fenced(done, _) => drop(done.send(Err(error))),
            Self::Get(done, _) => drop(done.send(Err(error))),
            Self::Purge(done, _) => drop(done.send(Err(error))),
            Self::Unit(done) => drop(done.send(Err(error))),
        }
    }
}

impl Step {
    pub(super) fn fail(self, error: StoreError) {
        match self {
            Self::Claim { done, .. } => drop(done.send(Err(error))),
            Self::Fenced { done, .. } => drop(done.send(Err(error))),
            Self::Get { done, .. } => drop(done.send(Err(error))),
            Self::Purge { done, .. } => drop(done.send(Err(error))),
            Self::Sync { done, .. } | Self::Clear { done } => drop(done.send(Err(error))),
        }
    }
}

/// What a caller is told whose answer never came: its step may have happened.
pub(super) fn lost() -> StoreError {
    StoreError::new(
        StoreErrorKind::Unknown,
        "the store stopped before it answered; the step may have happened",
    )
}
