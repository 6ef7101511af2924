//! Events whose effects and records are one transaction, on every store that has one.
//!
//! The effect is a line in a ledger that refuses no second one: a double effect is there to be seen.

mod broker;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use semel::guard::{Policy, TransactOptions};
use semel::inbox::{Event, Inbox, InboxError, NewEvents, Receipt};
use semel::transaction::{Isolation, Lent, Transactional};
use tokio::sync::watch;

use broker::{Broker, chance};

/// A database with the records of a store and a ledger of effects.
trait Database: Clone + Send + Sync + 'static {
    type Store: Transactional;
    type Error: Error + Send + 'static;

    /// A store of one's own, as another process has it.
    fn open(&self) -> impl Future<Output = Self::Store> + Send;

    /// Writes a line for each id; refuses `poison`.
    fn write(
        &self,
        tx: Lent<<Self::Store as Transactional>::Transaction>,
        ids: Vec<String>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// The lines.
    fn ledger(&self) -> impl Future<Output = Vec<String>> + Send;
}

fn event(id: &str) -> Event {
    Event::new("orders", id, format!("body of {id}"))
}

fn options() -> TransactOptions {
    TransactOptions::default()
}

fn inbox<S: Transactional>(store: S) -> Inbox<S> {
    // Attempts that kills ended are no reason to set an event aside: there is no callback.
    Inbox::new(store, "ledger")
}

type Answer<D> = Result<Receipt, InboxError<<D as Database>::Error>>;

async fn batch<D: Database>(
    database: &D,
    inbox: &Inbox<D::Store>,
    events: &[Event],
    options: TransactOptions,
) -> Vec<Answer<D>> {
    let database = database.clone();
    let work = move |new: NewEvents, tx| {
        let (database, ids) = (database.clone(), ids(&new));
        async move { database.write(tx, ids).await }
    };
    inbox.transact_batch(events, options, work).await
}

async fn one<D: Database>(database: &D, inbox: &Inbox<D::Store>, event: &Event) -> Answer<D> {
    let (database, id) = (database.clone(), event.id().to_owned());
    let work = move |_, tx| {
        let (database, ids) = (database.clone(), vec![id.clone()]);
        async move { database.write(tx, ids).await }
    };
    inbox.transact(event, options(), work).await
}

fn ids(new: &NewEvents) -> Vec<String> {
    let ids = new.events.iter().map(|(event, _)| event.id().to_owned());
    ids.collect()
}

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort_unstable();
    lines
}

const EVENTS: usize = 150;
const CONSUMERS: u64 = 6;
const KILLS: u32 = 24;

/// Each event is delivered 3 to 10 times in random order, to consumers that die again and again and
/// whose events are then delivered once more: each is applied once.
fn deliveries_race_and_consumers_die<D: Database>(database: &D) {
    let looking = tokio::runtime::Runtime::new().unwrap();
    let (mut names, mut kills) = (Vec::new(), 0);
    // The work of a round may run out before the last of its kills.
    for round in 0..8 {
        let new: Vec<String> = (0..EVENTS)
            .map(|number| format!("event-{round}-{number:03}"))
            .collect();
        let broker = Broker::new(&new);
        let begun = broker.left();
        std::thread::scope(|scope| {
            for consumer in 0..CONSUMERS {
                let broker = &broker;
                scope.spawn(move || while consume(database, broker, consumer) {});
            }
        });
        names.extend(new);
        assert_eq!(sorted(looking.block_on(database.ledger())), names);
        kills += broker.kills();
        let deliveries = broker.deliveries();
        println!("{begun} deliveries became {deliveries}, {kills} kills so far");
        if kills >= KILLS * 2 / 3 {
            return;
        }
    }
    panic!("{kills} kills with deliveries in hand");
}

/// A database that tells how many transactions have begun to write in it.
#[derive(Clone)]
struct Watched<D> {
    database: D,
    begun: watch::Sender<u64>,
}

impl<D: Database> Database for Watched<D> {
    type Store = D::Store;
    type Error = D::Error;

    async fn open(&self) -> D::Store {
        self.database.open().await
    }

    async fn write(
        &self,
        tx: Lent<<D::Store as Transactional>::Transaction>,
        ids: Vec<String>,
    ) -> Result<(), D::Error> {
        self.begun.send_modify(|begun| *begun += 1);
        self.database.write(tx, ids).await
    }

    async fn ledger(&self) -> Vec<String> {
        self.database.ledger().await
    }
}

