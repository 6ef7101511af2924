//! RabbitMQ, by lapin.
//!
//! Consume with acknowledgements and a prefetch limit (`basic_qos`). An event's id is the property
//! `message_id`, which the publisher sets; its source is a name that you give, the queue's or the
//! exchange's. A message without an id is an event with an empty one, which the inbox hands to its
//! callback for dead letters, unless a [rule](Source::with_id) finds an id elsewhere: a delivery tag or a
//! digest of the content would not be the same for what is published twice.
//!
//! An event that is to come again is kept for that time, and then goes back to the queue: RabbitMQ has no delay
//! of its own, and would deliver it again at once, before all others. Meanwhile it takes a place of the
//! prefetch limit. **As many events as that limit which fail without end stop a consumer.** So set a
//! callback for dead letters (`Inbox::with_dead_letters`), or have such events wait in a queue of their
//! own ([`Later`]), where they also cost no delivery of a quorum queue's limit.
//!
//! One that is set aside is rejected: to the dead letters, where the queue has an
//! `x-dead-letter-exchange`.
//!
//! ```no_run
//! # async fn example(channel: lapin::Channel, other: lapin::Channel) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! use futures_util::StreamExt as _;
//! use lapin::options::{BasicConsumeOptions, BasicQosOptions};
//! use semel::inbox::Inbox;
//! use semel::memory::MemoryStore;
//! use semel_events::{Delivery as _, rabbitmq};
//!
//! channel.basic_qos(100, BasicQosOptions::default()).await?;
//! let options = BasicConsumeOptions::default();
//! let mut messages = channel
//!     .basic_consume("orders".into(), "billing".into(), options, Default::default())
//!     .await?;
//! let inbox = Inbox::new(MemoryStore::default(), "billing").with_dead_letters(shelve);
//! let later = rabbitmq::Later::declare(other, "orders").await?;
//! let orders = rabbitmq::Source::new("orders").with_later(later);
//! while let Some(message) = messages.next().await {
//!     let delivery = orders.delivery(message?);
//!     let work = |_| async { Ok::<_, std::io::Error>(()) };
//!     let settled = delivery.settle(|| inbox.receive(delivery.event(), work)).await;
//!     if let Err(error) = settled.answer {
//!         eprintln!("not handled: {error}");
//!     }
//! }
//! # Ok(())
//! # }
//! # async fn shelve(_: semel::inbox::DeadLetter) -> std::io::Result<()> { Ok(()) }
//! ```

mod later;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lapin::Acker;
use lapin::message::Delivery as Message;
use lapin::options::{BasicAckOptions, BasicNackOptions, BasicRejectOptions};
use lapin::types::AMQPValue;
use semel::inbox::Event;
use tokio::time::sleep;

pub use later::Later;

use crate::{TellError, Verdict};

type Rule = dyn Fn(&Message) -> Option<String> + Send + Sync;

/// Where messages come from, and what names them. Cloning shares it.
#[derive(Clone)]
pub struct Source {
    name: Arc<str>,
    rule: Option<Arc<Rule>>,
    later: Option<Later>,
}

/// A message of RabbitMQ's.
#[derive(Debug)]
pub struct Delivery {
    message: Message,
    event: Event,
    later: Option<Later>,
}

impl Source {
    /// Messages named by their `message_id`. The name is a part of each event's identity: the same in
    /// every consumer that shares the work.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            rule: None,
            later: None,
        }
    }

    /// The same with another rule: a header, a field of the content. What it finds must be the same
    /// in every delivery of an event, and of no other event.
    #[must_use]
    pub fn with_id(
        mut self,
        rule: impl Fn(&Message) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.rule = Some(Arc::new(rule));
        self
    }

    /// The same where events that are to come again wait in a queue of their own.
    #[must_use]
    pub fn with_later(mut self, later: Later) -> Self {
        self.later = Some(later);
        self
    }

    /// The event of a message; one with an empty id where it has none.
    pub fn delivery(&self, mut message: Message) -> Delivery {
        let waited = later::restore(&mut message);
        let id = match &self.rule {
            Some(rule) => rule(&message),
            None => {
                let id = message.properties.message_id().as_ref();
                id.map(|id| id.as_str().to_owned())
            }
        };
        let body = std::mem::take(&mut message.data);
        let event = Event::new(&*self.name, id.unwrap_or_default(), body);
        let deliveries = deliveries(&message).saturating_add(waited);
        Delivery {
            event: event.with_delivery(deliveries),
            message,
            later: self.later.clone(),
        }
    }
}

