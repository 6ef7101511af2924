//! Planted bugs: a lab that finds nothing proves something only if it finds what is there.
//!
//! [`Buggy`] stands before a store that is right and makes it wrong in one way, as a real store
//! could be. What it cannot do through the port (overwriting another's claim) it does with tokens
//! that it takes from `get`. The tests want each of them caught within seconds.

mod store;
#[cfg(test)]
mod tests;

pub use store::Buggy;

macro_rules! bugs {
    ($($(#[doc = $what:literal])+ $bug:ident = $name:literal,)+) => {
        /// What is wrong with the store.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Bug {
            $($(#[doc = $what])+ $bug,)+
        }

        impl Bug {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$bug,)+];

            /// The name for `--bug`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$bug => $name,)+
                }
            }
        }
    };
}

bugs! {
    /// A claim looks whether the identity is free, and then writes whatever is there by then.
    CheckThenAct = "check-then-act",
    /// Completing compares no token.
    UnfencedComplete = "unfenced-complete",
    /// Fences begin anew when a record is gone.
    EpochReset = "epoch-reset",
    /// The caller's clock decides that a lease has lapsed: it is wrong where a fault makes it so, and
    /// for half of the callers in one process.
    CallersClock = "callers-clock",
    /// Now and then a completion touches no row and is taken for refused.
    ZeroRowsLost = "zero-rows-lost",
    /// Claims are answered by a follower that lags.
    StaleRead = "stale-read",
    /// Replays lack a field.
    DroppedField = "dropped-field",
    /// A completion is acknowledged before it is written.
    EarlyAck = "early-ack",
    /// A replay may be another key's.
    OtherKeysReplay = "other-keys-replay",
    /// A lapsed lease is taken over although the policy is to hold.
    HoldReruns = "hold-reruns",
    /// Purging sweeps records that are in flight.
    PurgesRunning = "purges-running",
    /// Only the fence of a token is compared.
    NonceIgnored = "nonce-ignored",
    /// Only the nonce of a token is compared.
    FenceIgnored = "fence-ignored",
    /// Another request gets the replay.
    MismatchReplays = "mismatch-replays",
    /// After an error a claim is sent again under another nonce.
    NewNonceRetry = "new-nonce-retry",
    /// A waiter is never woken.
    DeafWait = "deaf-wait",
    /// The nonce that holds the claim is told that somebody holds it.
    OwnNonceLoses = "own-nonce-loses",
    /// A void outcome comes back as an empty one.
    VoidIsEmpty = "void-is-empty",
    /// Retention is a quarter of what was asked.
    ShortRetention = "short-retention",
    /// Without its store it lets everybody run.
    FailsOpen = "fails-open",
    /// Abandoning is acknowledged and not done.
    AbandonForgotten = "abandon-forgotten",
    /// A step that was done is said not to have been.
    DoneCalledNotDone = "done-called-not-done",
    /// Replays go on after retention.
    NeverExpires = "never-expires",
}

impl Bug {
    /// The bug of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|bug| bug.name() == name)
    }
}
