//! A store whose failures are noted.

use std::sync::Arc;
use std::time::Duration;

use semel::record::{Change, Update};
use semel::store::{
    Claim, ClaimRequest, Entry, Fence, Fenced, ListQuery, Page, Probe, Purged, Result, Store,
    Waited,
};
use semel::{Identity, IdentityDigest};

use tokio::time::Instant;
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

use super::health::Health;
use crate::telemetry::SPANS;

/// Every call of `S`, and what failed of them told to [`Health`].
#[derive(Debug, Clone)]
pub struct Watched<S> {
    inner: S,
    health: Arc<Health>,
    has_spans: bool,
}

impl<S> Watched<S> {
    /// Tells `health` of what fails in `inner`. Calls within a request's span may have one each.
    pub const fn new(inner: S, health: Arc<Health>, has_spans: bool) -> Self {
        Self {
            inner,
            health,
            has_spans,
        }
    }

    fn span(&self, name: &'static str) -> Span {
        // What no request asked for (renewals, the purge) belongs to no trace.
        if !self.has_spans || Span::current().is_disabled() {
            return Span::none();
        }
        tracing::info_span!(
            target: SPANS,
            "store",
            otel.kind = "client",
            otel.name = name,
            otel.status_code = Empty,
            semel.found = Empty,
        )
    }
}

/// What a step of the protocol is called.
const fn name_of(change: &Change) -> &'static str {
    match change {
        Change::Resolve(_) => "resolve",
        Change::Held(_, update) => match update {
            Update::Renew(_) => "renew",
            Update::Complete(..) => "complete",
            Update::KeepStep { .. } => "keep step",
            Update::Abandon => "release",
            Update::MarkUnknown => "mark unknown",
        },
    }
}

/// What a claim found.
const fn found(claim: &Claim) -> &'static str {
    match claim {
        Claim::Acquired(_) => "acquired",
        Claim::InFlight { .. } => "in_flight",
        Claim::Completed { .. } => "completed",
        Claim::Unknown { .. } => "unknown",
        Claim::Mismatch => "mismatch",
        Claim::Expired => "expired",
    }
}

/// Arguments passed by reference stand before the `;`, those passed by value behind it; last the name of its
/// span, and what that says of the answer.
macro_rules! watch {
    ($($name:ident($($by_ref:ident: $ref:ty),*; $($by_value:ident: $value:ty),*) -> $out:ty
        = $span:expr $(, $found:path)?;)*) => {
        impl<S: Store> Store for Watched<S> {
            $(async fn $name(&self, $($by_ref: &$ref,)* $($by_value: $value),*) -> Result<$out> {
                let span = self.span($span);
                let is_timed = matches!(stringify!($name), "claim" | "change");
                let begun = is_timed.then(Instant::now);
                let asked = self.inner.$name($($by_ref,)* $($by_value),*);
                let answer = asked.instrument(span.clone()).await;
                if let Some(begun) = begun {
                    self.health.took(begun.elapsed());
                }
                $(if let Ok(answer) = &answer {
                    span.record("semel.found", $found(answer));
                })?
                if let Err(error) = &answer {
                    span.record("otel.status_code", "ERROR");
                    self.health.failed(error);
                }
                answer
            })*
        }
    };
}

watch! {
    claim(identity: Identity, request: ClaimRequest;) -> Claim = "claim", found;
    change(identity: IdentityDigest, change: Change;) -> Fenced = name_of(change);
    get(identity: IdentityDigest;) -> Option<Entry> = "get";
    list(query: ListQuery;) -> Page = "list";
    purge(; limit: usize) -> Purged = "purge";
    wait(identity: IdentityDigest; fence: Fence, timeout: Duration) -> Waited = "wait";
    probe(;) -> Probe = "probe";
    close(;) -> () = "close";
}
