//! What the model wants to hear.

use std::time::Duration;

use crate::store::Refusal;

/// What the model wants a step to be answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Acquired as the claim of this number.
    Acquired {
        /// Number of the claim among those of its identity.
        claim: usize,
        /// Number of the attempt.
        attempt: u32,
        /// When the record was made.
        since: u64,
        /// Whether it is the claim of before.
        is_repeated: bool,
    },
    /// In flight under the claim of this number.
    InFlight {
        /// Number of the claim.
        claim: usize,
        /// What is left of its lease.
        remaining: Duration,
    },
    /// Completed with this outcome.
    Completed {
        /// Name of the outcome.
        outcome: u8,
        /// What is left of its retention.
        remaining: Duration,
    },
    /// Unknown under the claim of this number.
    Unknown {
        /// Number of the claim.
        claim: usize,
    },
    /// Claimed with another fingerprint.
    Mismatch,
    /// A tombstone.
    Expired,
    /// A fenced step that was done.
    Applied,
    /// A resolution that was done, as the claim of this number.
    Resolved {
        /// Number that the resolution took.
        claim: usize,
    },
    /// A fenced step that changed nothing.
    Refused(Refusal),
    /// The same, on a record past retention: a store that removed it says
    /// [`Refusal::Missing`] instead.
    PastRetention(Option<Refusal>),
    /// A purge that removes at most so many, and leaves nothing where `all` says so.
    Purged {
        /// The most that there is to remove.
        at_most: usize,
        /// Whether the limit is above what there is to remove.
        all: bool,
    },
    /// A listing of exactly these identities.
    Listed(Vec<usize>),
    /// A wait that ends for a change, or without one; `None` where either is right.
    Waited(Option<bool>),
    /// Time that passed.
    Passed,
}
