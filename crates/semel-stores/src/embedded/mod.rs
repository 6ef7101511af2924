//! The embedded durable store: records in a directory of this machine, on disk before they are
//! acknowledged.
//!
//! # What it promises
//! [`Durability::Power`]: an acknowledged step survives a crash of the process, of the machine and
//! a loss of power, as far as the disk keeps what it acknowledged to `fdatasync`. One process at a
//! time has a directory open. What it cannot keep it refuses: after a failed commit everything is
//! refused until the engine was opened again, which the store does by itself (`reopen.rs`); a
//! directory from which something acknowledged is missing does not open, and one that is no longer
//! the one that was opened gets nothing more.
//!
//! # How a step goes
//! Steps go to one thread, the committer. It takes all that wait, decides them one after the other
//! with the functions of [`semel::record`], later ones seeing what earlier ones wrote, and puts all
//! of them on disk in one batch with one sync. Then it shows the changes to readers, and then it
//! answers.
//!
//! # Why each step is atomic
//! *Claim, renew, complete, abandon, mark unknown, resolve*: nobody else writes, so that nothing
//! can change between the committer's reading and its writing; what one step writes lies in one
//! batch, and the engine applies a batch whole or not at all. *Purge* is one such step for each
//! slice. *Get* and a claim that changes nothing are answered from one record as it was at one
//! instant. *List* reads each record so; a page is not one instant, as the port allows.
//!
//! # Why a reader never sees what is not on disk (R5)
//! Reads that change nothing are answered on the caller's thread. The view of open records is
//! changed only after a sync. Settled records are read from the engine, which may show a batch
//! before it is on disk. So a reader asks the engine *first* and *then* whether the identity is
//! among the uncommitted; if so, its question goes to the committer and is answered after the sync.
//!
//! The committer adds a group's identities to the uncommitted *before* it hands the batch to the
//! engine, and removes them *after* the sync succeeded. Suppose a reader saw something of a batch.
//! Then the batch had been handed over, so its identities had been added. When the reader looks for
//! them afterwards, it either finds them, and does not use what it saw; or they have been removed,
//! and then what it saw is on disk. After a failed sync the store refuses everything, and they are
//! removed once nobody reads from that engine any more.
//!
//! # What it costs
//! A step that changes a record costs its share of a sync; every other step costs none. A claim on
//! a new identity and a replay each look up one key. A purge reads an index in the order of expiry
//! and no record. Waiting is pushed, after the sync.

// A step (`step`) goes to the thread of the `committer`, which decides a `group` of them against what is
// `shared` with readers, and commits it to the `engine` (`fjall`). `open`, `reopen`, `place`, `marks` and
// `watermark` see to it that what is opened is what was acknowledged.
mod committer;
mod engine;
mod fjall;
mod group;
mod keys;
mod marks;
mod open;
mod place;
mod reopen;
mod shared;
mod step;
mod watermark;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use semel::record::{self, Change};
use semel::store::{
    Claim, ClaimRequest, Clear, Cursor, Durability, Entry, Fence, Fenced, Label, ListQuery, Page,
    Probe, Purged, Result, Store, Waited,
};
use semel::{AnyStore, Identity, IdentityDigest, State, StoreError, StoreErrorKind};
use tokio::sync::watch;

use crate::common::queue::{Queue, lost};
use crate::common::thread::aside;
use crate::common::{Driver, Migrated, Poll, Running, fits, may_clear};
use crate::{OpenError, OpenOptions};

use engine::short;
pub use engine::{Batch, Engine, Visit};
use group::Deciding;
pub use open::FileOptions;
use place::is_open_to_others;
use shared::{Seen, Shared, read};
use step::{Step, step};

/// Opened by `file:PATH`.
pub(crate) const DRIVER: Driver = Driver {
    check: |url| path(url).map(drop),
    open: |url, options| Box::pin(open_path(url, options)),
    migrate: |_, _| Box::pin(async { Ok(Migrated::nothing()) }),
};

fn path(url: &str) -> Result<&str, OpenError> {
    match url.split_once(':') {
        Some((_, path)) if !path.is_empty() => Ok(path),
        _ => Err(OpenError::invalid(
            "file",
            "needs the path of a directory, as in `file:./semel-data`",
        )),
    }
}

async fn open_path(url: &str, options: &OpenOptions) -> Result<AnyStore, OpenError> {
    let path = path(url)?.to_owned();
    // Opening reads from disk: not on a thread that serves others.
    let file = FileOptions::new()
        .cache_bytes(options.cache_bytes)
        .reserve_bytes(options.reserve_bytes)
        .existing(options.existing);
    let store = aside("semel-open", move || file.open(&path)).await?;
    Ok(AnyStore::new(store))
}

