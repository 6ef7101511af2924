//! The store inside the process.
//!
//! # Why each step is atomic
//! Every record belongs to one shard, chosen by its digest, and every step does all of its reading,
//! deciding (a pure function of [`record`]) and writing under that shard's lock,
//! which it takes once. Nothing awaits while it holds a lock.
//!
//! # What it costs
//! A step takes one lock, reads the clock once and looks up one hash. A record that expires costs
//! one step of a heap; claims remove up to two expired records of their shard each, so that memory
//! returns without a background task, and [`purge`](Store::purge) removes the rest in slices.
//!
//! # What it promises
//! Nothing beyond the process ([`Durability::Process`]). It is bounded by records and bytes; when
//! it is full it refuses new claims and forgets nothing (R8). A completion is always taken: the
//! bytes may go beyond the bound by the answers of attempts in flight.

mod shard;
mod usage;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::record::{self, Change, State};
use crate::store::{
    Claim, ClaimRequest, Clear, Cursor, Durability, Entry, Fence, Fenced, Label, ListQuery, Page,
    Probe, Purged, Refusal, Result, Store, Waited,
};
use crate::sync::{Mutex, within};
use crate::{Clock, Identity, IdentityDigest, StoreError, StoreErrorKind, SystemClock, Timestamp};

use shard::{Cell, Shard};
use usage::Usage;

/// How much a [`MemoryStore`] may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most records, in any state.
    pub records: usize,
    /// The most bytes: outcomes, names and a fixed overhead for each record.
    pub bytes: usize,
}

impl Default for Limits {
    /// A million records, a gibibyte.
    fn default() -> Self {
        Self {
            records: 1_000_000,
            bytes: 1 << 30,
        }
    }
}

/// A [`Store`] in this process's memory: sharded, bounded, with the process's own clock.
///
/// For tests, for one process whose records need not survive it, and as the reference that other
/// stores are compared with.
pub struct MemoryStore<C = SystemClock> {
    shards: Box<[Mutex<Shard>]>,
    usage: Usage,
    clock: C,
    // Where the next purge starts, so that a bounded purge gets around to every shard.
    purge_from: Mutex<usize>,
    closed: AtomicBool,
    for_tests: bool,
}

/// How many expired records a claim removes on its way: more than it adds, so that memory shrinks.
const EXPIRED_PER_CLAIM: usize = 2;
/// How many records are removed under one hold of a lock: some ten microseconds.
const PURGE_SLICE: usize = 64;
const MAX_SHARDS: usize = 256;

impl MemoryStore {
    /// An empty store with this bound.
    pub fn new(limits: Limits) -> Self {
        Self::with_clock(limits, SystemClock::new())
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl<C: Clock> MemoryStore<C> {
    /// An empty store with this bound and this clock.
    pub fn with_clock(limits: Limits, clock: C) -> Self {
        // Small stores get one shard, so that their bound is exact.
        let shards = (limits.records / 1024)
            .clamp(1, MAX_SHARDS)
            .next_power_of_two();
        Self {
            shards: (0..shards)
                .map(|shard| Mutex::new(Shard::new(shard, shards)))
                .collect(),
            usage: Usage::new(limits, shards),
            clock,
            purge_from: Mutex::new(0),
            closed: AtomicBool::new(false),
            for_tests: false,
        }
    }

    /// Allows [`Clear::clear`] without force.
    #[must_use]
    pub fn for_tests(mut self) -> Self {
        self.for_tests = true;
        self
    }

    /// How many records there are, in any state, expired and not yet removed ones among them.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.lock().len()).sum()
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    // Shards are in the order of their digests, so that a listing can walk them.
    fn shard(&self, digest: &IdentityDigest) -> &Mutex<Shard> {
        let [a, b, ..] = *digest.as_bytes();
        let high = usize::from(u16::from_be_bytes([a, b]));
        &self.shards[(high * self.shards.len()) >> 16]
    }

    fn open(&self) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(StoreError::new(
                StoreErrorKind::Closed,
                "the memory store was closed",
            ));
        }
        Ok(())
    }

