//! RabbitMQ.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::options::{
    BasicConsumeOptions, BasicGetOptions, BasicPublishOptions, BasicQosOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Consumer};
use semel::guard::Ran;
use semel::inbox::{Inbox, InboxError, Reason, Receipt};
use semel_events::{Delivery as _, rabbitmq, settle_all};
use semel_stores::SqliteStore;
use semel_stores::sqlite::rusqlite::Error;
use semel_testkit::proxy::{Fault, Proxy};
use semel_testkit::servers::{Kind, shared};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::ledger::{Ledger, killed_in_hand, names, unique};

/// How many a consumer may hold.
const PREFETCH: usize = 5;

/// A queue, and one for its dead letters.
#[derive(Clone)]
struct Here {
    url: String,
    name: String,
}

impl Here {
    async fn new() -> Self {
        let url = tokio::task::spawn_blocking(|| shared(Kind::Rabbitmq))
            .await
            .unwrap()
            .unwrap();
        let here = Self {
            url,
            name: unique(),
        };
        let dead = [
            ("x-dead-letter-exchange", text("")),
            ("x-dead-letter-routing-key", text(&here.dead())),
        ];
        here.declare(&here.dead(), []).await;
        here.declare(&here.name, dead).await;
        here
    }

    /// A quorum queue that drops what was delivered again more than once.
    async fn without_patience() -> Self {
        let here = Self::new().await;
        let here = Self {
            name: format!("{}.quorum", here.name),
            ..here
        };
        let once = AMQPValue::LongInt(1);
        let quorum = [("x-queue-type", text("quorum")), ("x-delivery-limit", once)];
        here.declare(&here.name, quorum).await;
        here
    }

    async fn declare<const N: usize>(&self, queue: &str, settings: [(&str, AMQPValue); N]) {
        let durable = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let mut table = FieldTable::default();
        for (name, value) in settings {
            table.insert(name.into(), value);
        }
        let channel = self.channel().await;
        let declared = channel.queue_declare(queue.into(), durable, table).await;
        declared.unwrap();
    }

    fn dead(&self) -> String {
        format!("{}.dead", self.name)
    }

    async fn channel(&self) -> Channel {
        let connection = Connection::connect(&self.url, ConnectionProperties::default()).await;
        connection.unwrap().create_channel().await.unwrap()
    }

    async fn consumer(&self, channel: &Channel) -> Consumer {
        channel
            .basic_qos(u16::try_from(PREFETCH).unwrap(), BasicQosOptions::default())
            .await
            .unwrap();
        let (queue, options) = (self.name.clone().into(), BasicConsumeOptions::default());
        let consumer = channel.basic_consume(queue, "".into(), options, FieldTable::default());
        consumer.await.unwrap()
    }

    async fn publish(&self, names: &[String]) {
        let channel = self.channel().await;
        for name in names {
            let named = BasicProperties::default()
                .with_message_id(name.clone().into())
                .with_delivery_mode(2);
            let (queue, options) = (self.name.clone().into(), BasicPublishOptions::default());
            let sent = channel.basic_publish("".into(), queue, options, name.as_bytes(), named);
            sent.await.unwrap().await.unwrap();
        }
    }

