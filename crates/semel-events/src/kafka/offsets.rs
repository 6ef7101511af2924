//! All partitions of a consumer.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::partition::Partition;
use super::{Commit, Delivery, Message, next};

/// Which offsets a consumer may commit. Cloning shares it.
///
/// A partition that is revoked is forgotten, with all that is under way in it and all messages of it
/// that were made before: what ends later has no effect on what the next consumer, or this one in a
/// later assignment, commits. The work itself is not stopped; should the event be delivered elsewhere meanwhile, it is
/// [`InFlight`](semel::inbox::InboxError::InFlight) there, and then a duplicate.
#[derive(Clone, Default)]
pub struct Offsets(Arc<Mutex<Inside>>);

#[derive(Default)]
struct Inside {
    partitions: HashMap<(Arc<str>, i32), Tracked>,
    /// Assignments are said; until then each partition is taken as assigned.
    told: bool,
}

/// A partition in one assignment.
struct Tracked {
    /// When it began: only later messages belong to it.
    turn: u64,
    // None until something is received: a consumer is told where it begins by its first message.
    partition: Option<Partition>,
}

impl Tracked {
    const fn since(turn: u64) -> Self {
        let partition = None;
        Self { turn, partition }
    }
}

impl Offsets {
    /// Of a consumer to which nothing is assigned yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The partition is this consumer's from now on; one that it has goes on. Say it for all
    /// partitions or for none. One that is to be read from another offset (a seek) is first
    /// [revoked](Self::revoked).
    pub fn assigned(&self, topic: &str, partition: i32) {
        let mut inside = self.0.lock();
        inside.told = true;
        let place = (topic.into(), partition);
        let partitions = &mut inside.partitions;
        partitions
            .entry(place)
            .or_insert_with(|| Tracked::since(next()));
    }

    /// The partition is this consumer's no longer. What may be committed for it before it is given
    /// up, if anything.
    pub fn revoked(&self, topic: &str, partition: i32) -> Option<Commit> {
        let mut inside = self.0.lock();
        inside.told = true;
        let removed = inside.partitions.remove(&(topic.into(), partition));
        drop(inside);
        let offset = removed?.partition?.to_commit()?;
        Some(Commit::new(topic, partition, offset))
    }

    /// A message that was polled: unfinished until it is told otherwise. To be called for the messages
    /// of a partition in their order, before they go to tasks of their own: a message that it was not
    /// called for holds nothing up. Where its partition is not this
    /// consumer's any more, or was another time when the message was made, nothing is committed for
    /// it. Where assignments are never said, each partition is taken as assigned.
    pub fn delivery(&self, message: Message) -> Delivery {
        let mut inside = self.0.lock();
        let place = (message.topic.clone(), message.partition);
        if !inside.told {
            let partitions = &mut inside.partitions;
            partitions.entry(place.clone()).or_insert(Tracked::since(0));
        }
        let tracked = inside.partitions.get_mut(&place);
        let turn = tracked
            .filter(|tracked| tracked.turn < message.made)
            .map(|tracked| {
                tracked
                    .partition
                    .get_or_insert_with(|| Partition::new(message.offset))
                    .received(message.offset);
                tracked.turn
            });
        drop(inside);
        Delivery {
            offsets: self.clone(),
            event: message.event(),
            message,
            turn,
        }
    }

    pub(super) fn finished(&self, message: &Message, turn: u64) {
        let mut inside = self.0.lock();
        let place = (message.topic.clone(), message.partition);
        let tracked = inside.partitions.get_mut(&place);
        if let Some(tracked) = tracked.filter(|tracked| tracked.turn == turn)
            && let Some(partition) = &mut tracked.partition
        {
            partition.finished(message.offset);
        }
    }

    /// What the client is to commit now: the partitions that are further than was
    /// [committed](Self::committed), in their order. A commit that fails is in the next answer again.
    pub fn to_commit(&self) -> Vec<Commit> {
        let inside = self.0.lock();
        let partitions = inside.partitions.iter();
        let mut all: Vec<_> = partitions
            .filter_map(|((topic, number), tracked)| {
                let offset = tracked.partition.as_ref()?.to_commit()?;
                Some(Commit::new(topic, *number, offset))
            })
            .collect();
        drop(inside);
        all.sort_unstable_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
        all
    }

