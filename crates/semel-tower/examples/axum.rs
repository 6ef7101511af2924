//! An order service whose clients may retry: `cargo run --example axum`, then twice
//! `curl -i -H 'Idempotency-Key: "a1"' -d '3 apples' http://127.0.0.1:3000/orders`.

use axum::routing::post;
use axum::{Extension, Router};
use semel::memory::MemoryStore;
use semel_tower::{AttemptInfo, IdempotencyLayer};

async fn place_order(Extension(attempt): Extension<AttemptInfo>, order: String) -> String {
    // Pass the fence to services that can refuse a stale attempt.
    format!("ordered {order} under fence {}\n", attempt.fence)
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let once = IdempotencyLayer::new(MemoryStore::default()).with_key_required(true);
    let app = Router::new()
        .route("/orders", post(place_order))
        .layer(once.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    axum::serve(listener, app).await?;
    once.drain().await;
    Ok(())
}
