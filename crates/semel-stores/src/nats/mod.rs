//! NATS JetStream: a bucket on one node, or on several.
//!
//! A record is the last message of its key's subject; the earlier ones stay until a purge removes
//! them (`removal` says why). Its sequence in the stream is the record's revision. A write names the revision that it expects and is stored only
//! there, by the stream's leader, in one request: that is what makes each step atomic. What the step
//! means is decided before by [`semel::record`], from the revision expected.
//!
//! **Round trips.** A claim on a new identity is one: created with nothing expected, and read in the
//! same moment, so that where the identity is taken (a replay, a rival in flight) the answer comes
//! with the same round trip. The read may be answered before the winner's record is there; then it
//! is asked again. Complete, renew, abandon, mark unknown and resolve are one by the handle that
//! wrote the record last: it remembers revision and record (of some ten thousand at least). By
//! another handle, or where the record has changed since, they are two: read, then write. NATS has
//! no way to say more in one. A takeover, a claim after release or expiry are two as well.
//!
//! **Time.** The server has no clock to ask. A lease has lapsed once this handle has seen the same
//! revision for as long as the lease lasts, on its own monotonic clock; each renewal is a new
//! revision. A process that comes new waits for one whole lease before it takes over. Retention
//! goes by the server's time as it is told with each consumer and message: it can be off by as much
//! as the servers of a cluster are off from each other.
//!
//! **Fences** are the microseconds at which the stream was made plus the message's sequence. The
//! sequence never repeats while the stream lives; one made anew starts above all fences of the
//! earlier one. They can repeat after the server itself lost messages (a loss of power before a
//! sync, a backup restored); nonces never do.

mod bucket;
mod clock;
mod effort;
mod frame;
mod link;
mod options;
mod removal;
mod scan;
mod seen;
mod shared;
mod step;
mod sweep;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use semel::record::Change;
use semel::store::{
    Claim, ClaimRequest, Clear, Entry, Fence, Fenced, ListQuery, Page, Probe, Purged, Result,
    Waited,
};
use semel::{AnyStore, Identity, IdentityDigest, Store};

pub use self::options::NatsOptions;
use self::shared::Shared;
use crate::common::{Driver, Poll, may_clear};

pub(crate) const DRIVER: Driver = Driver {
    check: |url| NatsOptions::from_url(url).map(drop),
    open: |url, options| {
        Box::pin(async move {
            let store = NatsOptions::with_defaults(url, options)?.open().await?;
            Ok(AnyStore::new(store))
        })
    },
    migrate: |url, options| {
        Box::pin(async move { NatsOptions::with_defaults(url, options)?.migrate().await })
    },
};

/// A store in a bucket of NATS JetStream.
pub struct NatsStore(Arc<Shared>);

impl std::fmt::Debug for NatsStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NatsStore").finish_non_exhaustive()
    }
}

impl Store for NatsStore {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        let _step = self.0.gate.enter()?;
        self.0.claim(identity, request).await
    }

    async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        let _step = self.0.gate.enter()?;
        self.0.change(identity, change).await
    }

    async fn get(&self, identity: &IdentityDigest) -> Result<Option<Entry>> {
        let _step = self.0.gate.enter()?;
        let row = self.0.row(identity).await?;
        let now = self.0.now();
        let row = row.filter(|row| !row.entry.record.is_purgeable(now));
        Ok(row.map(|row| row.entry))
    }

    async fn list(&self, query: &ListQuery) -> Result<Page> {
        let _step = self.0.gate.enter()?;
        self.0.page(query).await
    }

    async fn purge(&self, limit: usize) -> Result<Purged> {
        let _step = self.0.gate.enter()?;
        self.0.sweep(limit).await
    }

    async fn wait(
        &self,
        identity: &IdentityDigest,
        fence: Fence,
        timeout: Duration,
    ) -> Result<Waited> {
        let shared = &self.0;
        // Closing does not wait for those who wait: it wakes them, and their next look fails.
        drop(shared.gate.enter()?);
        let look = || shared.is_running(identity, fence);
        let poll = Poll::BACKSTOP;
        shared
            .waiters
            .wait(identity, fence, timeout, poll, look)
            .await
    }

    async fn probe(&self) -> Result<Probe> {
        let _step = self.0.gate.enter()?;
        self.0.probe().await
    }

    async fn close(&self) -> Result<()> {
        self.0.gate.close().await;
        self.0.waiters.wake_all();
        self.0.end().await;
        Ok(())
    }
}

impl Clear for NatsStore {
    async fn clear(&self, force: bool) -> Result<()> {
        let _step = self.0.gate.enter()?;
        may_clear(self.0.for_tests, force)?;
        self.0.empty().await
    }
}
