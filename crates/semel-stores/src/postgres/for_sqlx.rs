//! The steps on a connection of the application's own, by sqlx: inside a transaction the
//! operation's writes and its record are committed together, or neither is.
//!
//! Statements, parameters and the reading of rows are the store's; here they are only executed.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ::sqlx::encode::IsNull;
use ::sqlx::error::{BoxDynError, DatabaseError};
use ::sqlx::postgres::types::Oid;
use ::sqlx::postgres::{PgArgumentBuffer, PgConnection, PgRow, PgTypeInfo, PgValueFormat};
use ::sqlx::query::Query;
use ::sqlx::{AssertSqlSafe, Connection as _, Encode, Error, Postgres, Row as _, ValueRef as _};
use bytes::BytesMut;
use semel::record::Change;
use semel::store::{Claim, ClaimRequest, Entry, Fenced, Result};
use semel::{Identity, IdentityDigest, StoreError, StoreErrorKind};
use tokio::time::timeout;
use tokio_postgres::types::{self, FromSql, ToSql, Type};

use super::options::PostgresOptions;
use super::row::{Columns, Param};
use super::sql::Sql;
use super::step::{self, Step};
use super::table::Table;
use super::{LARGEST, error};
use crate::common::exchange::{Changing, Claiming, Exchange, TURNS, follow, restless};
use crate::common::fits;

/// The steps of a [`PostgresStore`](super::PostgresStore), on a connection or in a transaction of
/// sqlx's that the application has: the same table, the same records. Whatever one of them claimed
/// the other may complete.
///
/// What it is for is a [completion](Self::change) in the transaction that also has the operation's
/// own writes:
///
/// ```no_run
/// use semel::record::Change;
/// use semel::store::{Claim, ClaimRequest, Fenced, Retention};
/// use semel::{Identity, Outcome, Store};
/// use semel_stores::PostgresOptions;
/// use semel_stores::postgres::sqlx::{self, PgPool};
///
/// # async fn order(identity: Identity, request: ClaimRequest)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// let url = "postgres://app@localhost/shop";
/// let pool = PgPool::connect(url).await?;
/// let options = PostgresOptions::from_url(url)?;
/// let steps = options.steps_for_sqlx();
/// let store = options.open().await?;
///
/// // Committed by itself, so that others see it.
/// let Claim::Acquired(claimed) = store.claim(&identity, &request).await? else {
///     return Ok(()); // Replay, wait or refuse, as the claim says.
/// };
///
/// let mut transaction = pool.begin().await?;
/// sqlx::query("INSERT INTO orders (what) VALUES ($1)")
///     .bind("tea")
///     .execute(&mut *transaction)
///     .await?;
/// let outcome = Outcome::success(b"ordered");
/// let done = Change::complete(&claimed.token, &outcome, Retention::ORDER);
/// match steps.change(&mut transaction, identity.digest(), &done).await? {
///     Fenced::Applied => transaction.commit().await?,
///     Fenced::Refused(refusal) => {
///         transaction.rollback().await?;
///         return Err(refusal.into());
///     }
/// }
/// # Ok(()) }
/// ```
///
/// # What `Applied` means
/// That *this* statement wrote the record. The store answers `Applied` again to a step that is
/// repeated; here it is refused, because the writes beside it would be the second ones: a
/// completion or another end of the attempt with `Refusal::Settled`, a finished step with
/// `Refusal::OtherSteps`, a resolution with `Refusal::Superseded`. On anything but `Applied`, an error
/// too, roll back.
///
/// # Transactions
/// Nothing counts before the caller's commit. Where the answer to the commit is lost, run the
/// transaction again with the same token: either it commits, or it is refused with
/// `Refusal::Settled(Completed)`, and the first one was committed.
///
/// What was written locks its record until then, so complete last, and claim outside of the
/// transaction. A transaction stricter than READ COMMITTED is to begin after the claim; where the
/// record changed since it began, a renewal included, it fails with 40001 and is to be run again.
/// Who waits is told by the commit, those in this process too, as of another process's change.
///
/// The settings of the session are the caller's: give it a `lock_timeout` below
/// [`PostgresOptions::timeout`], so that the server gives up first, with a certain answer.
///
/// # Errors
/// All steps fail with
/// - [`Contended`](StoreErrorKind::Contended) where others changed the record, or had it locked;
/// - [`NotApplied`](StoreErrorKind::NotApplied) where the server refused, or the connection broke
///   in a transaction that sqlx began, which the server then rolls back;
/// - [`Unknown`](StoreErrorKind::Unknown) where the connection broke otherwise, or the time ran
///   out; the connection is better not used again;
/// - [`Config`](StoreErrorKind::Config) where the table or a privilege is missing,
///   [`Capacity`](StoreErrorKind::Capacity) where the server has no room,
///   [`Corrupt`](StoreErrorKind::Corrupt) where the record cannot be read.
#[derive(Clone)]
pub struct SqlxSteps {
    table: Arc<Table>,
    sql: Arc<Sql>,
    timeout: Duration,
    prepared: bool,
}

