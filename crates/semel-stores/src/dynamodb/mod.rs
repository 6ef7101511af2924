//! Records in a table of DynamoDB: `dynamodb://TABLE`.
//!
//! An acknowledged step is on a quorum of three copies in three zones, as AWS says. Each step is one
//! `UpdateItem` under a condition, which DynamoDB carries out on the item alone and in one go; where
//! the condition does not hold it answers the item as it is, and `semel::record` makes the answer of
//! it. So a claim takes one request, won or lost, and so does a replay.
//!
//! An update has no "if": where what to write depends on more than a condition says, the first
//! request brings the record and a second writes. That is so for a claim on a record past its
//! retention that nobody removed yet, on one whose fence is ahead of this machine's clock, and on a
//! lease of nothing; and for releases by a handle that does not know that steps are finished.
//!
//! # Time
//! DynamoDB has no clock for conditions. A **lease** has lapsed when this handle has seen the same
//! fence, nonce and number of renewals for the lease's whole length, by its own monotonic clock:
//! wall clocks do not matter, and a handle that comes late waits longer. **Retention** goes by the
//! wall clock of who completes and who reads: where two machines' clocks differ by a second,
//! retention ends a second sooner or later. Lease ends shown by `get` and `list` are by the
//! holder's wall clock, for people.

mod call;
mod connect;
mod errors;
mod fences;
mod item;
mod options;
mod scan;
mod schema;
mod steps;
mod update;
mod versioned;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use semel::record::Change;
use semel::store::{
    Claim, ClaimRequest, Clear, Entry, Fence, Fenced, ListQuery, Page, Probe, Purged, Result,
    Store, Waited,
};
use semel::{AnyStore, Clock, Identity, IdentityDigest, SystemClock, Timestamp};
use tokio::sync::OnceCell;

pub use self::options::{DynamoDbOptions, Purging};

use self::call::Table;
use self::fences::Fences;
use self::item::{Reader, Row};
use self::watch::Sightings;
use crate::common::{Driver, Gate, Poll, Running, Waiters, fits, may_clear};

pub(crate) const DRIVER: Driver = Driver {
    check: |url| DynamoDbOptions::from_url(url).map(drop),
    open: |url, options| {
        Box::pin(async move {
            let store = DynamoDbOptions::read(url, options)?.open().await?;
            Ok(AnyStore::new(store))
        })
    },
    migrate: |url, options| {
        Box::pin(async move { Ok(DynamoDbOptions::read(url, options)?.migrate().await?) })
    },
};

/// The largest outcome that is kept, encoded. DynamoDB takes items of 400 KB; what is left is for
/// the record's scope and its other attributes.
pub const MAX_OUTCOME: usize = 380 * 1024;

/// A store in a table of DynamoDB. See the [module](self) for what it promises, and
/// [`DynamoDbOptions`] for how it is opened.
pub struct DynamoDbStore {
    table: Table,
    versioned: Table,
    gate: Gate,
    waiters: Arc<Waiters>,
    seen: Sightings,
    clock: Option<Arc<dyn Clock>>,
    fences: Fences,
    purging: Purging,
    ttl_is_on: OnceCell<bool>,
    for_tests: bool,
}

impl std::fmt::Debug for DynamoDbStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DynamoDbStore")
            .field("table", &self.table.name)
            .finish_non_exhaustive()
    }
}

impl DynamoDbStore {
    fn new(table: Table, clock: Option<Arc<dyn Clock>>, purging: Purging, for_tests: bool) -> Self {
        Self {
            versioned: table.beside("-versioned"),
            table,
            gate: Gate::new("DynamoDB"),
            waiters: Arc::default(),
            seen: Sightings::default(),
            fences: Fences::new(clock.is_some()),
            clock,
            purging,
            ttl_is_on: OnceCell::new(),
            for_tests,
        }
    }

    /// The wall clock's time. Read anew each time: a machine that slept, or whose clock was set
    /// right, must not go on with what it once read.
    fn now(&self) -> Timestamp {
        match &self.clock {
            Some(clock) => clock.now(),
            None => SystemClock::new().now(),
        }
    }

    async fn purges_by_scan(&self) -> Result<bool> {
        if self.purging == Purging::Scan {
            return Ok(true);
        }
        let on = self
            .ttl_is_on
            .get_or_try_init(|| schema::ttl_is_on(&self.table));
        Ok(!*on.await?)
    }
}

impl Store for DynamoDbStore {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        let _under_way = self.gate.enter()?;
        self.claim_identity(identity, request).await
    }

    async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        let _under_way = self.gate.enter()?;
        fits(change, "dynamodb", MAX_OUTCOME)?;
        let changed = self.change_record(identity, change).await;
        if change.ends_attempt() {
            // After an error too: it may have happened.
            self.waiters.wake(identity);
        }
        changed
    }

    async fn get(&self, identity: &IdentityDigest) -> Result<Option<Entry>> {
        let _under_way = self.gate.enter()?;
        let Some(item) = self.table.read(identity.to_string(), None).await? else {
            return Ok(None);
        };
        let (reader, now) = (Reader(&item), self.now());
        let row = reader.row()?;
        self.seen.judge(identity, &row, now);
        if row.record.is_purgeable(now) {
            return Ok(None);
        }
        reader.entry(row.record).map(Some)
    }

    async fn list(&self, query: &ListQuery) -> Result<Page> {
        let _under_way = self.gate.enter()?;
        let note = |digest: &IdentityDigest, row: &Row| self.seen.note(digest, row);
        scan::list(&self.table, query, self.now(), note).await
    }

    async fn purge(&self, limit: usize) -> Result<Purged> {
        let _under_way = self.gate.enter()?;
        if !self.purges_by_scan().await? {
            return Ok(Purged {
                removed: 0,
                more: false,
            });
        }
        scan::purge(&self.table, limit, self.now()).await
    }

    async fn wait(
        &self,
        identity: &IdentityDigest,
        fence: Fence,
        timeout: Duration,
    ) -> Result<Waited> {
        let key = identity.to_string();
        let look = || async {
            // Each look is a step, the wait is none: closing ends it.
            let _under_way = self.gate.enter()?;
            let only = Some(("#state, #fence", &[item::STATE, item::FENCE] as &[_]));
            let running = match self.table.read(key.clone(), only).await? {
                Some(item) => Reader(&item).in_flight_under(fence)?,
                None => false,
            };
            Ok(if running { Running::Yes } else { Running::No })
        };
        self.waiters
            .wait(identity, fence, timeout, Poll::PAID, look)
            .await
    }

    async fn probe(&self) -> Result<Probe> {
        let _under_way = self.gate.enter()?;
        schema::probe(&self.table).await
    }

    async fn close(&self) -> Result<()> {
        self.gate.close().await;
        self.waiters.wake_all();
        Ok(())
    }
}

impl Clear for DynamoDbStore {
    async fn clear(&self, force: bool) -> Result<()> {
        let _under_way = self.gate.enter()?;
        may_clear(self.for_tests, force)?;
        scan::clear(&self.table).await
    }
}
