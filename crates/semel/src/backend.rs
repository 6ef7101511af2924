//! A store on any database that can write a value on condition of its version.
//!
//! [`Recorded`] is the whole of such a [`Store`]: each step reads the record, lets [`record`] decide,
//! and writes what it decided if nobody wrote in between; otherwise it begins again. The conditional
//! write is the one atomic step (R2): it happens on exactly the record that the decision was made
//! about. What is left to write for a database is a [`Backend`]: `docs/write-a-store.md`.
//!
//! That takes two round trips a step. A database that can decide by itself, in a statement or a
//! script, needs one: then implement [`Store`] directly. So do for a database that has no clock, or
//! cannot list its keys in order.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::record::{self, Change, Record};
use crate::store::{
    Claim, ClaimRequest, Cursor, Entry, Fence, Fenced, Label, ListQuery, Page, Probe, Purged,
    Refusal, Result, Store, Waited,
};
use crate::sync::Mutex;
use crate::{Backoff, Identity, IdentityDigest, StateKind, StoreError, StoreErrorKind, Timestamp};

/// How often a step is tried when others write the same record.
const TRIES: usize = 1_000;
/// From which try on a step lets its rivals go first.
const CALM: usize = 3;
/// How many records a listing or a purge looks at in one go.
const PAGE: usize = 256;
/// The pause of a waiter after its first look; each is twice as long.
const FIRST_POLL: Duration = Duration::from_millis(5);

