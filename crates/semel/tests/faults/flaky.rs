//! A memory store that fails as it is told to.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::memory::MemoryStore;
use semel::record::{Change, Update};
use semel::store::{
    Claim, ClaimRequest, Entry, Fence, Fenced, ListQuery, Page, Probe, Purged, Result, Waited,
};
use semel::{Identity, IdentityDigest, Store, StoreError, StoreErrorKind};

#[derive(Default)]
pub(crate) struct Flaky {
    pub(crate) memory: Arc<MemoryStore>,
    /// Nothing arrives.
    pub(crate) down: AtomicBool,
    /// Claims are refused in this way.
    pub(crate) refuses_claims: Mutex<Option<StoreErrorKind>>,
    /// Claims arrive, and their answers do not.
    pub(crate) loses_claims: AtomicBool,
    /// So many claims arrive, and their answers do not.
    pub(crate) loses_next: AtomicU32,
    /// The next claims, the last of these first, are not answered, and arrive so much later.
    pub(crate) late_claims: Mutex<Vec<Duration>>,
    /// How many claims were sent.
    pub(crate) claims: AtomicU32,
    /// Claims arrive, and their answers take this long.
    pub(crate) slow_claims: Mutex<Duration>,
    /// Who waits learns so much later that it is over.
    pub(crate) slow_waits: Mutex<Duration>,
    /// Changes other than renewals, of those that arrive or fail, take this long.
    pub(crate) slow_changes: Mutex<Duration>,
    /// How many of them were sent.
    pub(crate) changes: AtomicU32,
    /// So many releases arrive, and their answers do not.
    pub(crate) loses_releases: AtomicU32,
    /// How many reads were sent.
    pub(crate) gets: AtomicU32,
    /// Renewals are not answered at all.
    pub(crate) hung_renewals: AtomicBool,
    /// Renewals fail in this way.
    pub(crate) failed_renewals: Mutex<Option<StoreErrorKind>>,
    /// So many changes do not arrive.
    pub(crate) fails_next: AtomicU32,
    /// Nothing arrives but renewals.
    pub(crate) renews_only: AtomicBool,
}

impl Flaky {
    fn up(&self) -> Result<()> {
        match self.down.load(Ordering::SeqCst) {
            true => Err(lost()),
            false => Ok(()),
        }
    }
}

/// Whether it is one of the next so many.
fn is_next(left: &AtomicU32) -> bool {
    let less = |left: u32| left.checked_sub(1);
    let was = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    was.is_ok()
}

fn lost() -> StoreError {
    StoreError::new(StoreErrorKind::Unknown, "the connection broke")
}

#[rustfmt::skip]
impl Store for Flaky {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        self.claims.fetch_add(1, Ordering::SeqCst);
        self.up()?;
        if let Some(kind) = *self.refuses_claims.lock().unwrap() {
            return Err(StoreError::new(kind, "refused"));
        }
        let late = self.late_claims.lock().unwrap().pop();
        if let Some(late) = late {
            let (memory, identity, request) = (Arc::clone(&self.memory), identity.clone(), request.clone());
            tokio::spawn(async move {
                tokio::time::sleep(late).await;
                memory.claim(&identity, &request).await.ok();
            });
            return Err(lost());
        }
        let claim = self.memory.claim(identity, request).await;
        let slow = *self.slow_claims.lock().unwrap();
        if !slow.is_zero() {
            tokio::time::sleep(slow).await;
        }
        let loses = self.loses_claims.load(Ordering::SeqCst) || is_next(&self.loses_next);
        if loses { Err(lost()) } else { claim }
    }
    async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        let renews = matches!(change, Change::Held(_, Update::Renew(_)));
        if renews && self.hung_renewals.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if let Some(kind) = self.failed_renewals.lock().unwrap().filter(|_| renews) {
            return Err(StoreError::new(kind, "no room"));
        }
        self.changes.fetch_add(u32::from(!renews), Ordering::SeqCst);
        let slow = *self.slow_changes.lock().unwrap();
        if !renews && !slow.is_zero() {
            tokio::time::sleep(slow).await;
        }
        if !renews && (self.renews_only.load(Ordering::SeqCst) || is_next(&self.fails_next)) {
            return Err(lost());
        }
        self.up()?;
        let changed = self.memory.change(identity, change).await;
        let releases = matches!(change, Change::Held(_, Update::Abandon));
        if releases && is_next(&self.loses_releases) { Err(lost()) } else { changed }
    }
    async fn get(&self, identity: &IdentityDigest) -> Result<Option<Entry>> {
        self.gets.fetch_add(1, Ordering::SeqCst);
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
        let waited = self.memory.wait(identity, fence, timeout).await;
        let slow = *self.slow_waits.lock().unwrap();
        if !slow.is_zero() {
            tokio::time::sleep(slow).await;
        }
        waited
    }
    async fn probe(&self) -> Result<Probe> {
        self.up()?;
        self.memory.probe().await
    }
    semel::delegate!(memory: close);
}