impl fmt::Debug for SqlxSteps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlxSteps")
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}

impl PostgresOptions {
    /// The steps for an application's own connections by sqlx, with the table, the time-out and
    /// `prepared` of these options. Connects to nothing, and makes no table.
    #[must_use]
    pub fn steps_for_sqlx(&self) -> SqlxSteps {
        SqlxSteps {
            sql: Arc::new(Sql::new(&self.table)),
            table: Arc::new(self.table.clone()),
            timeout: self.timeout,
            prepared: self.prepared,
        }
    }
}

impl SqlxSteps {
    /// As [`Store::claim`](semel::Store::claim). In a transaction it keeps rivals waiting until the
    /// commit, where they would have been told that the operation is in flight.
    ///
    /// # Errors
    /// As the type says.
    pub async fn claim(
        &self,
        on: &mut PgConnection,
        identity: &Identity,
        request: &ClaimRequest,
    ) -> Result<Claim> {
        // The transaction is the application's: whether a crash may forget it is not ours to say.
        let request = ClaimRequest {
            is_forgettable: false,
            ..request.clone()
        };
        self.exchange(on, Claiming::new(identity, &request)).await
    }

    /// As [`Store::change`](semel::Store::change), but `Applied` only where this statement made the
    /// change: one that was made before is refused, because the writes beside it would be there twice.
    ///
    /// # Errors
    /// As the type says; [`TooLarge`](StoreErrorKind::TooLarge) above 32 MiB.
    pub async fn change(
        &self,
        on: &mut PgConnection,
        identity: &IdentityDigest,
        change: &Change,
    ) -> Result<Fenced> {
        fits(change, "postgres", LARGEST)?;
        self.exchange(on, Changing::once(identity, change)).await
    }

    /// As [`Store::get`](semel::Store::get). Locks nothing, and sees what the transaction wrote.
    ///
    /// # Errors
    /// As the type says, with `NotApplied` for `Unknown`.
    pub async fn get(
        &self,
        on: &mut PgConnection,
        identity: &IdentityDigest,
    ) -> Result<Option<Entry>> {
        let step = step::get(identity);
        let rows = timeout(self.timeout, self.run(on, &step)).await;
        let late = |_| Err(late(StoreErrorKind::NotApplied));
        step::got(&rows.unwrap_or_else(late)?)
    }

    async fn exchange<E: Exchange>(
        &self,
        on: &mut PgConnection,
        mut exchange: E,
    ) -> Result<E::Answer> {
        let answer = async {
            for turn in 0..TURNS {
                let request = exchange.request();
                let rows = self.run(on, &step::of(&request)).await?;
                let reply = step::reply(&request, &rows)?;
                if let Some(answer) = follow(&mut exchange, reply, turn).await {
                    return Ok(answer);
                }
            }
            Err(restless())
        };
        let answer = timeout(self.timeout, answer).await;
        answer.unwrap_or_else(|_| Err(late(StoreErrorKind::Unknown)))
    }

