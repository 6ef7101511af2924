//! Adds up the events on standard input, each once however often it comes: `order-1 250` a line.

use semel::prelude::*;
use semel_stores::{SqliteStore, SqliteTransaction, sqlite::rusqlite};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = SqliteStore::open("sqlite:billing.db?schema=create").await?;
    let billing = rusqlite::Connection::open("billing.db")?;
    billing.execute_batch("CREATE TABLE IF NOT EXISTS bill (cents INTEGER)")?;
    let inbox = Inbox::new(store, "billing");
    inbox.guard().spawn_purger();
    for line in std::io::stdin().lines() {
        let line = line?;
        let (id, cents) = line.split_once(' ').ok_or("an id, and cents")?;
        let cents: i64 = cents.parse()?;
        let event = Event::new("orders", id, line.clone());
        // The event and what it adds are committed together.
        let work = move |_, mut tx: Lent<SqliteTransaction>| async move {
            tx.call(move |database| {
                database
                    .execute("INSERT INTO bill VALUES (?1)", [cents])
                    .map(drop)
            })
            .await
        };
        match inbox
            .transact(&event, TransactOptions::default(), work)
            .await
        {
            // Now the broker may forget it.
            Ok(receipt) => println!("{id}: {receipt:?}"),
            Err(error) => println!("{id}: again in {:?}: {error}", error.retry_after()),
        }
    }
    let total: i64 = billing.query_row("SELECT sum(cents) FROM bill", [], |row| row.get(0))?;
    println!("total: {total}");
    Ok(inbox.guard().close().await?)
}
