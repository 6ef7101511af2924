//! A function behind a queue or a rule of EventBridge: orders are written to a table once each,
//! however often their events are delivered. Records and orders are in one SQLite file, so that both
//! are committed together; on Lambda that would be `PostgresStore`, with `tokio_postgres`.
//!
//! ```text
//! cargo build -p semel-lambda --examples
//! cargo run -p semel-lambda --example local -- target/debug/examples/orders \
//!     crates/semel-lambda/examples/events/placed.json crates/semel-lambda/examples/events/batch.json
//! ```
//!
//! The second time all are duplicates. `ORDERS` names another file than the one in the folder for
//! temporary files.

#![expect(clippy::print_stderr, reason = "Lambda logs what is printed")]

use std::io;
use std::path::PathBuf;

use semel::guard::TransactOptions;
use semel::transaction::Lent;
use semel_lambda::{Dispatcher, EventContext, Function, Inbox};
use semel_stores::sqlite::rusqlite::{self, Connection};
use semel_stores::{Schema, SqliteOptions, SqliteTransaction};
use serde::Deserialize;

#[derive(Deserialize)]
struct OrderPlaced {
    order: String,
    pieces: u32,
}

#[derive(Deserialize)]
struct OrderShipped {
    order: String,
}

async fn placed(
    event: OrderPlaced,
    _: EventContext,
    mut transaction: Lent<SqliteTransaction>,
) -> rusqlite::Result<()> {
    transaction
        .call(move |connection| {
            connection.execute(
                "INSERT INTO orders (name, pieces) VALUES (?1, ?2)",
                (event.order, event.pieces),
            )
        })
        .await?;
    Ok(())
}

async fn shipped(event: OrderShipped, context: EventContext) -> Result<(), io::Error> {
    // An effect elsewhere: it gets the fence, so that it can refuse an attempt that was overtaken.
    eprintln!("{} is on its way (fence {})", event.order, context.fence());
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), semel_lambda::BoxError> {
    let file = std::env::var_os("ORDERS").map(PathBuf::from);
    let file = file.unwrap_or_else(|| std::env::temp_dir().join("semel-lambda-orders.db"));
    // Once per sandbox, not once per invocation.
    let store = SqliteOptions::new().schema(Schema::Create).open(&file)?;
    Connection::open(&file)?.execute_batch(
        "CREATE TABLE IF NOT EXISTS orders (name TEXT NOT NULL, pieces INTEGER NOT NULL)",
    )?;
    let dispatcher = Dispatcher::new()
        .on_in_transaction("order.placed", TransactOptions::default(), placed)
        .on("order.shipped", shipped);
    let function = Function::new(Inbox::new(store, "warehouse"), dispatcher);
    semel_lambda::lambda_runtime::run(function).await
}
