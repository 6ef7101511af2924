//! Partitions with offsets: a log as Kafka keeps it, two consumers between which partitions move while
//! messages wait and are under way, and that die.

use std::collections::{HashMap, HashSet};
use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use parking_lot::Mutex;
use semel_events::kafka::{Commit, Message, Offsets};
use semel_events::{Delivery as _, until_settled};
use tokio::sync::mpsc::{Sender, channel};
use tokio::time::{sleep, timeout};

use crate::ledger::{Ledger, chance, killed_in_hand, names};

const PARTITIONS: usize = 4;
const EACH: usize = 40;
const KILLS: u32 = 6;
const MOVES: u32 = 20;

/// What the brokers keep: the messages of each partition, how far its consumers are, and which of
/// them is to have it, and has it.
struct Log {
    partitions: Vec<Vec<String>>,
    committed: Mutex<Vec<usize>>,
    owners: Mutex<Vec<(u64, Option<u64>)>>,
    /// Partitions that moved while messages of theirs were not finished.
    moved: AtomicU32,
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
        let committed = &mut self.committed.lock()[partition];
        *committed = offset.max(*committed);
    }

    fn is_done(&self) -> bool {
        let committed = self.committed.lock();
        let mut partitions = self.partitions.iter().zip(&*committed);
        partitions.all(|(all, committed)| all.len() == *committed)
    }

    /// Has partitions move, until enough did.
    async fn rebalance(&self) {
        while self.moved.load(Ordering::Relaxed) < MOVES {
            sleep(Duration::from_millis(5 + chance(30))).await;
            let which = usize::try_from(chance(PARTITIONS as u64)).unwrap();
            self.owners.lock()[which].0 ^= 1;
        }
        pending::<()>().await;
    }

    /// What a client does: it learns of rebalances as it polls, and its messages wait in a channel.
    async fn poll(&self, ledger: &Ledger, offsets: &Offsets, me: u64, to: Sender<Message>) {
        let mut reads: HashMap<usize, usize> = HashMap::new();
        while !self.is_done() {
            for number in 0..PARTITIONS {
                let partition = i32::try_from(number).unwrap();
                let owner = &mut self.owners.lock()[number];
                match *owner {
                    (to_have, Some(has)) if has == me && to_have != me => {
                        let unfinished = offsets.unfinished("events", partition) > 0;
                        self.moved
                            .fetch_add(u32::from(unfinished), Ordering::Relaxed);
                        // Some fail.
                        let last = offsets.revoked("events", partition);
                        if let Some(last) = last.filter(|_| chance(2) == 0) {
                            self.commit(&last, ledger);
                        }
                        reads.remove(&number);
                        owner.1 = None;
                    }
                    (to_have, None) if to_have == me => {
                        offsets.assigned("events", partition);
                        reads.insert(number, self.committed.lock()[number]);
                        owner.1 = Some(me);
                    }
                    _ => {}
                }
            }
            for (&number, offset) in &mut reads {
                if let Some(name) = self.partitions[number].get(*offset) {
                    let partition = i32::try_from(number).unwrap();
                    let at = i64::try_from(*offset).unwrap();
                    let message = Message::new("events", partition, at, name.clone()).with_id(name);
                    // A channel that is full is tried again.
                    *offset += usize::from(to.try_send(message).is_ok());
                }
            }
            sleep(Duration::from_millis(1)).await;
        }
    }
}

/// One consumer. Ends where all is committed.
async fn consume(log: &Log, ledger: &Ledger, me: u64) {
    let (inbox, offsets) = (ledger.inbox(), Offsets::new());
    let (to, mut from) = channel(8);
    let handling =
        stream::poll_fn(|context| from.poll_recv(context)).for_each_concurrent(6, |message| {
            // In their order, however long they waited.
            let (inbox, offsets, delivery) = (&inbox, &offsets, offsets.delivery(message));
            async move {
                // Some take longer than those after them.
                sleep(Duration::from_millis(chance(6))).await;
                let settled = until_settled(&delivery, || ledger.write(inbox, delivery.event()));
                settled.await.told.unwrap();
                for commit in offsets.to_commit() {
                    // Some fail.
                    if chance(3) > 0 {
                        log.commit(&commit, ledger);
                        offsets.committed(&commit);
                    }
                }
            }
        });
    let idle = async {
        while !log.is_done() {
            sleep(Duration::from_millis(10)).await;
            for commit in offsets.to_commit() {
                log.commit(&commit, ledger);
                offsets.committed(&commit);
            }
        }
    };
    tokio::join!(handling, idle, log.poll(ledger, &offsets, me, to));
}

#[test]
fn partitions_move_consumers_die_and_each_event_is_applied_once() {
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
        owners: Mutex::new(vec![(0, None); PARTITIONS]),
        moved: AtomicU32::new(0),
    };
    let both = async || {
        tokio::select! {
            _ = async { tokio::join!(consume(&log, &ledger, 0), consume(&log, &ledger, 1)) } => {}
            () = log.rebalance() => {}
        }
    };
    for _ in 0..KILLS {
        killed_in_hand(&ledger, Duration::from_millis(chance(20)), both);
        // Nobody is left who has one.
        for (_, has) in &mut *log.owners.lock() {
            *has = None;
        }
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async { timeout(Duration::from_secs(60), both()).await.unwrap() });
    let moved = log.moved.load(Ordering::Relaxed);
    assert!(moved > 1, "{moved} moved");
    assert_eq!(ledger.lines(), names);
    assert!(ledger.taken().is_empty());
}
