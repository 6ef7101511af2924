//! Kafka, and whatever else has partitions, offsets and consumers that say how far they are.
//!
//! There nothing is acknowledged by itself: a consumer commits an offset, and everything before it counts as
//! done. Handled beside each other, events end in any order; so [`Offsets`] keeps, for each partition,
//! which were received and are not finished, and says up to where may be committed: to the first that
//! is not. After a crash or a rebalance the events from there on come again; those that were done are
//! duplicates.
//!
//! The tracker is for any client: it takes topic, partition and offset as they are, and gives the
//! offsets to commit. (Not an adapter for one client: librdkafka is minutes of C to build, and what an adapter
//! would add is the dozen lines below.)
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! use semel::inbox::Inbox;
//! use semel::memory::MemoryStore;
//! use semel_events::kafka::{Commit, Message, Offsets};
//! use semel_events::until_settled;
//!
//! let inbox = Inbox::new(MemoryStore::default(), "billing");
//! let offsets = Offsets::new();
//!
//! // The client turns automatic commits off, and tells of rebalances.
//! offsets.assigned("orders", 0);
//!
//! // Each message it polls, possibly in a task of its own:
//! let message = Message::new("orders", 0, 41, "body").with_id("order-4711/placed");
//! let delivery = offsets.delivery(message);
//! let settled = until_settled(&delivery, || async {
//!     let work = |_| async { Ok::<_, std::io::Error>(()) };
//!     inbox.receive(delivery.event(), work).await
//! });
//! settled.await.told?;
//!
//! // From time to time, and when partitions are revoked: what the client is to commit.
//! assert_eq!(offsets.to_commit(), [Commit::new("orders", 0, 42)]);
//! assert_eq!(offsets.revoked("orders", 0), None);
//! # use semel_events::Delivery as _;
//! # Ok(())
//! # }
//! ```

mod offsets;
mod partition;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use semel::inbox::Event;

use crate::{TellError, Verdict};

pub use offsets::Offsets;

/// A message, as a client polls it.
#[derive(Clone)]
pub struct Message {
    topic: Arc<str>,
    partition: i32,
    offset: i64,
    id: Option<Arc<str>>,
    body: Bytes,
}

/// How far a partition may be committed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Commit {
    /// The topic.
    pub topic: Arc<str>,
    /// The partition.
    pub partition: i32,
    /// The offset of the next message to be read, as Kafka wants it: everything before it is done.
    pub offset: i64,
}

/// A message in the hands of a consumer.
pub struct Delivery {
    offsets: Offsets,
    event: Event,
    message: Message,
    turn: u64,
}

impl Message {
    /// A message named by its place: its topic, partition and offset. What a producer sends twice are two
    /// events then, unless it is an idempotent one.
    pub fn new(topic: &str, partition: i32, offset: i64, body: impl Into<Bytes>) -> Self {
        Self {
            topic: topic.into(),
            partition,
            offset,
            id: None,
            body: body.into(),
        }
    }

    /// The same named by the producer: an id among its headers. Not the message's key: that names what
    /// the event is about, and many events have it.
    #[must_use]
    pub fn with_id(mut self, id: &str) -> Self {
        self.id = Some(id.into());
        self
    }

    fn event(&self) -> Event {
        match &self.id {
            Some(id) => Event::new(&*self.topic, &**id, self.body.clone()),
            // A name that no topic has: an id is never taken for an offset.
            None => {
                let source = format!("{}/{}", self.topic, self.partition);
                Event::new(source, self.offset.to_string(), self.body.clone())
            }
        }
    }
}

impl Commit {
    /// A partition and the next offset to be read.
    pub fn new(topic: &str, partition: i32, offset: i64) -> Self {
        Self {
            topic: topic.into(),
            partition,
            offset,
        }
    }
}

impl crate::Delivery for Delivery {
    fn event(&self) -> &Event {
        &self.event
    }

    /// Kafka delivers no single event again: [`Again`](Verdict::Again) leaves it unfinished, and its
    /// partition is committed no further until it is told something else. See
    /// [`until_settled`](crate::until_settled).
    async fn tell(&self, verdict: Verdict) -> Result<(), TellError> {
        if !matches!(verdict, Verdict::Again(_)) {
            let Message {
                topic,
                partition,
                offset,
                ..
            } = &self.message;
            self.offsets.finished(topic, *partition, *offset, self.turn);
        }
        Ok(())
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("topic", &self.topic)
            .field("partition", &self.partition)
            .field("offset", &self.offset)
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("message", &self.message)
            .field("event", &self.event)
            .finish_non_exhaustive()
    }
}
