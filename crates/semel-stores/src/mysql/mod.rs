//! MySQL and MariaDB.
//!
//! # Promise
//! An acknowledged step survives what the server's settings say, which [`Store::probe`] reads: with
//! `innodb_flush_log_at_trx_commit=1` (and `sync_binlog=1` where there is a binary log) a loss of
//! power. It does not survive a failover to an asynchronous replica that had not got it.
//!
//! # Steps
//! Each step is one packet: statements that write where their conditions hold, and a read of what
//! is there then. Each statement is a transaction of its own and decides by itself, under the lock
//! of its row, so a step is atomic; the read only says how it was decided.
//! - A claim puts a record where there is none (`INSERT … ON DUPLICATE KEY UPDATE`, which changes
//!   nothing where there is one); else it takes over the record that may be claimed, or makes one
//!   past its lease unknown. The row that holds the claim's nonce afterwards says that it won.
//! - The others are an `UPDATE` of the row that still has the token. How many rows it found is read
//!   in the same packet; where it found none the row says why.
//!
//! The answer is derived by [`semel::record`] from the row that was read. Where that says the step
//! should have written, the row changed in between, and the step is run again.
//!
//! # Costs
//! One round trip for each step, reads included. A pair of claim and completion commits twice. A
//! replay locks its row for the time of a statement and writes nothing.
//!
//! # Clock
//! The server's. A fence is not below its microseconds, so that it grows across expiry; it could go
//! back only if the server's clock was set back after a record was purged.

mod error;
mod migrate;
mod options;
mod pool;
mod row;
mod server;
mod sql;
mod transact;
mod versioned;

use std::sync::Arc;
use std::time::Duration;

use semel::record::{self, Change};
use semel::store::{
    Claim, ClaimRequest, Clear, Cursor, Entry, Fence, Fenced, ListQuery, Page, Probe, Purged,
    Result, Store, Waited,
};
use semel::{AnyStore, Identity, IdentityDigest, StoreErrorKind, Timestamp};
use sqlx::mysql::MySqlRow;
use tokio::time::Instant;

use self::error::{Effect, Failure};
use self::pool::Pool;
use self::row::Reader;
use self::server::Server;
use self::sql::Table;
use self::transact::Transactions;
use crate::OpenError;
use crate::common::{Driver, Gate, Poll, Running, Waiters};

pub use self::options::MysqlOptions;
pub use self::transact::MysqlTransaction;
/// The version whose [`Transaction`](sqlx::Transaction) a [`MysqlTransaction`] is.
pub use sqlx;

pub(crate) const DRIVER: Driver = Driver {
    check: |url| MysqlOptions::from_url(url).map(drop),
    open: |url, options| {
        Box::pin(async move {
            let mut mysql = MysqlOptions::from_url(url)?;
            mysql.schema.get_or_insert(options.schema);
            Ok(AnyStore::new(mysql.open().await?))
        })
    },
    migrate: |url, _| Box::pin(async move { Ok(MysqlOptions::from_url(url)?.migrate().await?) }),
};

/// How often a step is run because its record changed between write and read.
const TRIES: u32 = 20;
/// Records that one statement of a purge removes: their rows are locked together.
const BATCH: usize = 500;
/// The longest page of a listing.
const PAGE: usize = 1000;

/// Records in a table of a MySQL or MariaDB server. See the [module](self).
pub struct MysqlStore {
    pool: Pool,
    transactions: Transactions,
    table: Table,
    gate: Gate,
    waiters: Arc<Waiters>,
    accept_unsafe: bool,
    for_tests: bool,
}

impl MysqlStore {
    /// Opens the store that `url` names: what [`MysqlOptions`] read in it, `schema=create` among
    /// them. Unlike [`semel_stores::open`](crate::open) it keeps its type, and with it its transactions.
    ///
    /// # Errors
    /// Those of [`MysqlOptions::from_url`] and [`MysqlOptions::open`].
    pub async fn open(url: &str) -> Result<Self, OpenError> {
        Ok(MysqlOptions::from_url(url)?.open().await?)
    }

