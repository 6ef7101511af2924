//! The collector: over the same HTTP and TLS as upstreams.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{self, SpanData};
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::command::with_causes;
use crate::connector::Connector;
use crate::metrics::Metrics;
use crate::tls::client::{Speaks, Trust};

/// Idle connections are closed after this: batches come every 5 s.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// The most that is read of an answer.
const MOST: usize = 64 << 10;
/// How long it is not said again that spans are not taken.
const COMPLAINT_PAUSE: Duration = Duration::from_secs(60);

/// Sends what the exporter's thread, which has no runtime, wants sent.
#[derive(Clone)]
pub(super) struct Collector {
    client: Client<Connector, Full<Bytes>>,
    within: Duration,
    runtime: Handle,
    /// Why it did not take the last batch.
    failure: Arc<Mutex<String>>,
}

impl Collector {
    /// Within the runtime that sends.
    pub(super) fn new(within: Duration, trust: Arc<Trust>) -> Self {
        let connector = Connector::new(within, trust, Speaks::Http1);
        Self {
            client: Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .pool_idle_timeout(IDLE_TIMEOUT)
                .build(connector),
            within,
            runtime: Handle::current(),
            failure: Arc::default(),
        }
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (client, within) = (self.client.clone(), self.within);
        let sent = self.runtime.spawn(async move {
            let answer = async {
                let answer = client.request(request.map(Full::new)).await?;
                let (head, body) = answer.into_parts();
                let body = Limited::new(body, MOST).collect().await?;
                Ok(Response::from_parts(head, body.to_bytes()))
            };
            let late = |_| format!("no answer within {within:?}");
            timeout(within, answer).await.map_err(late)?
        });
        sent.await?
    }
}

impl HttpClient for Collector {
    fn send_bytes<'life0, 'async_trait>(
        &'life0 self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'async_trait>>
    where
        'life0: 'async_trait,
        Self: 'async_trait,
    {
        Box::pin(async move {
            let sent = self.send(request).await;
            let failure = match &sent {
                Ok(answer) if answer.status().is_success() => String::new(),
                Ok(answer) => format!("it answered {}", answer.status()),
                Err(error) => with_causes(&**error),
            };
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
            sent
        })
    }
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collector").finish_non_exhaustive()
    }
}

/// Counts the spans that were taken and those that were not, and says why not, now and then.
#[derive(Debug)]
pub(super) struct Counted {
    exporter: SpanExporter,
    collector: Collector,
    metrics: Arc<Metrics>,
    complained: Mutex<Option<Instant>>,
}

impl Counted {
    pub(super) fn new(exporter: SpanExporter, collector: Collector, metrics: Arc<Metrics>) -> Self {
        Self {
            exporter,
            collector,
            metrics,
            complained: Mutex::default(),
        }
    }

    fn complain(&self, spans: usize) {
        let mut complained = self
            .complained
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if complained.is_none_or(|at| at.elapsed() > COMPLAINT_PAUSE) {
            let failure = self.collector.failure.lock();
            let failure = failure.unwrap_or_else(PoisonError::into_inner);
            tracing::warn!("traces: the collector did not take {spans} spans: {failure}");
            *complained = Some(Instant::now());
        }
    }
}

impl trace::SpanExporter for Counted {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let taken = self.exporter.export(batch).await;
        self.metrics.spans(spans, taken.is_ok());
        if taken.is_err() {
            self.complain(spans);
        }
        taken
    }

    fn shutdown_with_timeout(&self, within: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(within)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
