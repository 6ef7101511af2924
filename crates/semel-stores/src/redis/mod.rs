//! Redis and Valkey: a single server, or a Cluster.
//!
//! **Promise.** What an acknowledged step survives is set on the server, read by `probe`, and reported:
//! a crash of the server with `appendonly yes`, a loss of power with `appendfsync always`, the loss of the
//! master only with `wait_replicas` (and then as far as the failover chooses a replica that has it).
//!
//! **Atomic**, because each step is one script on one key, which Redis runs alone; the server's `TIME`
//! within it decides about leases and retention. A record is one hash (`scripts.rs`), so that a Cluster
//! needs no tags and a step never spans slots. Scripts make the write and its condition; what that means
//! for the caller is decided here, by the functions of [`semel::record`], from the record that the script
//! found.
//!
//! **Cost.** One round trip a step, `EVALSHA` (with `WAIT` in the same packet where replicas are waited
//! for), over connections that carry many steps at once. A page of a listing reads all keys: see `scan.rs`.
//! Purging costs nothing: settled records have a TTL.

mod error;
mod lane;
mod link;
mod listen;
mod options;
mod probe;
mod row;
mod scan;
mod scripts;
mod step;
mod target;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;
use semel::record::{self, Change};
use semel::store::{
    Acquired, Claim, ClaimRequest, Clear, Entry, Fence, Fenced, ListQuery, OnLost, Page, Probe,
    Purged, Result, Waited,
};
use semel::{
    AnyStore, Identity, IdentityDigest, Progress, Store, StoreError, StoreErrorKind, Timestamp,
};

use self::error::Effect;
use self::link::Link;
use self::listen::Listener;
pub use self::options::RedisOptions;
use self::row::{corrupt, nonce_text};
use self::step::{Step, disagree};
use self::target::Target;
use crate::OpenError;
use crate::common::{Driver, Gate, Migrated, Poll, Waiters, fits};

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
    listener: Listener,
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
        Self(Arc::new(Inner {
            link: Link::new(target, options.timeout, options.connections),
            gate: Gate::new("redis"),
            waiters: Arc::default(),
            listener: Listener::new(format!("{}changed", options.prefix)),
            wait: options.wait(),
            options,
        }))
    }
}

fn micros(duration: Duration) -> String {
    u64::try_from(duration.as_micros())
        .unwrap_or(u64::MAX)
        .to_string()
}

impl Store for RedisStore {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        let inner = &self.0;
        let _step = inner.gate.enter()?;
        let mut ran = inner
            .run(
                &Step {
                    digest: identity.digest(),
                    script: &inner.scripts().claim,
                    args: &[
                        nonce_text(&request.nonce).as_bytes(),
                        &request.fingerprint.to_bytes(),
                        micros(request.lease).as_bytes(),
                        match request.on_lost {
                            OnLost::Retry => b"1",
                            OnLost::Hold | OnLost::Reconcile => b"0",
                        },
                        row::label(identity).as_bytes(),
                        inner.listener.channel().as_bytes(),
                        inner.touch(),
                        Progress::BARE_BYTES.to_string().as_bytes(),
                        request.note.as_text().as_bytes(),
                    ],
                    lasting: true,
                },
                Effect::Write,
            )
            .await?;
        if ran.wrote {
            let token = ran.fields.token()?;
            let attempt = u32::try_from(ran.fields.number()?)
                .map_err(|_| corrupt("a record's attempt is out of range"))?;
            let since = Timestamp::from_micros(ran.fields.number()?);
            if token.nonce != request.nonce {
                inner.link.drop_all();
                return Err(corrupt("an answer is about another claim than was made"));
            }
            return ran.confirm(Claim::Acquired(Acquired {
                token,
                attempt,
                since,
                is_repeated: false,
            }));
        }
        let row = ran.fields.row()?;
        let now = row.now;
        let decision = record::claim(row.record.as_ref(), request, now, Fence::default());
        match decision.claim {
            Claim::Acquired(_) if decision.write.is_some() => Err(disagree()),
            Claim::Acquired(_) => ran.confirm(decision.claim),
            // Who made it may have died before enough servers had it.
            Claim::Completed { .. } => {
                row.whole()?;
                ran.confirm(decision.claim)
            }
            _ => Ok(decision.claim),
        }
    }

    async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        let inner = &self.0;
        let _step = inner.gate.enter()?;
        fits(change, "redis", LARGEST)?;
        match change {
            Change::Held(token, update) => inner.held(identity, change, token, update).await,
            Change::Resolve(resolution) => inner.resolved(identity, change, resolution).await,
        }
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
        inner.listener.start(inner.link.target(), &inner.waiters);
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
        inner.listener.stop();
        inner.link.drop_all();
        Ok(())
    }
}

impl Clear for RedisStore {
    async fn clear(&self, force: bool) -> Result<()> {
        let inner = &self.0;
        let _step = inner.gate.enter()?;
        if !inner.options.for_tests && !force {
            let message = "the redis store was not opened for tests: clear it with force only";
            return Err(StoreError::new(StoreErrorKind::Config, message));
        }
        inner.clear().await
    }
}