/// A [`Store`] in a directory. See the module's documentation.
pub struct FileStore {
    shared: Arc<Shared>,
    queue: Arc<Queue<Box<dyn Step>>>,
    finished: watch::Receiver<()>,
    thread: Mutex<Option<JoinHandle<()>>>,
    reserve_bytes: u64,
    directory: Option<PathBuf>,
    for_tests: bool,
    /// Something was erased, and lies in the files.
    erased: AtomicBool,
}

/// The largest outcome, in its byte form. A batch is held in memory more than once.
const MAX_OUTCOME: usize = 32 << 20;
/// How many records a purge removes in one step: claims wait for no more.
const PURGE_SLICE: usize = 256;
/// The same of a clear, for which nobody waits.
const CLEAR_SLICE: usize = 1024;
/// How many records a listing looks at for one page, so that it does not hold its caller's thread.
const LIST_SLICE: usize = 1024;

/// What lies in the store's directory.
mod layout {
    /// The number of the last acknowledged group.
    pub(super) const WATERMARK: &str = "acknowledged";
    /// The engine's directory.
    pub(super) const RECORDS: &str = "records";
    /// The engine's lock, in its directory.
    pub(super) const LOCK: &str = "lock";
}

impl FileStore {
    /// How many times this store put something on disk since it was opened: with the number of
    /// steps, how well it groups them.
    pub fn syncs(&self) -> u64 {
        self.shared.groups()
    }

    // Hands a step to the committer and waits for its answer.
    async fn submit<T: Send + 'static>(
        &self,
        bytes: usize,
        decide: impl FnOnce(&mut Deciding<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (step, answer) = step(bytes, decide);
        if self.queue.push(step).is_err() {
            // The store is closing, or closed: says why.
            self.shared.engine()?;
            return Err(StoreError::new(
                StoreErrorKind::Closed,
                "the store is being closed",
            ));
        }
        answer.await.unwrap_or_else(|_| Err(lost()))
    }

    // What was asked before is on disk once this is answered, or the store has failed. `write` makes it
    // write something of its own.
    async fn sync(&self, write: bool) -> Result<()> {
        self.submit(0, move |on| {
            on.group.write |= write;
            Ok(())
        })
        .await
    }

    fn list_open(&self, query: &ListQuery, after: Option<IdentityDigest>) -> Result<Page> {
        use std::ops::Bound;
        let state = self.shared.state();
        state.engine()?;
        let now = self.shared.now();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut matching = state
            .open
            .range((from, Bound::Unbounded))
            .filter(|(_, entry)| {
                entry.record.state.kind() == query.state
                    && (!query.only_lapsed() || entry.record.is_lapsed(now))
            });
        let limit = query.limit.max(1);
        let entries: Vec<Entry> = matching
            .by_ref()
            .take(limit)
            .map(|(_, entry)| (**entry).clone())
            .collect();
        let next = if matching.next().is_some() {
            entries.last().map(|entry| cursor(&entry.label.digest))
        } else {
            None
        };
        Ok(Page { entries, next })
    }

    async fn list_settled(&self, query: &ListQuery, after: Option<IdentityDigest>) -> Result<Page> {
        let limit = query.limit.max(1);
        let mut from = keys::SETTLED.0.to_vec();
        if let Some(after) = after {
            from = keys::settled(&after).to_vec();
            from.push(0);
        }
        let (mut entries, mut next): (Vec<Entry>, _) = (Vec::new(), None);
        let (mut looked_at, mut last) = (0, None);
        let uncommitted = {
            let engine = self.shared.engine()?;
            read(&*engine, (&from, keys::SETTLED.1), |entry| {
                if entries.len() == limit || looked_at == LIST_SLICE {
                    next = last.map(|digest: IdentityDigest| cursor(&digest));
                    return Ok(ControlFlow::Break(()));
                }
                let entry = entry()?;
                looked_at += 1;
                last = Some(entry.label.digest);
                let record = &entry.record;
                if record.state.kind() == query.state && !record.is_purgeable(self.shared.now()) {
                    entries.push(entry);
                }
                Ok(ControlFlow::Continue(()))
            })?;
            // Before the engine is let go: see `reopen.rs`.
            let digests = entries.iter().map(|entry| &entry.label.digest);
            self.shared.any_uncommitted(digests)
        };
        if uncommitted {
            self.sync(false).await?;
        }
        Ok(Page { entries, next })
    }
}

