//! What is told of requests that are only observed (`--mode observe`): counted by route, and a line in the log
//! for each whose answer the gateway would have changed.

use std::sync::Arc;

use semel::guard::{Observer, Seen, Signal};
use semel_tower::{Dialect, ProblemCode};

use crate::events::Events;
use crate::metrics::Observed;

pub(crate) struct Observing {
    /// What the route is called.
    pub(crate) route: String,
    /// In which words it would refuse.
    pub(crate) dialect: Dialect,
    pub(crate) counted: Observed,
    pub(crate) events: Arc<Events>,
}

impl Observer for Observing {
    fn on_event(&self, seen: &Seen<'_>) {
        self.counted.happened(seen.signal);
        self.events.happened(seen, true);
        let would = match seen.signal {
            Signal::Replayed => "replay the answer".to_owned(),
            signal => match refusal(signal) {
                Some(code) => format!("answer {}", self.dialect.status(code).as_u16()),
                None => return,
            },
        };
        tracing::info!(
            event = seen.signal.as_str(),
            route = self.route,
            id = seen.id.map(tracing::field::display),
            operation = seen.operation,
            "observed: it would {would}"
        );
    }
}

/// What would have been said to the client.
const fn refusal(signal: Signal) -> Option<ProblemCode> {
    Some(match signal {
        Signal::InFlight => ProblemCode::InFlight,
        Signal::Unknown => ProblemCode::OutcomeUnknown,
        Signal::Expired => ProblemCode::Expired,
        Signal::Mismatch => ProblemCode::Mismatch,
        Signal::MissingKey => ProblemCode::MissingKey,
        Signal::InvalidKey => ProblemCode::InvalidKey,
        Signal::MissingPrincipal => ProblemCode::MissingPrincipal,
        Signal::Limited => ProblemCode::Limit,
        _ => return None,
    })
}
