//! Transactions of the application's, with the completion in them: the operation's writes and its record are
//! committed together, or neither is. On a connection of the store's, or on the application's own.
//!
//! SQLite blocks, and a file has one writer: such a transaction holds the file's lock from its
//! beginning, and whoever writes waits for it. So one at a time is begun by a handle, and work goes
//! to it in closures, which run on a thread where they may block.

use std::error::Error as StdError;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::{Connection, Error, ErrorCode, Transaction};
use semel::record::Change;
use semel::store::{Fenced, Result};
use semel::transaction::{Isolation, Sealing, TransactionError, Transactional};
use semel::{IdentityDigest, StoreError, StoreErrorKind};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use super::SqliteStore;
use super::connect::{Place, Role, be_patient};
use super::error::{LOCKED, Phase, is_busy, told};
use super::handle::{MAX_OUTCOME, Shared, closing};
use super::statements::Statements;
use super::step::Course;
use crate::common::thread::no_thread;
use crate::common::{fits, fitting};

/// The connection for transactions, while nobody has it.
pub(super) struct Lending {
    permit: Arc<Semaphore>,
    idle: Mutex<Option<Connection>>,
}

impl Lending {
    pub(super) fn new() -> Self {
        Self {
            permit: Arc::new(Semaphore::new(1)),
            idle: Mutex::default(),
        }
    }

    /// Begins no more. One under way ends by itself.
    pub(super) fn close(&self) {
        self.permit.close();
        self.idle.lock().take();
    }

    fn give_back(&self, connection: Connection) {
        if !self.permit.is_closed() {
            *self.idle.lock() = Some(connection);
        }
    }
}

fn begin(place: &Place, idle: Option<Connection>, until: Instant) -> Result<Connection> {
    let mut on = match idle {
        Some(connection) => place.check_file().map(|()| connection)?,
        None => place.connect(Role::Lend)?,
    };
    // Not deferred: one that has read before it first writes fails where others wrote in between.
    be_patient(&mut on, until.saturating_duration_since(Instant::now()))
        .and_then(|()| on.execute_batch("BEGIN IMMEDIATE"))
        .and_then(|()| be_patient(&mut on, place.timeout))
        .map_err(|e| told(&e, Phase::Before))?;
    Ok(on)
}

/// A transaction on the store's file, on a connection of the store's. It has the file's write lock:
/// until it is over every other step that writes waits.
///
/// Neither commit it nor roll it back, save to a savepoint: the store does. Dropped, it is rolled
/// back, and its connection closed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("app.db");
/// use semel::guard::{Done, Guard, TransactOptions};
/// use semel::{Fingerprint, Identity, Key, Scope};
/// use semel_stores::sqlite::rusqlite;
/// use semel_stores::{Schema, SqliteOptions};
///
/// let store = SqliteOptions::new().schema(Schema::Create).open(&path)?;
/// # rusqlite::Connection::open(&path)?.execute_batch("CREATE TABLE orders (what TEXT)")?;
/// let guard = Guard::from(store);
/// let identity = Identity::new(Scope::new(["tenant-1"]), "place_order", Key::new("order-4711")?);
/// let (asked, options) = (Fingerprint::of(b"3 apples"), TransactOptions::default());
/// let done = guard
///     .transact((&identity, asked), options, |_, mut tx| async move {
///         tx.call(|connection| {
///             connection.execute("INSERT INTO orders (what) VALUES ('apples')", [])?;
///             Ok::<_, rusqlite::Error>(connection.last_insert_rowid().to_string())
///         })
///         .await
///     })
///     .await?;
/// assert_eq!(done, Done::Fresh("1".to_owned()));
/// # Ok(()) }
/// ```
///
/// One step of an attempt in a transaction, and a versioned record changed in it:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("app.db");
/// use std::sync::Arc;
///
/// use semel::guard::{Asked, Done, Guard, StepError, TransactOptions};
/// use semel::versioned::{Expected, NaturalKey, Version, VersionedIn as _, VersionedStore as _};
/// use semel::{Fingerprint, Identity, Key, Scope};
/// use semel_stores::{Schema, SqliteOptions};
///
/// let store = Arc::new(SqliteOptions::new().schema(Schema::Create).open(&path)?);
/// let guard = Guard::from(store.clone());
/// let identity = Identity::new(Scope::new(["tenant-1"]), "repair", Key::new("ticket-4711")?);
/// let pump = NaturalKey::new(Scope::new(["tenant-1", "assets"]), "pump-7");
/// let (writer, asset) = (store.clone(), pump.clone());
/// let asked = Asked::new(identity, Fingerprint::of(b"pump-7")).in_steps();
/// let done = guard
///     .run(asked, |mut attempt| async move {
///         attempt
///             .transact("take out", TransactOptions::default(), move |_, mut tx| {
///                 let (store, pump) = (writer.clone(), asset.clone());
///                 async move {
///                     store.write_in(&mut tx, &pump, Expected::Absent, "out".into()).await?;
///                     Ok::<_, semel::versioned::WriteError>(())
///                 }
///             })
///             .await?;
///         Ok::<_, StepError<semel::versioned::WriteError>>("taken out".to_owned())
///     })
///     .await?;
/// assert_eq!(done, Done::Fresh("taken out".to_owned()));
/// assert_eq!(store.read(&pump).await?.map(|pump| pump.version), Some(Version(1)));
/// # Ok(()) }
/// ```
pub struct SqliteTransaction {
    // Not there while a closure has it, and after one that nobody waited for.
    connection: Option<Connection>,
    ends: Vec<IdentityDigest>,
    _permit: OwnedSemaphorePermit,
}

