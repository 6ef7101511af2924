//! A store on any database that can write a value on condition of its version.
//!
//! [`Recorded`] is the whole of such a [`Store`]: each step reads the record, lets [`record`] decide,
//! and writes what it decided if nobody wrote in between; otherwise it begins again. The conditional
//! write is the one atomic step (R2): it happens on exactly the record that the decision was made
//! about. What is left to write for a database is a [`Backend`]: `docs/write-a-store.md`.
//!
//! That takes two round trips a step. A database that can decide by itself, in a statement or a
//! script, needs one: then implement [`Store`] directly.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::record::{self, Change, Record};
use crate::store::{
    Claim, ClaimRequest, Cursor, Entry, Fence, Fenced, Label, ListQuery, Page, Probe, Purged,
    Refusal, Result, Store, Waited,
};
use crate::{Backoff, Identity, IdentityDigest, StateKind, StoreError, StoreErrorKind, Timestamp};

/// How often a step is tried when others write the same record.
const TRIES: usize = 1_000;
/// From which try on a step lets its rivals go first.
const CALM: usize = 3;
/// How many records a listing or a purge looks at in one go.
const PAGE: usize = 256;
/// How often a waiter looks, unless the backend tells it of changes.
const POLL: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));

/// A database of values with versions, under keys of 32 bytes.
pub trait Backend: Send + Sync + 'static {
    /// Which write made a value. No two writes of a key have the same one, also after it was removed.
    type Version: Clone + Send + Sync;

    /// Reads the value now, from the primary: a replica may be behind.
    fn read(
        &self,
        key: &IdentityDigest,
    ) -> impl Future<Output = Result<Read<Self::Version>>> + Send;

    /// Writes the value (`None` removes it) if the key still has this version (`None`: if it has no
    /// value), in one atomic step. Whether it did.
    ///
    /// # Errors
    /// An answer that was lost is of kind [`Unknown`](StoreErrorKind::Unknown): the write may have
    /// happened. A value that the database has no room for is
    /// [`TooLarge`](StoreErrorKind::TooLarge), and nothing is written.
    fn write_if(
        &self,
        key: &IdentityDigest,
        version: Option<&Self::Version>,
        value: Option<Bytes>,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Reads at most `limit` values behind this key, in the order of their keys.
    fn scan(
        &self,
        after: Option<&IdentityDigest>,
        limit: usize,
    ) -> impl Future<Output = Result<Scan<Self::Version>>> + Send;

    /// Returns when the value of this key may have changed, or after `poll` at the latest: at once is
    /// never wrong. Waits for `poll` unless written.
    fn changed(&self, key: &IdentityDigest, poll: Duration) -> impl Future<Output = ()> + Send {
        let _ = key;
        sleep(poll)
    }

    /// Checks that the database can be reached and used, and says what its settings promise.
    fn probe(&self) -> impl Future<Output = Result<Probe>> + Send;

    /// Gives up connections; no other method is called after it. Does nothing unless written.
    fn close(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// A value as it was read.
#[derive(Debug, Clone)]
pub struct Read<V> {
    /// The value and the version that wrote it, if there is one.
    pub value: Option<(V, Bytes)>,
    /// The database's time, never the caller's (R6). It never goes back and says no instant twice:
    /// fences are made of it, and no two identities get the same.
    pub now: Timestamp,
}

/// Values in the order of their keys.
#[derive(Debug, Clone)]
pub struct Scan<V> {
    /// The values, each with the version that wrote it.
    pub values: Vec<(V, Bytes)>,
    /// The database's time.
    pub now: Timestamp,
}

/// The [`Store`] on a [`Backend`].
pub struct Recorded<B> {
    backend: B,
    steps: TaskTracker,
}

/// A record as it was read, with what a conditional write needs.
struct Found<V> {
    version: Option<V>,
    entry: Option<Entry>,
    now: Timestamp,
}

impl<V> Found<V> {
    fn record(&self) -> Option<&Record> {
        self.entry.as_ref().map(|entry| &entry.record)
    }
}

impl<B: Backend> Recorded<B> {
    /// A store whose records are kept by `backend`.
    pub fn new(backend: B) -> Self {
        Self {
            backend,
            steps: TaskTracker::new(),
        }
    }

    /// The database.
    pub const fn backend(&self) -> &B {
        &self.backend
    }

    fn enter(&self) -> Result<TaskTrackerToken> {
        // First the token, then the look: `close` waits for this step, or this step sees it.
        let token = self.steps.token();
        if self.steps.is_closed() {
            let message = "the store was closed";
            return Err(StoreError::new(StoreErrorKind::Closed, message));
        }
        Ok(token)
    }

    async fn find(&self, identity: &IdentityDigest) -> Result<Found<B::Version>> {
        let Read { value, now } = self.backend.read(identity).await?;
        let (version, entry) = match value {
            Some((version, bytes)) => (Some(version), Some(decode(&bytes)?)),
            None => (None, None),
        };
        Ok(Found {
            version,
            entry,
            now,
        })
    }

    /// Reads the record and lets `decide` say what to answer, and what to write before that. Again
    /// where somebody else wrote meanwhile.
    async fn decided<T>(
        &self,
        identity: &IdentityDigest,
        decide: impl Fn(&Found<B::Version>) -> (T, Option<(Label, Record)>) + Send + Sync,
    ) -> Result<T>
    where
        T: Send,
    {
        let _step = self.enter()?;
        let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(20));
        for number in 0..TRIES {
            if number >= CALM {
                sleep(backoff.pause()).await;
            }
            let found = self.find(identity).await?;
            let (answer, write) = decide(&found);
            let Some((label, record)) = write else {
                return Ok(answer);
            };
            let bytes = Entry { label, record }.to_bytes().into();
            let version = found.version.as_ref();
            if self
                .backend
                .write_if(identity, version, Some(bytes))
                .await?
            {
                return Ok(answer);
            }
        }
        Err(StoreError::new(
            StoreErrorKind::NotApplied,
            format!("the record changed each of the {TRIES} times that it was to be written"),
        ))
    }
}

impl<B: Backend> Store for Recorded<B> {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        let decide = |found: &Found<B::Version>| {
            // The database's time alone keeps fences growing where a record was removed.
            let decision = record::claim(found.record(), request, found.now, Fence(0));
            let write = decision.write.map(|record| (Label::from(identity), record));
            (decision.claim, write)
        };
        self.decided(identity.digest(), decide).await
    }

    async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        let decide = |found: &Found<B::Version>| {
            let next = change.decide(found.record(), found.now, Fence(0));
            match (next, &found.entry) {
                (Err(refusal), _) => (refusal.into(), None),
                (Ok(None), _) => (Fenced::Applied, None),
                (Ok(Some(_)), None) => (Refusal::Missing.into(), None),
                (Ok(Some(record)), Some(entry)) => {
                    (Fenced::Applied, Some((entry.label.clone(), record)))
                }
            }
        };
        self.decided(identity, decide).await
    }

    async fn get(&self, identity: &IdentityDigest) -> Result<Option<Entry>> {
        let _step = self.enter()?;
        let Found { entry, now, .. } = self.find(identity).await?;
        Ok(entry.filter(|entry| !entry.record.is_purgeable(now)))
    }

    async fn list(&self, query: &ListQuery) -> Result<Page> {
        let _step = self.enter()?;
        let after = query.after.as_ref().map(|Cursor(bytes)| {
            let digest = <[u8; 32]>::try_from(&**bytes).map(IdentityDigest::from_bytes);
            let message = "the cursor is not one that this store made";
            digest.map_err(|_| StoreError::new(StoreErrorKind::NotApplied, message))
        });
        let (after, limit) = (after.transpose()?, query.limit.clamp(1, PAGE));
        let Scan { values, now } = self.backend.scan(after.as_ref(), limit).await?;
        let entries: Result<Vec<Entry>> = values.iter().map(|(_, bytes)| decode(bytes)).collect();
        let mut entries = entries?;
        // In the order of digests: a record that does not change is met once.
        let last = entries.last().map(|entry| *entry.label.digest.as_bytes());
        entries.retain(|Entry { record, .. }| {
            record.state.kind() == query.state
                && !record.is_purgeable(now)
                && (!query.lapsed || record.is_lapsed(now))
        });
        Ok(Page {
            entries,
            next: last.map(|digest| Cursor(digest.into())),
        })
    }

    async fn purge(&self, limit: usize) -> Result<Purged> {
        let _step = self.enter()?;
        let (mut removed, mut after) = (0, None);
        loop {
            let Scan { values, now } = self.backend.scan(after.as_ref(), PAGE).await?;
            let all = values.is_empty();
            for (version, bytes) in values {
                let Entry { label, record } = decode(&bytes)?;
                after = Some(label.digest);
                if !record.is_purgeable(now) {
                    continue;
                }
                if removed == limit {
                    let more = true;
                    return Ok(Purged { removed, more });
                }
                // Only as it was read: a claim that came in between keeps its record.
                let gone = self.backend.write_if(&label.digest, Some(&version), None);
                removed += usize::from(gone.await?);
            }
            if all {
                let more = false;
                return Ok(Purged { removed, more });
            }
        }
    }

    async fn wait(
        &self,
        identity: &IdentityDigest,
        fence: Fence,
        timeout: Duration,
    ) -> Result<Waited> {
        let begun = Instant::now();
        let mut poll = Backoff::new(POLL.0, POLL.1);
        loop {
            // Each look is a step, the wait is none: closing ends it.
            let step = self.enter()?;
            let Found { entry, now, .. } = self.find(identity).await?;
            drop(step);
            let runs = entry.is_some_and(|Entry { record, .. }| {
                let in_flight = record.state.kind() == StateKind::InFlight;
                in_flight && record.token.fence == fence && !record.is_purgeable(now)
            });
            let left = timeout.saturating_sub(begun.elapsed());
            match (runs, left.is_zero()) {
                (false, _) => return Ok(Waited::Changed),
                (true, true) => return Ok(Waited::TimedOut),
                (true, false) => {
                    let pause = poll.pause().min(left);
                    self.backend.changed(identity, pause).await;
                }
            }
        }
    }

    async fn probe(&self) -> Result<Probe> {
        let _step = self.enter()?;
        self.backend.probe().await
    }

    async fn close(&self) -> Result<()> {
        let first = self.steps.close();
        self.steps.wait().await;
        if first {
            self.backend.close().await;
        }
        Ok(())
    }
}

impl<B> fmt::Debug for Recorded<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorded").finish_non_exhaustive()
    }
}

fn decode(bytes: &Bytes) -> Result<Entry> {
    Entry::from_bytes(bytes).map_err(|error| {
        StoreError::new(StoreErrorKind::Corrupt, "a record cannot be read").with_source(error)
    })
}
