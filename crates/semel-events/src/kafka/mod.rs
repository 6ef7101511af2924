//! Kafka, and other systems with partitions and offsets that consumers commit.
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
//! // Somebody takes what cannot be handled: no event stops the partition for ever.
//! let inbox = Inbox::new(MemoryStore::default(), "billing").with_dead_letters(shelve);
//! let offsets = Offsets::new();
//!
//! // The client turns automatic commits off, and tells of rebalances, which it learns of as it polls.
//! offsets.assigned("orders", 0);
//!
//! // Each message, made before the next poll:
//! let message = Message::new("orders", 0, 41, "body").with_id("order-4711/placed");
//! // In their order; then handled there, or in a task of its own:
//! let delivery = offsets.delivery(message);
//! let settled = until_settled(&delivery, || async {
//!     let work = |_| async { Ok::<_, std::io::Error>(()) };
//!     inbox.receive(delivery.event(), work).await
//! });
//! settled.await.told?;
//!
//! // From time to time, and when partitions are revoked: what the client is to commit.
//! for commit in offsets.to_commit() {
//!     assert_eq!(commit, Commit::new("orders", 0, 42));
//!     // Once the client has committed it:
//!     offsets.committed(&commit);
//! }
//! assert_eq!(offsets.revoked("orders", 0), None);
//! # use semel_events::Delivery as _;
//! # Ok(())
//! # }
//! # async fn shelve(_: semel::inbox::DeadLetter) -> std::io::Result<()> { Ok(()) }
//! ```

mod offsets;
mod partition;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use semel::inbox::Event;

use crate::{TellError, Verdict};

pub use offsets::Offsets;

/// A message, as a client polls it. It belongs to the assignment of its partition in which it was made:
/// make it where it is polled, before the next poll, however long it then waits.
#[derive(Clone)]
pub struct Message {
    topic: Arc<str>,
    partition: i32,
    offset: i64,
    id: Option<Arc<str>>,
    topic_id: Option<Arc<str>>,
    body: Bytes,
    made: u64,
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
    // None where its partition was not this consumer's any more.
    turn: Option<u64>,
}

/// Numbers messages and assignments in the order in which they are made.
fn next() -> u64 {
    static MADE: AtomicU64 = AtomicU64::new(1);
    MADE.fetch_add(1, Ordering::Relaxed)
}

impl Message {
    /// A message that has no name yet: give it [its producer's](Self::with_id), or [its
    /// place](Self::named_by_place). The inbox handles none without
    /// ([`NoId`](semel::inbox::InboxError::NoId)).
    pub fn new(topic: &str, partition: i32, offset: i64, body: impl Into<Bytes>) -> Self {
        Self {
            topic: topic.into(),
            partition,
            offset,
            id: None,
            topic_id: None,
            body: body.into(),
            made: next(),
        }
    }

    /// The same named by the producer: an id among its headers; an empty one is none. Not the
    /// message's key: that names what the event is about, and many events have it.
    #[must_use]
    pub fn with_id(mut self, id: &str) -> Self {
        self.id = Some(id.into()).filter(|id: &Arc<str>| !id.is_empty());
        self
    }

    /// The same named by its place, where the producer gives no id: by the topic, partition and
    /// offset. What a producer sends twice are two events then, unless it is an idempotent one.
    ///
    /// `topic_id` tells the topic from one of the same name that was deleted, whose offsets began at
    /// 0 as well: the id that Kafka gives each topic, or any text that you change when you make the
    /// topic anew.
    #[must_use]
    pub fn named_by_place(mut self, topic_id: &str) -> Self {
        self.topic_id = Some(topic_id.into());
        self
    }

    fn event(&self) -> Event {
        match (&self.id, &self.topic_id) {
            (Some(id), _) => Event::new(&*self.topic, &**id, self.body.clone()),
            // A name that no topic has: an id is never taken for an offset.
            (None, Some(topic_id)) => {
                let source = format!("{}/{}/{topic_id}", self.topic, self.partition);
                Event::new(source, self.offset.to_string(), self.body.clone())
            }
            (None, None) => Event::new(&*self.topic, "", self.body.clone()),
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
        if let (Some(turn), false) = (self.turn, matches!(verdict, Verdict::Again(_))) {
            self.offsets.finished(&self.message, turn);
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
