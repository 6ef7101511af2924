//! NATS JetStream.
//!
//! Use a pull consumer with explicit acknowledgements. An event's id is the publisher's `Nats-Msg-Id`
//! within the stream; a message without one, or with an empty one, is named by its sequence in the
//! stream and the time at which the stream took it, so that what a publisher sends twice are two events,
//! and so are those of a stream that was deleted and made anew. (The server drops a second message with one `Nats-Msg-Id`
//! for two minutes only; the inbox goes on for 30 days.)
//!
//! Only a message that is being settled is held. One that was pulled and waits for its turn passes `ack_wait`,
//! comes again, and counts towards a `max_deliver`: so pull what is handled at once and no more, as here.
//! `consumer.messages()` pulls ahead.
//!
//! ```no_run
//! # async fn example(stream: async_nats::jetstream::stream::Stream) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! use std::time::Duration;
//!
//! use async_nats::jetstream::consumer::{AckPolicy, pull};
//! use futures_util::StreamExt as _;
//! use semel::inbox::Inbox;
//! use semel::memory::MemoryStore;
//! use semel_events::{Delivery as _, nats};
//!
//! let settings = pull::Config {
//!     durable_name: Some("billing".into()),
//!     ack_policy: AckPolicy::Explicit,
//!     ..pull::Config::default()
//! };
//! let consumer = stream.create_consumer(settings).await?;
//! let inbox = Inbox::new(MemoryStore::default(), "billing").with_dead_letters(shelve);
//! loop {
//!     let one = consumer.batch().max_messages(1).expires(Duration::from_secs(30));
//!     let Some(message) = one.messages().await?.next().await else {
//!         continue;
//!     };
//!     let delivery = nats::Delivery::new(message?)?;
//!     let work = |_| async { Ok::<_, std::io::Error>(()) };
//!     let settled = delivery.settle(|| inbox.receive(delivery.event(), work)).await;
//!     if let Err(error) = settled.answer {
//!         eprintln!("not handled: {error}");
//!     }
//! }
//! # }
//! # async fn shelve(_: semel::inbox::DeadLetter) -> std::io::Result<()> { Ok(()) }
//! ```

use std::fmt;
use std::time::{Duration, SystemTime};

use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::{AckKind, Message};
use semel::inbox::Event;
use tokio::time::sleep;

use crate::{TellError, Verdict};

/// A message of JetStream's.
pub struct Delivery {
    message: Message,
    event: Event,
    progress: Duration,
}

/// A message that was not delivered by JetStream: it has no sequence, and nobody waits for an
/// acknowledgement.
#[derive(Debug, thiserror::Error)]
#[error("the message was not delivered by JetStream")]
pub struct NotFromStream {
    /// What the client says.
    source: TellError,
}

impl Delivery {
    /// How often the server learns that an event is still being handled: a third of its patience
    /// (`ack_wait`), which is 30 s unless the consumer has another.
    pub const PROGRESS: Duration = Duration::from_secs(10);

    /// The event of a message.
    ///
    /// # Errors
    /// [`NotFromStream`] for one that did not come from a consumer of JetStream's.
    pub fn new(message: Message) -> Result<Self, NotFromStream> {
        let info = message.info().map_err(|source| NotFromStream { source })?;
        let id = message
            .headers
            .as_ref()
            .and_then(|h| h.get(NATS_MESSAGE_ID))
            .filter(|id| !id.as_str().is_empty());
        let event = match id {
            Some(id) => Event::new(info.stream, id, message.payload.clone()),
            // A name that no stream has: an id is never taken for a sequence.
            None => {
                let source = format!("{}/sequence", info.stream);
                // The time is kept with the message. Of either type that async-nats may have it in.
                let taken = SystemTime::from(info.published);
                let taken = taken
                    .duration_since(SystemTime::UNIX_EPOCH)
                    .unwrap_or_default();
                let place = format!("{}@{}", info.stream_sequence, taken.as_nanos());
                Event::new(source, place, message.payload.clone())
            }
        };
        let delivery = u32::try_from(info.delivered.max(1)).unwrap_or(u32::MAX);
        Ok(Self {
            event: event.with_delivery(delivery),
            message,
            progress: Self::PROGRESS,
        })
    }

    /// The same for a consumer with another patience: a third of its `ack_wait`.
    #[must_use]
    pub const fn with_progress_every(mut self, progress: Duration) -> Self {
        self.progress = progress;
        self
    }

    /// The message, with its subject and headers.
    pub const fn message(&self) -> &Message {
        &self.message
    }
}

impl crate::Delivery for Delivery {
    fn event(&self) -> &Event {
        &self.event
    }

    async fn tell(&self, verdict: Verdict) -> Result<(), TellError> {
        self.message
            .ack_with(match verdict {
                Verdict::Acknowledge => AckKind::Ack,
                Verdict::DeadLettered => AckKind::Term,
                Verdict::Again(after) => AckKind::Nak(Some(after)),
            })
            .await
    }

    async fn hold(&self) {
        loop {
            sleep(self.progress).await;
            // The next one may arrive; if none does, the event comes again as a duplicate.
            self.message.ack_with(AckKind::Progress).await.ok();
        }
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("subject", &self.message.subject)
            .field("event", &self.event)
            .finish_non_exhaustive()
    }
}
