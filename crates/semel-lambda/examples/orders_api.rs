//! An HTTP function behind API Gateway: an axum router whose orders are placed once for each
//! `Idempotency-Key`. Records are in an SQLite file here, and would be in `PostgresStore` on Lambda.
//!
//! ```text
//! cargo build -p semel-lambda --examples --features http
//! cargo run -p semel-lambda --example local -- target/debug/examples/orders_api \
//!     crates/semel-lambda/examples/events/post.json crates/semel-lambda/examples/events/post.json
//! ```

use std::path::PathBuf;

use axum::http::StatusCode;
use axum::{Router, routing::post};
use semel::{Clock as _, SystemClock};
use semel_stores::{Schema, SqliteOptions};
use semel_tower::IdempotencyLayer;

async fn place_order(what: String) -> (StatusCode, String) {
    // Another answer each time: a retry that placed an order would show.
    let order = SystemClock::new().now();
    (StatusCode::CREATED, format!("{what}, ordered at {order:?}"))
}

#[tokio::main]
async fn main() -> Result<(), semel_lambda::BoxError> {
    let file = std::env::var_os("ORDERS").map(PathBuf::from);
    let file = file.unwrap_or_else(|| std::env::temp_dir().join("semel-lambda-orders-api.db"));
    let store = SqliteOptions::new().schema(Schema::Create).open(&file)?;
    let layer = IdempotencyLayer::new(store)
        .with_principal_by(semel_lambda::http::principal)
        .with_principal_required(true);
    let app: Router = Router::new()
        .route("/orders", post(place_order))
        .layer(layer);
    lambda_http::run(app).await
}
