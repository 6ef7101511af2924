//! NATS JetStream.

use std::time::Duration;

use async_nats::jetstream::consumer::{PullConsumer, pull};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, Context, stream};
use futures_util::{StreamExt as _, TryStreamExt as _};
use semel::inbox::Receipt;
use semel_events::{Delivery as _, nats, settle_all};
use semel_testkit::servers::{Kind, shared};
use tokio::time::{sleep, timeout};

use crate::ledger::{Ledger, killed_in_hand, names, unique};

/// A stream with a consumer, to which a client connects.
#[derive(Clone)]
struct Here {
    server: String,
    name: String,
}

impl Here {
    async fn new() -> Self {
        let url = tokio::task::spawn_blocking(|| shared(Kind::Nats))
            .await
            .unwrap()
            .unwrap();
        let server = url.rsplit_once('/').unwrap().0.to_owned();
        let here = Self {
            server,
            name: unique(),
        };
        here.create().await;
        here
    }

    async fn create(&self) {
        let settings = stream::Config {
            name: self.name.clone(),
            subjects: vec![self.name.clone()],
            ..stream::Config::default()
        };
        self.context().await.create_stream(settings).await.unwrap();
        self.consumer().await;
    }

    async fn context(&self) -> Context {
        jetstream::new(async_nats::connect(&self.server).await.unwrap())
    }

    async fn consumer(&self) -> PullConsumer {
        let stream = self.context().await.get_stream(&self.name).await.unwrap();
        let settings = pull::Config {
            durable_name: Some("ledger".into()),
            ack_wait: Duration::from_secs(1),
            ..pull::Config::default()
        };
        stream
            .get_or_create_consumer("ledger", settings)
            .await
            .unwrap()
    }

    async fn publish(&self, names: &[String]) {
        let context = self.context().await;
        for name in names {
            let message = PublishMessage::build()
                .message_id(name)
                .payload(name.clone().into());
            let sent = context
                .send_publish(self.name.clone(), message)
                .await
                .unwrap();
            sent.await.unwrap();
        }
    }

    /// Whether nothing is left to be delivered or acknowledged.
    async fn is_done(&self) -> bool {
        let info = self.consumer().await.get_info().await.unwrap();
        info.num_pending == 0 && info.num_ack_pending == 0
    }
}

