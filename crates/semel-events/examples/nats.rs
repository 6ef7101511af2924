//! Events of NATS JetStream, applied once to a ledger in a SQLite file.
//!
//! `nats-server -js`, and then
//! `cargo run -p semel-events --features nats --example nats -- nats://127.0.0.1:4222 ledger.db`.
//! It publishes ten orders, the last of which is none, and consumes what there is. Kill it where you
//! like, and start it again: the ledger has each order once.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use async_nats::jetstream::{self, consumer::pull, stream};
use futures_util::StreamExt as _;
use semel::guard::TransactOptions;
use semel::inbox::{DeadLetter, Event, Inbox};
use semel::transaction::Lent;
use semel_events::{Answer, Delivery as _, nats};
use semel_stores::sqlite::rusqlite::{Connection, Error};
use semel_stores::{Schema, SqliteOptions, SqliteStore, SqliteTransaction};

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or("nats://127.0.0.1:4222".into());
    let path = arguments.next().unwrap_or("ledger.db".into());

    // The ledger and semel's records, in one file.
    let store = SqliteOptions::new().schema(Schema::Create).open(&path)?;
    let orders = "CREATE TABLE IF NOT EXISTS orders (article TEXT CHECK (article <> ''))";
    Connection::open(&path)?.execute_batch(orders)?;

    let inbox = Inbox::new(store, "ledger")
        .with_max_attempts(3)
        .with_dead_letters(|letter: DeadLetter| async move {
            println!(
                "set aside, {:?}: {:?} {:?}",
                letter.reason, letter.event, letter.errors
            );
            Ok::<_, Failure>(())
        });

    let jetstream = jetstream::new(async_nats::connect(url).await?);
    let settings = stream::Config {
        name: "orders".into(),
        subjects: vec!["orders.*".into()],
        ..stream::Config::default()
    };
    let stream = jetstream.get_or_create_stream(settings).await?;
    for (number, article) in ["tea", "salt", "rice"].iter().cycle().take(9).enumerate() {
        publish(&jetstream, &format!("order-{number}"), article).await?;
    }
    publish(&jetstream, "order-9", "").await?;

    let settings = pull::Config {
        durable_name: Some("ledger".into()),
        ..pull::Config::default()
    };
    let consumer = stream.get_or_create_consumer("ledger", settings).await?;
    // One at a time: none waits here, unacknowledged, for its turn. Until nothing came for a while.
    let next = async || {
        let one = consumer.batch().max_messages(1);
        let mut one = one.expires(Duration::from_secs(6)).messages().await?;
        Ok::<_, Failure>(one.next().await)
    };
    while let Some(message) = next().await? {
        let delivery = nats::Delivery::new(message?)?;
        let settled = delivery.settle(|| place(&inbox, delivery.event())).await;
        println!("{:?}: {:?}", delivery.event(), settled.answer);
        settled.told?;
    }
    let count = Connection::open(&path)?.query_row("SELECT count(*) FROM orders", [], |row| {
        row.get::<_, i64>(0)
    })?;
    println!("{count} orders in the ledger");
    Ok(())
}

async fn publish(to: &jetstream::Context, id: &str, article: &str) -> Result<(), Failure> {
    let message = jetstream::message::PublishMessage::build()
        .message_id(id)
        .payload(article.to_owned().into());
    to.send_publish("orders.placed", message).await?.await?;
    Ok(())
}

/// The work: one order in the ledger, in the transaction that its event is recorded in.
async fn place(inbox: &Inbox<SqliteStore>, event: &Event) -> Answer<Error> {
    let article = String::from_utf8_lossy(event.body()).into_owned();
    let work = move |_, mut tx: Lent<SqliteTransaction>| {
        let article = article.clone();
        async move {
            let insert = "INSERT INTO orders VALUES (?1)";
            tx.call(move |ledger| ledger.execute(insert, [article]))
                .await?;
            Ok::<_, Error>(())
        }
    };
    inbox
        .transact(event, TransactOptions::default(), work)
        .await
}
