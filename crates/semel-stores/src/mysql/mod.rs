//! MySQL and MariaDB.
//!
//! # Promise
//! An acknowledged step survives what the server's settings say, which [`Store::probe`] reads: with
//! `innodb_flush_log_at_trx_commit=1` (and `sync_binlog=1` where there is a binary log) a loss of
//! power. It does not survive a failover to an asynchronous replica that had not got it.
//!
//! # Steps
//! Each step is a write with its condition, which decides by itself under the lock of its row; the
//! answer of the write says whether it wrote. `common/exchange.rs` says what follows where it did not.
//! - A claim looks first, without a lock, and inserts where there is no record, in the same packet.
//! - A change by the attempt is an `UPDATE` of the row that still has its token.
//! - What is decided about a row that was read is an `UPDATE` of the row that is still the same.
//!
//! # Costs
//! One round trip for each step but takeovers, resolutions, and refusals, which take two. A pair of claim and
//! completion commits twice. Under load steps that wait share a packet and a commit: `group.rs`.
//!
//! # Clock
//! The server's. A fence is not below its microseconds, so that it grows across expiry; it could go
//! back only if the server's clock was set back after a record was purged.

mod error;
mod group;
mod link;
mod migrate;
mod options;
mod row;
mod server;
mod sql;
mod step;
mod transact;
mod versioned;

use std::sync::Arc;
use std::time::Duration;

use semel::record::Change;
use semel::store::{
    Claim, ClaimRequest, Clear, Cursor, Entry, Fence, Fenced, ListQuery, Page, Probe, Purged,
    Result, Store, Waited,
};
use semel::{AnyStore, Identity, IdentityDigest, StoreErrorKind, Timestamp};
use sqlx::mysql::MySqlRow;
use tokio::time::Instant;

use self::link::{Connector, Pool};
use self::row::Reader;
use self::server::Server;
use self::sql::Table;
use self::step::Step;
use self::transact::Transactions;
use crate::OpenError;
use crate::common::pool::{Limits, Sent};
use crate::common::{Driver, Gate, Poll, Running, Waiters, may_clear};

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

/// Steps that share a commit under load.
const GROUP: usize = 64;
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
    timeout: Duration,
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
        let table = Table {
            records: options.table,
        };
        let connector = Connector::new(options.driver, table.clone(), options.timeout);
        let deadline = Instant::now() + options.timeout;
        let mut link = connector.link(deadline).await?;
        let server = Server::read(&connector, &mut link, deadline).await?;
        server.check(options.accept_unsafe)?;
        migrate::prepare(
            &mut link,
            &table.records,
            options.schema.unwrap_or_default(),
        )
        .await?;
        link.close().await;
        let limits = Limits {
            connections: options.connections,
            group: GROUP,
            timeout: options.timeout,
        };
        Ok(Self {
            pool: Pool::new(Arc::new(connector), limits),
            transactions,
            table,
            gate: Gate::new("mysql"),
            waiters: Arc::default(),
            timeout: options.timeout,
            accept_unsafe: options.accept_unsafe,
            for_tests: options.for_tests,
        })
    }

    async fn read(&self, sql: String) -> Result<Vec<MySqlRow>> {
        let step = Step::reads(sql);
        Ok(self.pool.run(step, &mut Sent::default()).await?.rows)
    }
}

impl Store for MysqlStore {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        let _inside = self.gate.enter()?;
        let claim = self.pool.claim(identity, request).await;
        if let Err(_) | Ok(Claim::Acquired(_) | Claim::Unknown { .. }) = &claim {
            self.waiters.wake(identity.digest());
        }
        claim
    }

    async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        let _inside = self.gate.enter()?;
        let changed = self.pool.change(identity, change).await;
        if change.ends_attempt() {
            // After an error too: it may have happened.
            self.waiters.wake(identity);
        }
        changed
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
            let Some(first) = digests.first() else {
                continue;
            };
            let purge = Step::writes(first, self.table.purge(&digests));
            let purged = self.pool.run(purge, &mut Sent::default()).await?;
            removed += usize::try_from(purged.wrote).unwrap_or(usize::MAX);
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
        let connector = self.pool.wire();
        let deadline = Instant::now() + self.timeout;
        let mut link = connector.link(deadline).await?;
        let server = Server::read(connector, &mut link, deadline).await?;
        server.check(self.accept_unsafe)?;
        migrate::prepare(&mut link, &self.table.records, crate::Schema::Expect).await?;
        server::rehearse(&mut link, self.table.rehearse(), deadline).await?;
        link.close().await;
        Ok(server.probe())
    }

    async fn close(&self) -> Result<()> {
        self.gate.close().await;
        self.waiters.wake_all();
        self.transactions.close().await;
        for link in self.pool.close() {
            link.close().await;
        }
        Ok(())
    }
}

impl Clear for MysqlStore {
    async fn clear(&self, force: bool) -> Result<()> {
        let _inside = self.gate.enter()?;
        may_clear(self.for_tests, force)?;
        let clear = Step::once(self.table.clear());
        self.pool.run(clear, &mut Sent::default()).await?;
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
