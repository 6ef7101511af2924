//! What happened, for metrics and logs.

use super::{Case, Reconciled};

macro_rules! signals {
    ($($(#[$doc:meta])+ $name:ident = $text:literal,)+) => {
        /// Something that happened to one identity. No signal carries a key (R12).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Signal {
            $($(#[$doc])+ $name,)+
        }

        impl Signal {
            /// Every signal, for registering a counter each.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// The signal's name in metrics.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

signals! {
    /// A call came without a key and ran plainly.
    Unkeyed = "unkeyed",
    /// A first attempt was claimed: there was no record.
    New = "new",
    /// A further attempt was claimed: an earlier one was released, lost or resolved.
    Again = "again",
    /// An outcome was replayed.
    Replayed = "replayed",
    /// A duplicate found an attempt in flight.
    InFlight = "in_flight",
    /// A key was used with another request.
    Mismatch = "mismatch",
    /// A duplicate found an unknown outcome.
    Unknown = "unknown",
    /// A duplicate found a tombstone.
    Expired = "expired",
    /// An outcome was recorded.
    Completed = "completed",
    /// An outcome was recorded without its answer, which was too large or a stream.
    Omitted = "omitted",
    /// An attempt gave its identity back.
    Released = "released",
    /// An attempt ended without knowing whether it had its effect.
    MarkedUnknown = "marked_unknown",
    /// The result of a finished step was kept.
    StepKept = "step_kept",
    /// A step that an earlier attempt finished was not run again.
    StepReplayed = "step_replayed",
    /// A lease was renewed.
    Renewed = "renewed",
    /// An attempt came with a token that is no longer current (R4).
    Stale = "stale",
    /// The store could not be told what is known of an attempt, or did not answer a claim, and is
    /// asked again in the background (R14).
    Deferred = "deferred",
    /// The process drained before the store could be told: the record lapses.
    GaveUp = "gave_up",
    /// A reconciler was asked about a lost attempt.
    ReconcileAsked = "reconcile_asked",
    /// A reconciler's answer settled an unknown outcome.
    Resolved = "resolved",
    /// A reconciler's answer came late: the record had moved on, and was left as it is.
    ResolveRefused = "resolve_refused",
    /// A reconciler could not say what happened, or its answer could not be recorded.
    StillUnknown = "still_unknown",
    /// A reconciler failed, panicked or did not answer in time. It counts as still unknown.
    ReconcilerFailed = "reconciler_failed",
    /// A reconciler was asked as often as it may be in the background: an operator has to look.
    ReconcileGaveUp = "reconcile_gave_up",
    /// A store call failed.
    StoreError = "store_error",
    /// The store was full.
    Capacity = "capacity",
    /// A call was refused before its claim: as much runs, or is held in memory, as may be.
    Overloaded = "overloaded",
    /// A call ran without protection, because the store could not be used (R9).
    Unprotected = "unprotected",
}

/// Gets every [`Signal`], on the task where it happens: it must not block.
pub trait Observer: Send + Sync + 'static {
    /// `signal` happened.
    fn on_signal(&self, signal: Signal);

    /// A question to the [`Reconciler`](super::Reconciler) ended like this, or was the last one.
    /// Each is among the signals too; this is for logs. Does nothing unless written.
    fn on_reconcile(&self, case: &Case<'_>, news: &Reconciled<'_>) {
        let _ = (case, news);
    }
}