    /// The client did commit it.
    pub fn committed(&self, commit: &Commit) {
        let mut inside = self.0.lock();
        let place = (commit.topic.clone(), commit.partition);
        let tracked = inside.partitions.get_mut(&place);
        if let Some(partition) = tracked.and_then(|tracked| tracked.partition.as_mut()) {
            partition.committed(commit.offset);
        }
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

    /// What a client commits that is never refused.
    fn commit(offsets: &Offsets) -> Vec<Commit> {
        let all = offsets.to_commit();
        all.iter().for_each(|commit| offsets.committed(commit));
        all
    }

    #[tokio::test]
    async fn each_partition_goes_its_own_way() {
        let offsets = Offsets::new();
        let all: Vec<_> = [(1, 7), (0, 3), (1, 8), (0, 4)]
            .map(|(partition, offset)| offsets.delivery(message(partition, offset)))
            .into();
        assert_eq!(commit(&offsets), []);
        let unfinished = [0, 1, 2].map(|partition| offsets.unfinished("orders", partition));
        assert_eq!(unfinished, [2, 2, 0]);
        for delivery in &all[1..] {
            finish(delivery).await;
        }
        assert_eq!(commit(&offsets), [Commit::new("orders", 0, 5)]);
        assert_eq!(offsets.unfinished("orders", 1), 1);
        let again = Verdict::Again(std::time::Duration::ZERO);
        all[0].tell(again).await.unwrap();
        assert_eq!(commit(&offsets), []);
        all[0].tell(Verdict::DeadLettered).await.unwrap();
        assert_eq!(commit(&offsets), [Commit::new("orders", 1, 9)]);
        assert_eq!(commit(&offsets), []);
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
        assert_eq!(commit(&offsets), []);
        finish(&again).await;
        assert_eq!(commit(&offsets), [Commit::new("orders", 0, 8)]);
    }

    /// 5 is being handled and 6 waits in a channel when the partition moves.
    #[tokio::test]
    async fn a_message_from_before_a_rebalance_brings_no_partition_back() {
        let offsets = Offsets::new();
        offsets.assigned("orders", 0);
        let (five, six) = (message(0, 5), message(0, 6));
        let five = offsets.delivery(five);
        assert_eq!(offsets.revoked("orders", 0), None);
        let late = offsets.delivery(six.clone());
        finish(&late).await;
        assert_eq!(offsets.to_commit(), []);
        // It comes back: the next message is 5, since nothing was committed.
        offsets.assigned("orders", 0);
        let late = offsets.delivery(six);
        finish(&late).await;
        assert_eq!(offsets.to_commit(), []);
        let again = offsets.delivery(message(0, 5));
        finish(&five).await;
        assert_eq!(offsets.to_commit(), []);
        finish(&again).await;
        assert_eq!(offsets.to_commit(), [Commit::new("orders", 0, 6)]);
    }

    #[tokio::test]
    async fn a_commit_that_failed_is_asked_for_again() {
        let offsets = Offsets::new();
        offsets.assigned("orders", 0);
        finish(&offsets.delivery(message(0, 5))).await;
        let last = [Commit::new("orders", 0, 6)];
        // The last one of a partition in which nothing happens any more.
        assert_eq!(offsets.to_commit(), last);
        assert_eq!(offsets.to_commit(), last);
        offsets.committed(&last[0]);
        assert_eq!(offsets.to_commit(), []);
    }

    /// Numbers that look random, the same each time for one seed.
    struct Chance(u64);

    impl Chance {
        fn below(&mut self, below: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % below
        }
    }

    /// A consumer that polls, keeps messages in a channel, handles them in any order and commits,
    /// while its partition comes and goes: nothing is committed over a message that was not handled.
    #[tokio::test]
    async fn in_any_order_nothing_is_committed_over_what_is_not_finished() {
        let (mut commits, mut late) = (0, 0);
        for seed in 1..=500 {
            let mut chance = Chance(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
            // With gaps.
            let log: Vec<i64> = (0..60).filter(|_| chance.below(4) > 0).collect();
            let mut handled = std::collections::HashSet::new();
            let (offsets, mut on_server, mut reads) = (Offsets::new(), 0, None);
            let (mut waiting, mut in_hand) = (Vec::new(), Vec::new());
            for _ in 0..400 {
                match chance.below(10) {
                    0 if chance.below(4) == 0 => {
                        let last = offsets.revoked("orders", 0);
                        reads = None;
                        if let Some(last) = last.filter(|_| chance.below(2) == 0) {
                            let before = log.iter().filter(|&&offset| offset < last.offset);
                            assert!(before.clone().all(|o| handled.contains(o)), "seed {seed}");
                            on_server = last.offset;
                        }
                    }
                    1 | 2 if reads.is_none() => {
                        offsets.assigned("orders", 0);
                        reads = Some(on_server);
                    }
                    3..=5 => {
                        let next = log.iter().find(|&&offset| Some(offset) >= reads);
                        if let (Some(&next), Some(place)) = (next, &mut reads) {
                            waiting.push(message(0, next));
                            *place = next + 1;
                        }
                    }
                    6 if !waiting.is_empty() => {
                        let message = waiting.remove(0);
                        late += u32::from(reads.is_none());
                        in_hand.push((message.offset, offsets.delivery(message)));
                    }
                    7 | 8 if !in_hand.is_empty() => {
                        let which = chance.below(in_hand.len() as u64);
                        let (offset, delivery) =
                            in_hand.swap_remove(usize::try_from(which).unwrap());
                        handled.insert(offset);
                        finish(&delivery).await;
                    }
                    _ => {
                        for commit in offsets.to_commit() {
                            let before = log.iter().filter(|&&offset| offset < commit.offset);
                            let lost: Vec<_> = before.filter(|o| !handled.contains(*o)).collect();
                            assert!(lost.is_empty(), "seed {seed}: {commit:?} over {lost:?}");
                            assert!(commit.offset > on_server, "seed {seed}: {commit:?}");
                            // Some fail.
                            if chance.below(3) > 0 {
                                on_server = commit.offset;
                                offsets.committed(&commit);
                                commits += 1;
                            }
                        }
                    }
                }
            }
        }
        assert!(
            commits > 1000 && late > 1000,
            "{commits} commits, {late} late"
        );
    }

    #[test]
    fn a_message_is_named_by_its_place_or_by_its_producer() {
        let by_place = message(2, 9).with_id("").named_by_place("5fbd").event();
        assert_eq!((by_place.source(), by_place.id()), ("orders/2/5fbd", "9"));
        assert_eq!(message(2, 9).event().id(), "");
        let by_producer = message(2, 9).named_by_place("5fbd").with_id("placed");
        let by_producer = by_producer.event();
        assert_eq!(
            (by_producer.source(), by_producer.id()),
            ("orders", "placed")
        );
    }
}