impl SqliteTransaction {
    /// Runs `work` on the transaction, on a thread where it may block. Do all of it in one call, or
    /// in few: in between others wait for the lock.
    ///
    /// Dropped before its end, the transaction can only be rolled back.
    ///
    /// # Errors
    /// Those of `work`.
    ///
    /// # Panics
    /// Where `work` does.
    pub async fn call<T, E>(
        &mut self,
        work: impl FnOnce(&Connection) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        let done = self
            .aside(|connection| catch_unwind(AssertUnwindSafe(|| work(connection))))
            .await?;
        done.unwrap_or_else(|panic| resume_unwind(panic))
    }

    async fn aside<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&Connection) -> T + Send + 'static,
    ) -> rusqlite::Result<T> {
        let connection = self.connection.take().ok_or_else(given_up)?;
        let done = spawn_blocking(move || {
            let done = work(&connection);
            (connection, done)
        });
        let (connection, done) = done.await.map_err(|_| given_up())?;
        self.connection = Some(connection);
        Ok(done)
    }
}

impl SqliteStore {
    /// Runs a step of the store's in a transaction.
    pub(super) async fn in_transaction<T: Send + 'static>(
        &self,
        transaction: &mut SqliteTransaction,
        run: impl FnOnce(&mut Statements<'_>, &mut Course) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let _step = self.gate.enter()?;
        let shared = self.shared.clone();
        let done = transaction.aside(move |on| step(&shared, on, run)).await;
        done.flatten().map_err(|e| told(&e, Phase::Before))
    }
}

fn given_up() -> Error {
    Error::SqliteFailure(
        rusqlite::ffi::Error {
            code: ErrorCode::OperationAborted,
            extended_code: rusqlite::ffi::SQLITE_ABORT,
        },
        Some("a call on this transaction was given up: it can only be rolled back".into()),
    )
}

