//! What happens, for Prometheus at `/metrics`: `cargo run -p quick --bin quick-metrics`.

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};
use metrics_exporter_prometheus::PrometheusBuilder;
use semel_stores::SqliteStore;
use semel_tower::{Guard, IdempotencyLayer, observers::Metrics};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let recorder = PrometheusBuilder::new().install_recorder()?;
    let store = SqliteStore::open("sqlite:orders.db?schema=create").await?;
    let guard = Guard::builder(store)
        .observer(Arc::new(Metrics::default()))
        .build();
    let once = IdempotencyLayer::orders(guard.clone()).with_principal_header("x-account");
    let counted = guard.clone();
    let metrics = async move || {
        Metrics::gauges(&counted);
        recorder.render()
    };
    let app = Router::new()
        .route("/orders", post(async || "placed").layer(once))
        .route("/metrics", get(metrics));
    let listen = std::env::args().nth(1).unwrap_or("127.0.0.1:3000".into());
    let listener = tokio::net::TcpListener::bind(listen).await?;
    axum::serve(listener, app)
        .with_graceful_shutdown(async { drop(tokio::signal::ctrl_c().await) })
        .await?;
    Ok(guard.close().await?)
}
