//! A store on any database that can write a value on condition of its version.
//!
//! Every step reads a record, lets [`semel::record`] decide, and writes what it decided if nobody
//! wrote in between; otherwise it starts again. The conditional write is the one atomic step (R2):
//! it happens on exactly the record that the decision was made about. Two round trips; a database
//! that can decide by itself (a statement, a script) needs one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use semel::record::{self, Record, Transition};
use semel::store::{
    Claim, ClaimRequest, Cursor, Durability, Entry, Fence, Fenced, Label, ListQuery, Page, Probe,
    Purged, Refusal, Resolution, Result, Retention, Store, Token, Waited,
};
use semel::{
    FinishedStep, Identity, IdentityDigest, Outcome, StateKind, StoreError, StoreErrorKind,
    Timestamp,
};
use tokio::time::{Instant, sleep};

use super::database::{Database, Version};

/// How often a step is tried again when others write the same record.
const ATTEMPTS: usize = 1_000;
/// How many records a listing or a purge looks at in one go.
const PAGE: usize = 256;

/// A store on a [`Database`].
pub struct OwnStore {
    database: Database,
    closed: AtomicBool,
}

/// A record as it was read: with what a conditional write needs.
struct Found {
    version: Option<Version>,
    entry: Option<Entry>,
    now: Timestamp,
}

impl OwnStore {
    pub const fn new(database: Database) -> Self {
        Self {
            database,
            closed: AtomicBool::new(false),
        }
    }

    fn open(&self) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(StoreError::new(
                StoreErrorKind::Closed,
                "the store was closed",
            ));
        }
        Ok(())
    }

    async fn find(&self, identity: &IdentityDigest) -> Result<Found> {
        let read = self.database.read(identity.as_bytes()).await?;
        let (version, entry) = match read.value {
            Some((version, bytes)) => (Some(version), Some(decode(&bytes)?)),
            None => (None, None),
        };
        Ok(Found {
            version,
            entry,
            now: read.now,
        })
    }

    // Whether it was written: not where somebody else wrote since it was found.
    async fn write(&self, version: Option<Version>, label: Label, record: Record) -> Result<bool> {
        let key = *label.digest.as_bytes();
        let bytes = Bytes::from(Entry { label, record }.to_bytes());
        self.database.write_if(&key, version, Some(bytes)).await
    }

    // A step on a record that is there.
    async fn fenced(
        &self,
        identity: &IdentityDigest,
        decide: impl Fn(Option<&Record>, Timestamp) -> Transition,
    ) -> Result<Fenced> {
        self.open()?;
        for _ in 0..ATTEMPTS {
            let found = self.find(identity).await?;
            let next = decide(found.entry.as_ref().map(|entry| &entry.record), found.now);
            let label = found.entry.map(|entry| entry.label);
            match (next, label) {
                (Err(refusal), _) => return Ok(refusal.into()),
                (Ok(None), _) => return Ok(Fenced::Applied),
                (Ok(Some(_)), None) => return Ok(Refusal::Missing.into()),
                (Ok(Some(record)), Some(label)) => {
                    if self.write(found.version, label, record).await? {
                        return Ok(Fenced::Applied);
                    }
                }
            }
        }
        Err(contended())
    }
}