    fn source(&self) -> rabbitmq::Source {
        rabbitmq::Source::new(&self.name)
    }
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

/// Handles what comes, until nothing came for a while.
async fn consume(here: &Here, ledger: &Ledger) {
    let (channel, inbox) = (here.channel().await, ledger.inbox());
    let mut messages = here.consumer(&channel).await;
    while let Ok(Some(message)) = timeout(Duration::from_millis(1200), messages.next()).await {
        let delivery = here.source().delivery(message.unwrap());
        let settled = delivery
            .settle(|| ledger.write(&inbox, delivery.event()))
            .await;
        settled.told.unwrap();
    }
}

const KILLS: u32 = 8;

#[test]
fn consumers_die_and_each_event_is_applied_once() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (ledger, names) = (Ledger::new(), names(60));
    let here = runtime.block_on(Here::new());
    runtime.block_on(here.publish(&names));
    for _ in 0..KILLS {
        killed_in_hand(&ledger, Duration::ZERO, || consume(&here, &ledger));
    }
    runtime.block_on(consume(&here, &ledger));
    assert_eq!(ledger.lines(), names);
    assert!(
        ledger.again() >= KILLS,
        "{} deliveries again",
        ledger.again()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_ends_between_commit_and_acknowledgement_leaves_a_duplicate() {
    let (here, ledger, names) = (Here::new().await, Ledger::new(), names(5));
    here.publish(&names).await;
    let inbox = ledger.inbox();
    let channel = here.channel().await;
    let mut messages = here.consumer(&channel).await;
    let mut deliveries = Vec::new();
    for _ in 0..names.len() {
        let message = messages.next().await.unwrap().unwrap();
        let delivery = here.source().delivery(message);
        let answer = ledger.write(&inbox, delivery.event()).await;
        assert_eq!(answer.unwrap(), Receipt::Handled);
        deliveries.push(delivery);
    }
    channel.close(200, "gone".into()).await.unwrap();
    for delivery in deliveries {
        let told = delivery.tell(semel_events::Verdict::Acknowledge).await;
        told.unwrap_err();
    }
    let channel = here.channel().await;
    let mut messages = here.consumer(&channel).await;
    for _ in 0..names.len() {
        let message = messages.next().await.unwrap().unwrap();
        let delivery = here.source().delivery(message);
        assert_eq!(delivery.event().delivery(), Some(2));
        let settled = delivery
            .settle(|| ledger.write(&inbox, delivery.event()))
            .await;
        settled.told.unwrap();
        assert_eq!(settled.answer.unwrap(), Receipt::Duplicate);
    }
    assert_eq!(ledger.lines(), names);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_cannot_be_handled_is_handed_over_and_becomes_a_dead_letter() {
    let (here, ledger) = (Here::new().await, Ledger::new());
    let names = ["a", "poison", "b"].map(str::to_owned);
    here.publish(&names).await;
    let (channel, inbox) = (here.channel().await, ledger.strict_inbox());
    let mut messages = here.consumer(&channel).await;
    let mut receipts = Vec::new();
    while receipts.len() < 4 {
        let message = messages.next().await.unwrap().unwrap();
        let delivery = here.source().delivery(message);
        let settled = delivery
            .settle(|| ledger.write(&inbox, delivery.event()))
            .await;
        settled.told.unwrap();
        receipts.push(settled.answer.ok());
    }
    let (handled, aside) = (Some(Receipt::Handled), Some(Receipt::DeadLettered));
    assert_eq!(receipts, [handled, None, handled, aside]);
    assert_eq!(ledger.lines(), ["a", "b"]);
    let taken = ledger.taken();
    assert_eq!((taken.len(), taken[0].attempts), (1, 2));
    let letter = loop {
        let options = BasicGetOptions { no_ack: true };
        if let Some(letter) = channel
            .basic_get(here.dead().into(), options)
            .await
            .unwrap()
        {
            break letter;
        }
        sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(letter.delivery.data, b"poison");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_settles_each() {
    let (here, ledger) = (Here::new().await, Ledger::new());
    let names = ["a", "b", "a", "poison"].map(str::to_owned);
    here.publish(&names).await;
    let (channel, inbox) = (here.channel().await, ledger.strict_inbox());
    let messages = here.consumer(&channel).await;
    let deliveries: Vec<_> = messages
        .take(4)
        .map(|message| here.source().delivery(message.unwrap()))
        .collect()
        .await;
    let handle = |events| ledger.write_all(&inbox, events);
    let settled = settle_all(&deliveries, handle).await;
    let receipts: Vec<_> = settled
        .into_iter()
        .map(|settled| settled.answer.ok())
        .collect();
    let (handled, duplicate) = (Some(Receipt::Handled), Some(Receipt::Duplicate));
    assert_eq!(receipts, [handled, handled, duplicate, None]);
    assert_eq!(ledger.lines(), ["a", "b"]);
}

/// What an inbox answers while its store is away.
fn away() -> semel_events::Answer<Error> {
    let kind = semel::StoreErrorKind::NotApplied;
    Err(InboxError::Store {
        ran: Ran::No,
        source: semel::StoreError::new(kind, "away"),
    })
}

/// A queue that drops what was delivered again more than once.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_costs_no_delivery() {
    let (here, ledger) = (Here::without_patience().await, Ledger::new());
    here.publish(&names(1)).await;
    let (channel, inbox) = (here.channel().await, ledger.inbox());
    let mut messages = here.consumer(&channel).await;
    let message = messages.next().await.unwrap().unwrap();
    let delivery = here.source().delivery(message);
    let asked = AtomicU32::new(0);
    let handle = || async {
        match asked.fetch_add(1, Ordering::Relaxed) {
            ..4 => away(),
            _ => ledger.write(&inbox, delivery.event()).await,
        }
    };
    let settled = delivery.settle(handle).await;
    settled.told.unwrap();
    assert_eq!(settled.answer.unwrap(), Receipt::Handled);
    assert_eq!(ledger.lines(), names(1));
}

/// As many as the consumer may hold, of which nobody knows whether they were handled.
#[tokio::test(flavor = "multi_thread")]
async fn events_of_unknown_outcome_stop_nobody() {
    let (here, ledger) = (Here::new().await, Ledger::new());
    here.publish(&names(PREFETCH)).await;
    let inbox = ledger.strict_inbox();
    let (there, lost) = (here.clone(), inbox.clone());
    let dies = std::thread::spawn(move || dies_with_all_in_hand(&there, &lost));
    dies.join().unwrap();
    here.publish(&["later".to_owned()]).await;
    sleep(Duration::from_millis(600)).await;
    let channel = here.channel().await;
    let mut messages = here.consumer(&channel).await;
    let work = |_| async { Ok::<_, Error>(()) };
    let handled = timeout(Duration::from_secs(5), async {
        loop {
            let message = messages.next().await.unwrap().unwrap();
            let delivery = here.source().delivery(message);
            let settled = delivery.settle(|| inbox.receive(delivery.event(), work));
            let answer = settled.await.answer.unwrap();
            if delivery.event().id() == "later" {
                break answer;
            }
            assert_eq!(answer, Receipt::DeadLettered);
        }
    });
    let handled = handled.await.expect("the queue stands still");
    assert_eq!(handled, Receipt::Handled);
    let reasons = ledger.taken().into_iter().map(|letter| letter.reason);
    assert_eq!(reasons.collect::<Vec<_>>(), [Reason::Unknown; PREFETCH]);
}

fn dies_with_all_in_hand(here: &Here, inbox: &Inbox<SqliteStore>) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let channel = here.channel().await;
        let mut messages = here.consumer(&channel).await;
        for _ in 0..PREFETCH {
            let delivery = here
                .source()
                .delivery(messages.next().await.unwrap().unwrap());
            let (begins, begun) = oneshot::channel();
            let inbox = inbox.clone();
            let work = |_| async move {
                begins.send(()).unwrap();
                std::future::pending::<Result<(), Error>>().await
            };
            tokio::spawn(async move { inbox.receive(delivery.event(), work).await });
            begun.await.unwrap();
        }
    });
    runtime.shutdown_background();
}

/// As many as the consumer may hold, and nobody takes them.
#[tokio::test(flavor = "multi_thread")]
async fn events_that_wait_in_a_queue_of_their_own_stop_nobody() {
    let (here, ledger) = (Here::without_patience().await, Ledger::new());
    let bad = (0..PREFETCH).map(|number| format!("poison-{number}"));
    here.publish(&bad.collect::<Vec<_>>()).await;
    here.publish(&["a".to_owned()]).await;
    let channel = here.channel().await;
    let later = rabbitmq::Later::declare(here.channel().await, &here.name);
    let routed = |message: &lapin::message::Delivery| Some(message.routing_key.to_string());
    let source = here.source().with_later(later.await.unwrap());
    let source = source.with_id(move |message| {
        let nth = message.properties.message_id().as_ref()?;
        Some(format!("{}/{nth}", routed(message)?))
    });
    let mut messages = here.consumer(&channel).await;
    let (mut handled, mut deliveries) = (None, Vec::new());
    let all = timeout(Duration::from_secs(20), async {
        // More often than the queue has patience for.
        while deliveries.iter().max() < Some(&4) {
            let delivery = source.delivery(messages.next().await.unwrap().unwrap());
            assert!(delivery.event().id().starts_with(&here.name));
            let inbox = ledger.inbox();
            let answer = delivery
                .settle(|| ledger.write(&inbox, delivery.event()))
                .await;
            answer.told.unwrap();
            match answer.answer {
                Ok(receipt) => handled = handled.or(Some((receipt, deliveries.len()))),
                Err(_) => deliveries.extend(delivery.event().delivery()),
            }
        }
    });
    all.await.expect("the queue stands still");
    assert_eq!(handled, Some((Receipt::Handled, PREFETCH)));
    assert_eq!(ledger.lines(), ["a"]);
}

/// As where the server blocks who publishes: the event waits in the consumer, and goes back to its queue.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_confirms_nothing_holds_no_consumer_up() {
    let (here, ledger) = (Here::new().await, Ledger::new());
    let address = here
        .url
        .split(['/', '@'])
        .find(|part| part.parse::<SocketAddr>().is_ok());
    let address = address.expect("a URL with an address in it");
    let proxy = Proxy::start(address.parse().unwrap()).unwrap();
    let through = Here {
        url: here.url.replace(address, &proxy.address().to_string()),
        name: here.name.clone(),
    };
    let later = rabbitmq::Later::declare(through.channel().await, &here.name).await;
    let source = here.source().with_later(later.unwrap());
    here.publish(&["poison-0".to_owned()]).await;
    proxy.set(Fault::Blackhole);
    let channel = here.channel().await;
    let mut messages = here.consumer(&channel).await;
    let inbox = ledger.inbox();
    for _ in 0..2 {
        let settled = timeout(Duration::from_secs(30), async {
            let delivery = source.delivery(messages.next().await.unwrap().unwrap());
            let settled = delivery.settle(|| ledger.write(&inbox, delivery.event()));
            settled.await
        });
        let settled = settled.await.expect("the consumer stands still");
        settled.told.unwrap();
        settled.answer.unwrap_err();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_without_an_id_ends_no_consumer() {
    let (here, ledger) = (Here::new().await, Ledger::new());
    here.publish(&["".to_owned(), "a".to_owned()]).await;
    let (channel, inbox) = (here.channel().await, ledger.strict_inbox());
    let mut messages = here.consumer(&channel).await;
    for receipt in [Receipt::DeadLettered, Receipt::Handled] {
        let message = messages.next().await.unwrap().unwrap();
        let delivery = here.source().delivery(message);
        let settled = delivery.settle(|| ledger.write(&inbox, delivery.event()));
        assert_eq!(settled.await.answer.unwrap(), receipt);
    }
    assert_eq!(ledger.taken()[0].reason, Reason::NoId);
}
