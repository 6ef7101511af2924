//! The README's example: `cargo run -p quick --bin quick-axum`, then twice
//! `curl -i -X POST -H 'X-Account: acme' -H 'Idempotency-Key: "a1"' http://127.0.0.1:3000/orders`.

use axum::{Router, routing::post};
use semel_stores::SqliteStore;
use semel_tower::IdempotencyLayer;
use tokio::{net::TcpListener, signal::ctrl_c};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = SqliteStore::open("sqlite:orders.db?schema=create").await?;
    let once = IdempotencyLayer::orders(store).with_principal_header("x-account");
    once.spawn_purger();
    let place = post(async || "placed, once per key").layer(once.clone());
    let listen = std::env::args().nth(1).unwrap_or("127.0.0.1:3000".into());
    let listener = TcpListener::bind(listen).await?;
    axum::serve(listener, Router::new().route("/orders", place))
        .with_graceful_shutdown(async { drop(ctrl_c().await) })
        .await?;
    Ok(once.close().await?)
}