impl fmt::Debug for SqliteTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteTransaction").finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Changes a record, as completing it, inside a transaction on the store's file, by the caller's
    /// connection. `Applied` only where this made the change.
    ///
    /// The claim was made before, by itself. Then one transaction takes the operation's own writes
    /// and this, and the caller commits it. On anything but [`Fenced::Applied`] the caller rolls
    /// back: another attempt took over, and its writes are the ones that count.
    ///
    /// The transaction should be begun with
    /// [`Immediate`](rusqlite::TransactionBehavior::Immediate): one that has read before it first
    /// writes fails where somebody wrote in between. It is as durable as the caller's connection
    /// commits: `synchronous` should be `FULL`, as it is unless changed. Blocks, as all work on the
    /// caller's connection does. Who waits learns of it as of another process's change.
    ///
    /// ```no_run
    /// # use semel_stores::{SqliteOptions, SqliteStore};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let store = SqliteOptions::new().open("./app.db")?;
    /// # let (digest, token) = todo();
    /// # fn todo() -> (semel::IdentityDigest, semel::store::Token) { unreachable!() }
    /// use semel::record::Change;
    /// use semel::store::{Fenced, Retention};
    /// use semel_stores::sqlite::rusqlite::{Connection, TransactionBehavior};
    ///
    /// let mut connection = Connection::open("./app.db")?;
    /// let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    /// transaction.execute("INSERT INTO orders (what) VALUES ('tea')", [])?;
    /// let outcome = semel::Outcome::success(b"ordered");
    /// let done = Change::complete(&token, &outcome, Retention::ORDER);
    /// match store.change_on(&transaction, &digest, &done)? {
    ///     Fenced::Applied => transaction.commit()?,
    ///     Fenced::Refused(refusal) => {
    ///         transaction.rollback()?;
    ///         return Err(refusal.into());
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`change`](semel::Store::change); the transaction is to be rolled back then.
    /// Nothing is ambiguous before the caller commits. Where that fails, the record tells: read it,
    /// or do all of it again: a completion that is there already is
    /// `Refusal::Settled`, also one by this token.
    pub fn change_on(
        &self,
        transaction: &Transaction<'_>,
        identity: &IdentityDigest,
        change: &Change,
    ) -> Result<Fenced> {
        let _step = self.gate.enter()?;
        fits(change, "sqlite", MAX_OUTCOME)?;
        let written = step(&self.shared, transaction, |on, course| {
            write(identity, change, on, course)
        });
        written.map_err(|e| match is_busy(&e) {
            true => StoreError::new(StoreErrorKind::Contended, BUSY),
            false => told(&e, Phase::Before),
        })
    }
}

const BUSY: &str = "another connection wrote after this transaction had read, or holds the lock of \
     the database file: roll back, and begin with TransactionBehavior::Immediate";

/// A step in a transaction that has the write lock, or takes it now.
fn step<T>(
    shared: &Shared,
    on: &Connection,
    run: impl FnOnce(&mut Statements<'_>, &mut Course) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    let mut statements = Statements::new(on, &shared.place.table);
    Course::run(&mut statements, &shared.time, None, run).map(|(done, _)| done)
}

/// Changes a record in such a transaction: `Applied` only where this wrote.
fn write(
    identity: &IdentityDigest,
    change: &Change,
    on: &mut Statements<'_>,
    course: &mut Course,
) -> rusqlite::Result<Fenced> {
    Ok(match super::step::change(identity, change, on, course)? {
        // Done before: what this transaction has written beside it would be there twice.
        Fenced::Applied if !course.wrote => change.made_before().into(),
        fenced => fenced,
    })
}

/// Writes the changes and commits, or rolls back where a record refuses its change: then its place.
fn seal(
    shared: &Shared,
    on: &Connection,
    changes: &[(IdentityDigest, Change)],
) -> Result<Option<usize>, TransactionError> {
    for (place, (identity, change)) in changes.iter().enumerate() {
        let written = step(shared, on, |on, course| write(identity, change, on, course));
        let not_committed = |e| TransactionError::NotCommitted(told(&e, Phase::Before));
        if written.map_err(not_committed)? != Fenced::Applied {
            roll_back(on);
            return Ok(Some(place));
        }
    }
    commit(on).map(|()| None)
}

/// Where this fails, closing the connection does it.
fn roll_back(on: &Connection) {
    on.execute_batch("ROLLBACK").ok();
}

fn commit(on: &Connection) -> Result<(), TransactionError> {
    on.execute_batch("COMMIT").map_err(|error| {
        let error = told(&error, Phase::Commit);
        match error.kind() {
            StoreErrorKind::Unknown => TransactionError::Unknown(error),
            _ => TransactionError::NotCommitted(error),
        }
    })
}

impl SqliteStore {
    /// The end of a transaction. What it leaves open is rolled back where the connection is closed.
    async fn end<T: Send + 'static>(
        &self,
        transaction: &mut SqliteTransaction,
        end: impl FnOnce(&Connection) -> Result<T, TransactionError> + Send + 'static,
    ) -> Result<T, TransactionError> {
        let ended = transaction.aside(end).await.unwrap_or_else(|given_up| {
            let given_up = told(&given_up, Phase::Before);
            Err(TransactionError::NotCommitted(given_up))
        });
        let idle = transaction.connection.take_if(|on| on.is_autocommit());
        if let Some(connection) = idle {
            self.lending.give_back(connection);
        }
        for digest in &transaction.ends {
            self.shared.waiters.wake(digest);
        }
        ended
    }
}

