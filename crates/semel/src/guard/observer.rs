//! What happened, for metrics and logs.

use super::{Case, Reconciled};

/// Something that happened to one identity. No event carries a key (R12).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Event {
    /// A call came without a key and ran plainly.
    Unkeyed,
    /// A first attempt was claimed: there was no record.
    New,
    /// A further attempt was claimed: an earlier one was released, lapsed or resolved.
    Again,
    /// An outcome was replayed.
    Replayed,
    /// A duplicate found an attempt in flight.
    InFlight,
    /// A key was used with another request.
    Mismatch,
    /// A duplicate found an unknown outcome.
    Unknown,
    /// A duplicate found a tombstone.
    Expired,
    /// An outcome was recorded.
    Completed,
    /// An outcome was recorded without its answer, which was too large or a stream.
    Omitted,
    /// An attempt gave its identity back.
    Released,
    /// An attempt ended without knowing whether it had its effect.
    MarkedUnknown,
    /// The result of a finished step was kept.
    StepKept,
    /// A step that an earlier attempt finished was not run again.
    StepReplayed,
    /// A lease was renewed.
    Renewed,
    /// An attempt came with a token that is no longer current (R4).
    Stale,
    /// A reconciler was asked about a lost attempt.
    ReconcileAsked,
    /// A reconciler's answer settled an unknown outcome.
    Resolved,
    /// A reconciler's answer came late: the record had moved on, and was left as it is.
    ResolveRefused,
    /// A reconciler could not say what happened, or its answer could not be recorded.
    StillUnknown,
    /// A reconciler failed, panicked or did not answer in time. It counts as still unknown.
    ReconcilerFailed,
    /// A reconciler was asked as often as it may be in the background: an operator has to look.
    ReconcileGaveUp,
    /// A store call failed.
    StoreError,
    /// The store was full.
    Capacity,
    /// A call ran without protection, because the store could not be used (R9).
    Unprotected,
}

impl Event {
    /// Every event, for registering a counter each.
    pub const ALL: [Self; 25] = [
        Self::Unkeyed,
        Self::New,
        Self::Again,
        Self::Replayed,
        Self::InFlight,
        Self::Mismatch,
        Self::Unknown,
        Self::Expired,
        Self::Completed,
        Self::Omitted,
        Self::Released,
        Self::MarkedUnknown,
        Self::StepKept,
        Self::StepReplayed,
        Self::Renewed,
        Self::Stale,
        Self::ReconcileAsked,
        Self::Resolved,
        Self::ResolveRefused,
        Self::StillUnknown,
        Self::ReconcilerFailed,
        Self::ReconcileGaveUp,
        Self::StoreError,
        Self::Capacity,
        Self::Unprotected,
    ];

    /// The event's name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unkeyed => "unkeyed",
            Self::New => "new",
            Self::Again => "again",
            Self::Replayed => "replayed",
            Self::InFlight => "in_flight",
            Self::Mismatch => "mismatch",
            Self::Unknown => "unknown",
            Self::Expired => "expired",
            Self::Completed => "completed",
            Self::Omitted => "omitted",
            Self::Released => "released",
            Self::MarkedUnknown => "marked_unknown",
            Self::StepKept => "step_kept",
            Self::StepReplayed => "step_replayed",
            Self::Renewed => "renewed",
            Self::Stale => "stale",
            Self::ReconcileAsked => "reconcile_asked",
            Self::Resolved => "resolved",
            Self::ResolveRefused => "resolve_refused",
            Self::StillUnknown => "still_unknown",
            Self::ReconcilerFailed => "reconciler_failed",
            Self::ReconcileGaveUp => "reconcile_gave_up",
            Self::StoreError => "store_error",
            Self::Capacity => "capacity",
            Self::Unprotected => "unprotected",
        }
    }
}

/// Is told of every [`Event`], on the task where it happens: it must not block.
pub trait Observer: Send + Sync + 'static {
    /// `event` happened.
    fn on_event(&self, event: Event);

    /// A question to the [`Reconciler`](super::Reconciler) ended like this, or was the last one.
    /// Each is among the events too; this is for logs. Does nothing unless written.
    fn on_reconcile(&self, case: &Case<'_>, news: &Reconciled<'_>) {
        let _ = (case, news);
    }
}