    async fn run(&self, on: &mut PgConnection, step: &Step) -> Result<Vec<PgRow>> {
        // Where it breaks in a transaction, nobody can commit that any more.
        let certain = step.kind.reads() || on.is_in_transaction();
        // Fixed text: names are checked when the table's name is read, values are parameters.
        let text = AssertSqlSafe(self.sql.text(step.kind));
        let query = step.params.iter().fold(::sqlx::query(text), Query::bind);
        let sent = query.persistent(self.prepared).fetch_all(on);
        sent.await
            .map_err(|error| self.told(error, certain, step.kind.reads()))
    }

    /// An error by what it means for the caller. `certain` where a broken connection is an answer.
    fn told(&self, error: Error, certain: bool, reads: bool) -> StoreError {
        let lost = "the connection to PostgreSQL broke after the step was sent";
        match error {
            Error::Database(error) => self.refused(&*error, certain),
            Error::Io(_) | Error::WorkerCrashed => {
                StoreError::new(ambiguous(certain), lost).with_source(error)
            }
            // Before anything was sent.
            Error::Encode(_) | Error::InvalidArgument(_) => {
                let what = "sqlx does not take the step";
                StoreError::new(StoreErrorKind::NotApplied, what).with_source(error)
            }
            error => {
                let what = "PostgreSQL's answer cannot be read";
                StoreError::new(ambiguous(reads), what).with_source(error)
            }
        }
    }

    // Without its source: what the server adds to its message may show a row.
    fn refused(&self, error: &dyn DatabaseError, certain: bool) -> StoreError {
        let code = error.code().unwrap_or_default();
        let (kind, message) = match &*code {
            "40001" | "40P01" => (
                StoreErrorKind::Contended,
                format!(
                    "PostgreSQL rolled the step back ({code}): roll back, and run the whole \
                     transaction again"
                ),
            ),
            "26000" | "42P05" => (
                StoreErrorKind::Config,
                format!(
                    "PostgreSQL does not know a statement that was prepared ({code}): a pooler \
                     between gives each transaction another connection; set prepared=off"
                ),
            ),
            "57P01" | "57P02" | "57P03" | "57P05" => (
                ambiguous(certain),
                format!("PostgreSQL ended the connection ({code})"),
            ),
            class if class.starts_with("08") => (
                ambiguous(certain),
                format!("PostgreSQL ended the connection ({code})"),
            ),
            code => error::meaning(code, error.message(), &self.table),
        };
        StoreError::new(kind, message)
    }
}

fn late(kind: StoreErrorKind) -> StoreError {
    StoreError::new(kind, "PostgreSQL did not answer in time")
}

const fn ambiguous(certain: bool) -> StoreErrorKind {
    if certain {
        StoreErrorKind::NotApplied
    } else {
        StoreErrorKind::Unknown
    }
}

/// Copied by `bind`, in the form that the other driver sends.
impl Encode<'_, Postgres> for &Param {
    fn encode_by_ref(&self, out: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let mut binary = BytesMut::new();
        Ok(match ToSql::to_sql(*self, &self.kind(), &mut binary)? {
            types::IsNull::Yes => IsNull::Yes,
            types::IsNull::No => {
                out.extend_from_slice(&binary);
                IsNull::No
            }
        })
    }

    fn produces(&self) -> Option<PgTypeInfo> {
        Some(PgTypeInfo::with_oid(Oid(self.kind().oid())))
    }
}

impl ::sqlx::Type<Postgres> for &Param {
    fn type_info() -> PgTypeInfo {
        // Of none in particular: each says its own.
        PgTypeInfo::with_oid(Oid(Type::UNKNOWN.oid()))
    }
}

impl Columns for PgRow {
    fn column<'a, T: FromSql<'a>>(
        &'a self,
        column: usize,
    ) -> Result<T, Box<dyn StdError + Sync + Send>> {
        let value = self.try_get_raw(column)?;
        if value.format() != PgValueFormat::Binary {
            return Err("a column came as text".into());
        }
        let ty = value
            .type_info()
            .oid()
            .and_then(|oid| Type::from_oid(oid.0));
        let ty = ty.filter(T::accepts).ok_or("a column has another type")?;
        if value.is_null() {
            return T::from_sql_null(&ty);
        }
        T::from_sql(&ty, value.as_bytes()?)
    }
}
