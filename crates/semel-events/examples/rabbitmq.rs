//! Events of RabbitMQ, applied once to a ledger in a SQLite file.
//!
//! `rabbitmq-server`, and then
//! `cargo run -p semel-events --features rabbitmq --example rabbitmq -- amqp://127.0.0.1:5672/%2f ledger.db`.
//! It publishes ten orders, the last of which is none, and consumes what there is. Kill it where you
//! like, and start it again: the ledger has each order once, and `orders.dead` has what is none.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use semel::guard::TransactOptions;
use semel::inbox::{DeadLetter, Event, Inbox};
use semel::transaction::Lent;
use semel_events::{Answer, Delivery as _, rabbitmq};
use semel_stores::sqlite::rusqlite::{self, Error};
use semel_stores::{Schema, SqliteOptions, SqliteStore, SqliteTransaction};

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments
        .next()
        .unwrap_or("amqp://127.0.0.1:5672/%2f".into());
    let path = arguments.next().unwrap_or("ledger.db".into());

    // The ledger and semel's records, in one file.
    let store = SqliteOptions::new().schema(Schema::Create).open(&path)?;
    let orders = "CREATE TABLE IF NOT EXISTS orders (article TEXT CHECK (article <> ''))";
    rusqlite::Connection::open(&path)?.execute_batch(orders)?;

    let inbox = Inbox::new(store, "ledger")
        .with_max_attempts(3)
        // The dead letters' queue has it from then on.
        .with_dead_letters(|letter: DeadLetter| async move {
            println!(
                "set aside, {:?}: {:?} {:?}",
                letter.reason, letter.event, letter.errors
            );
            Ok::<_, Failure>(())
        });

    let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    declare(&channel).await?;
    for (number, article) in ["tea", "salt", "rice"].iter().cycle().take(9).enumerate() {
        publish(&channel, &format!("order-{number}"), article).await?;
    }
    publish(&channel, "order-9", "").await?;

    channel.basic_qos(20, BasicQosOptions::default()).await?;
    let (options, none) = (BasicConsumeOptions::default(), FieldTable::default());
    let mut messages = channel
        .basic_consume("orders".into(), "ledger".into(), options, none)
        .await?;
    // What is to come again waits in a queue of its own, and not in this consumer's hands. By a connection of its
    // own: a server that is short of memory blocks those that publish, acknowledgements and all.
    let publishing = Connection::connect(&url, ConnectionProperties::default()).await?;
    let later = rabbitmq::Later::declare(publishing.create_channel().await?, "orders").await?;
    let source = rabbitmq::Source::new("orders").with_later(later);
    // Until nothing came for a while.
    while let Ok(Some(message)) =
        tokio::time::timeout(Duration::from_secs(6), messages.next()).await
    {
        let delivery = source.delivery(message?);
        let settled = delivery.settle(|| place(&inbox, delivery.event())).await;
        println!("{:?}: {:?}", delivery.event(), settled.answer);
        settled.told?;
    }
    let count =
        rusqlite::Connection::open(&path)?.query_row("SELECT count(*) FROM orders", [], |row| {
            row.get::<_, i64>(0)
        })?;
    println!("{count} orders in the ledger");
    publishing.close(200, "done".into()).await?;
    connection.close(200, "done".into()).await?;
    Ok(())
}

async fn declare(channel: &Channel) -> Result<(), Failure> {
    let durable = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    channel
        .queue_declare("orders.dead".into(), durable, FieldTable::default())
        .await?;
    let mut settings = FieldTable::default();
    let exchange = AMQPValue::LongString("".into());
    settings.insert("x-dead-letter-exchange".into(), exchange);
    let queue = AMQPValue::LongString("orders.dead".into());
    settings.insert("x-dead-letter-routing-key".into(), queue);
    channel
        .queue_declare("orders".into(), durable, settings)
        .await?;
    Ok(())
}

async fn publish(to: &Channel, id: &str, article: &str) -> Result<(), Failure> {
    let named = BasicProperties::default()
        .with_message_id(id.into())
        .with_delivery_mode(2);
    let options = BasicPublishOptions::default();
    to.basic_publish(
        "".into(),
        "orders".into(),
        options,
        article.as_bytes(),
        named,
    )
    .await?
    .await?;
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