    fn full(&self) -> StoreError {
        let Limits { records, bytes } = self.usage.limits();
        StoreError::new(
            StoreErrorKind::Capacity,
            format!("the memory store is full: it may hold {records} records and {bytes} bytes"),
        )
    }

    // Whether records were removed whose retention is over. Each shard hands on what it counted.
    fn make_room(&self, now: Timestamp) -> bool {
        let mut removed = 0;
        for shard in &self.shards {
            let mut shard = shard.lock();
            let expired = shard.purge(now, PURGE_SLICE, &self.usage);
            shard.hand_on(&self.usage);
            drop(shard);
            removed += expired.len();
        }
        removed > 0 || self.usage.has_room()
    }

    fn claim_now(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        self.open()?;
        let digest = identity.digest();
        let mut shard = self.shard(digest).lock();
        let now = self.clock.now();
        let floor = shard.fences.floor(now);
        let known = shard.update(digest, &self.usage, |record| {
            let decision = record::claim(Some(record), request, now, floor);
            (decision.claim, decision.write)
        });
        if let Some((claim, waiters)) = known {
            if let Claim::Acquired(acquired) = &claim {
                shard.fences.gave(acquired.token.fence);
            }
            drop(shard);
            wake(waiters);
            return Ok(claim);
        }
        let expired = shard.purge(now, EXPIRED_PER_CLAIM, &self.usage);
        let decision = record::claim(None, request, now, floor);
        let Some(record) = decision.write else {
            return Ok(decision.claim);
        };
        if !self.usage.has_room() {
            drop(shard);
            // Room that expired records hold is not lack of room.
            return match self.make_room(now) {
                true => self.claim_now(identity, request),
                false => Err(self.full()),
            };
        }
        shard.fences.gave(record.token.fence);
        shard.insert(Cell::new(identity.clone(), record), &self.usage);
        drop(shard);
        // Freed outside the lock.
        drop(expired);
        Ok(decision.claim)
    }

    // Under the shard's lock; those who wait for it are woken afterwards.
    fn change_now(&self, digest: &IdentityDigest, change: &Change) -> Result<Fenced> {
        self.open()?;
        let mut shard = self.shard(digest).lock();
        let now = self.clock.now();
        let floor = shard.fences.floor(now);
        let done = shard.update(digest, &self.usage, |record| {
            match change.decide(Some(record), now, floor) {
                Ok(next) => {
                    let fence = next.as_ref().map(|next| next.token.fence);
                    ((Fenced::Applied, fence), next)
                }
                Err(refusal) => ((refusal.into(), None), None),
            }
        });
        let Some(((fenced, fence), waiters)) = done else {
            return Ok(Refusal::Missing.into());
        };
        // A resolution's is new.
        shard.fences.gave(fence.unwrap_or_default());
        drop(shard);
        wake(waiters);
        Ok(fenced)
    }
}

fn wake(waiters: shard::Waiters) {
    if let Some(waiters) = waiters {
        waiters.notify_waiters();
    }
}