/// One life of a consumer: until there is nothing left, or it is killed. Whether it is to live again.
fn consume<D: Database>(database: &D, broker: &Broker, consumer: u64) -> bool {
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.worker_threads(1).enable_all().build().unwrap();
    let database = &Watched {
        database: database.clone(),
        begun: watch::Sender::default(),
    };
    let mut begun = database.begun.subscribe();
    let dying = async move {
        match broker.dies_in(KILLS) {
            Some(writes) => begun.wait_for(|begun| *begun >= writes).await.map(drop),
            None => std::future::pending().await,
        }
        .unwrap();
        // Before the commit, during it, and after it.
        tokio::time::sleep(Duration::from_micros(chance(8000))).await;
    };
    let done = runtime.block_on(async {
        let brief = Policy::default().with_lease(Duration::from_millis(400));
        let inbox = inbox(database.open().await).with_policy(brief);
        let working = async {
            while let Some(names) = broker.take(consumer) {
                let events: Vec<_> = names.iter().map(|name| event(name)).collect();
                let answers = match &events[..] {
                    [event] => vec![one(database, &inbox, event).await],
                    events => batch(database, &inbox, events, options()).await,
                };
                for (name, answer) in names.into_iter().zip(answers) {
                    match answer {
                        Ok(Receipt::Handled | Receipt::Duplicate) => {
                            broker.acknowledge(consumer, &name);
                        }
                        Ok(Receipt::DeadLettered) => panic!("{name} was set aside"),
                        Err(_) => broker.give_back(consumer, &name),
                    }
                }
                // What is in flight elsewhere is not asked for all the time.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::select! {
            () = working => true,
            () = dying => false,
        }
    });
    // Its tasks end wherever they are, and its connections with them.
    runtime.shutdown_background();
    if !done {
        broker.killed(consumer);
    }
    !done
}

/// An event that the database refuses fails alone, and in the end is set aside.
async fn one_that_the_database_refuses_holds_up_nobody<D: Database>(database: &D) {
    let taken = Arc::new(Mutex::new(Vec::new()));
    let takes = taken.clone();
    let inbox = inbox(database.open().await)
        .with_max_attempts(2)
        .with_dead_letters(move |poison| {
            takes.lock().push(poison);
            async { Ok::<_, std::io::Error>(()) }
        });
    let names = ["a", "b", "poison", "c", "d"];
    let events = names.map(event);
    for round in 0..3 {
        let answers = batch(database, &inbox, &events, options()).await;
        for (name, answer) in names.iter().zip(&answers) {
            let good = match (*name, round) {
                ("poison", 0) => matches!(answer, Err(InboxError::Failed { attempt: 1, .. })),
                ("poison", _) => matches!(answer, Ok(Receipt::DeadLettered)),
                (_, 0) => matches!(answer, Ok(Receipt::Handled)),
                _ => matches!(answer, Ok(Receipt::Duplicate)),
            };
            assert!(good, "{name} in round {round}: {answer:?}");
        }
    }
    assert_eq!(sorted(database.ledger().await), ["a", "b", "c", "d"]);
    let taken = taken.lock();
    assert_eq!((taken.len(), taken[0].errors.len()), (1, 2));
}

/// Batches with the same events in other orders, at every isolation: no deadlock keeps one.
async fn batches_that_overlap_end<D: Database>(database: &D) {
    let names: Vec<String> = (0..40).map(|number| format!("event-{number:02}")).collect();
    let levels = [
        Isolation::ReadCommitted,
        Isolation::RepeatableRead,
        Isolation::Serializable,
    ];
    let consumers = (0..6_usize).map(|consumer| {
        let (database, mut names) = (database.clone(), names.clone());
        names.rotate_left(7 * consumer);
        if consumer % 2 == 1 {
            names.reverse();
        }
        tokio::spawn(async move {
            let inbox = inbox(database.open().await);
            let options = options().with_isolation(levels[consumer % 3]);
            let mut left: Vec<_> = names.iter().map(|name| event(name)).collect();
            while !left.is_empty() {
                let answers = batch(&database, &inbox, &left, options).await;
                let answers = left.into_iter().zip(answers);
                left = answers
                    .filter_map(|(event, answer)| match answer {
                        Ok(_) => None,
                        Err(InboxError::InFlight { .. }) => Some(event),
                        Err(error) => panic!("{event:?}: {error:?}"),
                    })
                    .collect();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
    });
    for consumer in consumers.collect::<Vec<_>>() {
        consumer.await.unwrap();
    }
    assert_eq!(sorted(database.ledger().await), names);
}
