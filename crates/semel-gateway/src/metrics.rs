//! What is counted and timed, in the text format of Prometheus.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use hyper::service::Service;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use semel::Store;
use semel::guard::{Guard, Signal, Tally};
use tokio::time::Instant;

use crate::pool::Pools;
use crate::principal::REFUSALS;
use crate::proxy::Failure;
use crate::store::Condition;
use crate::upstream::Address;

type Label = [(&'static str, &'static str); 1];
/// The configuration says how many there are.
type ByRoute = [(&'static str, String); 2];
type ByEvent = [(&'static str, String); 3];
/// The configuration says how many there are.
type ByAddress = [(&'static str, String); 1];

const RELOADS: [&str; 2] = ["success", "failure"];
const SPANS: [&str; 2] = ["sent", "dropped"];
/// Classes of statuses, by their first digit; what is none of them last.
const CLASSES: [&str; 5] = ["2xx", "3xx", "4xx", "5xx", "other"];

/// What becomes of most requests. Other events of a route are there once they happened.
pub(crate) const FREQUENT: [&str; 6] = [
    "ran",
    "replayed",
    "in-flight",
    "mismatch",
    "outcome-unknown",
    "passed_on",
];

/// Counts of [`FREQUENT`], by route and operation.
pub(crate) type ByRouteCounts = BTreeMap<[String; 2], [u64; FREQUENT.len()]>;

/// Every metric of the gateway.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// In the order of [`Signal::ALL`].
    events: Box<[Counter]>,
    observed: Family<ByRoute, Counter>,
    answers: [Counter; CLASSES.len()],
    requests: Family<ByEvent, Counter>,
    /// What there is of each route and operation: a family does not say what is in it.
    by_route: Mutex<BTreeMap<[String; 2], Arc<RouteMetrics>>>,
    upstream_time: Family<ByRoute, Histogram, fn() -> Histogram>,
    spans: Family<Label, Counter>,
    upstream_failures: Family<Label, Counter>,
    refused: Family<Label, Counter>,
    upstream_up: Family<ByAddress, Gauge>,
    upstream_unreached: Family<ByAddress, Counter>,
    duration: Histogram,
    in_flight: Gauge,
    running: Gauge,
    unsettled: Gauge,
    purged: Counter,
    config_reloads: Family<Label, Counter>,
    config_current: Gauge,
    store_up: Gauge,
    store_full: Gauge,
    reconcile_questions: Family<Label, Counter>,
    reconcile_time: Histogram,
    reconcile_pending: Gauge,
    reconcile_given_up: Gauge,
    tunnels: Gauge,
    claims_waiting: Gauge,
    certificate_expiry: Family<Label, Gauge>,
    handshake_failures: Counter,
}

impl Metrics {
    /// Metrics that all are at zero.
    pub fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("semel"),
            events: Box::default(),
            observed: Family::default(),
            answers: Default::default(),
            requests: Family::default(),
            by_route: Mutex::default(),
            upstream_time: Family::new_with_constructor(durations),
            spans: Family::default(),
            upstream_failures: Family::default(),
            refused: Family::default(),
            upstream_up: Family::default(),
            upstream_unreached: Family::default(),
            duration: durations(),
            in_flight: Gauge::default(),
            running: Gauge::default(),
            unsettled: Gauge::default(),
            purged: Counter::default(),
            config_reloads: Family::default(),
            config_current: Gauge::default(),
            store_up: Gauge::default(),
            store_full: Gauge::default(),
            reconcile_questions: Family::default(),
            reconcile_time: durations(),
            reconcile_pending: Gauge::default(),
            reconcile_given_up: Gauge::default(),
            tunnels: Gauge::default(),
            claims_waiting: Gauge::default(),
            certificate_expiry: Family::default(),
            handshake_failures: Counter::default(),
        };
        for listener in ["clients", "operators"] {
            metrics.certificate_ends(listener, Duration::ZERO);
        }
        // A counter that is there from the start can be told from one that was lost.
        let events = Family::<Label, Counter>::default();
        let of = |event: &Signal| events.get_or_create_owned(&[("event", event.as_str())]);
        metrics.events = Signal::ALL.iter().map(of).collect();
        for failure in Failure::ALL {
            let label = [("kind", failure.as_str())];
            drop(metrics.upstream_failures.get_or_create(&label));
        }
        for code in REFUSALS {
            drop(metrics.refused.get_or_create(&[("code", code)]));
        }
        let answers = Family::<Label, Counter>::default();
        for (class, counter) in CLASSES.iter().zip(&mut metrics.answers) {
            *counter = answers.get_or_create(&[("status", *class)]).clone();
        }
        let registry = &mut metrics.registry;
        registry.register(
            "events",
            "What happened to requests with keys, and to their records",
            events,
        );
        registry.register(
            "observed",
            "What would have become of requests that are only observed (--mode observe), by route",
            metrics.observed.clone(),
        );
        registry.register("answers", "Answers by status class", answers);
        registry.register(
            "requests",
            "Requests by route, and what became of them",
            metrics.requests.clone(),
        );
        registry.register(
            "upstream_duration_seconds",
            "Time from a request's way to the upstream to the header of its answer, by route",
            metrics.upstream_time.clone(),
        );
        for result in SPANS {
            drop(metrics.spans.get_or_create(&[("result", result)]));
        }
        registry.register(
            "spans",
            "Spans that the collector of traces took, or did not",
            metrics.spans.clone(),
        );
        registry.register(
            "upstream_failures",
            "Requests that the upstream did not answer, by what is known of them",
            metrics.upstream_failures.clone(),
        );
        registry.register(
            "refused_callers",
            "Requests with a key that were refused for who sent them, by the code of the answer",
            metrics.refused.clone(),
        );
        registry.register(
            "upstream_up",
            "Whether an address of an upstream can be used: 1, or 0",
            metrics.upstream_up.clone(),
        );
        registry.register(
            "upstream_unreached",
            "Connections to an address of an upstream that were not made",
            metrics.upstream_unreached.clone(),
        );
        registry.register(
            "request_duration_seconds",
            "Time from a request's header to its answer's",
            metrics.duration.clone(),
        );
        registry.register(
            "requests_in_flight",
            "Requests that have no answer yet",
            metrics.in_flight.clone(),
        );
        registry.register(
            "attempts_running",
            "Tasks that claim, run, record or pass on an answer, also those whose clients went away",
            metrics.running.clone(),
        );
        registry.register(
            "unsettled",
            "Outcomes, releases and claims that are still to be recorded",
            metrics.unsettled.clone(),
        );
        registry.register(
            "purged_records",
            "Records removed after their retention",
            metrics.purged.clone(),
        );
        for result in RELOADS {
            drop(metrics.config_reloads.get_or_create(&[("result", result)]));
        }
        metrics.config_current.set(1);
        registry.register(
            "config_reloads",
            "How often the configuration was read again, by what became of it",
            metrics.config_reloads.clone(),
        );
        registry.register(
            "config_current",
            "Whether the configuration that was read last is in use: 1, or 0 where it is wrong",
            metrics.config_current.clone(),
        );
        registry.register(
            "store_up",
            "Whether the store can be used: 1, or 0",
            metrics.store_up.clone(),
        );
        registry.register(
            "store_full",
            "Whether the store refuses new keys for want of room: 1, or 0",
            metrics.store_full.clone(),
        );
        registry.register(
            "reconcile_questions",
            "Questions to the reconciler about lost attempts, by what they led to",
            metrics.reconcile_questions.clone(),
        );
        registry.register(
            "reconcile_duration_seconds",
            "Time from a question to the reconciler to its answer",
            metrics.reconcile_time.clone(),
        );
        registry.register(
            "reconcile_pending",
            "Lost attempts about which the reconciler will be asked again",
            metrics.reconcile_pending.clone(),
        );
        registry.register(
            "reconcile_given_up",
            "Lost attempts about which the reconciler was asked often enough: an operator has to look",
            metrics.reconcile_given_up.clone(),
        );
        registry.register(
            "tunnels",
            "Connections that left HTTP for another protocol, such as WebSocket",
            metrics.tunnels.clone(),
        );
        registry.register(
            "claims_waiting",
            "Calls of the claim API that wait for an attempt in flight",
            metrics.claims_waiting.clone(),
        );
        registry.register(
            "tls_expiry_seconds",
            "When the certificate of a listener ends, in seconds since 1970; 0 without TLS",
            metrics.certificate_expiry.clone(),
        );
        registry.register(
            "tls_failures",
            "Connections of clients that ended before TLS was agreed on",
            metrics.handshake_failures.clone(),
        );
        metrics
    }

    /// The whole text, as Prometheus reads it.
    pub fn text<S: Store>(&self, guard: &Guard<S>, pools: &Pools) -> String {
        // Those that are in no configuration any more are gone.
        self.upstream_up.clear();
        for (upstream, is_up) in pools.conditions() {
            let gauge = self.upstream_up.get_or_create(&[("upstream", upstream)]);
            gauge.set(i64::from(is_up));
        }
        self.running.set(number(guard.running()));
        self.unsettled.set(number(guard.unsettled()));
        let mut text = String::new();
        if let Err(error) = text::encode(&mut text, &self.registry) {
            tracing::error!("metrics: {error}");
        }
        text
    }

    /// So many calls of the claim API wait now.
    pub(crate) fn claims_wait(&self, calls: usize) {
        self.claims_waiting.set(number(calls));
    }

    pub(crate) fn event(&self, signal: Signal) {
        count(&self.events, signal);
    }

    /// How often each of them happened in this process.
    pub(crate) fn events(&self) -> BTreeMap<String, u64> {
        let counted = Signal::ALL.iter().zip(&self.events);
        let counted = counted.map(|(event, counter)| (event.as_str().to_owned(), counter.get()));
        counted.collect()
    }

    /// What is counted of the requests of a route that only observes.
    pub(crate) fn observed(&self, route: &str) -> Observed {
        let of = |event: &Signal| {
            let event = event.as_str();
            self.observed
                .get_or_create_owned(&by_observed(route, event))
        };
        Observed(Signal::ALL.iter().map(of).collect())
    }

    /// What is counted and timed of the requests of a route: the same as before where there is some.
    pub(crate) fn of_route(&self, route: &str, operation: &str) -> Arc<RouteMetrics> {
        let labels = [route, operation].map(str::to_owned);
        let mut routes = self.by_route.lock().unwrap_or_else(PoisonError::into_inner);
        let known = routes.entry(labels).or_insert_with_key(|labels| {
            let of = |event: &&str| self.requests.get_or_create_owned(&by_event(labels, event));
            Arc::new(RouteMetrics {
                frequent: FREQUENT.each_ref().map(of),
                upstream_time: self.upstream_time.get_or_create_owned(&by_route(labels)),
                requests: self.requests.clone(),
                others: Mutex::new(Some(BTreeSet::new())),
                labels: labels.clone(),
            })
        });
        Arc::clone(known)
    }

    /// Forgets the routes that are in no configuration any more. Of requests that are still under way there
    /// nothing is counted.
    pub(crate) fn keep(&self, is_kept: impl Fn(&[String; 2]) -> bool) {
        let mut routes = self.by_route.lock().unwrap_or_else(PoisonError::into_inner);
        routes.retain(|labels, route| {
            let is_kept = is_kept(labels);
            if !is_kept {
                for event in FREQUENT.into_iter().chain(route.end()) {
                    self.requests.remove(&by_event(labels, event));
                }
                self.upstream_time.remove(&by_route(labels));
            }
            is_kept
        });
    }

    /// Forgets what was observed of a route that does not observe any more.
    pub(crate) fn forget_observed(&self, route: &str) {
        for event in Signal::ALL {
            self.observed.remove(&by_observed(route, event.as_str()));
        }
    }

    /// What became of each route's requests.
    pub(crate) fn by_route(&self) -> ByRouteCounts {
        let routes = self.by_route.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = routes.iter().map(|(labels, route)| {
            let counts = route.frequent.each_ref().map(Counter::get);
            (labels.clone(), counts)
        });
        counts.collect()
    }

    /// How often this happened in this process.
    pub(crate) fn count(&self, signal: Signal) -> u64 {
        let counter = self.events.get(signal as usize);
        counter.map_or(0, Counter::get)
    }

    /// How many requests have no answer yet.
    pub(crate) fn in_flight(&self) -> u64 {
        u64::try_from(self.in_flight.get()).unwrap_or_default()
    }

    pub(crate) fn spans(&self, count: usize, are_sent: bool) {
        let result = SPANS[usize::from(!are_sent)];
        let counter = self.spans.get_or_create(&[("result", result)]);
        counter.inc_by(count as u64);
    }

    pub(crate) fn upstream_failure(&self, kind: &'static str) {
        self.upstream_failures
            .get_or_create(&[("kind", kind)])
            .inc();
    }

    pub(crate) fn refused(&self, code: &'static str) {
        self.refused.get_or_create(&[("code", code)]).inc();
    }

    pub(crate) fn upstream_unreached(&self, address: &Address) {
        let by = [("upstream", address.to_string())];
        self.upstream_unreached.get_or_create(&by).inc();
    }

    pub(crate) fn purged(&self, records: usize) {
        self.purged.inc_by(records as u64);
    }

    /// Whether what was read is in use.
    pub(crate) fn reloaded(&self, is_used: bool) {
        let result = RELOADS[usize::from(!is_used)];
        self.config_reloads
            .get_or_create(&[("result", result)])
            .inc();
        self.config_current.set(i64::from(is_used));
    }

    pub(crate) fn store_is(&self, condition: &Condition) {
        let is = |what: bool| i64::from(what);
        self.store_up
            .set(is(!matches!(condition, Condition::Down(_))));
        self.store_full
            .set(is(matches!(condition, Condition::Full(_))));
    }

    /// Counts a tunnel until what is returned is dropped.
    pub(crate) fn tunnel(&self) -> impl Drop + use<> {
        Tunnel::open(&self.tunnels)
    }

    pub(crate) fn certificate_ends(&self, listener: &'static str, since_1970: Duration) {
        let seconds = since_1970.as_secs();
        self.certificate_expiry
            .get_or_create(&[("listener", listener)])
            .set(i64::try_from(seconds).unwrap_or(i64::MAX));
    }

    pub(crate) fn handshake_failed(&self) {
        self.handshake_failures.inc();
    }

    pub(crate) fn reconcile_question(&self, answer: &'static str) {
        self.reconcile_questions
            .get_or_create(&[("answer", answer)])
            .inc();
    }

    pub(crate) fn reconcile_answered(&self, took: Duration) {
        self.reconcile_time.observe(took.as_secs_f64());
    }

    pub(crate) fn reconcile_left(&self, tally: Tally) {
        self.reconcile_pending.set(number(tally.pending));
        self.reconcile_given_up.set(number(tally.given_up));
    }
}

/// What would have become of the requests of one route, in the order of [`Signal::ALL`].
#[derive(Debug)]
pub(crate) struct Observed(Box<[Counter]>);

impl Observed {
    pub(crate) fn happened(&self, signal: Signal) {
        count(&self.0, signal);
    }
}

fn count(counters: &[Counter], signal: Signal) {
    if let Some(counter) = counters.get(signal as usize) {
        counter.inc();
    }
}

/// What is counted and timed of the requests of one route. The handles are kept, so that a request looks
/// nothing up.
#[derive(Debug)]
pub(crate) struct RouteMetrics {
    frequent: [Counter; FREQUENT.len()],
    upstream_time: Histogram,
    requests: Family<ByEvent, Counter>,
    /// The events besides that were counted; none any more once the route is gone.
    others: Mutex<Option<BTreeSet<&'static str>>>,
    labels: [String; 2],
}

impl RouteMetrics {
    /// This became of a request.
    pub(crate) fn request(&self, event: &'static str) {
        if let Some(nth) = FREQUENT.iter().position(|known| *known == event) {
            self.frequent[nth].inc();
            return;
        }
        let mut others = self.others();
        if let Some(others) = &mut *others {
            others.insert(event);
            let labels = by_event(&self.labels, event);
            self.requests.get_or_create(&labels).inc();
        }
    }

    /// The events besides the frequent ones; there are no more from now on.
    fn end(&self) -> BTreeSet<&'static str> {
        self.others().take().unwrap_or_default()
    }

    fn others(&self) -> MutexGuard<'_, Option<BTreeSet<&'static str>>> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The upstream answered.
    pub(crate) fn upstream_answered(&self, took: Duration) {
        self.upstream_time.observe(took.as_secs_f64());
    }
}

fn by_route([route, operation]: &[String; 2]) -> ByRoute {
    [("route", route.clone()), ("operation", operation.clone())]
}

fn by_observed(route: &str, event: &str) -> ByRoute {
    [("route", route.to_owned()), ("event", event.to_owned())]
}

fn by_event([route, operation]: &[String; 2], event: &str) -> ByEvent {
    [
        ("route", route.clone()),
        ("operation", operation.clone()),
        ("event", event.to_owned()),
    ]
}

/// 0.5 ms to 16 s.
fn durations() -> Histogram {
    Histogram::new(exponential_buckets(0.000_5, 2.0, 16))
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// A service whose requests are counted and timed.
#[derive(Clone)]
pub(crate) struct Measured<S> {
    inner: S,
    metrics: Arc<Metrics>,
}

impl<S> Measured<S> {
    pub(crate) const fn new(inner: S, metrics: Arc<Metrics>) -> Self {
        Self { inner, metrics }
    }
}

impl<S, B, R> Service<Request<B>> for Measured<S>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Timed<S::Future>;

    fn call(&self, request: Request<B>) -> Self::Future {
        self.metrics.in_flight.inc();
        Timed {
            inner: self.inner.call(request),
            running: Running {
                metrics: Arc::clone(&self.metrics),
                since: Instant::now(),
            },
        }
    }
}

pin_project_lite::pin_project! {
    /// A request under way.
    pub(crate) struct Timed<F> {
        #[pin]
        inner: F,
        running: Running,
    }
}

impl<F, R, E> Future for Timed<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = F::Output;

    fn poll(self: std::pin::Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let answer = std::task::ready!(this.inner.poll(cx));
        if let Ok(response) = &answer {
            let class = match response.status().as_u16() / 100 {
                digit @ 2..=5 => usize::from(digit) - 2,
                _ => CLASSES.len() - 1,
            };
            let metrics = &this.running.metrics;
            metrics.answers[class].inc();
            metrics
                .duration
                .observe(this.running.since.elapsed().as_secs_f64());
        }
        Poll::Ready(answer)
    }
}

struct Tunnel(Gauge);

impl Tunnel {
    fn open(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Counts a request as in flight until it is dropped.
struct Running {
    metrics: Arc<Metrics>,
    since: Instant,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.metrics.in_flight.dec();
    }
}
