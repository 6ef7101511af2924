//! Transactions of the application's, on connections of their own, with the completion in them.

use std::error::Error as StdError;
use std::fmt;
use std::iter::once;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use semel::record::Change;
use semel::store::{Fenced, Result};
use semel::transaction::{Isolation, Sealing, TransactionError, Transactional};
use semel::{IdentityDigest, StoreError, StoreErrorKind};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::{Client, Row};

use super::connect::{Connector, Idle, Link};
use super::error::Failed;
use super::group::{Pipelined, pipeline};
use super::options::PostgresOptions;
use super::pool::Wire as _;
use super::step::{self, Step};
use super::{LARGEST, PostgresStore};
use crate::common::exchange::{Changing, Exchange as _, Request, TURNS, follow, restless};
use crate::common::pool::silent;
use crate::common::{fits, fitting};

/// How long an open transaction may stand idle before the server ends it, and its locks.
const IDLE: Duration = Duration::from_secs(30);

/// The connections that transactions run on: as many as steps have, made when they are needed.
pub(super) struct Transactions {
    pub(super) connector: Connector,
    permits: Arc<Semaphore>,
    idle: Arc<Mutex<Idle<Link>>>,
}

impl Transactions {
    pub(super) fn new(options: &PostgresOptions) -> Result<Self> {
        Ok(Self {
            connector: Connector::plain(options)?,
            permits: Arc::new(Semaphore::new(options.connections)),
            idle: Arc::default(),
        })
    }

    /// Begins no more. Those under way end by themselves.
    pub(super) fn close(&self) {
        self.permits.close();
        let idle = std::mem::take(&mut *self.idle.lock());
        drop(idle);
    }

    fn give_back(&self, transaction: PostgresTransaction) {
        if !self.permits.is_closed() {
            self.idle.lock().push(transaction.link);
        }
    }

    async fn begin(&self, isolation: Isolation) -> Result<PostgresTransaction, StoreError> {
        let deadline = Instant::now() + self.connector.timeout;
        let permit = timeout_at(deadline, self.permits.clone().acquire_owned())
            .await
            .map_err(|_| not_applied("no connection for a transaction came free in time"))?
            .map_err(|_| super::pool::closed())?;
        let begin = begin(isolation, self.connector.timeout);
        loop {
            let idle = self.idle.lock().pop();
            let (link, used) = match idle {
                Some(link) => (link, true),
                None => {
                    let made = timeout_at(deadline, self.connector.connect()).await;
                    (made.unwrap_or_else(|_| Err(silent::<Connector>()))?, false)
                }
            };
            let begun = timeout_at(deadline, self.connector.simple(&link, &begin));
            match begun.await {
                Ok(Ok(())) => {
                    return Ok(PostgresTransaction {
                        link,
                        ends: Vec::new(),
                        _permit: permit,
                    });
                }
                // It broke while it lay here: the next, and at last a new one.
                Ok(Err(Failed::Lost(_))) if used => {}
                Ok(Err(failed)) => return Err(failed.into_error().known_not_applied()),
                Err(_) => {
                    return Err(not_applied(
                        "PostgreSQL did not begin a transaction in time",
                    ));
                }
            }
        }
    }
}

/// One message, so one round trip. `SET LOCAL`: nothing of it stays with the connection, and a
/// pooler between that gives each transaction another one is no hindrance.
fn begin(isolation: Isolation, timeout: Duration) -> String {
    let level = match isolation {
        Isolation::ReadCommitted => "READ COMMITTED",
        Isolation::RepeatableRead => "REPEATABLE READ",
        Isolation::Serializable => "SERIALIZABLE",
    };
    format!(
        "BEGIN ISOLATION LEVEL {level}; SET LOCAL lock_timeout = {}; \
         SET LOCAL idle_in_transaction_session_timeout = {}",
        timeout.as_millis().max(1),
        IDLE.max(timeout).as_millis(),
    )
}

fn not_applied(message: &str) -> StoreError {
    StoreError::new(StoreErrorKind::NotApplied, message)
}

