//! Events and spans of `tracing`.

use std::error::Error as StdError;
use std::time::Duration;

use tracing::Span;
use tracing::field::Empty;

use crate::guard::{Case, Observer, Reconciled, Seen, Signal};

/// Writes each event down, and opens a span around each attempt. All have the target `semel`.
///
/// The span `attempt` (level INFO) has the fields `operation`, `id`, `key_hint`, `attempt`, `fence`,
/// and at its end `ended`: the signal that ended it (`completed`, `released`, `marked_unknown`, …).
/// The work runs in it, so what it logs carries them; a transaction for several events of an
/// [`Inbox`](crate::inbox::Inbox) has none. Its parent is the span of the caller.
///
/// Events have the same fields, with `event`, `waited_ms` and `ran_ms`. What somebody should look at
/// is WARN, what nobody but an operator can settle is ERROR, all else is DEBUG.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tracing;

impl Observer for Tracing {
    fn on_event(&self, seen: &Seen<'_>) {
        macro_rules! write {
            ($level:ident) => {
                tracing::$level!(
                    target: "semel",
                    event = seen.signal.as_str(),
                    operation = seen.operation,
                    id = seen.id.map(display),
                    key_hint = seen.key_hint,
                    attempt = seen.attempt,
                    fence = seen.fence.map(|fence| fence.0),
                    waited_ms = seen.waited.map(millis),
                    ran_ms = seen.ran_for.map(millis),
                )
            };
        }
        match seen.signal {
            Signal::GaveUp | Signal::ReconcileGaveUp => write!(error),
            Signal::MarkedUnknown
            | Signal::Stale
            | Signal::Deferred
            | Signal::StoreError
            | Signal::Capacity
            | Signal::Overloaded
            | Signal::Unprotected
            | Signal::ReconcilerFailed => write!(warn),
            _ => write!(debug),
        }
    }

    fn on_reconcile(&self, case: &Case<'_>, news: &Reconciled<'_>) {
        let why: &(dyn StdError + 'static) = match news {
            Reconciled::Failed(error) => *error,
            Reconciled::Store(error) => *error,
            _ => return,
        };
        tracing::warn!(
            target: "semel",
            answer = news.as_str(),
            operation = case.operation,
            id = display(case.id),
            fence = case.fence.0,
            question = case.asked,
            error = why,
        );
    }

    fn span(&self, seen: &Seen<'_>) -> Span {
        tracing::info_span!(
            target: "semel",
            "attempt",
            operation = seen.operation,
            id = seen.id.map(display),
            key_hint = seen.key_hint,
            attempt = seen.attempt,
            fence = seen.fence.map(|fence| fence.0),
            ended = Empty,
        )
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