    async fn connect(options: MysqlOptions) -> Result<Self> {
        let transactions =
            Transactions::new(options.driver.clone(), options.connections, options.timeout);
        let pool = Pool::new(options.driver, options.connections, options.timeout);
        let server = Server::read(&pool, pool.deadline()).await?;
        server.check(options.accept_unsafe)?;
        migrate::prepare(&pool, &options.table, options.schema.unwrap_or_default()).await?;
        Ok(Self {
            pool,
            transactions,
            table: Table {
                records: options.table,
            },
            gate: Gate::new("mysql"),
            waiters: Arc::default(),
            accept_unsafe: options.accept_unsafe,
            for_tests: options.for_tests,
        })
    }

    async fn read(&self, sql: String) -> Result<Vec<MySqlRow>> {
        let rows = self.pool.run(sql, Effect::Reads, self.pool.deadline());
        rows.await.map_err(Failure::into_error)
    }

    /// Runs a step's packet until `answer` makes something of what it read. Runs it again where the
    /// server rolled it back for the sake of others, and where `answer` is `None`: the record
    /// changed between write and read. Never after an error that leaves open whether it was done, and
    /// not beyond the timeout.
    async fn step<T>(
        &self,
        sql: impl Fn(u32) -> String,
        answer: impl Fn(Option<&MySqlRow>) -> Result<Option<T>>,
    ) -> Result<T> {
        let deadline = self.pool.deadline();
        let (mut changed, mut lost) = (0, 0);
        while changed < TRIES {
            match self.pool.run(sql(changed), Effect::Writes, deadline).await {
                Ok(rows) => match answer(rows.first())? {
                    Some(answer) => return Ok(answer),
                    None => changed += 1,
                },
                Err(Failure::Locked(error)) => {
                    // What is not answered by the deadline would be unknown.
                    if Instant::now() + self.pool.lock_wait() >= deadline {
                        return Err(error);
                    }
                }
                Err(Failure::Deadlock(error)) => {
                    let pause = pause(lost);
                    if Instant::now() + pause * 4 >= deadline {
                        return Err(error);
                    }
                    lost += 1;
                    tokio::time::sleep(pause).await;
                }
                Err(failure) => return Err(failure.into_error()),
            }
        }
        Err(error::restless())
    }
}

/// How long a step that lost to others lets them go on: a little longer each time, and not all the
/// same.
fn pause(round: u32) -> Duration {
    use std::hash::{BuildHasher as _, RandomState};
    let chance = RandomState::new().hash_one(round) % 1000;
    Duration::from_micros(chance << round.min(6))
}

