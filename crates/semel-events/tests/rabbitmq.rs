//! RabbitMQ.

use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::options::{
    BasicConsumeOptions, BasicGetOptions, BasicPublishOptions, BasicQosOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Consumer};
use semel::inbox::Receipt;
use semel_events::{Delivery as _, events, rabbitmq, settle_all};
use semel_testkit::servers::{Kind, shared};
use tokio::time::{sleep, timeout};

use crate::ledger::{Ledger, chance, killed_after, names, unique};

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
        let channel = here.channel().await;
        let durable = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let text = |text: &str| AMQPValue::LongString(text.into());
        let mut settings = FieldTable::default();
        settings.insert("x-dead-letter-exchange".into(), text(""));
        settings.insert("x-dead-letter-routing-key".into(), text(&here.dead()));
        for (queue, settings) in [
            (here.dead(), FieldTable::default()),
            (here.name.clone(), settings),
        ] {
            channel
                .queue_declare(queue.into(), durable, settings)
                .await
                .unwrap();
        }
        here
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
            .basic_qos(5, BasicQosOptions::default())
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

/// Handles what comes, until nothing came for a while.
async fn consume(here: &Here, ledger: &Ledger) {
    let (channel, inbox) = (here.channel().await, ledger.inbox());
    let mut messages = here.consumer(&channel).await;
    while let Ok(Some(message)) = timeout(Duration::from_millis(1200), messages.next()).await {
        let delivery = here.source().delivery(message.unwrap()).unwrap();
        let settled = delivery
            .settle(ledger.write(&inbox, delivery.event()))
            .await;
        settled.told.unwrap();
    }
}

#[test]
fn consumers_die_and_each_event_is_applied_once() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (ledger, names) = (Ledger::new(), names(60));
    let here = runtime.block_on(Here::new());
    runtime.block_on(here.publish(&names));
    for _ in 0..8 {
        let life = Duration::from_millis(60 + chance(120));
        killed_after(life, || consume(&here, &ledger));
    }
    runtime.block_on(consume(&here, &ledger));
    assert_eq!(ledger.lines(), names);
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
        let delivery = here.source().delivery(message).unwrap();
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
        let delivery = here.source().delivery(message).unwrap();
        assert_eq!(delivery.event().delivery(), Some(2));
        let settled = delivery
            .settle(ledger.write(&inbox, delivery.event()))
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
        let delivery = here.source().delivery(message).unwrap();
        let settled = delivery
            .settle(ledger.write(&inbox, delivery.event()))
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
        .map(|message| here.source().delivery(message.unwrap()).unwrap())
        .collect()
        .await;
    let events = events(&deliveries);
    let settled = settle_all(&deliveries, ledger.write_all(&inbox, &events)).await;
    let receipts: Vec<_> = settled
        .into_iter()
        .map(|settled| settled.answer.ok())
        .collect();
    let (handled, duplicate) = (Some(Receipt::Handled), Some(Receipt::Duplicate));
    assert_eq!(receipts, [handled, handled, duplicate, None]);
    assert_eq!(ledger.lines(), ["a", "b"]);
}