impl Store for FileStore {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        let absent = match self.shared.look(identity.digest())? {
            Seen::Durable(entry) => {
                let now = self.shared.now();
                let decision = record::claim(Some(&entry.record), request, now, Fence::default());
                if decision.write.is_none() {
                    return Ok(decision.claim);
                }
                None
            }
            Seen::Absent(groups) => Some(groups),
            Seen::Uncommitted => None,
        };
        let (label, request) = (Label::from(identity), request.clone());
        self.submit(0, move |on| on.claim(label, &request, absent))
            .await
    }

    async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        fits(change, "file", MAX_OUTCOME)?;
        self.shared.engine()?;
        let (digest, erases) = (*identity, change.erases());
        let change = change.clone();
        let bytes = change.outcome().map_or(0, |o| o.as_bytes().len());
        let fenced = self.submit(bytes, move |on| on.change(&digest, &change));
        let fenced = fenced.await?;
        if erases {
            self.erased.store(true, Ordering::Relaxed);
        }
        Ok(fenced)
    }

    async fn get(&self, identity: &IdentityDigest) -> Result<Option<Entry>> {
        match self.shared.look(identity)? {
            Seen::Durable(entry) => {
                let purgeable = entry.record.is_purgeable(self.shared.now());
                Ok((!purgeable).then(|| Arc::unwrap_or_clone(entry)))
            }
            Seen::Absent(_) => Ok(None),
            Seen::Uncommitted => {
                let digest = *identity;
                self.submit(0, move |on| on.get(&digest)).await
            }
        }
    }

    async fn list(&self, query: &ListQuery) -> Result<Page> {
        let after = query.after.as_ref().map(parse_cursor).transpose()?;
        if keys::is_open(query.state) {
            self.list_open(query, after)
        } else {
            self.list_settled(query, after).await
        }
    }

    async fn purge(&self, limit: usize) -> Result<Purged> {
        // Nobody holds the engine while a step is waited for: see `reopen.rs`.
        drop(self.shared.engine()?);
        if self.erased.swap(false, Ordering::Relaxed)
            && let Err(error) = self.scrub().await
        {
            self.erased.store(true, Ordering::Relaxed);
            return Err(error);
        }
        let mut removed = 0;
        loop {
            let slice = PURGE_SLICE.min(limit - removed);
            let purged = self.submit(0, move |on| on.purge(slice)).await?;
            removed += purged.removed;
            if removed == limit || !purged.more {
                return Ok(Purged { removed, ..purged });
            }
        }
    }

    async fn wait(
        &self,
        identity: &IdentityDigest,
        fence: Fence,
        timeout: Duration,
    ) -> Result<Waited> {
        let look = async || {
            let state = self.shared.state();
            state.engine()?;
            let is_it = |entry: &Arc<Entry>| {
                entry.record.token.fence == fence && entry.record.state == State::InFlight
            };
            Ok(match state.open.get(identity).is_some_and(is_it) {
                true => Running::Yes,
                false => Running::No,
            })
        };
        let waiters = &self.shared.waiters;
        waiters
            .wait(identity, fence, timeout, Poll::BACKSTOP, look)
            .await
    }

    async fn probe(&self) -> Result<Probe> {
        let engine = self.shared.engine()?;
        let mut warnings = Vec::new();
        if engine.free_bytes().is_none() {
            warnings.push("how much room the disk has left cannot be known here".into());
        }
        warnings.extend(short(&*engine, self.reserve_bytes));
        if let Some(path) = self
            .directory
            .as_ref()
            .filter(|path| is_open_to_others(path))
        {
            warnings.push(format!(
                "others on this machine can read {}, and answers and parts of keys in it: run \
                 `chmod -R go= {0}`",
                path.display()
            ));
        }
        drop(engine);
        self.sync(true).await?;
        Ok(Probe {
            store: "file",
            durability: Durability::Power,
            warnings,
        })
    }

    async fn close(&self) -> Result<()> {
        self.queue.close();
        // The sender never sends; it goes away with the committer, the engine before it.
        let _ = self.finished.clone().changed().await;
        self.join();
        Ok(())
    }
}

impl Clear for FileStore {
    async fn clear(&self, force: bool) -> Result<()> {
        self.shared.engine()?;
        may_clear(self.for_tests, force)?;
        while self.submit(0, |on| on.clear(CLEAR_SLICE)).await?.more {}
        Ok(())
    }
}

impl FileStore {
    async fn scrub(&self) -> Result<()> {
        let engine = self.shared.engine()?;
        aside("semel-scrub", move || engine.scrub()).await
    }

    fn join(&self) {
        if let Some(thread) = self.thread.lock().take() {
            // Whatever ended it, callers were told.
            let _ = thread.join();
        }
    }
}

impl Drop for FileStore {
    // Waits for steps under way, so that the directory is free when this returns.
    fn drop(&mut self) {
        self.queue.close();
        self.join();
    }
}

impl std::fmt::Debug for FileStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileStore").finish_non_exhaustive()
    }
}

fn cursor(digest: &IdentityDigest) -> Cursor {
    Cursor(digest.as_bytes()[..].into())
}

fn parse_cursor(cursor: &Cursor) -> Result<IdentityDigest> {
    let bytes: [u8; 32] = cursor.0[..].try_into().map_err(|_| {
        StoreError::new(
            StoreErrorKind::NotApplied,
            "the cursor is not one that this store made",
        )
    })?;
    Ok(IdentityDigest::from_bytes(bytes))
}
