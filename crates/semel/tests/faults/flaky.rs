//! A memory store that fails as it is told to.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use semel::memory::MemoryStore;
use semel::store::{
    Claim, ClaimRequest, Entry, Fence, Fenced, ListQuery, Page, Probe, Purged, Resolution, Result,
    Retention, Token, Waited,
};
use semel::{FinishedStep, Identity, IdentityDigest, Outcome, Store, StoreError, StoreErrorKind};

#[derive(Default)]
pub(crate) struct Flaky {
    pub(crate) memory: MemoryStore,
    /// Nothing arrives.
    pub(crate) down: AtomicBool,
    /// Claims arrive, and their answers do not.
    pub(crate) loses_claims: AtomicBool,
    /// Claims arrive, and their answers take this long.
    pub(crate) slow_claims: Mutex<Duration>,
    /// Renewals are not answered at all.
    pub(crate) hung_renewals: AtomicBool,
}

impl Flaky {
    fn up(&self) -> Result<()> {
        match self.down.load(Ordering::SeqCst) {
            true => Err(lost()),
            false => Ok(()),
        }
    }
}

fn lost() -> StoreError {
    StoreError::new(StoreErrorKind::Unknown, "the connection broke")
}

#[rustfmt::skip]
impl Store for Flaky {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        self.up()?;
        let claim = self.memory.claim(identity, request).await;
        let slow = *self.slow_claims.lock().unwrap();
        if !slow.is_zero() {
            tokio::time::sleep(slow).await;
        }
        if self.loses_claims.load(Ordering::SeqCst) { Err(lost()) } else { claim }
    }
    async fn renew(&self, identity: &IdentityDigest, token: &Token, lease: Duration) -> Result<Fenced> {
        if self.hung_renewals.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        self.up()?;
        self.memory.renew(identity, token, lease).await
    }
    async fn complete(&self, identity: &IdentityDigest, token: &Token, outcome: &Outcome, retention: Retention) -> Result<Fenced> {
        self.up()?;
        self.memory.complete(identity, token, outcome, retention).await
    }
    async fn keep_step(&self, identity: &IdentityDigest, token: &Token, step: &FinishedStep, kept: usize) -> Result<Fenced> {
        self.up()?;
        self.memory.keep_step(identity, token, step, kept).await
    }
    async fn abandon(&self, identity: &IdentityDigest, token: &Token) -> Result<Fenced> {
        self.up()?;
        self.memory.abandon(identity, token).await
    }
    async fn mark_unknown(&self, identity: &IdentityDigest, token: &Token) -> Result<Fenced> {
        self.up()?;
        self.memory.mark_unknown(identity, token).await
    }
    async fn resolve(&self, identity: &IdentityDigest, resolution: &Resolution) -> Result<Fenced> {
        self.up()?;
        self.memory.resolve(identity, resolution).await
    }
    async fn get(&self, identity: &IdentityDigest) -> Result<Option<Entry>> {
        self.up()?;
        self.memory.get(identity).await
    }
    async fn list(&self, query: &ListQuery) -> Result<Page> {
        self.up()?;
        self.memory.list(query).await
    }
    async fn purge(&self, limit: usize) -> Result<Purged> {
        self.up()?;
        self.memory.purge(limit).await
    }
    async fn wait(&self, identity: &IdentityDigest, fence: Fence, timeout: Duration) -> Result<Waited> {
        self.up()?;
        self.memory.wait(identity, fence, timeout).await
    }
    async fn probe(&self) -> Result<Probe> {
        self.up()?;
        self.memory.probe().await
    }
    async fn close(&self) -> Result<()> {
        self.memory.close().await
    }
}