impl<C: Clock> Store for MemoryStore<C> {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        self.claim_now(identity, request)
    }

    async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        self.change_now(identity, change)
    }

    async fn get(&self, identity: &IdentityDigest) -> Result<Option<Entry>> {
        self.open()?;
        let mut shard = self.shard(identity).lock();
        let now = self.clock.now();
        Ok(shard
            .find(identity)
            .filter(|cell| !cell.record.is_purgeable(now))
            .map(|cell| entry(cell)))
    }

    async fn list(&self, query: &ListQuery) -> Result<Page> {
        self.open()?;
        let after = match &query.after {
            None => None,
            Some(Cursor(bytes)) => {
                let bytes: [u8; 32] = bytes[..].try_into().map_err(|_| {
                    StoreError::new(
                        StoreErrorKind::NotApplied,
                        "the cursor is not one that this store made",
                    )
                })?;
                Some(IdentityDigest::from_bytes(bytes))
            }
        };
        let limit = query.limit.max(1);
        let mut entries: Vec<Entry> = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            let now = self.clock.now();
            let digests: BTreeSet<IdentityDigest> = shard
                .cells()
                .filter(|cell| {
                    let record = &cell.record;
                    record.state.kind() == query.state
                        && (!query.only_lapsed() || record.is_lapsed(now))
                        && !record.is_purgeable(now)
                })
                .map(|cell| *cell.identity.digest())
                .filter(|digest| after.is_none_or(|after| *digest > after))
                .collect();
            for digest in digests {
                if entries.len() == limit {
                    let next = entries
                        .last()
                        .map(|e| Cursor((*e.label.digest.as_bytes()).into()));
                    return Ok(Page { entries, next });
                }
                entries.extend(shard.find(&digest).map(|cell| entry(cell)));
            }
        }
        Ok(Page {
            entries,
            next: None,
        })
    }

    async fn purge(&self, limit: usize) -> Result<Purged> {
        self.open()?;
        let shards = self.shards.len();
        let start = *self.purge_from.lock();
        let mut removed = 0;
        for step in 0..shards {
            let at = (start + step) % shards;
            loop {
                let slice = PURGE_SLICE.min(limit - removed);
                let expired = self.shards[at]
                    .lock()
                    .purge(self.clock.now(), slice, &self.usage);
                removed += expired.len();
                if removed == limit {
                    *self.purge_from.lock() = at;
                    return Ok(Purged {
                        removed,
                        more: true,
                    });
                }
                if expired.len() < slice {
                    break;
                }
            }
        }
        Ok(Purged {
            removed,
            more: false,
        })
    }

    async fn wait(
        &self,
        identity: &IdentityDigest,
        fence: Fence,
        timeout: Duration,
    ) -> Result<Waited> {
        self.open()?;
        let waiters = {
            let mut shard = self.shard(identity).lock();
            match shard.find(identity) {
                Some(cell)
                    if cell.record.token.fence == fence && cell.record.state == State::InFlight =>
                {
                    cell.waiters
                        .get_or_insert_default()
                        .clone()
                        .notified_owned()
                }
                _ => return Ok(Waited::Changed),
            }
        };
        // Made under the lock, so that no change between here and the await goes unseen: a
        // `Notified` counts from its creation.
        Ok(if within(timeout, waiters).await {
            Waited::Changed
        } else {
            Waited::TimedOut
        })
    }

    async fn probe(&self) -> Result<Probe> {
        self.open()?;
        Ok(Probe {
            store: "memory",
            durability: Durability::Process,
            warnings: vec!["records live as long as this process, and no other sees them".into()],
        })
    }

    async fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl<C: Clock> Clear for MemoryStore<C> {
    async fn clear(&self, force: bool) -> Result<()> {
        self.open()?;
        if !self.for_tests && !force {
            return Err(StoreError::new(
                StoreErrorKind::Config,
                "this store was not opened for tests: clearing it needs force",
            ));
        }
        for shard in &self.shards {
            let waiters = shard.lock().clear(&self.usage);
            waiters.into_iter().for_each(|w| wake(Some(w)));
        }
        Ok(())
    }
}

fn entry(cell: &Cell) -> Entry {
    Entry {
        label: Label::from(&cell.identity),
        record: cell.record.clone(),
    }
}

