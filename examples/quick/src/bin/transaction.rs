//! An order and its answer are committed together: `cargo run -p quick --bin quick-transaction`.

use axum::{Router, http::StatusCode, routing::post};
use semel_stores::{SqliteStore, SqliteTransaction, sqlite::rusqlite};
use semel_tower::{IdempotencyLayer, InTransaction, TransactOptions};

type Tx = InTransaction<SqliteTransaction>;

async fn order(mut tx: Tx, item: String) -> Result<(StatusCode, String), StatusCode> {
    let insert = move |database: &rusqlite::Connection| {
        database.execute("INSERT INTO orders (item) VALUES (?1)", [&item])?;
        Ok::<_, rusqlite::Error>(database.last_insert_rowid())
    };
    // A 5xx rolls back and releases the key: the client may try again with it.
    let id = tx
        .call(insert)
        .await
        .map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok((StatusCode::CREATED, format!("order {id}")))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = SqliteStore::open("sqlite:orders.db?schema=create").await?;
    rusqlite::Connection::open("orders.db")?
        .execute_batch("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT)")?;
    let once = IdempotencyLayer::orders(store)
        .with_principal_header("x-account")
        .with_transactions(TransactOptions::default());
    once.spawn_purger();
    let app = Router::new().route("/orders", post(order).layer(once.clone()));
    let listen = std::env::args().nth(1).unwrap_or("127.0.0.1:3000".into());
    let listener = tokio::net::TcpListener::bind(listen).await?;
    axum::serve(listener, app)
        .with_graceful_shutdown(async { drop(tokio::signal::ctrl_c().await) })
        .await?;
    Ok(once.close().await?)
}
