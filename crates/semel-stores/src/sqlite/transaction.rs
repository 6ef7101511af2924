//! A completion inside the caller's own transaction: the operation's writes and its record are
//! committed together, or neither is.

use rusqlite::{Connection, Transaction};
use semel::record::Change;
use semel::store::{Fenced, Result};
use semel::{IdentityDigest, StoreError, StoreErrorKind};

use super::SqliteStore;
use super::error::{Phase, is_busy, told};
use super::handle::MAX_OUTCOME;
use super::shared::Shared;
use super::statements::Statements;
use super::step::{Answer, Course, Work};
use crate::common::fits;

const BUSY: &str = "another connection wrote after this transaction had read, or holds the lock of \
     the database file: roll back, and begin with TransactionBehavior::Immediate";

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
        write(&self.shared, transaction, *identity, change.clone()).map_err(|e| {
            if is_busy(&e) {
                StoreError::new(StoreErrorKind::NotApplied, BUSY)
            } else {
                told(&e, Phase::Before)
            }
        })?
    }
}

/// Changes a record in a transaction that has the write lock, or takes it now: `Applied` only where
/// this wrote.
pub(super) fn write(
    shared: &Shared,
    on: &Connection,
    identity: IdentityDigest,
    change: Change,
) -> rusqlite::Result<Result<Fenced>> {
    let there = change.made_before();
    let work = Work::Fenced(identity, change);
    step(shared, on, |statements, course| {
        Ok(match work.run(statements, course)? {
            // Done before: what this transaction has written beside it would be there twice.
            Answer::Fenced(Fenced::Applied) if !course.wrote => Ok(there.into()),
            Answer::Fenced(fenced) => Ok(fenced),
            other => Err(other.unexpected()),
        })
    })
}

/// A step in such a transaction.
pub(super) fn step<T>(
    shared: &Shared,
    on: &Connection,
    run: impl FnOnce(&mut Statements<'_>, &mut Course) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    let mut statements = Statements::prepare(on, &shared.place.table)?;
    let (latest, fence) = statements.clock()?;
    let mut course = Course {
        now: shared.time.now(latest),
        fence,
        full: None,
        wrote: false,
    };
    let done = run(&mut statements, &mut course)?;
    if course.wrote {
        statements.advance(course.now, course.fence)?;
    }
    Ok(done)
}
