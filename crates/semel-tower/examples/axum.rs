//! The README's example: `cargo run -p semel-tower --example axum`, then twice
//! `curl -i -X POST -H 'Idempotency-Key: "a1"' http://127.0.0.1:3000/orders`.

use axum::{Router, routing::post};
use semel::memory::MemoryStore;
use semel_tower::IdempotencyLayer;

async fn place_order() -> &'static str {
    "placed, once per Idempotency-Key"
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let app = Router::new()
        .route("/orders", post(place_order))
        .layer(IdempotencyLayer::new(MemoryStore::default()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    axum::serve(listener, app).await
}
