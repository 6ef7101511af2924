//! `docs/transactions.md`.

use std::error::Error;

use axum::http::StatusCode;
use axum::{Router, routing::post};
use semel::guard::{Asked, Done, Guard, TransactOptions};
use semel_stores::{PostgresStore, PostgresTransaction};
use semel_tower::{IdempotencyLayer, InTransaction};

async fn shown(guard: Guard<PostgresStore>, asked: Asked) -> Result<Done<String>, Box<dyn Error>> {
    let options = TransactOptions::default();
    let done = guard
        .transact(asked, options, |_attempt, tx| async move {
            let sql = "INSERT INTO orders (what) VALUES ($1)";
            tx.execute(sql, &[&"apples"]).await?;
            Ok::<_, tokio_postgres::Error>("ordered".to_owned())
        })
        .await?;
    Ok(done)
}

async fn order(tx: InTransaction<PostgresTransaction>) -> (StatusCode, String) {
    let sql = "INSERT INTO orders (what) VALUES ($1) RETURNING id";
    match tx.query_one(sql, &[&"apples"]).await {
        Ok(row) => {
            let id: i64 = row.get(0);
            (StatusCode::CREATED, format!("order {id}"))
        }
        // Rolled back, and not recorded.
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, String::new()),
    }
}

fn app(store: PostgresStore) -> Router {
    let layer = IdempotencyLayer::new(store).with_transactions(TransactOptions::default());
    Router::new().route("/orders", post(order)).layer(layer)
}