impl Store for OwnStore {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        self.open()?;
        for _ in 0..ATTEMPTS {
            let found = self.find(identity.digest()).await?;
            let current = found.entry.as_ref().map(|entry| &entry.record);
            // The clock alone keeps fences growing where a record was removed, and apart.
            let decision = record::claim(current, request, found.now, Fence(0));
            let Some(record) = decision.write else {
                return Ok(decision.claim);
            };
            if self
                .write(found.version, Label::from(identity), record)
                .await?
            {
                return Ok(decision.claim);
            }
        }
        Err(contended())
    }

    async fn renew(
        &self,
        identity: &IdentityDigest,
        token: &Token,
        lease: Duration,
    ) -> Result<Fenced> {
        self.fenced(identity, |record, now| {
            record::renew(record, token, lease, now)
        })
        .await
    }

    async fn complete(
        &self,
        identity: &IdentityDigest,
        token: &Token,
        outcome: &Outcome,
        retention: Retention,
    ) -> Result<Fenced> {
        self.fenced(identity, |record, now| {
            record::complete(record, token, outcome, retention, now)
        })
        .await
    }

    async fn keep_step(
        &self,
        identity: &IdentityDigest,
        token: &Token,
        step: &FinishedStep,
        kept: usize,
    ) -> Result<Fenced> {
        self.fenced(identity, |record, _| {
            record::keep_step(record, token, step, kept)
        })
        .await
    }

    async fn abandon(&self, identity: &IdentityDigest, token: &Token) -> Result<Fenced> {
        self.fenced(identity, |record, now| record::abandon(record, token, now))
            .await
    }

    async fn mark_unknown(&self, identity: &IdentityDigest, token: &Token) -> Result<Fenced> {
        self.fenced(identity, |record, now| {
            record::mark_unknown(record, token, now)
        })
        .await
    }

    async fn resolve(&self, identity: &IdentityDigest, resolution: &Resolution) -> Result<Fenced> {
        self.fenced(identity, |record, now| {
            record::resolve(record, resolution, now, Fence(0))
        })
        .await
    }

    async fn get(&self, identity: &IdentityDigest) -> Result<Option<Entry>> {
        self.open()?;
        let Found { entry, now, .. } = self.find(identity).await?;
        Ok(entry.filter(|entry| !entry.record.is_purgeable(now)))
    }

    async fn list(&self, query: &ListQuery) -> Result<Page> {
        self.open()?;
        // In the order of digests: a record that stands still is met once.
        let after = match &query.after {
            None => None,
            Some(Cursor(bytes)) => Some(<[u8; 32]>::try_from(&**bytes).map_err(|_| {
                StoreError::new(StoreErrorKind::Config, "the cursor is of another store")
            })?),
        };
        let (now, rows) = self
            .database
            .scan(after, query.limit.clamp(1, PAGE))
            .await?;
        let entries: Vec<Entry> = rows
            .iter()
            .map(|(_, row)| decode(row))
            .collect::<Result<_>>()?;
        let last = entries.last().map(|entry| *entry.label.digest.as_bytes());
        let wanted = |entry: &Entry| {
            let record = &entry.record;
            record.state.kind() == query.state
                && !record.is_purgeable(now)
                && (!query.lapsed || record.is_lapsed(now))
        };
        Ok(Page {
            entries: entries.into_iter().filter(wanted).collect(),
            next: last.map(|digest| Cursor(Box::new(digest))),
        })
    }

    async fn purge(&self, limit: usize) -> Result<Purged> {
        self.open()?;
        let (mut removed, mut after) = (0, None);
        loop {
            let (now, rows) = self.database.scan(after, PAGE).await?;
            for (version, row) in &rows {
                let Entry { label, record } = decode(row)?;
                let key = *label.digest.as_bytes();
                after = Some(key);
                if !record.is_purgeable(now) {
                    continue;
                }
                if removed == limit {
                    return Ok(Purged {
                        removed,
                        more: true,
                    });
                }
                // Removed only as it was read: a claim that came in between keeps its record.
                if self.database.write_if(&key, Some(*version), None).await? {
                    removed += 1;
                }
            }
            if rows.is_empty() {
                return Ok(Purged {
                    removed,
                    more: false,
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
        self.open()?;
        let end = Instant::now() + timeout;
        let mut pause = Duration::from_millis(5);
        loop {
            let Found { entry, now, .. } = self.find(identity).await?;
            let runs = entry.is_some_and(|Entry { record, .. }| {
                let in_flight = record.state.kind() == StateKind::InFlight;
                in_flight && record.token.fence == fence && !record.is_purgeable(now)
            });
            if !runs {
                return Ok(Waited::Changed);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Waited::TimedOut);
            }
            // Where your database can tell of changes, wait for that instead.
            sleep(pause.min(left)).await;
            pause = (pause * 2).min(Duration::from_millis(500));
        }
    }

    async fn probe(&self) -> Result<Probe> {
        self.open()?;
        self.database.read(&[0; 32]).await?;
        Ok(Probe {
            store: "own",
            // Say here what your database's settings promise, and what an operator should know.
            durability: Durability::Process,
            warnings: Vec::new(),
        })
    }

    async fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::Relaxed);
        Ok(())
    }
}

fn decode(bytes: &Bytes) -> Result<Entry> {
    Entry::from_bytes(bytes).map_err(|error| {
        StoreError::new(StoreErrorKind::Corrupt, "a record cannot be read").with_source(error)
    })
}

fn contended() -> StoreError {
    StoreError::new(
        StoreErrorKind::NotApplied,
        "others wrote this record all the time; nothing was written",
    )
}