impl Store for MysqlStore {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        let _inside = self.gate.enter()?;
        let answer = |row: Option<&MySqlRow>| {
            // Purged between write and read.
            let Some(row) = row else { return Ok(None) };
            let (now, record, wrote) = Reader::new(row).claimed()?;
            let mut decision = record::claim(Some(&record), request, now, Fence::default());
            if let Claim::Acquired(acquired) = &mut decision.claim {
                acquired.is_repeated &= !wrote;
            }
            Ok(decision.write.is_none().then_some(decision.claim))
        };
        // A record may come and go between the turns.
        let sql = |turn: u32| match turn.is_multiple_of(2) {
            true => self.table.claim(identity, request),
            false => self.table.take_over(identity.digest(), request),
        };
        let claim = self.step(sql, answer).await?;
        if let Claim::Acquired(_) | Claim::Unknown { .. } = claim {
            self.waiters.wake(identity.digest());
        }
        Ok(claim)
    }

    async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        let _inside = self.gate.enter()?;
        let answer = |row: Option<&MySqlRow>| {
            let row = row.ok_or_else(|| row::corrupt("a step has no answer"))?;
            Ok(match Reader::new(row).fenced()? {
                row::Fenced::Wrote => Some(Fenced::Applied),
                row::Fenced::Found(now, record) => {
                    match change.decide(record.as_deref(), now, Fence(0)) {
                        Err(refusal) => Some(refusal.into()),
                        Ok(None) => Some(Fenced::Applied),
                        Ok(Some(_)) => None,
                    }
                }
            })
        };
        let done = self.step(|_| self.table.change(identity, change), answer);
        let done = done.await;
        if change.ends_attempt() {
            // After an error too: it may have happened.
            self.waiters.wake(identity);
        }
        done
    }

    async fn get(&self, identity: &IdentityDigest) -> Result<Option<Entry>> {
        let _inside = self.gate.enter()?;
        let rows = self.read(self.table.get(identity)).await?;
        rows.first().map(|row| Reader::new(row).entry()).transpose()
    }

    async fn list(&self, query: &ListQuery) -> Result<Page> {
        let _inside = self.gate.enter()?;
        let limit = query.limit.min(PAGE);
        let after = query.after.as_ref().map(position).transpose()?;
        if limit == 0 {
            return Ok(Page {
                entries: Vec::new(),
                next: query.after.clone(),
            });
        }
        let rows = self.read(self.table.list(query, after, limit + 1)).await?;
        let entries: Result<Vec<Entry>> = rows
            .iter()
            .take(limit)
            .map(|row| Reader::new(row).entry())
            .collect();
        let entries = entries?;
        let next = entries.last().filter(|_| rows.len() > limit).map(cursor);
        Ok(Page { entries, next })
    }

    async fn purge(&self, limit: usize) -> Result<Purged> {
        let _inside = self.gate.enter()?;
        let mut removed = 0;
        loop {
            let wanted = (limit - removed).min(BATCH);
            let rows = self.read(self.table.purgeable(wanted.max(1))).await?;
            if rows.is_empty() || wanted == 0 {
                let more = !rows.is_empty();
                return Ok(Purged { removed, more });
            }
            let digests: Result<Vec<_>> = rows.iter().map(|r| Reader::new(r).digest()).collect();
            let mut digests = digests?;
            digests.sort_unstable();
            let sql = |_| self.table.purge(&digests);
            let removing = self.step(sql, |row| {
                let row = row.ok_or_else(|| row::corrupt("a purge has no answer"))?;
                Reader::new(row).changed().map(Some)
            });
            removed += usize::try_from(removing.await?).unwrap_or(usize::MAX);
        }
    }

    async fn wait(
        &self,
        identity: &IdentityDigest,
        fence: Fence,
        timeout: Duration,
    ) -> Result<Waited> {
        let look = || async {
            let _inside = self.gate.enter()?;
            let rows = self.read(self.table.look(identity, fence.0)).await?;
            Ok(if rows.is_empty() {
                Running::No
            } else {
                Running::Yes
            })
        };
        self.waiters
            .wait(identity, fence, timeout, Poll::ONLY, look)
            .await
    }

    async fn probe(&self) -> Result<Probe> {
        let _inside = self.gate.enter()?;
        let server = Server::read(&self.pool, self.pool.deadline()).await?;
        server.check(self.accept_unsafe)?;
        migrate::prepare(&self.pool, &self.table.records, crate::Schema::Expect).await?;
        server::rehearse(&self.pool, self.table.rehearse(), self.pool.deadline()).await?;
        Ok(server.probe())
    }

    async fn close(&self) -> Result<()> {
        self.gate.close().await;
        self.waiters.wake_all();
        self.transactions.close().await;
        self.pool.close().await;
        Ok(())
    }
}

impl Clear for MysqlStore {
    async fn clear(&self, force: bool) -> Result<()> {
        let _inside = self.gate.enter()?;
        if !force && !self.for_tests {
            return Err(error::config(
                "only a store that was opened for tests is cleared without force",
            ));
        }
        let cleared = self
            .pool
            .run(self.table.clear(), Effect::Writes, self.pool.deadline());
        cleared.await.map(drop).map_err(Failure::into_error)?;
        self.waiters.wake_all();
        Ok(())
    }
}

impl std::fmt::Debug for MysqlStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MysqlStore")
            .field("table", &self.table.records)
            .finish_non_exhaustive()
    }
}

fn cursor(entry: &Entry) -> Cursor {
    let mut bytes = entry.record.purge_at.as_micros().to_be_bytes().to_vec();
    bytes.extend_from_slice(entry.label.digest.as_bytes());
    Cursor(bytes.into())
}

fn position(cursor: &Cursor) -> Result<(Timestamp, IdentityDigest)> {
    let read = || {
        let (purge_at, digest) = cursor.0.split_first_chunk()?;
        let purge_at = Timestamp::from_micros(u64::from_be_bytes(*purge_at));
        Some((
            purge_at,
            IdentityDigest::from_bytes(digest.try_into().ok()?),
        ))
    };
    read().ok_or_else(|| {
        semel::StoreError::new(
            StoreErrorKind::Config,
            "mysql: the cursor was not made by a listing of this kind of store",
        )
    })
}
