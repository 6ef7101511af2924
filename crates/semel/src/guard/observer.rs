//! What happened, for metrics and logs.

use std::time::Duration;

use super::{Case, Reconciled};
use crate::store::Fence;
use crate::{Identity, IdentityDigest};

macro_rules! signals {
    ($($(#[$doc:meta])+ $name:ident = $text:literal,)+) => {
        /// What happened, of a fixed set of things.
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
    /// A call was refused before its claim: its scope has used what it may.
    Limited = "limited",
    /// A call ran without protection, because the store could not be used (R9).
    Unprotected = "unprotected",
    /// A call was refused before its claim: it needs a key and has none.
    MissingKey = "missing_key",
    /// A request was refused before its claim: its key is malformed or breaks the rule.
    InvalidKey = "invalid_key",
    /// A request was refused before its claim: nobody says whose its key is.
    MissingPrincipal = "missing_principal",
    /// A request was refused before its claim: its body is larger than is read.
    TooLarge = "too_large",
    /// A request was refused before its claim: its body broke off.
    IncompleteBody = "incomplete_body",
}

#[cfg(feature = "tracing")]
impl Signal {
    /// Whether it is the end of an attempt: recorded, given back, unknown, or taken over by another.
    pub(super) const fn ends_attempt(self) -> bool {
        matches!(
            self,
            Self::Completed
                | Self::Omitted
                | Self::Released
                | Self::MarkedUnknown
                | Self::Stale
                | Self::GaveUp
        )
    }
}

/// Something that happened, and to what, as far as it is known. It holds no key (R12): what shows of
/// one is its [hint](crate::Key::hint), which is of no use to anybody who does not have the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Seen<'a> {
    /// What happened.
    pub signal: Signal,
    /// The name of what is done, as the store has it.
    pub operation: Option<&'a str>,
    /// The opaque name of this one operation, the same in all its attempts: over HTTP
    /// `Idempotency-Id`.
    pub id: Option<&'a IdentityDigest>,
    /// The start of the key.
    pub key_hint: Option<&'a str>,
    /// Which attempt, from 1.
    pub attempt: Option<u32>,
    /// The attempt's fence. Of a duplicate, that of the attempt which it found.
    pub fence: Option<Fence>,
    /// Of the answer to a claim: how long the caller waited for it, for the store and for an attempt
    /// in flight.
    pub waited: Option<Duration>,
    /// How long ago the attempt was claimed. Of the answer to a question to a
    /// [`Reconciler`](super::Reconciler): how long it took.
    pub ran_for: Option<Duration>,
}

impl<'a> Seen<'a> {
    /// That this happened, and no more than that.
    pub const fn new(signal: Signal) -> Self {
        Self {
            signal,
            operation: None,
            id: None,
            key_hint: None,
            attempt: None,
            fence: None,
            waited: None,
            ran_for: None,
        }
    }

    /// That this happened to a call with this identity.
    pub fn of(identity: &'a Identity, signal: Signal) -> Self {
        Self {
            operation: Some(identity.operation()),
            id: Some(identity.digest()),
            key_hint: Some(identity.key().hint()),
            ..Self::new(signal)
        }
    }

    pub(super) fn of_case(case: &'a Case<'_>, signal: Signal) -> Self {
        Self {
            operation: Some(case.operation),
            id: Some(case.id),
            key_hint: Some(case.key_hint),
            attempt: Some(case.attempt),
            fence: Some(case.fence),
            ..Self::new(signal)
        }
    }

    /// The same of a call whose operation is known, though it has no identity.
    #[must_use]
    pub fn in_operation(mut self, name: impl Into<Option<&'a str>>) -> Self {
        self.operation = name.into();
        self
    }
}

/// Gets every event, on the task where it happens: it must not block. Its panics are ignored.
///
/// `(A, B)` is an observer that tells both; of spans it has the first one's, where that has any.
/// Ready-made ones are in `observers`, behind the features `metrics` and `tracing`.
pub trait Observer: Send + Sync + 'static {
    /// This happened.
    fn on_event(&self, seen: &Seen<'_>);

    /// A question to the [`Reconciler`](super::Reconciler) ended like this, or was the last one.
    /// Each is among the events too; this is for logs. Does nothing unless written.
    fn on_reconcile(&self, case: &Case<'_>, news: &Reconciled<'_>) {
        let _ = (case, news);
    }

    /// The span of an attempt that was just claimed: its work runs in it, and what happens to it is
    /// told in it. Where it has a field `ended`, that is set to the signal which ended the attempt.
    /// None unless written.
    #[cfg(feature = "tracing")]
    fn span(&self, seen: &Seen<'_>) -> tracing::Span {
        let _ = seen;
        tracing::Span::none()
    }
}

impl<A: Observer, B: Observer> Observer for (A, B) {
    fn on_event(&self, seen: &Seen<'_>) {
        self.0.on_event(seen);
        self.1.on_event(seen);
    }

    fn on_reconcile(&self, case: &Case<'_>, news: &Reconciled<'_>) {
        self.0.on_reconcile(case, news);
        self.1.on_reconcile(case, news);
    }

    #[cfg(feature = "tracing")]
    fn span(&self, seen: &Seen<'_>) -> tracing::Span {
        let span = self.0.span(seen);
        match span.is_none() {
            true => self.1.span(seen),
            false => span,
        }
    }
}
