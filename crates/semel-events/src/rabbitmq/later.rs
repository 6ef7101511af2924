//! A queue in which events wait that are to come again.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lapin::message::Delivery as Message;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, Confirmation};

use tokio::time::timeout;

use super::Delivery;
use crate::Delivery as _;

/// Where events wait that are to come again, instead of in the hands of the consumer. Cloning shares
/// it.
///
/// An event is published to it, and only when that is confirmed acknowledged in its own queue: a
/// crash in between leaves it twice, and the second is a duplicate. When its time is over the server
/// gives it back to the end of its queue, as a new message: a quorum queue's limit of deliveries does
/// not count it. What the message says of its exchange, routing key and deliveries is kept; its own
/// time to live is not. One with a `user_id`, and all where the publishing fails, wait in the
/// consumer as they would without this.
#[derive(Clone)]
pub struct Later {
    channel: Channel,
    queue: ShortString,
    /// How many confirmations are late: until they come, more copies would only be more to confirm.
    late: Arc<AtomicUsize>,
}

/// How long the confirmation may take. Of an event whose confirmation comes later there is a copy.
const PATIENCE: Duration = Duration::from_secs(10);

const EXCHANGE: &str = "semel-exchange";
const ROUTING_KEY: &str = "semel-routing-key";
const DELIVERIES: &str = "semel-deliveries";
/// Written anew, or to be read by the server, which would send copies elsewhere.
const NOT_COPIED: [&str; 6] = [
    EXCHANGE,
    ROUTING_KEY,
    DELIVERIES,
    "x-delivery-count",
    "CC",
    "BCC",
];
const DEATHS: [&str; 3] = ["x-death", "x-first-death-", "x-last-death-"];

impl Later {
    /// Declares the queue `{queue}.later` for events of `queue`: a quorum queue that gives them back
    /// at least once (RabbitMQ 3.10 or newer). The first ones to come wait for those before them, a
    /// minute at most.
    ///
    /// `channel` is for this only: it is made one with confirmations. Of a connection that consumes nothing: a
    /// server that runs out of memory or disk blocks connections that publish, acknowledgements and all.
    ///
    /// # Errors
    /// The server's, as where there is such a queue with other settings.
    pub async fn declare(channel: Channel, queue: &str) -> Result<Self, lapin::Error> {
        let text = |text: &str| AMQPValue::LongString(text.into());
        let mut settings = FieldTable::default();
        for (name, value) in [
            ("x-queue-type", text("quorum")),
            ("x-dead-letter-exchange", text("")),
            ("x-dead-letter-routing-key", text(queue)),
            ("x-dead-letter-strategy", text("at-least-once")),
            ("x-overflow", text("reject-publish")),
        ] {
            settings.insert(name.into(), value);
        }
        let durable = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let queue: ShortString = format!("{queue}.later").into();
        let confirms = ConfirmSelectOptions::default();
        channel.confirm_select(confirms).await?;
        let declared = channel.queue_declare(queue.clone(), durable, settings);
        declared.await?;
        let late = Arc::default();
        Ok(Self {
            channel,
            queue,
            late,
        })
    }

    /// Whether it has the event now, and gives it back after that time.
    pub(super) async fn takes(&self, delivery: &Delivery, after: Duration) -> bool {
        // The server compares a `user_id` with who publishes.
        let is_foreign = delivery.message.properties.user_id().is_some();
        if is_foreign || self.late.load(Ordering::Acquire) > 0 {
            return false;
        }
        let mut publishing = tokio::spawn(self.publish(delivery, after));
        if let Ok(published) = timeout(PATIENCE, &mut publishing).await {
            return matches!(published, Ok(Ok(Confirmation::Ack(None))));
        }
        let late = Arc::clone(&self.late);
        late.fetch_add(1, Ordering::AcqRel);
        tokio::spawn(async move {
            publishing.await.ok();
            late.fetch_sub(1, Ordering::AcqRel);
        });
        false
    }

    /// Publishes it, and waits for the confirmation.
    fn publish(
        &self,
        delivery: &Delivery,
        after: Duration,
    ) -> impl Future<Output = Result<Confirmation, lapin::Error>> + use<> {
        let (message, event) = (&delivery.message, delivery.event());
        let mut headers = FieldTable::default();
        for (name, value) in message.properties.headers().iter().flatten() {
            // A server up to 3.13 believes what it reads of a message's deaths, and would take its
            // way back for a cycle.
            let is_death = DEATHS.iter().any(|death| name.as_str().starts_with(death));
            if !NOT_COPIED.contains(&name.as_str()) && !is_death {
                headers.insert(name.clone(), value.clone());
            }
        }
        let text = |text: &ShortString| AMQPValue::LongString(text.as_str().into());
        headers.insert(EXCHANGE.into(), text(&message.exchange));
        headers.insert(ROUTING_KEY.into(), text(&message.routing_key));
        let deliveries = event.delivery().unwrap_or(1);
        headers.insert(DELIVERIES.into(), AMQPValue::LongUInt(deliveries));
        let properties = message.properties.clone();
        let properties = properties
            .with_headers(headers)
            .with_expiration(after.as_millis().to_string().into())
            .with_delivery_mode(2);
        let options = BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let (channel, to, body) = (
            self.channel.clone(),
            self.queue.clone(),
            event.body().clone(),
        );
        async move {
            let published = channel.basic_publish("".into(), to, options, &body, properties);
            published.await?.await
        }
    }
}

/// Makes of a message that waited the one that it was; how often it was delivered before that.
pub(super) fn restore(message: &mut Message) -> u32 {
    let Some(headers) = message.properties.headers() else {
        return 0;
    };
    let headers = headers.inner();
    let text = |name: &str| match headers.get(name) {
        Some(AMQPValue::LongString(text)) => Some(ShortString::from(text.to_string())),
        _ => None,
    };
    let (exchange, routing_key) = (text(EXCHANGE), text(ROUTING_KEY));
    let deliveries = match headers.get(DELIVERIES) {
        Some(AMQPValue::LongUInt(count)) => *count,
        Some(AMQPValue::LongLongInt(count)) => u32::try_from(*count).unwrap_or(u32::MAX),
        _ => 0,
    };
    if let (Some(exchange), Some(routing_key)) = (exchange, routing_key) {
        message.exchange = exchange;
        message.routing_key = routing_key;
    }
    deliveries
}

impl fmt::Debug for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Later")
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}
