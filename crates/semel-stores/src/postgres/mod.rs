//! PostgreSQL, from version 12.
//!
//! # Why each step is atomic
//! What changes a record is one statement, so one transaction, and its write carries its condition.
//! Under READ COMMITTED an `UPDATE` that meets a rival waits for the rival's commit, and then judges
//! its condition again on the row as it is, under the row's lock: of any number of claims one finds it
//! true. Under stricter isolation the others are rolled back (40001), and sent again. The unique index
//! on the digest lets one insert through.
//!
//! What could not be written is answered, or decided, by the record as it was seen, with the server's
//! time: `common/exchange.rs`.
//!
//! The server's clock is `statement_timestamp()`; `sql.rs` says why.
//!
//! # What a step costs
//! One round trip, two for a claim that takes a record over, a resolution, and a fenced step that is
//! refused (`sql.rs` says why); claims that write and fenced steps one commit, shared with others under load;
//! replays, and claims that find a rival, only read. `common/pool` says how steps share connections.

mod connect;
mod error;
#[cfg(feature = "postgres-sqlx")]
mod for_sqlx;
mod group;
mod hosts;
mod migrate;
mod options;
#[cfg(test)]
mod plans;
mod pool;
mod probe;
mod push;
mod row;
mod sql;
mod step;
mod table;
mod tls;
mod transact;
mod url;
mod versioned;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use semel::record::Change;
use semel::store::{
    Claim, ClaimRequest, Clear, Entry, Fence, Fenced, ListQuery, Page, Probe, Purged, Result,
    Waited,
};
use semel::{AnyStore, Identity, IdentityDigest, Store, Timestamp};
use tokio_postgres::Row;

use self::connect::Connector;
#[cfg(feature = "postgres-sqlx")]
pub use self::for_sqlx::SqlxSteps;
use self::hosts::Hosts;
use self::options::Listen;
pub use self::options::PostgresOptions;
use self::pool::{Pool, Sent};
use self::push::Push;
use self::step::Step;
pub use self::transact::PostgresTransaction;
use self::transact::Transactions;
use crate::OpenError;
use crate::common::subscription::Subscription;
use crate::common::{Driver, Gate, Poll, Waiters, fits, may_clear};

/// The version whose connections [`SqlxSteps`] takes.
#[cfg(feature = "postgres-sqlx")]
pub use ::sqlx;
/// The version whose [`Client`](tokio_postgres::Client) a [`PostgresTransaction`] is.
pub use tokio_postgres;

pub(crate) const DRIVER: Driver = Driver {
    check: |url| PostgresOptions::from_url(url).map(drop),
    open: |url, options| {
        Box::pin(async {
            let mut own = PostgresOptions::from_url(url)?;
            own.schema = own.schema.or(Some(options.schema));
            Ok(AnyStore::new(own.open().await?))
        })
    },
    migrate: |url, _| Box::pin(async { PostgresOptions::from_url(url)?.migrate().await }),
};

/// The largest outcome that is kept, in bytes.
const LARGEST: usize = 32 << 20;

/// How many records one statement of a purge removes.
const PURGED_AT_ONCE: usize = 500;

/// Records in a table of a PostgreSQL database.
///
/// An acknowledged step is committed: with the server's usual settings it survives a loss of
/// power. [`probe`](Store::probe) says what the settings at hand promise.
pub struct PostgresStore {
    pool: Pool,
    gate: Gate,
    waiters: Arc<Waiters>,
    subscription: Subscription,
    /// `None`: it listens to nobody.
    push: Option<Push>,
    transactions: Transactions,
    /// What is due before then was purged, in microseconds.
    purge_from: AtomicU64,
    tests: bool,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Opens the store that `url` names: what [`PostgresOptions`] read in it, `schema=create` among
    /// them. Unlike [`semel_stores::open`](crate::open) it keeps its type, and with it its transactions.
    ///
    /// # Errors
    /// Those of [`PostgresOptions::from_url`] and [`PostgresOptions::open`].
    pub async fn open(url: &str) -> Result<Self, OpenError> {
        PostgresOptions::from_url(url)?.open().await
    }

