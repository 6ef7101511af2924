//! What is told of each request, where somebody wants it: a line in the log, and spans.
//!
//! Spans go to a collector by OTLP ([`Traces`]). They are spans of `tracing` under a target of their own,
//! which no other subscriber sees and nobody makes unless there is a collector: the server's (`logged`),
//! steps of the store (`store::Watched`) and the call of the upstream (`proxy`). None holds a key, a header
//! field or a query (protocol rule R12).

mod collector;
mod environment;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::Uri;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::Context;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{SpanContext, TraceContextExt as _, TracerProvider as _};
use opentelemetry_http::{HeaderExtractor, HeaderInjector};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tracing::{Span, Subscriber};
use tracing_opentelemetry::{OpenTelemetryLayer, OpenTelemetrySpanExt as _};
use tracing_subscriber::registry::LookupSpan;

use crate::metrics::Metrics;
use crate::tls::client::Trust;
use collector::{Collector, Counted};

pub(crate) use environment::{ENDPOINTS, IS_DISABLED, OF_TRACES};

/// The target of the spans.
pub(crate) const SPANS: &str = "semel::traces";
/// The target of the line for each request.
pub(crate) const ACCESS: &str = "semel::access";

/// How long the collector may take at the end for what it does not have yet.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
const STATE: HeaderName = HeaderName::from_static("tracestate");

/// Why there can be no traces.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What the environment says of them is not right.
    #[error("{0}")]
    Environment(String),
    /// The exporter cannot be made.
    #[error("traces: {0}")]
    Exporter(#[from] opentelemetry_otlp::ExporterBuildError),
}

/// Spans on their way to a collector, in batches and in a thread of their own: nothing waits for it, and
/// what it does not take is dropped.
#[derive(Debug)]
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// Spans go to this URL, from now on. The environment says the rest, by the names that OpenTelemetry has
    /// for it.
    ///
    /// # Errors
    /// What it says is not right.
    pub(crate) fn open(
        collector: &Uri,
        trust: Arc<Trust>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, Error> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        environment::check(&variable).map_err(Error::Environment)?;
        let client = Collector::new(environment::timeout(&variable), trust);
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(client.clone())
            .with_endpoint(collector.to_string())
            .build()?;
        let exporter = Counted::new(exporter, client, metrics);
        let mut resource = Resource::builder();
        if !environment::names_service(&variable) {
            resource = resource.with_service_name("semel");
        }
        let provider = SdkTracerProvider::builder()
            .with_resource(resource.build())
            .with_batch_exporter(exporter)
            .build();
        Ok(Self(provider))
    }

    /// Makes them of the spans of `tracing` that this is asked to see.
    pub(crate) fn layer<S>(&self) -> OpenTelemetryLayer<S, SdkTracer>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.0.tracer("semel"))
            // Parents are those of `tracing`, and nobody asks how long a span was not polled.
            .with_context_activation(false)
            .with_tracked_inactivity(false)
            .with_location(false)
            .with_threads(false)
            .with_level(false)
            .with_target(false)
    }

    /// Sends what there is, for a few seconds at most.
    pub(crate) async fn end(self) {
        let ended =
            tokio::task::spawn_blocking(move || self.0.shutdown_with_timeout(FLUSH_TIMEOUT));
        if let Ok(Err(error)) = ended.await {
            tracing::warn!("traces: the last ones were not sent: {error}");
        }
    }
}

/// What is found out of a request on its way, for whoever tells of it: among its extensions, where somebody
/// does.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) route: OnceLock<Arc<str>>,
    /// How long the upstream took to answer.
    pub(crate) upstream: OnceLock<Duration>,
}

/// The span of a request, below that of the client if it has one.
pub(crate) fn below_client(span: &Span, headers: &HeaderMap) {
    let parent = TraceContextPropagator::new()
        .extract_with_context(&Context::new(), &HeaderExtractor(headers));
    // It is new, and there is a layer.
    span.set_parent(parent).ok();
}

/// Has whoever gets these fields go on below this span.
pub(crate) fn pass_on(span: &Span, headers: &mut HeaderMap) {
    let injector = &mut HeaderInjector(headers);
    TraceContextPropagator::new().inject_context(&span.context(), injector);
    if headers.get(STATE).is_some_and(HeaderValue::is_empty) {
        headers.remove(STATE);
    }
}

/// The span as the field `traceparent` has it, if it is recorded.
pub(crate) fn as_parent(span: &Span) -> Option<HeaderValue> {
    if span.is_disabled() {
        return None;
    }
    let context = context_of(span);
    let (trace, span) = (context.trace_id(), context.span_id());
    let value = format!("00-{trace}-{span}-01");
    context
        .is_sampled()
        .then(|| value.try_into().ok())
        .flatten()
}

/// Names a span that may have begun.
pub(crate) fn name(span: &Span, name: String) {
    span.context().span().update_name(name);
}

/// Links a span to another one, which is written like this.
pub(crate) fn link(span: &Span, to: &HeaderValue) {
    let Ok(to) = to.to_str() else { return };
    let fields = HashMap::from([("traceparent".to_owned(), to.to_owned())]);
    let other = TraceContextPropagator::new().extract_with_context(&Context::new(), &fields);
    span.add_link(other.span().span_context().clone());
}

pub(crate) fn context_of(span: &Span) -> SpanContext {
    span.context().span().span_context().clone()
}