/// Which delivery this is. Quorum queues count those before, since 4.3 without those that a consumer gave
/// back; others say only that there was one.
fn deliveries(message: &Message) -> u32 {
    let headers = message.properties.headers().as_ref();
    let counted = headers.and_then(|headers| headers.inner().get("x-delivery-count"));
    let before = match counted {
        Some(AMQPValue::LongLongInt(count)) => u32::try_from(*count).unwrap_or(0),
        Some(AMQPValue::LongInt(count)) => u32::try_from(*count).unwrap_or(0),
        Some(AMQPValue::LongUInt(count)) => *count,
        _ => u32::from(message.redelivered),
    };
    before.saturating_add(1)
}

impl Delivery {
    /// The message, with its properties. Its content is the [event](crate::Delivery::event)'s body.
    pub const fn message(&self) -> &Message {
        &self.message
    }
}

const BACK: BasicNackOptions = BasicNackOptions {
    multiple: false,
    requeue: true,
};

impl crate::Delivery for Delivery {
    fn event(&self) -> &Event {
        &self.event
    }

    async fn tell(&self, verdict: Verdict) -> Result<(), TellError> {
        let acker = &self.message.acker;
        // What the channel does not take any more it delivers again.
        let open = match verdict {
            Verdict::Acknowledge => acker.ack(BasicAckOptions::default()).await?,
            Verdict::DeadLettered => acker.reject(BasicRejectOptions { requeue: false }).await?,
            Verdict::Again(Duration::ZERO) => acker.nack(BACK).await?,
            Verdict::Again(after) => match &self.later {
                Some(later) if later.takes(self, after).await => {
                    acker.ack(BasicAckOptions::default()).await?
                }
                _ => {
                    give_back(acker.clone(), after);
                    true
                }
            },
        };
        if open {
            return Ok(());
        }
        Err("the delivery was settled before, or its channel is closed".into())
    }
}

/// In a task of its own, so that the consumer goes on. Should that end before, the channel does too,
/// and the queue has the message again.
fn give_back(acker: Acker, after: Duration) {
    tokio::spawn(async move {
        sleep(after).await;
        acker.nack(BACK).await.ok();
    });
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use lapin::BasicProperties;
    use lapin::types::FieldTable;

    use super::*;
    use crate::Delivery as _;

    fn message(redelivered: bool, properties: BasicProperties) -> Message {
        let mut message = Message::mock(1, "".into(), "orders".into(), redelivered, b"body".into());
        message.properties = properties;
        message
    }

    fn named() -> BasicProperties {
        BasicProperties::default().with_message_id("m1".into())
    }

    #[test]
    fn an_event_is_named_by_its_message_id_or_by_a_rule() {
        let source = Source::new("orders");
        let delivery = source.delivery(message(false, named()));
        let event = delivery.event();
        assert_eq!((event.source(), event.id()), ("orders", "m1"));
        assert_eq!((&**event.body(), event.delivery()), (&b"body"[..], Some(1)));

        let nameless = source.delivery(message(false, BasicProperties::default()));
        assert_eq!(nameless.event().id(), "");
        assert_eq!(&**nameless.event().body(), b"body");

        let source = source.with_id(|message| Some(format!("at {}", message.routing_key)));
        let delivery = source.delivery(message(false, named()));
        assert_eq!(delivery.event().id(), "at orders");
    }

    #[test]
    fn deliveries_are_counted_as_the_queue_does() {
        assert_eq!(deliveries(&message(false, named())), 1);
        assert_eq!(deliveries(&message(true, named())), 2);
        let mut headers = FieldTable::default();
        headers.insert("x-delivery-count".into(), AMQPValue::LongLongInt(4));
        let counted = named().with_headers(headers);
        assert_eq!(deliveries(&message(true, counted)), 5);
    }
}
