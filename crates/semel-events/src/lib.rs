//! Events of a broker, each handled once, and acknowledged only after the commit.
//!
//! [`Inbox`](semel::inbox::Inbox) makes the work on an event happen once. This crate stands between it and a
//! broker: it makes an [`Event`] of a message, and tells the broker what the inbox answered.
//!
//! | broker | feature | module |
//! |---|---|---|
//! | NATS JetStream | `nats` | `nats` |
//! | RabbitMQ | `rabbitmq` | `rabbitmq` |
//! | Kafka, and what else has offsets | `kafka` | `kafka` |
//!
//! | the inbox answers | NATS | RabbitMQ | Kafka |
//! |---|---|---|---|
//! | a receipt: handled, or a duplicate | `ack` | `ack` | the offset is finished |
//! | a receipt: set aside | `term` | `reject`: to the dead letters, where the queue has such a place | the offset is finished |
//! | an error of the event's | `nak` with a delay | after the delay back to the queue | nothing: [`until_settled`] |
//! | the store is away, or another delivery is in flight | nothing: asked again in place | nothing: asked again in place | nothing: asked again in place |
//! | the store cannot be read, or a reconciler cannot say yet | the same, for ten minutes; then as an error of the event's | the same | the same, without an end |
//!
//! A broker of one's own needs [`Delivery`] only:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! use semel::inbox::{Event, Inbox, Receipt};
//! use semel::memory::MemoryStore;
//! use semel_events::{Delivery, TellError, Verdict};
//!
//! struct Webhook(Event);
//!
//! impl Delivery for Webhook {
//!     fn event(&self) -> &Event {
//!         &self.0
//!     }
//!
//!     async fn tell(&self, verdict: Verdict) -> Result<(), TellError> {
//!         // 200 for what is settled, 503 for what is to come again.
//!         assert_eq!(verdict, Verdict::Acknowledge);
//!         Ok(())
//!     }
//! }
//!
//! let inbox = Inbox::new(MemoryStore::default(), "billing");
//! let webhook = Webhook(Event::new("payments", "evt_1", r#"{"paid": 300}"#));
//! let work = |_| async { Ok::<_, std::io::Error>(()) };
//! let settled = webhook.settle(|| inbox.receive(webhook.event(), work)).await;
//! settled.told?;
//! assert_eq!(settled.answer?, Receipt::Handled);
//! # Ok(())
//! # }
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]

mod delivery;
#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;

pub use delivery::{Answer, Delivery, Settled, TellError, Verdict, settle_all, until_settled};

#[cfg(doc)]
use semel::inbox::Event;
