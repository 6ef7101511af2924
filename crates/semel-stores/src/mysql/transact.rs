//! Transactions of the application's, on connections of their own, with the completion in them.

use std::error::Error as StdError;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use semel::record::Change;
use semel::store::{Fenced, Result};
use semel::transaction::{Isolation, TransactionError, Transactional};
use semel::{IdentityDigest, StoreErrorKind};
use sqlx::mysql::{
    MySqlConnectOptions, MySqlDatabaseError, MySqlPoolOptions, MySqlQueryResult, MySqlRow,
};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Error, Executor as _, MySql, MySqlPool, Transaction,
};
use tokio::time::{Instant, timeout, timeout_at};

use super::MysqlStore;
use super::error::{self, Effect, Failure};
use super::step::{Answer, Step};
use crate::common::exchange::{Changing, Exchange as _, Reply, Request, TURNS, follow, restless};

/// How long an open transaction may stand idle before the server ends it, in seconds. MySQL's limit is one
/// for all idle sessions: those that lie in the pool end too, where the pool does not close them before.
const IDLE: u64 = 30;

/// The driver's own pool, made for transactions: its sessions are as the driver makes them.
pub(super) struct Transactions {
    pool: MySqlPool,
    connections: usize,
    pub(super) timeout: Duration,
}

impl Transactions {
    pub(super) fn new(options: MySqlConnectOptions, connections: usize, timeout: Duration) -> Self {
        let wait = timeout.as_secs().max(1);
        let setup = format!("SET SESSION innodb_lock_wait_timeout={wait},wait_timeout={IDLE}");
        let pool = MySqlPoolOptions::new()
            .max_connections(u32::try_from(connections).unwrap_or(u32::MAX))
            .acquire_timeout(timeout)
            .idle_timeout(Duration::from_secs(IDLE - 10))
            // It is told by the statement that begins, in one round trip less.
            .test_before_acquire(false)
            .after_connect(move |link, _| {
                let setup = setup.clone();
                Box::pin(async move { link.execute(AssertSqlSafe(setup)).await.map(drop) })
            })
            // Statements hold outcomes.
            .connect_lazy_with(options.disable_statement_logging());
        Self {
            pool,
            connections,
            timeout,
        }
    }

    /// Begins no more, and waits a moment for those under way.
    pub(super) async fn close(&self) {
        // What goes on longer ends by itself.
        timeout(Duration::from_secs(1), self.pool.close())
            .await
            .ok();
    }

    async fn begin(&self, isolation: Isolation) -> Result<MysqlTransaction> {
        let level = match isolation {
            Isolation::ReadCommitted => "READ COMMITTED",
            Isolation::RepeatableRead => "REPEATABLE READ",
            Isolation::Serializable => "SERIALIZABLE",
        };
        // A call that was given up between its sending and its answer may have left a transaction open, of which
        // the driver does not know.
        let begin = format!("ROLLBACK;SET TRANSACTION ISOLATION LEVEL {level};START TRANSACTION");
        let deadline = Instant::now() + self.timeout;
        let mut tried = 0;
        loop {
            let begun = self.pool.begin_with(AssertSqlSafe(begin.clone()));
            match timeout_at(deadline, begun).await {
                Ok(Ok(transaction)) => {
                    return Ok(MysqlTransaction {
                        transaction,
                        ends: Vec::new(),
                    });
                }
                // It ended while it lay here, as all others may have: another, and at last a new one.
                Ok(Err(error)) if ended(&error) && tried < self.connections => tried += 1,
                Ok(Err(Error::PoolClosed)) => return Err(error::closed()),
                Ok(Err(Error::PoolTimedOut)) | Err(_) => {
                    return Err(error::timed_out(Effect::Reads, false));
                }
                Ok(Err(error)) => return Err(error::connecting(error)),
            }
        }
    }
}

/// A transaction in the store's database: the driver's, of which a pointer is an executor
/// (`&mut ***transaction` from what the guard lends).
///
/// Neither commit it nor roll it back: the store does. A statement that commits by itself, as DDL
/// does, ends it, and with it the promise. Dropped, it is rolled back.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use semel::guard::{Guard, TransactOptions};
/// use semel::{Fingerprint, Identity, Key, Scope};
/// use semel_stores::MysqlOptions;
/// use semel_stores::mysql::sqlx;
///
/// let store = MysqlOptions::from_url("mysql://app@localhost/app")?.open().await?;
/// let guard = Guard::from(store);
/// let identity = Identity::new(Scope::new(["tenant-1"]), "place_order", Key::new("order-4711")?);
/// let (asked, options) = (Fingerprint::of(b"3 apples"), TransactOptions::default());
/// let order = guard
///     .transact((&identity, asked), options, |_, mut tx| async move {
///         let insert = sqlx::query("INSERT INTO orders (what) VALUES (?)").bind("apples");
///         let done = insert.execute(&mut ***tx).await?;
///         Ok::<_, sqlx::Error>(done.last_insert_id().to_string())
///     })
///     .await?;
/// println!("order {}", order.into_inner());
/// # Ok(()) }
/// ```
pub struct MysqlTransaction {
    transaction: Transaction<'static, MySql>,
    ends: Vec<IdentityDigest>,
}

impl Deref for MysqlTransaction {
    type Target = Transaction<'static, MySql>;

    fn deref(&self) -> &Self::Target {
        &self.transaction
    }
}

impl DerefMut for MysqlTransaction {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.transaction
    }
}