    async fn connect(options: PostgresOptions) -> Result<Self> {
        let connector = Arc::new(Connector::new(&options)?);
        let link = connector.connect_bare().await?;
        let schema = options.schema.unwrap_or_default();
        migrate::look_after(link.client(), &connector, schema).await?;
        drop(link);
        let waiters = Arc::new(Waiters::default());
        let listen = match &options.listen {
            Listen::Same => Some(Hosts::new(&options.config, options.timeout)),
            Listen::At(config) => Some(Hosts::new(config, options.timeout)),
            Listen::Off => None,
        };
        let push = listen.map(|hosts| Push {
            connector: connector.clone(),
            hosts: Arc::new(hosts),
            waiters: waiters.clone(),
        });
        Ok(Self {
            pool: Pool::new(connector, &options),
            gate: Gate::new("postgres"),
            subscription: Subscription::new(waiters.clone()),
            push,
            waiters,
            transactions: Transactions::new(&options)?,
            purge_from: AtomicU64::new(0),
            tests: options.tests,
        })
    }

    async fn read<T>(&self, step: Step, read: impl FnOnce(&[Row]) -> Result<T>) -> Result<T> {
        let _step = self.gate.enter()?;
        read(&self.pool.run(step, &mut Sent::default()).await?)
    }
}

impl Store for PostgresStore {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        let _step = self.gate.enter()?;
        let claim = self.pool.claim(identity, request).await;
        if let Err(_) | Ok(Claim::Acquired(_) | Claim::Unknown { .. }) = &claim {
            // Who waits in this process need not wait for the server to tell.
            self.waiters.wake(identity.digest());
        }
        claim
    }

    async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        let _step = self.gate.enter()?;
        fits(change, "postgres", LARGEST)?;
        let changed = self.pool.change(identity, change).await;
        if change.ends_attempt() {
            // After an error too: it may have happened.
            self.waiters.wake(identity);
        }
        changed
    }

    async fn get(&self, identity: &IdentityDigest) -> Result<Option<Entry>> {
        self.read(step::get(identity), step::got).await
    }

    async fn list(&self, query: &ListQuery) -> Result<Page> {
        self.read(step::list(query), |rows| step::listed(rows, query))
            .await
    }

    async fn purge(&self, limit: usize) -> Result<Purged> {
        let mut removed = 0;
        loop {
            let now = (limit - removed).min(PURGED_AT_ONCE);
            let from = Timestamp::from_micros(self.purge_from.load(Ordering::Relaxed));
            let (purged, next) = self.read(step::purge(now, from), step::purged).await?;
            self.purge_from.store(next.as_micros(), Ordering::Relaxed);
            removed += purged.removed;
            if !purged.more || removed >= limit {
                return Ok(Purged {
                    removed,
                    more: purged.more,
                });
            }
        }
    }

    async fn wait(
        &self,
        identity: &IdentityDigest,
        fence: Fence,
        timeout: Duration,
    ) -> Result<Waited> {
        // Not for the whole wait: closing does not wait for who waits.
        drop(self.gate.enter()?);
        let look = async || {
            let _step = self.gate.enter()?;
            if let Some(push) = &self.push {
                self.subscription.start(|| push.clone());
            }
            let make = if self.subscription.is_up() {
                step::watch
            } else {
                step::look
            };
            self.read(make(identity, fence), step::looked).await
        };
        let poll = Poll::BACKSTOP;
        self.waiters
            .wait(identity, fence, timeout, poll, look)
            .await
    }

    async fn probe(&self) -> Result<Probe> {
        let _step = self.gate.enter()?;
        let link = self.pool.link().await?;
        probe::probe(&link, self.pool.connector()).await
    }

    async fn close(&self) -> Result<()> {
        self.gate.close().await;
        self.subscription.stop();
        self.pool.close();
        self.transactions.close();
        // They look once more, and are told.
        self.waiters.wake_all();
        Ok(())
    }
}

impl Clear for PostgresStore {
    async fn clear(&self, force: bool) -> Result<()> {
        may_clear(self.tests, force)?;
        self.read(step::clear(), |_| Ok(())).await
    }
}