/// Handles what comes, one by one and a few at a time, until nothing is left.
async fn consume(here: &Here, ledger: &Ledger) {
    let (consumer, inbox) = (here.consumer().await, ledger.inbox());
    while !here.is_done().await {
        let batch = consumer
            .batch()
            .max_messages(5)
            .expires(Duration::from_millis(200));
        let messages: Vec<_> = batch.messages().await.unwrap().try_collect().await.unwrap();
        for message in messages {
            let delivery = nats::Delivery::new(message).unwrap();
            let settled = delivery
                .settle(|| ledger.write(&inbox, delivery.event()))
                .await;
            settled.told.unwrap();
        }
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
    runtime.block_on(async {
        timeout(Duration::from_secs(30), consume(&here, &ledger))
            .await
            .unwrap();
    });
    assert_eq!(ledger.lines(), names);
    assert!(
        ledger.again() >= KILLS,
        "{} deliveries again",
        ledger.again()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_dies_between_commit_and_acknowledgement_leaves_a_duplicate() {
    let (here, ledger, names) = (Here::new().await, Ledger::new(), names(8));
    here.publish(&names).await;
    let inbox = ledger.inbox();
    {
        let consumer = here.consumer().await;
        let mut messages = consumer.messages().await.unwrap();
        for _ in 0..names.len() {
            let message = messages.next().await.unwrap().unwrap();
            let delivery = nats::Delivery::new(message).unwrap();
            let answer = ledger.write(&inbox, delivery.event()).await;
            assert_eq!(answer.unwrap(), Receipt::Handled);
            // Not told.
        }
    }
    assert_eq!(ledger.lines(), names);
    let consumer = here.consumer().await;
    let mut messages = consumer.messages().await.unwrap();
    for _ in 0..names.len() {
        let message = messages.next().await.unwrap().unwrap();
        let delivery = nats::Delivery::new(message).unwrap();
        assert_eq!(delivery.event().delivery(), Some(2));
        let settled = delivery
            .settle(|| ledger.write(&inbox, delivery.event()))
            .await;
        settled.told.unwrap();
        assert_eq!(settled.answer.unwrap(), Receipt::Duplicate);
    }
    assert_eq!(ledger.lines(), names);
    while !here.is_done().await {
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_cannot_be_handled_is_handed_over_and_comes_no_more() {
    let (here, ledger) = (Here::new().await, Ledger::new());
    let names = ["a", "poison", "b"].map(str::to_owned);
    here.publish(&names).await;
    let (consumer, inbox) = (here.consumer().await, ledger.strict_inbox());
    let mut receipts = Vec::new();
    let mut messages = consumer.messages().await.unwrap();
    while receipts.len() < 4 {
        let message = messages.next().await.unwrap().unwrap();
        let delivery = nats::Delivery::new(message).unwrap();
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
    assert_eq!(taken[0].event.id(), "poison");
    // Longer than the server's patience.
    let more = timeout(Duration::from_millis(1500), messages.next()).await;
    assert!(more.is_err() && here.is_done().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_waits_while_an_event_is_being_handled() {
    let (here, ledger) = (Here::new().await, Ledger::new());
    here.publish(&names(1)).await;
    let mut consumer = here.consumer().await;
    let inbox = ledger.inbox();
    let mut messages = consumer.messages().await.unwrap();
    let delivery = nats::Delivery::new(messages.next().await.unwrap().unwrap()).unwrap();
    let delivery = delivery.with_progress_every(Duration::from_millis(300));
    let work = |_| async {
        sleep(Duration::from_millis(2500)).await;
        Ok::<_, String>(())
    };
    let settled = delivery
        .settle(|| inbox.receive(delivery.event(), work))
        .await;
    assert_eq!(settled.answer.unwrap(), Receipt::Handled);
    while !here.is_done().await {
        sleep(Duration::from_millis(20)).await;
    }
    let info = consumer.info().await.unwrap();
    assert_eq!(info.delivered.consumer_sequence, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_without_an_id_are_named_by_their_sequence_and_batches_settle_each() {
    let (here, ledger) = (Here::new().await, Ledger::new());
    let context = here.context().await;
    for _ in 0..2 {
        let sent = context
            .publish(here.name.clone(), "same".into())
            .await
            .unwrap();
        sent.await.unwrap();
    }
    here.publish(&["2".to_owned()]).await;
    let (consumer, inbox) = (here.consumer().await, ledger.inbox());
    let batch = consumer.fetch().max_messages(3).messages().await.unwrap();
    let messages: Vec<_> = batch.try_collect().await.unwrap();
    let deliveries = messages
        .into_iter()
        .map(|m| nats::Delivery::new(m).unwrap());
    let deliveries: Vec<_> = deliveries.collect();
    let sources = deliveries.iter().map(|d| d.event().source().to_owned());
    let sequence = format!("{}/sequence", here.name);
    assert_eq!(
        sources.collect::<Vec<_>>(),
        [&*sequence, &*sequence, &*here.name]
    );
    let handle = |events| ledger.write_all(&inbox, events);
    for settled in settle_all(&deliveries, handle).await {
        settled.told.unwrap();
        assert_eq!(settled.answer.unwrap(), Receipt::Handled);
    }
    assert_eq!(ledger.lines(), ["2", "same", "same"]);
    while !here.is_done().await {
        sleep(Duration::from_millis(20)).await;
    }

    let plain = async_nats::connect(&here.server).await.unwrap();
    let mut subscription = plain.subscribe("plain").await.unwrap();
    plain.publish("plain", "body".into()).await.unwrap();
    let message = jetstream::Message {
        message: subscription.next().await.unwrap(),
        context,
    };
    nats::Delivery::new(message).unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_made_anew_has_new_events() {
    let (here, ledger) = (Here::new().await, Ledger::new());
    let (context, inbox) = (here.context().await, ledger.inbox());
    for _ in 0..2 {
        let sent = context.publish(here.name.clone(), "tick".into()).await;
        sent.unwrap().await.unwrap();
        let consumer = here.consumer().await;
        let message = consumer.messages().await.unwrap().next().await;
        let delivery = nats::Delivery::new(message.unwrap().unwrap()).unwrap();
        let settled = delivery
            .settle(|| ledger.write(&inbox, delivery.event()))
            .await;
        assert_eq!(settled.answer.unwrap(), Receipt::Handled);
        context.delete_stream(&here.name).await.unwrap();
        here.create().await;
    }
    assert_eq!(ledger.lines(), ["tick", "tick"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_id_is_none() {
    let (here, ledger) = (Here::new().await, Ledger::new());
    let message = PublishMessage::build().message_id("").payload("a".into());
    let context = here.context().await;
    let sent = context.send_publish(here.name.clone(), message).await;
    sent.unwrap().await.unwrap();
    let consumer = here.consumer().await;
    let message = consumer.messages().await.unwrap().next().await;
    let delivery = nats::Delivery::new(message.unwrap().unwrap()).unwrap();
    let answer = ledger.write(&ledger.inbox(), delivery.event()).await;
    assert_eq!(answer.unwrap(), Receipt::Handled);
}
