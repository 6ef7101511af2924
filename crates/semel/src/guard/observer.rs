//! What happened, for metrics and logs.

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
    /// A reconciler or operator settled an unknown outcome.
    Resolved,
    /// A store call failed.
    StoreError,
    /// The store was full.
    Capacity,
    /// A call ran without protection, because the store could not be used (R9).
    Unprotected,
}

impl Event {
    /// Every event, for registering a counter each.
    pub const ALL: [Self; 20] = [
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
        Self::Resolved,
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
            Self::Resolved => "resolved",
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
}
