//! `docs/events.md`.

use std::error::Error;

use semel::guard::TransactOptions;
use semel::inbox::{DeadLetter, Event, Inbox};
use semel_stores::PostgresStore;

#[derive(Clone)]
struct Shelf;

impl Shelf {
    async fn keep(self, letter: DeadLetter) -> Result<(), std::io::Error> {
        println!("{:?}: {:?}", letter.reason, letter.errors);
        Ok(())
    }
}

struct Message {
    id: String,
    body: Vec<u8>,
}

impl Message {
    async fn ack(self) -> Result<(), std::io::Error> {
        Ok(())
    }
}

async fn shown(store: PostgresStore, shelf: Shelf, message: Message) -> Result<(), Box<dyn Error>> {
    let inbox = Inbox::new(store, "billing");
    let inbox = inbox.with_dead_letters(move |letter| shelf.clone().keep(letter));

    let event = Event::new("orders", &message.id, message.body.clone());
    let options = TransactOptions::default();
    let receipt = inbox
        .transact(&event, options, |_, tx| async move {
            let sql = "INSERT INTO invoices (order_id) VALUES ($1)";
            tx.execute(sql, &[&"4711"]).await?;
            Ok::<_, tokio_postgres::Error>(())
        })
        .await?; // an error: do not acknowledge
    message.ack().await?; // any receipt: acknowledge
    println!("{receipt:?}");
    Ok(())
}
