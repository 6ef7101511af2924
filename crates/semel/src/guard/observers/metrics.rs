//! Counters and histograms, by the facade `metrics`.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use metrics::{
    Counter, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};
use parking_lot::RwLock;

use crate::guard::{Case, Guard, Observer, Reconciled, Seen, Signal};

const EVENTS: &str = "semel_events_total";
const CLAIMS: &str = "semel_claim_duration_seconds";
const ATTEMPTS: &str = "semel_attempt_duration_seconds";
const QUESTIONS: &str = "semel_reconcile_questions_total";
const ANSWERS: &str = "semel_reconcile_duration_seconds";
const RUNNING: &str = "semel_attempts_running";
const UNSETTLED: &str = "semel_unsettled";

/// What operations beyond the bound are counted as, all together.
const OTHER: &str = "other";

/// Counts and times what happens, for the recorder of the crate `metrics` that the program installs.
/// Install it before the first call: what was counted before it is lost.
///
/// The names are those of the gateway's metrics where it has the same; the label `operation` is the
/// library's alone.
///
/// | metric | what it is |
/// |---|---|
/// | `semel_events_total{event, operation}` | a counter for each [`Signal`], from 0 as soon as the operation is seen |
/// | `semel_claim_duration_seconds{operation}` | how long callers waited for the answer to their claim |
/// | `semel_attempt_duration_seconds{operation}` | from an attempt's claim until its end was recorded |
/// | `semel_reconcile_questions_total{answer}` | questions to the reconciler, by [what they led to](Reconciled::as_str) |
/// | `semel_reconcile_duration_seconds` | how long it took to answer |
/// | `semel_attempts_running`, `semel_unsettled` | gauges, as of the last call of [`gauges`](Self::gauges) |
#[derive(Default)]
pub struct Metrics {
    most: Option<usize>,
    operations: RwLock<HashMap<Box<str>, Series>>,
    other: OnceLock<Series>,
}

impl Metrics {
    /// How many operations have a label of their own; those that come later are counted as `other`.
    /// 100 unless set: names that are made of what callers send would else have no bound.
    #[must_use]
    pub const fn with_max_operations(mut self, most: usize) -> Self {
        self.most = Some(most);
        self
    }

    /// Sets `semel_attempts_running` and `semel_unsettled`: call it before each scrape, or every few
    /// seconds.
    pub fn gauges<S>(guard: &Guard<S>)
    where
        S: crate::Store,
    {
        gauge!(RUNNING).set(guard.running() as f64);
        gauge!(UNSETTLED).set(guard.unsettled() as f64);
    }

    fn is_full(&self, operations: usize) -> bool {
        operations >= self.most.unwrap_or(100)
    }
}

impl Observer for Metrics {
    fn on_event(&self, seen: &Seen<'_>) {
        let name = seen.operation.unwrap_or_default();
        let operations = self.operations.read();
        if let Some(series) = operations.get(name) {
            return series.count(seen);
        }
        if self.is_full(operations.len()) {
            return self.other.get_or_init(|| Series::of(OTHER)).count(seen);
        }
        drop(operations);
        let mut operations = self.operations.write();
        if !self.is_full(operations.len()) {
            let series = operations.entry(name.into());
            series.or_insert_with(|| Series::of(name));
        }
        drop(operations);
        self.on_event(seen);
    }

    fn on_reconcile(&self, _: &Case<'_>, news: &Reconciled<'_>) {
        // Not the answer to a question, but its last one.
        if !matches!(news, Reconciled::GaveUp) {
            counter!(QUESTIONS, "answer" => news.as_str()).increment(1);
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// What is counted and timed of one operation. The handles are kept, so that an event looks nothing
/// up at the recorder.
struct Series {
    /// In the order of [`Signal::ALL`].
    events: Box<[Counter]>,
    claims: Histogram,
    attempts: Histogram,
}

impl Series {
    fn of(operation: &str) -> Self {
        describe();
        let operation: Arc<str> = operation.into();
        let event = |signal: &Signal| counter!(EVENTS, "event" => signal.as_str(), "operation" => Arc::clone(&operation));
        let series = Self {
            events: Signal::ALL.iter().map(event).collect(),
            claims: histogram!(CLAIMS, "operation" => Arc::clone(&operation)),
            attempts: histogram!(ATTEMPTS, "operation" => Arc::clone(&operation)),
        };
        // A counter that is there from the start can be told from one that was lost.
        series.events.iter().for_each(|event| event.increment(0));
        series
    }

    fn count(&self, seen: &Seen<'_>) {
        if let Some(event) = self.events.get(seen.signal as usize) {
            event.increment(1);
        }
        if let Some(waited) = seen.waited {
            self.claims.record(waited);
        }
        match (seen.signal, seen.ran_for) {
            (
                Signal::Completed | Signal::Omitted | Signal::Released | Signal::MarkedUnknown,
                Some(ran_for),
            ) => self.attempts.record(ran_for),
            (Signal::Resolved | Signal::ResolveRefused | Signal::StillUnknown, Some(took)) => {
                histogram!(ANSWERS).record(took);
            }
            _ => {}
        }
    }
}

fn describe() {
    describe_counter!(EVENTS, "What happened to calls, and to their records");
    describe_histogram!(
        CLAIMS,
        Unit::Seconds,
        "How long callers waited for the answer to their claim"
    );
    describe_histogram!(
        ATTEMPTS,
        Unit::Seconds,
        "From an attempt's claim until its end was recorded"
    );
    describe_counter!(
        QUESTIONS,
        "Questions to the reconciler about lost attempts, by what they led to"
    );
    describe_histogram!(
        ANSWERS,
        Unit::Seconds,
        "Time from a question to the reconciler to its answer"
    );
    describe_gauge!(
        RUNNING,
        "Attempts under way, also those whose callers went away"
    );
    describe_gauge!(
        UNSETTLED,
        "What is known of attempts, and the store could not be told yet"
    );
}
