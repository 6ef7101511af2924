//! The effects: lines in a ledger that takes any line twice, so that a double effect is seen.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use semel::guard::{Policy, TransactOptions};
use semel::inbox::{DeadLetter, Event, Inbox};
use semel::store::Nonce;
use semel::transaction::Lent;
use semel_events::Answer;
use semel_stores::sqlite::rusqlite::{Connection, Error};
use semel_stores::{Schema, SqliteOptions, SqliteStore, SqliteTransaction};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::sleep;

type Tx = Lent<SqliteTransaction>;

#[derive(Clone)]
pub(crate) struct Ledger {
    path: PathBuf,
    /// How often work has begun.
    begun: watch::Sender<u32>,
    /// How many deliveries were not the first.
    again: Arc<AtomicU32>,
    taken: Arc<Mutex<Vec<DeadLetter>>>,
    _directory: Arc<TempDir>,
}

impl Ledger {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger.db");
        let options = SqliteOptions::new().schema(Schema::Create);
        options.open(&path).unwrap();
        let sql = "CREATE TABLE lines (line TEXT CHECK (line NOT LIKE 'poison%'))";
        Connection::open(&path).unwrap().execute_batch(sql).unwrap();
        Self {
            path,
            begun: watch::Sender::new(0),
            again: Arc::default(),
            taken: Arc::default(),
            _directory: Arc::new(directory),
        }
    }

    /// As another process opens it: a consumer whose claims are free soon after it died.
    pub(crate) fn inbox(&self) -> Inbox<SqliteStore> {
        let store = SqliteOptions::new().open(&self.path).unwrap();
        let brief = Policy::default().with_lease(Duration::from_millis(500));
        Inbox::new(store, "ledger").with_policy(brief)
    }

    /// The same, where an event that fails twice is set aside.
    #[cfg(any(feature = "nats", feature = "rabbitmq"))]
    pub(crate) fn strict_inbox(&self) -> Inbox<SqliteStore> {
        let taken = self.taken.clone();
        let take = move |poison| {
            taken.lock().push(poison);
            async { Ok::<_, std::io::Error>(()) }
        };
        self.inbox().with_max_attempts(2).with_dead_letters(take)
    }

    /// Writes the event's body into the ledger.
    pub(crate) async fn write(&self, inbox: &Inbox<SqliteStore>, event: &Event) -> Answer<Error> {
        let line = String::from_utf8(event.body().to_vec()).unwrap();
        if event.delivery() > Some(1) {
            self.again.fetch_add(1, Ordering::Relaxed);
        }
        let begun = self.begun.clone();
        let work = move |_, mut tx: Tx| {
            let (line, begun) = (line.clone(), begun.clone());
            async move {
                tx.call(|on| on.execute("INSERT INTO lines VALUES (?1)", [line]))
                    .await?;
                begun.send_modify(|begun| *begun += 1);
                sleep(Duration::from_millis(chance(4))).await;
                Ok(())
            }
        };
        inbox
            .transact(event, TransactOptions::default(), work)
            .await
    }

    /// The same for many, in one transaction where they are good.
    #[cfg(any(feature = "nats", feature = "rabbitmq"))]
    pub(crate) async fn write_all(
        &self,
        inbox: &Inbox<SqliteStore>,
        events: Vec<Event>,
    ) -> Vec<Answer<Error>> {
        let work = |new: semel::inbox::NewEvents, mut tx: Tx| async move {
            tx.call(move |on| {
                new.events.iter().try_for_each(|(event, _)| {
                    let line = String::from_utf8_lossy(event.body());
                    on.execute("INSERT INTO lines VALUES (?1)", [line])
                        .map(drop)
                })
            })
            .await
        };
        inbox
            .transact_batch(&events, TransactOptions::default(), work)
            .await
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let ledger = Connection::open(&self.path).unwrap();
        let mut select = ledger
            .prepare("SELECT line FROM lines ORDER BY line")
            .unwrap();
        let lines = select.query_map([], |row| row.get(0)).unwrap();
        lines.map(Result::unwrap).collect()
    }

    /// How many deliveries were not the first, by the broker's count.
    #[cfg(any(feature = "nats", feature = "rabbitmq"))]
    pub(crate) fn again(&self) -> u32 {
        self.again.load(Ordering::Relaxed)
    }

    pub(crate) fn taken(&self) -> Vec<DeadLetter> {
        self.taken.lock().clone()
    }
}

/// Names of events, in the order of the ledger.
pub(crate) fn names(count: usize) -> Vec<String> {
    (0..count)
        .map(|number| format!("event-{number:03}"))
        .collect()
}

/// A name that no other test has.
#[cfg(any(feature = "nats", feature = "rabbitmq"))]
pub(crate) fn unique() -> String {
    format!("test-{:016x}", chance(u64::MAX))
}

pub(crate) fn chance(below: u64) -> u64 {
    let nonce = Nonce::random().unwrap();
    let (numbers, _) = nonce.as_bytes().as_chunks::<8>();
    u64::from_le_bytes(numbers[0]) % below
}

/// Runs a consumer in a runtime of its own, which is dropped with work in hand: shortly after some has
/// begun, before, during or after its commit. Not before it has lived so long.
pub(crate) fn killed_in_hand<F>(ledger: &Ledger, life: Duration, consumer: impl FnOnce() -> F)
where
    F: Future<Output = ()>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.worker_threads(1).enable_all().build().unwrap();
    let mut begun = ledger.begun.subscribe();
    runtime.block_on(async {
        let in_hand = async {
            sleep(life).await;
            begun.mark_unchanged();
            begun.changed().await.unwrap();
            sleep(Duration::from_millis(chance(6))).await;
        };
        tokio::select! {
            () = consumer() => panic!("nothing was in hand"),
            () = in_hand => {}
        }
    });
    // Its tasks end wherever they are, and its connections with them.
    runtime.shutdown_background();
}