impl Transactional for SqliteStore {
    type Transaction = SqliteTransaction;

    // A transaction of SQLite's is always serializable.
    async fn begin(&self, _: Isolation) -> Result<SqliteTransaction, TransactionError> {
        let work = async {
            let _step = self.gate.enter()?;
            let until = Instant::now() + self.shared.place.timeout;
            let permit = timeout_at(until, self.lending.permit.clone().acquire_owned());
            let permit = match permit.await {
                Ok(Ok(permit)) => permit,
                Ok(Err(_)) => return Err(closing()),
                Err(_) => return Err(StoreError::new(StoreErrorKind::Contended, LOCKED)),
            };
            let (shared, idle) = (self.shared.clone(), self.lending.idle.lock().take());
            let begun = spawn_blocking(move || (begin(&shared.place, idle, until), permit));
            let (connection, permit) = begun.await.map_err(|_| no_thread())?;
            Ok(SqliteTransaction {
                connection: Some(connection?),
                ends: Vec::new(),
                _permit: permit,
            })
        };
        work.await.map_err(TransactionError::NotCommitted)
    }

    async fn change_in(
        &self,
        transaction: &mut SqliteTransaction,
        identity: &IdentityDigest,
        change: &Change,
    ) -> Result<Fenced, TransactionError> {
        let work = async {
            fits(change, "sqlite", MAX_OUTCOME)?;
            let (digest, own) = (*identity, change.clone());
            self.in_transaction(transaction, move |on, course| {
                write(&digest, &own, on, course)
            })
            .await
        };
        let fenced = work.await.map_err(TransactionError::NotCommitted)?;
        if fenced == Fenced::Applied && change.ends_attempt() {
            transaction.ends.push(*identity);
        }
        Ok(fenced)
    }

    async fn commit(&self, mut transaction: SqliteTransaction) -> Result<(), TransactionError> {
        let _step = self.gate.enter().map_err(TransactionError::NotCommitted)?;
        self.end(&mut transaction, commit).await
    }

    // All of it is one visit to the thread that may block.
    async fn seal(
        &self,
        mut transaction: SqliteTransaction,
        changes: &[(IdentityDigest, Change)],
    ) -> Result<Sealing, TransactionError> {
        let _step = self.gate.enter().map_err(TransactionError::NotCommitted)?;
        let fitted = fitting(changes, "sqlite", MAX_OUTCOME);
        let (fitted, omitted) = match fitted {
            Ok(fitted) => fitted,
            Err(error) => {
                self.rollback(transaction).await;
                return Err(TransactionError::NotCommitted(error));
            }
        };
        let ending = changes.iter().filter(|(_, change)| change.ends_attempt());
        transaction
            .ends
            .extend(ending.map(|(identity, _)| *identity));
        let shared = self.shared.clone();
        let refused = self.end(&mut transaction, move |on| seal(&shared, on, &fitted));
        Ok(match refused.await? {
            None => Sealing::Committed { omitted },
            Some(place) => Sealing::Refused(place),
        })
    }

    async fn rollback(&self, mut transaction: SqliteTransaction) {
        transaction.ends.clear();
        let rolled_back = |on: &Connection| {
            roll_back(on);
            Ok(())
        };
        self.end(&mut transaction, rolled_back).await.ok();
    }

    fn is_conflict(error: &(dyn StdError + 'static)) -> bool {
        error.downcast_ref::<Error>().is_some_and(is_busy)
    }

    // A renewal would wait for the transaction's lock; nobody else gets it meanwhile either.
    fn renews_beside(_: Isolation) -> bool {
        false
    }
}
