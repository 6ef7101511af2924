//! What was asked of the store and what it answered: the only thing that the checker believes.
//!
//! A [`Recorder`] stands between a worker and its store and writes two lines per call to a file of
//! its process's own: one before the call is sent, one after it was answered. A SIGKILL loses at most
//! the line that was being [written](crate::lines): no call reaches the store unless its first line
//! is with the kernel. A call without a second line was lost: it may have happened or not, at any time
//! after it was sent.

mod log;
mod read;
mod recorder;

use semel::store::{Retention, Verdict};
use semel::{Outcome, StateKind, StoreErrorKind};
use serde::{Deserialize, Serialize};

pub use log::Log;
pub use read::{read, read_all};
pub(crate) use recorder::forged;
pub use recorder::{Names, Recorder};

use crate::clock::{Nanos, nanos};

/// Which key: an index into the run's keys.
pub type KeyIndex = u32;

/// A digest of an outcome's whole byte form: what must be replayed.
pub type OutcomeHash = u64;

/// Fence and nonce of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Held {
    /// The fence.
    pub fence: u64,
    /// The nonce.
    pub nonce: u128,
}

/// What a completion keeps, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Digest of the outcome.
    pub outcome: OutcomeHash,
    /// How long it is to be replayed.
    pub replay: Nanos,
    /// How much longer claims are answered "expired".
    pub tombstone: Nanos,
}

impl Kept {
    pub(crate) fn new(outcome: &Outcome, retention: Retention) -> Self {
        Self {
            outcome: hash_of(outcome),
            replay: nanos(retention.replay),
            tombstone: nanos(retention.tombstone),
        }
    }

    /// How long there is a record of it.
    pub(crate) const fn lasts(self) -> Nanos {
        self.replay.saturating_add(self.tombstone)
    }

    pub(crate) fn of_verdict(verdict: &Verdict) -> Option<Self> {
        let (outcome, retention) = verdict.outcome()?;
        Some(Self::new(outcome, retention))
    }
}

/// A fenced step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Prolongs the lease.
    Renew {
        /// To this long from now.
        lease: Nanos,
    },
    /// Records the outcome.
    Complete(Kept),
    /// Keeps the result of a part of the work.
    Keep {
        /// Digest of the part.
        part: u64,
        /// How many bytes of parts stand before it.
        after: usize,
    },
    /// Gives the identity back.
    Abandon,
    /// Says that nobody will record it.
    MarkUnknown,
}

/// What was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the arguments of the store's methods")]
pub enum Call {
    Claim {
        key: KeyIndex,
        nonce: u128,
        /// Digest of the request's fingerprint.
        print: u64,
        lease: Nanos,
        retry: bool,
    },
    Fenced {
        key: KeyIndex,
        held: Held,
        step: Step,
    },
    Resolve {
        key: KeyIndex,
        fence: u64,
        nonce: u128,
        /// `None`: it did not happen.
        happened: Option<Kept>,
    },
    Get {
        key: KeyIndex,
    },
    Wait {
        key: KeyIndex,
        fence: u64,
        timeout: Nanos,
    },
    Purge,
}

impl Call {
    /// Which key it is about; none for a purge.
    pub const fn key(&self) -> Option<KeyIndex> {
        match *self {
            Self::Claim { key, .. }
            | Self::Fenced { key, .. }
            | Self::Resolve { key, .. }
            | Self::Get { key }
            | Self::Wait { key, .. } => Some(key),
            Self::Purge => None,
        }
    }

    /// The name that reports use.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Claim { .. } => "claim",
            Self::Fenced { step, .. } => match step {
                Step::Renew { .. } => "renew",
                Step::Complete(_) => "complete",
                Step::Keep { .. } => "keep-step",
                Step::Abandon => "abandon",
                Step::MarkUnknown => "mark-unknown",
            },
            Self::Resolve { .. } => "resolve",
            Self::Get { .. } => "get",
            Self::Wait { .. } => "wait",
            Self::Purge => "purge",
        }
    }
}

/// Why a fenced step changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "those of `semel::store::Refusal`")]
pub enum Refused {
    Missing,
    Superseded,
    InFlight,
    Unknown,
    Completed,
    Released,
    Running,
    OtherSteps,
}

/// What was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the answers of the store's methods")]
pub enum Answer {
    Acquired {
        fence: u64,
        attempt: u32,
    },
    InFlight {
        fence: u64,
        remaining: Nanos,
    },
    Completed {
        outcome: OutcomeHash,
        remaining: Nanos,
    },
    Unknown {
        fence: u64,
    },
    Mismatch,
    Expired,
    Applied,
    Refused(Refused),
    /// A record in this state; the outcome where it is completed.
    Found {
        #[serde(with = "Kind")]
        state: StateKind,
        held: Held,
        outcome: Option<OutcomeHash>,
    },
    Absent,
    Changed,
    TimedOut,
    Purged(usize),
    /// An error of this kind.
    Failed(Failed),
    /// Nobody saw an answer.
    Lost,
}

/// How a [`StateKind`] is written.
#[derive(Serialize, Deserialize)]
#[serde(remote = "StateKind")]
enum Kind {
    InFlight,
    Unknown,
    Completed,
    Released,
}

/// What an error says about the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failed {
    /// It did not happen.
    Not,
    /// It may have happened.
    Perhaps,
}

impl From<StoreErrorKind> for Failed {
    fn from(kind: StoreErrorKind) -> Self {
        match kind {
            StoreErrorKind::NotApplied
            | StoreErrorKind::Contended
            | StoreErrorKind::Capacity
            | StoreErrorKind::TooLarge
            | StoreErrorKind::Config => Self::Not,
            // A store that closed or found damage may have done so after the step.
            _ => Self::Perhaps,
        }
    }
}

impl Answer {
    /// Whether the step may have happened although nobody was told.
    pub const fn is_ambiguous(&self) -> bool {
        matches!(self, Self::Lost | Self::Failed(Failed::Perhaps))
    }

    /// Whether the step certainly or possibly was applied.
    pub const fn may_be_applied(&self) -> bool {
        matches!(self, Self::Applied) || self.is_ambiguous()
    }
}

/// One call of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// Which worker sent it, in any of its lives.
    pub worker: u32,
    /// When it was sent, at the latest.
    pub invoked: Nanos,
    /// When the answer had come, at the latest; [`Nanos::MAX`] where none came.
    pub answered: Nanos,
    /// What was asked.
    pub call: Call,
    /// What was answered.
    pub answer: Answer,
}

/// The digest of an outcome's byte form that histories hold.
pub fn hash_of(outcome: &Outcome) -> OutcomeHash {
    digest(outcome.as_bytes())
}

/// FNV-1a with a last mix; the same in every process and version.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash ^= hash >> 29;
    hash.wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (hash >> 32)
}