/// A database of values with versions, under keys of 32 bytes.
pub trait Backend: Send + Sync + 'static {
    /// Which write made a value. No two writes of a key have the same one, also after it was removed.
    type Version: Send + Sync;

    /// The longest pause between two looks of a waiter. 500 ms unless set: set it longer where
    /// [`changed`](Self::changed) is written.
    const LONGEST_POLL: Duration = Duration::from_millis(500);

    /// Reads the value now, from the primary: a replica may be behind.
    fn read(
        &self,
        key: &IdentityDigest,
    ) -> impl Future<Output = Result<Read<Self::Version>>> + Send;

    /// Writes the value (`None` removes it) if the key still has this version (`None`: if it has no
    /// value), in one atomic step. Whether it did. It ends in bounded time, as every method here.
    ///
    /// Values have up to 64 KiB beside the outcome. Where the database is full it takes no new keys, and
    /// removes none (R8).
    ///
    /// # Errors
    /// - [`Unknown`](StoreErrorKind::Unknown) where the answer was lost: the write may have happened.
    /// - [`Contended`](StoreErrorKind::Contended) where others had the value locked: nothing was written.
    /// - [`TooLarge`](StoreErrorKind::TooLarge) where the database has no room for such a value, and
    ///   [`Capacity`](StoreErrorKind::Capacity) where it is full: nothing was written.
    fn write_if(
        &self,
        key: &IdentityDigest,
        version: Option<&Self::Version>,
        value: Option<Bytes>,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Reads the values behind this key (`None`: from the first), in ascending order of the keys' bytes:
    /// at most `limit`, and fewer where they are large.
    fn scan(
        &self,
        after: Option<&IdentityDigest>,
        limit: usize,
    ) -> impl Future<Output = Result<Scan<Self::Version>>> + Send;

    /// Returns when the key may have another version than `seen`, or after `poll` at the latest. Too
    /// early is never wrong. Waits for `poll` unless written.
    fn changed(
        &self,
        key: &IdentityDigest,
        seen: &Self::Version,
        poll: Duration,
    ) -> impl Future<Output = ()> + Send {
        let _ = (key, seen);
        sleep(poll)
    }

    /// Checks that the database can be reached and used, and says what its settings promise.
    fn probe(&self) -> impl Future<Output = Result<Probe>> + Send;

    /// Gives up connections: no other method is under way, or called after it. Does nothing unless
    /// written.
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

/// A part of all values, in ascending order of their keys.
#[derive(Debug, Clone)]
pub struct Scan<V> {
    /// The values.
    pub rows: Vec<Row<V>>,
    /// Whether there may be more behind the last of them.
    pub more: bool,
    /// The database's time.
    pub now: Timestamp,
}

/// A value in its place.
#[derive(Debug, Clone)]
pub struct Row<V> {
    /// Its key.
    pub key: IdentityDigest,
    /// The version that wrote it.
    pub version: V,
    /// The value.
    pub value: Bytes,
}

/// The [`Store`] on a [`Backend`].
pub struct Recorded<B> {
    backend: B,
    steps: TaskTracker,
    waits: TaskTracker,
    closing: CancellationToken,
    closed: tokio::sync::Mutex<bool>,
    /// Behind which key the next purge goes on.
    purged: Mutex<Option<IdentityDigest>>,
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
            waits: TaskTracker::new(),
            closing: CancellationToken::new(),
            closed: tokio::sync::Mutex::new(false),
            purged: Mutex::default(),
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
            return Err(closed());
        }
        Ok(token)
    }

    async fn scan(&self, after: Option<&IdentityDigest>) -> Result<Scan<B::Version>> {
        let scan = self.backend.scan(after, PAGE).await?;
        let keys = after
            .into_iter()
            .chain(scan.rows.iter().map(|row| &row.key));
        if !keys.is_sorted_by(|one, next| one < next) {
            return Err(corrupt("the backend does not list its keys in order"));
        }
        // More behind nothing would never end.
        let more = scan.more && !scan.rows.is_empty();
        Ok(Scan { more, ..scan })
    }

    async fn find(&self, identity: &IdentityDigest) -> Result<Found<B::Version>> {
        let Read { value, now } = self.backend.read(identity).await?;
        let (version, entry) = match value {
            Some((version, bytes)) => (Some(version), Some(decode(identity, &bytes)?)),
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
            if number > 0 && self.steps.is_closed() {
                return Err(closed());
            }
            if number >= CALM {
                sleep(backoff.pause()).await;
            }
            // After the first time others have come in between.
            let others = |error: StoreError| match number {
                0 => error,
                _ => error.having_met_others(),
            };
            let found = self.find(identity).await.map_err(others)?;
            let (answer, write) = decide(&found);
            let Some((label, record)) = write else {
                return Ok(answer);
            };
            let bytes = Entry { label, record }.to_bytes().into();
            let version = found.version.as_ref();
            let written = self.backend.write_if(identity, version, Some(bytes));
            if written.await.map_err(others)? {
                return Ok(answer);
            }
        }
        Err(StoreError::new(
            StoreErrorKind::Contended,
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
        let Scan { rows, more, now } = self.scan(after.transpose()?.as_ref()).await?;
        let mut page = Page {
            entries: Vec::new(),
            next: None,
        };
        let end = rows.last().map(|row| row.key).filter(|_| more);
        for Row { key, value, .. } in rows {
            if page.entries.len() == query.limit.max(1) {
                // Of the page's last record.
                return Ok(page);
            }
            let entry = decode(&key, &value)?;
            let record = &entry.record;
            if record.state.kind() == query.state
                && !record.is_purgeable(now)
                && (!query.only_lapsed() || record.is_lapsed(now))
            {
                page.next = Some(cursor(&key));
                page.entries.push(entry);
            }
        }
        page.next = end.as_ref().map(cursor);
        Ok(page)
    }

    async fn purge(&self, limit: usize) -> Result<Purged> {
        let _step = self.enter()?;
        // Goes on where the one before stopped, and once around.
        let start = self.purged.lock().take();
        let (mut removed, mut after, mut around) = (0, start, false);
        loop {
            let Scan { rows, more, now } = self.scan(after.as_ref()).await?;
            for Row {
                key,
                version,
                value,
            } in rows
            {
                if around && start.is_some_and(|start| key > start) {
                    let more = false;
                    return Ok(Purged { removed, more });
                }
                // One that cannot be read stays; those who ask for it are told.
                let due = decode(&key, &value).is_ok_and(|entry| entry.record.is_purgeable(now));
                if due && removed == limit {
                    *self.purged.lock() = after;
                    let more = true;
                    return Ok(Purged { removed, more });
                }
                // Only as it was read: a claim that came in between keeps its record.
                if due && self.backend.write_if(&key, Some(&version), None).await? {
                    removed += 1;
                }
                after = Some(key);
            }
            if !more && (around || start.is_none()) {
                return Ok(Purged { removed, more });
            }
            if !more {
                (after, around) = (None, true);
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
        let mut poll = Backoff::new(FIRST_POLL, B::LONGEST_POLL);
        loop {
            // Each look is a step, the wait is none: closing ends it.
            let step = self.enter()?;
            let waiting = self.waits.token();
            let found = self.find(identity).await?;
            drop(step);
            let runs = found.record().is_some_and(|record| {
                let in_flight = record.state.kind() == StateKind::InFlight;
                in_flight && record.token.fence == fence && !record.is_purgeable(found.now)
            });
            let left = timeout.saturating_sub(begun.elapsed());
            let (true, Some(version)) = (runs, &found.version) else {
                return Ok(Waited::Changed);
            };
            if left.is_zero() {
                return Ok(Waited::TimedOut);
            }
            let (looked, pause) = (Instant::now(), poll.pause().min(left));
            tokio::select! {
                () = self.closing.cancelled() => {}
                () = self.backend.changed(identity, version, pause) => {
                    // A backend that says so at once does not make us ask all the time.
                    sleep(FIRST_POLL.min(pause).saturating_sub(looked.elapsed())).await;
                }
            }
            drop(waiting);
        }
    }

    async fn probe(&self) -> Result<Probe> {
        let _step = self.enter()?;
        self.backend.probe().await
    }

    async fn close(&self) -> Result<()> {
        self.closing.cancel();
        self.steps.close();
        self.waits.close();
        let mut closed = self.closed.lock().await;
        if !*closed {
            self.steps.wait().await;
            self.waits.wait().await;
            self.backend.close().await;
            *closed = true;
        }
        Ok(())
    }
}

impl<B> fmt::Debug for Recorded<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorded").finish_non_exhaustive()
    }
}

fn closed() -> StoreError {
    StoreError::new(StoreErrorKind::Closed, "the store was closed")
}

fn corrupt(what: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, what)
}

fn cursor(key: &IdentityDigest) -> Cursor {
    Cursor((*key.as_bytes()).into())
}

/// What was kept under this key. Under another's it would be another's answer.
fn decode(key: &IdentityDigest, bytes: &Bytes) -> Result<Entry> {
    let read = Entry::from_bytes(bytes);
    let entry = read.map_err(|error| corrupt("a record cannot be read").with_source(error))?;
    match entry.label.digest == *key {
        true => Ok(entry),
        false => Err(corrupt("a record is under the key of another")),
    }
}