impl<C> std::fmt::Debug for MemoryStore<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore")
            .field("shards", &self.shards.len())
            .field("limits", &self.usage.limits())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Outcome;
    use crate::record::StateKind;
    use crate::store::{Nonce, Retention, StoreExt as _};
    use crate::{Fingerprint, Key, ManualClock, Scope};
    use std::sync::Arc;

    fn identity(key: &str) -> Identity {
        Identity::new(Scope::anonymous(), "op", Key::new(key).unwrap())
    }

    fn request() -> ClaimRequest {
        ClaimRequest::new(
            Nonce::random().unwrap(),
            Fingerprint::of(b"body"),
            Duration::from_secs(1),
        )
    }

    fn limited(records: usize, bytes: usize) -> (MemoryStore<Arc<ManualClock>>, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1)));
        (
            MemoryStore::with_clock(Limits { records, bytes }, clock.clone()),
            clock,
        )
    }

    async fn settle(store: &MemoryStore<Arc<ManualClock>>, key: &str, body: &[u8]) {
        let identity = identity(key);
        let Claim::Acquired(acquired) = store.claim(&identity, &request()).await.unwrap() else {
            panic!("not acquired")
        };
        let retention = Retention::new(Duration::from_secs(10));
        let fenced = store
            .complete(
                identity.digest(),
                &acquired.token,
                &Outcome::success(body),
                retention,
            )
            .await;
        assert_eq!(fenced.unwrap(), Fenced::Applied);
    }

    #[tokio::test]
    async fn a_full_store_refuses_new_claims_and_forgets_nothing() {
        let (store, clock) = limited(3, usize::MAX);
        for key in ["a", "b", "c"] {
            settle(&store, key, b"answer").await;
        }
        let refused = store.claim(&identity("d"), &request()).await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Capacity);
        for key in ["a", "b", "c"] {
            let claim = store.claim(&identity(key), &request()).await.unwrap();
            assert!(matches!(claim, Claim::Completed { .. }));
        }
        clock.advance(Duration::from_secs(10));
        let claim = store.claim(&identity("d"), &request()).await.unwrap();
        assert!(matches!(claim, Claim::Acquired(_)));
        assert_eq!(store.len(), 2, "a claim removes two expired records");
    }

    #[tokio::test]
    async fn bytes_are_counted_and_come_back() {
        let (store, clock) = limited(1000, 100_000);
        let baseline = store.usage.bytes();
        let mut taken = 0;
        while store.usage.has_room() {
            settle(&store, &format!("k{taken}"), &[7; 1000]).await;
            taken += 1;
        }
        assert!(
            (50..100).contains(&taken),
            "{taken} records of about 1.3 kB"
        );
        clock.advance(Duration::from_secs(10));
        let purged = store.purge(10).await.unwrap();
        assert_eq!((purged.removed, purged.more), (10, true));
        let purged = store.purge(usize::MAX).await.unwrap();
        assert_eq!((purged.removed, purged.more), (taken - 10, false));
        assert_eq!((store.len(), store.usage.bytes()), (0, baseline));
    }

    #[tokio::test]
    async fn only_test_stores_are_cleared_without_force() {
        let (store, _) = limited(10, usize::MAX);
        settle(&store, "a", b"").await;
        let refused = store.clear(false).await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Config);
        assert_eq!(store.len(), 1);
        store.clear(true).await.unwrap();
        assert!(store.is_empty());
        store.for_tests().clear(false).await.unwrap();
    }

    #[tokio::test]
    async fn a_listing_walks_the_shards_in_order() {
        let (store, _) = limited(100_000, usize::MAX);
        assert!(store.shards.len() > 1);
        for n in 0..250 {
            store
                .claim(&identity(&format!("k{n}")), &request())
                .await
                .unwrap();
        }
        let mut query = ListQuery::new(StateKind::InFlight);
        query.limit = 60;
        let mut seen = Vec::new();
        loop {
            let page = store.list(&query).await.unwrap();
            seen.extend(page.entries.into_iter().map(|e| e.label.digest));
            query.after = page.next;
            if query.after.is_none() {
                break;
            }
        }
        assert_eq!(seen.len(), 250);
        assert!(seen.is_sorted());
    }
}
