//! What is told of requests that are only observed (`--mode observe`): counted, and a line in the log for
//! each whose answer the gateway would have changed.

use std::sync::Arc;

use semel::guard::{Observer, Seen, Signal};

use crate::events::Events;
use crate::metrics::Metrics;

pub(crate) struct Observing {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) events: Arc<Events>,
}

impl Observer for Observing {
    fn on_event(&self, seen: &Seen<'_>) {
        self.metrics.observed(seen.signal);
        self.events.happened(seen, true);
        let would = match seen.signal {
            Signal::Replayed => "replay the answer",
            Signal::InFlight | Signal::Unknown | Signal::Expired => "answer 409",
            Signal::Mismatch => "answer 422",
            Signal::MissingKey | Signal::InvalidKey | Signal::MissingPrincipal => "answer 400",
            _ => return,
        };
        tracing::info!(
            event = seen.signal.as_str(),
            id = seen.id.map(tracing::field::display),
            operation = seen.operation,
            "observed: it would {would}"
        );
    }
}