impl fmt::Debug for MysqlTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlTransaction").finish_non_exhaustive()
    }
}

/// A failure before the commit was sent: whatever it was, nothing will be committed.
pub(super) fn before(failure: Failure) -> TransactionError {
    match failure {
        Failure::Deadlock(error) | Failure::Locked(error) => TransactionError::Conflict(error),
        Failure::Broken(error) | Failure::Said(error) => {
            TransactionError::NotCommitted(error.known_not_applied())
        }
    }
}

/// Whether a session is over. Some servers say so to whoever uses it next.
fn ended(error: &Error) -> bool {
    matches!(error, Error::Io(_)) || matches!(number(error), Some(1927 | 4031))
}

fn number(error: &(dyn StdError + 'static)) -> Option<u16> {
    match error.downcast_ref::<Error>()? {
        Error::Database(database) => {
            let error = database.try_downcast_ref::<MySqlDatabaseError>()?;
            Some(error.number())
        }
        _ => None,
    }
}

impl MysqlStore {
    pub(super) async fn ask(
        &self,
        transaction: &mut MysqlTransaction,
        sql: String,
    ) -> Result<MySqlQueryResult, Failure> {
        self.within(transaction.execute(AssertSqlSafe(sql))).await
    }

    pub(super) async fn fetch(
        &self,
        transaction: &mut MysqlTransaction,
        sql: String,
    ) -> Result<Option<MySqlRow>, Failure> {
        self.within(transaction.fetch_optional(AssertSqlSafe(sql)))
            .await
    }

    /// A statement of a transaction: whatever becomes of it, nothing is committed by it.
    async fn within<T>(&self, sent: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
        match timeout(self.transactions.timeout, sent).await {
            Ok(done) => done.map_err(|error| error::sent(error, Effect::Reads)),
            Err(_) => Err(Failure::Broken(error::timed_out(Effect::Reads, true))),
        }
    }

    async fn reply(
        &self,
        transaction: &mut MysqlTransaction,
        request: &Request<'_>,
    ) -> Result<Reply, TransactionError> {
        if let Request::Read(digest) = request {
            let row = self.fetch(transaction, self.table.current(digest)).await;
            let answer = Answer {
                rows: row.map_err(before)?.into_iter().collect(),
                ..Answer::default()
            };
            let reply = answer.reply(request);
            return reply.map_err(TransactionError::NotCommitted);
        }
        let sql = Step::of(request, 0, &self.table).packet(&self.table);
        let fits = self.pool.fits(&sql);
        fits.map_err(TransactionError::NotCommitted)?;
        let done = self.ask(transaction, sql).await.map_err(before)?;
        let answer = Answer {
            wrote: done.rows_affected(),
            left: done.last_insert_id(),
            ..Answer::default()
        };
        answer
            .reply(request)
            .map_err(TransactionError::NotCommitted)
    }
}

impl Transactional for MysqlStore {
    type Transaction = MysqlTransaction;

    async fn begin(&self, isolation: Isolation) -> Result<MysqlTransaction, TransactionError> {
        let _inside = self.gate.enter().map_err(TransactionError::NotCommitted)?;
        let begun = self.transactions.begin(isolation).await;
        begun.map_err(TransactionError::NotCommitted)
    }

    async fn change_in(
        &self,
        transaction: &mut MysqlTransaction,
        identity: &IdentityDigest,
        change: &Change,
    ) -> Result<Fenced, TransactionError> {
        let _inside = self.gate.enter().map_err(TransactionError::NotCommitted)?;
        let mut changing = Changing::once(identity, change);
        for turn in 0..TURNS {
            let reply = self.reply(transaction, &changing.request()).await?;
            if let Some(fenced) = follow(&mut changing, reply, turn).await {
                if fenced == Fenced::Applied && change.ends_attempt() {
                    transaction.ends.push(*identity);
                }
                return Ok(fenced);
            }
        }
        Err(TransactionError::Conflict(restless()))
    }

    async fn commit(&self, transaction: MysqlTransaction) -> Result<(), TransactionError> {
        let _inside = self.gate.enter().map_err(TransactionError::NotCommitted)?;
        let MysqlTransaction { transaction, ends } = transaction;
        let committed = match timeout(self.transactions.timeout, transaction.commit()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(match error::sent(error, Effect::Writes) {
                Failure::Deadlock(error) | Failure::Locked(error) => {
                    TransactionError::Conflict(error)
                }
                Failure::Broken(error) | Failure::Said(error) => match error.kind() {
                    StoreErrorKind::Unknown => TransactionError::Unknown(error),
                    _ => TransactionError::NotCommitted(error),
                },
            }),
            Err(_) => Err(TransactionError::Unknown(error::timed_out(
                Effect::Writes,
                true,
            ))),
        };
        for digest in &ends {
            self.waiters.wake(digest);
        }
        committed
    }

    async fn rollback(&self, transaction: MysqlTransaction) {
        let told = transaction.transaction.rollback();
        // Where the server cannot be told, the connection is given up.
        timeout(self.transactions.timeout, told).await.ok();
    }

    fn is_conflict(error: &(dyn StdError + 'static)) -> bool {
        matches!(number(error), Some(1020 | 1205 | 1213))
    }

    // With `innodb_snapshot_isolation`, the default of newer MariaDB, a row that others wrote since
    // the transaction began cannot be written.
    fn renews_beside(isolation: Isolation) -> bool {
        isolation == Isolation::ReadCommitted
    }
}
