//! Planted bugs: a lab that finds nothing proves something only if it finds what is there.
//!
//! [`Buggy`] stands before a store that is right and makes it wrong in one way, as a real store
//! could be. What it cannot do through the port (overwriting another's claim) it does with tokens
//! that it takes from `get`. The tests want each of them caught within seconds.

mod store;
#[cfg(test)]
mod tests;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

pub use store::Buggy;

/// What is wrong with the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bug {
    /// A claim looks whether the identity is free, and then writes whatever is there by then.
    CheckThenAct,
    /// Completing compares no token.
    UnfencedComplete,
    /// Fences begin anew when a record is gone.
    EpochReset,
    /// The caller's clock decides that a lease has lapsed: it is wrong where a fault makes it so, and
    /// for half of the callers in one process.
    CallersClock,
    /// Now and then a completion touches no row and is taken for refused.
    ZeroRowsLost,
    /// Claims are answered by a follower that lags.
    StaleRead,
    /// Replays lack a field.
    DroppedField,
    /// A completion is acknowledged before it is written.
    EarlyAck,
    /// A replay may be another key's.
    OtherKeysReplay,
    /// A lapsed lease is taken over although the policy is to hold.
    HoldReruns,
    /// Purging sweeps records that are in flight.
    PurgesRunning,
    /// Only the fence of a token is compared.
    NonceIgnored,
    /// Only the nonce of a token is compared.
    FenceIgnored,
    /// Another request gets the replay.
    MismatchReplays,
    /// After an error a claim is sent again under another nonce.
    NewNonceRetry,
    /// A waiter is never woken.
    DeafWait,
    /// The nonce that holds the claim is told that somebody holds it.
    OwnNonceLoses,
    /// A void outcome comes back as an empty one.
    VoidIsEmpty,
    /// Retention is a quarter of what was asked.
    ShortRetention,
    /// Without its store it lets everybody run.
    FailsOpen,
    /// Abandoning is acknowledged and not done.
    AbandonForgotten,
    /// A step that was done is said not to have been.
    DoneCalledNotDone,
    /// Replays go on after retention.
    NeverExpires,
}
