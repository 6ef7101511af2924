//! Redis and Valkey: a single server, or a Cluster.
//!
//! **Promise.** What an acknowledged step survives is set on the server, read by `probe`, and reported:
//! a crash of the server with `appendonly yes`, a loss of power with `appendfsync always`, the loss of the
//! master only with `wait_replicas` (and then as far as the failover chooses a replica that has it).
//!
//! **Atomic**, because each change is one script on one key, which Redis runs alone; the server's `TIME` within
//! it decides about leases and retention. A record is one string (`value.rs`), so that a Cluster needs no tags
//! and a step never spans slots.
//!
//! - *Frequent*: a claim of an identity that has no record, and what an attempt does by its token (renew, keep a
//!   step, complete, release). One script compares the token and the state with those of the record, and writes. If
//!   they differ, it writes nothing and answers with the record; [`semel::record`] derives the refusal from that.
//! - *Rare*: everything else. A script answers with the record and the time, [`semel::record`] decides what becomes
//!   of it, and another script writes that if the record is unchanged. If somebody changed it, the script answers
//!   with the record as it is now, and the step is decided anew. The decision may be a moment old when it is written,
//!   but an unchanged record means that nobody renewed or settled it, so that what had lapsed has still lapsed.
//!
//! **Cost.** One round trip for what is frequent, two for what is rare, `EVALSHA` (with `WAIT` in the same packet
//! where replicas are waited for), over connections that carry many steps at once. A page of a listing reads all
//! keys: see `scan.rs`. Purging costs nothing: settled records have a TTL.

mod error;
mod lane;
mod link;
mod listen;
mod options;
mod probe;
mod scan;
mod scripts;
mod step;
mod target;
mod value;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;
use semel::record::Change;
use semel::store::{
    Claim, ClaimRequest, Clear, Entry, Fence, Fenced, ListQuery, Page, Probe, Purged, Result,
    Waited,
};
use semel::{AnyStore, Identity, IdentityDigest, Store};

use self::link::Link;
pub use self::options::RedisOptions;
use self::target::Target;
use crate::OpenError;
use crate::common::subscription::Subscription;
use crate::common::{Driver, Gate, Migrated, Poll, Waiters, fits, may_clear};

pub(crate) const DRIVER: Driver = Driver {
    check: |url| RedisOptions::new().read(url).map(drop),
    open: |url, _| Box::pin(open(url)),
    migrate: |url, _| {
        Box::pin(async move {
            // Keys need no preparation; that the server would do is said here too.
            RedisOptions::new().open(url).await?.close().await?;
            Ok(Migrated::nothing())
        })
    },
};

async fn open(url: &str) -> Result<AnyStore, OpenError> {
    Ok(AnyStore::new(RedisOptions::new().open(url).await?))
}

/// Larger outcomes are refused: Redis runs one step at a time, and would hold up all others.
const LARGEST: usize = 32 << 20;

/// Records on Redis or Valkey. Opened by [`RedisOptions::open`]; clones share its connections.
#[derive(Clone)]
pub struct RedisStore(Arc<Inner>);

struct Inner {
    options: RedisOptions,
    link: Link,
    gate: Gate,
    waiters: Arc<Waiters>,
    subscription: Subscription,
    wait: Option<Cmd>,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("target", self.0.link.target())
            .field("prefix", &self.0.options.prefix)
            .finish_non_exhaustive()
    }
}

impl RedisStore {
    fn new(options: RedisOptions, target: Target) -> Self {
        let waiters = Arc::<Waiters>::default();
        Self(Arc::new(Inner {
            link: Link::new(target, options.connections),
            gate: Gate::new("redis"),
            subscription: Subscription::new(waiters.clone()),
            waiters,
            wait: options.wait(),
            options,
        }))
    }
}

impl Inner {
    fn channel(&self) -> String {
        format!("{}changed", self.options.prefix)
    }
}

impl Store for RedisStore {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        let _step = self.0.gate.enter()?;
        self.0.claim(identity, request).await
    }

    async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        let _step = self.0.gate.enter()?;
        fits(change, "redis", LARGEST)?;
        self.0.change(identity, change).await
    }

    async fn get(&self, identity: &IdentityDigest) -> Result<Option<Entry>> {
        let _step = self.0.gate.enter()?;
        self.0.get(identity).await
    }

    async fn list(&self, query: &ListQuery) -> Result<Page> {
        let _step = self.0.gate.enter()?;
        self.0.list(query).await
    }

    /// Removes nothing: Redis removes records past their retention by itself, and until it has, no
    /// step sees them.
    async fn purge(&self, _limit: usize) -> Result<Purged> {
        let _step = self.0.gate.enter()?;
        Ok(Purged {
            removed: 0,
            more: false,
        })
    }

    async fn wait(
        &self,
        identity: &IdentityDigest,
        fence: Fence,
        timeout: Duration,
    ) -> Result<Waited> {
        let inner = &self.0;
        // Closing does not wait for those who wait: it wakes them, and their next look fails.
        drop(inner.gate.enter()?);
        let look = || inner.is_running(identity, fence);
        let poll = Poll::BACKSTOP;
        inner
            .waiters
            .wait(identity, fence, timeout, poll, look)
            .await
    }

    async fn probe(&self) -> Result<Probe> {
        let _step = self.0.gate.enter()?;
        self.0.probe().await
    }

    async fn close(&self) -> Result<()> {
        let inner = &self.0;
        tokio::join!(inner.gate.close(), async { inner.waiters.wake_all() });
        inner.subscription.stop();
        inner.link.drop_all();
        Ok(())
    }
}

impl Clear for RedisStore {
    async fn clear(&self, force: bool) -> Result<()> {
        let inner = &self.0;
        let _step = inner.gate.enter()?;
        may_clear(inner.options.for_tests, force)?;
        inner.clear().await
    }
}
