//! All partitions of a consumer.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::partition::Partition;
use super::{Commit, Delivery, Message};

/// Which offsets a consumer may commit. Cloning shares it.
///
/// A partition that is revoked is forgotten, with all that is under way in it: what ends later has no
/// effect on what the next consumer, or this one in a later assignment, commits. The work itself is not
/// stopped; should the event be delivered elsewhere meanwhile, it is
/// [`InFlight`](semel::inbox::InboxError::InFlight) there, and then a duplicate.
#[derive(Clone, Default)]
pub struct Offsets(Arc<Mutex<Inside>>);

#[derive(Default)]
struct Inside {
    partitions: HashMap<(Arc<str>, i32), Tracked>,
    turns: u64,
}

struct Tracked {
    turn: u64,
    // None until something is received: a consumer is told where it begins by its first message.
    partition: Option<Partition>,
}

impl Inside {
    fn next(&mut self) -> Tracked {
        self.turns += 1;
        Tracked {
            turn: self.turns,
            partition: None,
        }
    }
}

impl Offsets {
    /// Of a consumer to which nothing is assigned yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The partition is this consumer's from now on. One that it had before begins anew.
    pub fn assigned(&self, topic: &str, partition: i32) {
        let mut inside = self.0.lock();
        let fresh = inside.next();
        inside.partitions.insert((topic.into(), partition), fresh);
    }

    /// The partition is this consumer's no longer. What may be committed for it before it is given
    /// up, if anything.
    pub fn revoked(&self, topic: &str, partition: i32) -> Option<Commit> {
        let removed = self.0.lock().partitions.remove(&(topic.into(), partition));
        let offset = removed?.partition?.advance()?;
        Some(Commit::new(topic, partition, offset))
    }

    /// A message that was polled: unfinished until it is told otherwise. Its partition is taken as
    /// assigned, where nobody said so.
    pub fn delivery(&self, message: Message) -> Delivery {
        let mut inside = self.0.lock();
        let place = (message.topic.clone(), message.partition);
        let fresh = inside.next();
        let tracked = inside.partitions.entry(place).or_insert(fresh);
        let turn = tracked.turn;
        tracked
            .partition
            .get_or_insert_with(|| Partition::new(message.offset))
            .received(message.offset);
        drop(inside);
        Delivery {
            offsets: self.clone(),
            event: message.event(),
            message,
            turn,
        }
    }

    pub(super) fn finished(&self, topic: &Arc<str>, partition: i32, offset: i64, turn: u64) {
        let mut inside = self.0.lock();
        let tracked = inside.partitions.get_mut(&(topic.clone(), partition));
        if let Some(tracked) = tracked.filter(|tracked| tracked.turn == turn)
            && let Some(partition) = &mut tracked.partition
        {
            partition.finished(offset);
        }
    }

    /// What the client is to commit now: the partitions that got further since this was asked last,
    /// in their order. A commit that fails needs no other try: the next one goes further.
    pub fn to_commit(&self) -> Vec<Commit> {
        let mut inside = self.0.lock();
        let partitions = inside.partitions.iter_mut();
        let mut all: Vec<_> = partitions
            .filter_map(|((topic, number), tracked)| {
                let offset = tracked.partition.as_mut()?.advance()?;
                Some(Commit::new(topic, *number, offset))
            })
            .collect();
        drop(inside);
        all.sort_unstable_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
        all
    }

    /// How many messages of the partition are not finished: where there are many, pause it.
    pub fn unfinished(&self, topic: &str, partition: i32) -> usize {
        let inside = self.0.lock();
        let tracked = inside.partitions.get(&(topic.into(), partition));
        tracked
            .and_then(|tracked| tracked.partition.as_ref())
            .map_or(0, Partition::unfinished)
    }
}

impl fmt::Debug for Offsets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offsets")
            .field("partitions", &self.0.lock().partitions.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Delivery as _, Verdict};

    async fn finish(delivery: &Delivery) {
        delivery.tell(Verdict::Acknowledge).await.unwrap();
    }

    fn message(partition: i32, offset: i64) -> Message {
        Message::new("orders", partition, offset, "body")
    }

    #[tokio::test]
    async fn each_partition_goes_its_own_way() {
        let offsets = Offsets::new();
        let all: Vec<_> = [(1, 7), (0, 3), (1, 8), (0, 4)]
            .map(|(partition, offset)| offsets.delivery(message(partition, offset)))
            .into();
        assert_eq!(offsets.to_commit(), []);
        for delivery in &all[1..] {
            finish(delivery).await;
        }
        assert_eq!(offsets.to_commit(), [Commit::new("orders", 0, 5)]);
        assert_eq!(offsets.unfinished("orders", 1), 1);
        let again = Verdict::Again(std::time::Duration::ZERO);
        all[0].tell(again).await.unwrap();
        assert_eq!(offsets.to_commit(), []);
        all[0].tell(Verdict::DeadLettered).await.unwrap();
        assert_eq!(offsets.to_commit(), [Commit::new("orders", 1, 9)]);
        assert_eq!(offsets.to_commit(), []);
    }

    #[tokio::test]
    async fn what_ends_after_a_rebalance_moves_nothing() {
        let offsets = Offsets::new();
        offsets.assigned("orders", 0);
        let (five, six) = (
            offsets.delivery(message(0, 5)),
            offsets.delivery(message(0, 6)),
        );
        finish(&five).await;
        assert_eq!(
            offsets.revoked("orders", 0),
            Some(Commit::new("orders", 0, 6))
        );
        assert_eq!(offsets.revoked("orders", 0), None);
        // It comes back, and the same message with it, while the first delivery is under way.
        offsets.assigned("orders", 0);
        let again = offsets.delivery(message(0, 6));
        let seven = offsets.delivery(message(0, 7));
        finish(&six).await;
        finish(&seven).await;
        assert_eq!(offsets.to_commit(), []);
        finish(&again).await;
        assert_eq!(offsets.to_commit(), [Commit::new("orders", 0, 8)]);
    }

    #[test]
    fn a_message_is_named_by_its_place_or_by_its_producer() {
        let by_place = message(2, 9).event();
        assert_eq!((by_place.source(), by_place.id()), ("orders/2", "9"));
        let by_producer = message(2, 9).with_id("placed").event();
        assert_eq!(
            (by_producer.source(), by_producer.id()),
            ("orders", "placed")
        );
    }
}
