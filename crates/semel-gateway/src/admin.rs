//! The operators' listener: liveness, readiness, metrics.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use semel::store::Store;
use semel_tower::IdempotencyLayer;
use tokio::sync::watch;

use crate::metrics::Metrics;

/// How long the store may take to say that it is there.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// What the operators' listener looks at.
pub struct Admin<S> {
    /// The layer, whose store is probed.
    pub layer: IdempotencyLayer<S>,
    /// What `/metrics` shows.
    pub metrics: Arc<Metrics>,
    /// Whether the gateway is stopping.
    pub stopping: watch::Receiver<bool>,
}

/// The routes of the operators' listener.
pub fn router<S: Store>(admin: Admin<S>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "up\n" }))
        .route("/readyz", get(ready::<S>))
        .route("/metrics", get(metrics::<S>))
        .with_state(Arc::new(admin))
}

async fn ready<S: Store>(State(admin): State<Arc<Admin<S>>>) -> (StatusCode, String) {
    let not = |reason: String| (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n"));
    if *admin.stopping.borrow() {
        return not("stopping".to_owned());
    }
    let store = admin.layer.guard().store();
    match tokio::time::timeout(PROBE_TIMEOUT, store.probe()).await {
        Ok(Ok(_)) => (StatusCode::OK, "ready\n".to_owned()),
        Ok(Err(error)) => not(format!("store: {error}")),
        Err(_) => not("store: no answer in time".to_owned()),
    }
}

async fn metrics<S: Store>(State(admin): State<Arc<Admin<S>>>) -> impl IntoResponse {
    let text = admin.metrics.text(admin.layer.guard());
    // The format that Prometheus asks for first, and that prometheus-client writes.
    let format = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, format)], text)
}
