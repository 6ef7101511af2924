//! Partitions with offsets: a log as Kafka keeps it, consumers that die, and rebalances.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use parking_lot::Mutex;
use semel_events::kafka::{Commit, Message, Offsets};
use semel_events::{Delivery as _, until_settled};

use crate::ledger::{Ledger, chance, names};

const PARTITIONS: usize = 4;
const EACH: usize = 30;

/// What the brokers keep: the messages of each partition, and how far its consumers are.
struct Log {
    partitions: Vec<Vec<String>>,
    committed: Mutex<Vec<usize>>,
}

impl Log {
    fn commit(&self, commit: &Commit, ledger: &Ledger) {
        let (partition, offset) = (
            usize::try_from(commit.partition).unwrap(),
            usize::try_from(commit.offset).unwrap(),
        );
        // Nothing is left behind.
        let lines: HashSet<String> = ledger.lines().into_iter().collect();
        let before = &self.partitions[partition][..offset];
        assert!(before.iter().all(|name| lines.contains(name)), "{commit:?}");
        self.committed.lock()[partition] = offset;
    }

    fn is_done(&self) -> bool {
        let committed = self.committed.lock();
        let mut partitions = self.partitions.iter().zip(&*committed);
        partitions.all(|(all, committed)| all.len() == *committed)
    }
}

/// One consumer in one assignment. Ends where all of it is committed.
async fn consume(log: &Log, ledger: &Ledger, offsets: &Offsets, assigned: &[usize]) {
    let inbox = ledger.inbox();
    let messages = assigned.iter().flat_map(|&number| {
        let partition = i32::try_from(number).unwrap();
        offsets.assigned("events", partition);
        let begin = log.committed.lock()[number];
        let left = log.partitions[number].iter().enumerate().skip(begin);
        left.map(move |(offset, name)| {
            let offset = i64::try_from(offset).unwrap();
            Message::new("events", partition, offset, name.clone()).with_id(name)
        })
    });
    let messages: Vec<_> = messages.collect();
    stream::iter(messages)
        .for_each_concurrent(6, |message| {
            let (inbox, delivery) = (&inbox, offsets.delivery(message));
            async move {
                // Some take longer than those after them.
                tokio::time::sleep(Duration::from_millis(chance(6))).await;
                let settled = until_settled(&delivery, || ledger.write(inbox, delivery.event()));
                settled.await.told.unwrap();
                for commit in offsets.to_commit() {
                    log.commit(&commit, ledger);
                }
            }
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn consumers_die_partitions_move_and_each_event_is_applied_once() {
    let ledger = Ledger::new();
    let names = names(PARTITIONS * EACH);
    // Each is produced twice, by a producer that got no answer.
    let partitions = names.chunks(EACH).map(|chunk| {
        let twice = chunk.iter().flat_map(|name| [name.clone(), name.clone()]);
        twice.collect()
    });
    let log = Log {
        partitions: partitions.collect(),
        committed: Mutex::new(vec![0; PARTITIONS]),
    };
    let (mut kills, mut lives) = (0, 0);
    while !log.is_done() {
        lives += 1;
        let (mine, yours): (Vec<_>, Vec<_>) = (0..PARTITIONS).partition(|_| chance(2) == 0);
        let (one, other) = (Offsets::new(), Offsets::new());
        let both = async {
            tokio::join!(
                consume(&log, &ledger, &one, &mine),
                consume(&log, &ledger, &other, &yours)
            )
        };
        if tokio::time::timeout(Duration::from_millis(60 + chance(200)), both)
            .await
            .is_err()
        {
            kills += 1;
        }
        // Half of them may say how far they are before they give up.
        for number in mine {
            let partition = i32::try_from(number).unwrap();
            if let Some(commit) = one.revoked("events", partition) {
                log.commit(&commit, &ledger);
            }
        }
        assert!(lives < 500, "no end");
    }
    assert!(kills > 1, "{kills}");
    assert_eq!(ledger.lines(), names);
    assert!(ledger.taken().is_empty());
}
