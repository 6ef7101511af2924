//! Events of partitions with offsets, as Kafka has them, applied once to a ledger in a SQLite file.
//!
//! `cargo run -p semel-events --features kafka --example kafka -- folder`. A file of lines stands for a partition, and
//! a file with a number for what the consumer committed; a client of Kafka's takes their place. It
//! appends ten orders, and handles all from the committed offset on, four at a time. Kill it where you
//! like, and start it again: the ledger has each order once.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::fs::{File, read_to_string, write};
use std::io::Write as _;
use std::path::Path;

use futures_util::{StreamExt as _, stream};
use semel::guard::TransactOptions;
use semel::inbox::{DeadLetter, Event, Inbox};
use semel::transaction::Lent;
use semel_events::kafka::{Message, Offsets};
use semel_events::{Answer, Delivery as _, until_settled};
use semel_stores::sqlite::rusqlite::{Connection, Error};
use semel_stores::{Schema, SqliteOptions, SqliteStore, SqliteTransaction};

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let folder = std::env::args().nth(1).unwrap_or("kafka-example".into());
    std::fs::create_dir_all(&folder)?;
    let folder = Path::new(&folder);
    let (partition, committed) = (folder.join("orders-0"), folder.join("committed"));
    let path = folder.join("ledger.db");
    let topic_id = folder.display().to_string();

    // The ledger and semel's records, in one file.
    let store = SqliteOptions::new().schema(Schema::Create).open(&path)?;
    let orders = "CREATE TABLE IF NOT EXISTS orders (article TEXT)";
    Connection::open(&path)?.execute_batch(orders)?;
    // Nothing stops the partition for ever: what cannot be handled is set aside.
    let inbox = Inbox::new(store, "ledger").with_dead_letters(|letter: DeadLetter| async move {
        println!(
            "set aside, {:?}: {:?} {:?}",
            letter.reason, letter.event, letter.errors
        );
        Ok::<_, Failure>(())
    });

    let mut append = File::options().create(true).append(true).open(&partition)?;
    for article in ["tea", "salt", "rice"].iter().cycle().take(10) {
        writeln!(append, "{article}")?;
    }

    let begin = read_to_string(&committed).unwrap_or_default();
    let begin: usize = begin.trim().parse().unwrap_or(0);
    let offsets = Offsets::new();
    offsets.assigned("orders", 0);
    let lines = read_to_string(&partition)?;
    let messages = lines.lines().enumerate().skip(begin);
    stream::iter(messages)
        .for_each_concurrent(4, |(offset, article)| {
            let offset = i64::try_from(offset).unwrap_or(i64::MAX);
            // Lines have no ids; a folder made anew would have another name for its topic.
            let message = Message::new("orders", 0, offset, article.to_owned());
            let message = message.named_by_place(&topic_id);
            let delivery = offsets.delivery(message);
            let (inbox, offsets, committed) = (&inbox, &offsets, &committed);
            async move {
                let handle = || place(inbox, delivery.event());
                let settled = until_settled(&delivery, handle).await;
                println!("{:?}: {:?}", delivery.event(), settled.answer);
                for commit in offsets.to_commit() {
                    if write(committed, commit.offset.to_string()).is_ok() {
                        offsets.committed(&commit);
                        println!("committed up to {}", commit.offset);
                    }
                }
            }
        })
        .await;
    let count = Connection::open(&path)?.query_row("SELECT count(*) FROM orders", [], |row| {
        row.get::<_, i64>(0)
    })?;
    println!("{count} orders in the ledger");
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
