//! `docs/serverless.md`.

use axum::{Router, routing::post};
use semel::guard::TransactOptions;
use semel::store::Store;
use semel::transaction::Lent;
use semel_lambda::{BoxError, Dispatcher, EventContext, Function, Inbox, lambda_runtime};
use semel_stores::{PostgresOptions, PostgresTransaction};
use semel_tower::IdempotencyLayer;
use serde::Deserialize;

#[derive(Deserialize)]
struct OrderPlaced {
    order: String,
}

#[derive(Deserialize)]
struct OrderShipped {
    order: String,
}

async fn shipped(event: OrderShipped, context: EventContext) -> Result<(), std::io::Error> {
    println!("{} (fence {})", event.order, context.fence());
    Ok(())
}

async fn placed(
    event: OrderPlaced,
    _: EventContext,
    tx: Lent<PostgresTransaction>,
) -> Result<(), tokio_postgres::Error> {
    let sql = "INSERT INTO orders (name) VALUES ($1)";
    tx.execute(sql, &[&event.order]).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = std::env::var("STORE")?;
    let store = PostgresOptions::from_url(&url)?.open().await?; // once per sandbox
    let dispatcher = Dispatcher::new()
        // Its writes and its record: one commit.
        .on_in_transaction("order.placed", TransactOptions::default(), placed)
        // Its effects are elsewhere.
        .on("order.shipped", shipped);
    lambda_runtime::run(Function::new(Inbox::new(store, "warehouse"), dispatcher)).await
}

async fn place_order() -> &'static str {
    "placed"
}

async fn over_http(store: impl Store) -> Result<(), BoxError> {
    let layer = IdempotencyLayer::new(store)
        .with_principal_by(semel_lambda::http::principal)
        .with_principal_required(true);
    let app = Router::new().route("/orders", post(place_order));
    lambda_http::run(app.layer(layer)).await
}