/// A transaction in the store's database, on a connection that nobody else uses meanwhile. Runs
/// statements as a [`Client`] does.
///
/// Neither commit it nor roll it back, save to a savepoint: the store does. `SET LOCAL` instead of
/// `SET`: the connection is used again. Dropped, it is rolled back by closing the connection. The
/// server ends it, where nothing is asked in it for 30 s.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use semel::guard::{Guard, TransactOptions};
/// use semel::{Fingerprint, Identity, Key, Scope};
/// use semel_stores::PostgresOptions;
/// use semel_stores::postgres::tokio_postgres;
///
/// let store = PostgresOptions::from_url("postgres://app@localhost/app")?.open().await?;
/// let guard = Guard::from(store);
/// let identity = Identity::new(Scope::new(["tenant-1"]), "place_order", Key::new("order-4711")?);
/// let (asked, options) = (Fingerprint::of(b"3 apples"), TransactOptions::default());
/// let order = guard
///     .transact((&identity, asked), options, |_, tx| async move {
///         let sql = "INSERT INTO orders (what) VALUES ($1) RETURNING id";
///         let row = tx.query_one(sql, &[&"apples"]).await?;
///         Ok::<_, tokio_postgres::Error>(row.get::<_, i64>(0).to_string())
///     })
///     .await?;
/// println!("order {}", order.into_inner());
/// # Ok(()) }
/// ```
pub struct PostgresTransaction {
    link: Link,
    ends: Vec<IdentityDigest>,
    _permit: OwnedSemaphorePermit,
}

impl PostgresTransaction {
    pub(super) async fn run(
        &self,
        with: &Connector,
        step: &Step,
    ) -> Result<Vec<Row>, TransactionError> {
        match timeout(with.timeout, with.run(&self.link, step)).await {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(Failed::RolledBack(error))) => Err(TransactionError::Conflict(error)),
            Ok(Err(failed)) => Err(TransactionError::NotCommitted(
                failed.into_error().known_not_applied(),
            )),
            Err(_) => Err(TransactionError::NotCommitted(not_applied(
                "PostgreSQL did not answer to a step of the transaction in time",
            ))),
        }
    }

    /// `Applied` only where it wrote.
    async fn change(
        &self,
        with: &Connector,
        identity: &IdentityDigest,
        change: &Change,
    ) -> Result<Fenced, TransactionError> {
        let mut changing = Changing::once(identity, change);
        for turn in 0..TURNS {
            let request = changing.request();
            let rows = self.run(with, &step::of(&request)).await?;
            let reply = step::reply(&request, &rows).map_err(TransactionError::NotCommitted)?;
            if let Some(fenced) = follow(&mut changing, reply, turn).await {
                return Ok(fenced);
            }
        }
        Err(TransactionError::Conflict(restless()))
    }
}

impl Deref for PostgresTransaction {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.link.client()
    }
}

impl fmt::Debug for PostgresTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresTransaction")
            .finish_non_exhaustive()
    }
}

/// Before the last changes, whose plans are kept: they are not to read the table from one end to the other,
/// whatever was known of it when they were made. The application's statements are over by then.
const PLANNED: &str = "SET LOCAL enable_seqscan = off";

impl PostgresStore {
    /// What the answers mean: the place of the change that the record refused, if one is. The first failure
    /// says why; what came behind it was rolled back.
    async fn sealed(
        &self,
        changes: &[(IdentityDigest, Change)],
        answers: Pipelined<Row>,
    ) -> Result<Option<usize>, TransactionError> {
        let steps = answers.steps.into_iter().enumerate();
        let failed = once((None, answers.first))
            .chain(steps.map(|(place, answer)| (Some(place), answer.map(drop))))
            .chain(once((None, answers.last)))
            .find_map(|(place, answer)| Some((place, answer.err()?)));
        match failed {
            None => Ok(None),
            Some((Some(place), Failed::Refused(error))) => {
                let (identity, change) = &changes[place];
                let request = Request::Read(identity);
                let reply = |rows: &[Row]| step::reply(&request, rows);
                let reply = self.read(step::of(&request), reply).await.ok();
                match reply.and_then(|reply| Changing::new(identity, change).take(reply)) {
                    Some(_) => Ok(Some(place)),
                    // It was refused for another reason.
                    None => Err(TransactionError::NotCommitted(error)),
                }
            }
            Some((_, failed)) => Err(not_committed(failed)),
        }
    }
}

/// A failure of the commit, or of what was sent together with it.
fn not_committed(failed: Failed) -> TransactionError {
    match failed {
        Failed::RolledBack(error) => TransactionError::Conflict(error),
        Failed::Refused(error) | Failed::Unsent(error) => TransactionError::NotCommitted(error),
        Failed::Lost(error) | Failed::Late(error) | Failed::Unreadable(error) => {
            TransactionError::Unknown(error)
        }
    }
}

/// No answer to a commit.
fn late() -> TransactionError {
    TransactionError::Unknown(StoreError::new(
        StoreErrorKind::Unknown,
        "PostgreSQL did not answer a commit in time",
    ))
}

impl Transactional for PostgresStore {
    type Transaction = PostgresTransaction;

    async fn begin(&self, isolation: Isolation) -> Result<PostgresTransaction, TransactionError> {
        let _step = self.gate.enter().map_err(TransactionError::NotCommitted)?;
        let begun = self.transactions.begin(isolation).await;
        begun.map_err(TransactionError::NotCommitted)
    }

    async fn change_in(
        &self,
        transaction: &mut PostgresTransaction,
        identity: &IdentityDigest,
        change: &Change,
    ) -> Result<Fenced, TransactionError> {
        let _step = self.gate.enter().map_err(TransactionError::NotCommitted)?;
        fits(change, "postgres", LARGEST).map_err(TransactionError::NotCommitted)?;
        let connector = &self.transactions.connector;
        let fenced = transaction.change(connector, identity, change).await?;
        if fenced == Fenced::Applied && change.ends_attempt() {
            transaction.ends.push(*identity);
        }
        Ok(fenced)
    }

    async fn commit(&self, transaction: PostgresTransaction) -> Result<(), TransactionError> {
        self.seal(transaction, &[]).await.map(drop)
    }

    // The changes and the commit are one packet. A change that writes nothing fails, and a commit after a
    // failure rolls back: so nothing is committed unless all of them were written. After a statement of the
    // application's that failed, the packet's first one does.
    async fn seal(
        &self,
        mut transaction: PostgresTransaction,
        changes: &[(IdentityDigest, Change)],
    ) -> Result<Sealing, TransactionError> {
        let _step = self.gate.enter().map_err(TransactionError::NotCommitted)?;
        let fitted = fitting(changes, "postgres", LARGEST).and_then(|(changes, omitted)| {
            let sealing = changes
                .iter()
                .map(|(identity, change)| step::sealing(identity, change));
            Ok((sealing.collect::<Result<Vec<_>>>()?, omitted))
        });
        let (steps, omitted) = match fitted {
            Ok(fitted) => fitted,
            Err(error) => {
                self.rollback(transaction).await;
                return Err(TransactionError::NotCommitted(error));
            }
        };
        let connector = &self.transactions.connector;
        let link = &transaction.link;
        let sent = pipeline(connector, link, PLANNED, steps.iter(), "COMMIT");
        let sent = timeout(connector.timeout, sent).await;
        let mut ends = std::mem::take(&mut transaction.ends);
        let ending = changes.iter().filter(|(_, change)| change.ends_attempt());
        ends.extend(ending.map(|(identity, _)| *identity));
        let sealed = match sent {
            Err(_) => Err(late()),
            Ok(answers) => {
                let is_over = matches!(answers.last, Ok(()) | Err(Failed::RolledBack(_)));
                let sealed = self.sealed(changes, answers).await;
                // Not a session whose statements are gone.
                if is_over && !matches!(sealed, Err(TransactionError::NotCommitted(_))) {
                    self.transactions.give_back(transaction);
                }
                sealed
            }
        };
        if let Ok(None) | Err(TransactionError::Unknown(_)) = &sealed {
            for digest in &ends {
                self.waiters.wake(digest);
            }
        }
        Ok(match sealed? {
            None => Sealing::Committed { omitted },
            Some(place) => Sealing::Refused(place),
        })
    }

    async fn rollback(&self, transaction: PostgresTransaction) {
        let connector = &self.transactions.connector;
        let told = timeout(
            connector.timeout,
            connector.simple(&transaction.link, "ROLLBACK"),
        );
        if let Ok(Ok(())) = told.await {
            self.transactions.give_back(transaction);
        }
    }

    fn is_conflict(error: &(dyn StdError + 'static)) -> bool {
        let code = error
            .downcast_ref::<tokio_postgres::Error>()
            .and_then(tokio_postgres::Error::code);
        code.is_some_and(|code| matches!(code.code(), "40001" | "40P01"))
    }

    // Above READ COMMITTED a row that others wrote since the transaction began cannot be written.
    fn renews_beside(isolation: Isolation) -> bool {
        isolation == Isolation::ReadCommitted
    }
}
