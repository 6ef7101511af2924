//! SQLite: a database file that several processes of one machine share, also the application's own.
//!
//! # What it promises
//! [`Durability::Power`]: an acknowledged step survives a crash of any of the processes, of the
//! machine and a loss of power, as far as the disk keeps what it acknowledged to `fsync`. The file
//! is in WAL mode and commits are synced (`synchronous=FULL`). With
//! [`without_sync`](SqliteOptions::without_sync) a loss of power takes the latest steps.
//!
//! All who use the file must be on one machine: WAL mode shares memory. Locks of most network file
//! systems do not hold; that cannot be found out, and is not checked.
//!
//! # How a step goes
//! Steps that write go to one thread with a connection. It takes the file's write lock
//! (`BEGIN IMMEDIATE`), then all steps that wait, decides them one after the other with the
//! functions of [`semel::record`], later ones seeing what earlier ones wrote, and commits them with
//! one sync. Then it answers. A claim is first looked at by a reader, which answers it where
//! nothing is to be written, and hands it on otherwise. Where a transaction fails its steps are
//! done again one by one, so that one that cannot be done takes no other with it.
//!
//! # Why each step is atomic
//! *Claim, renew, complete, keep step, abandon, mark unknown, resolve*: the row is read and written
//! inside one transaction that has held the file's write lock since before the reading, so that no
//! thread and no process changes it in between. *Purge* is one such step for each slice. *Get*,
//! and a claim that changes nothing, read one snapshot that was taken after they were asked. *List*
//! reads a page from one snapshot.
//!
//! # Why a reader never sees what is not on disk (R5)
//! In WAL mode with `synchronous=FULL` a commit is synced before the index that readers go by
//! shows it.
//!
//! # Time
//! All processes go by the clock of their machine, made steady, and by the latest instant in the
//! file, which every transaction that writes moves on: whoever is behind it goes on from it. So
//! time goes back neither between processes nor across restarts. See `docs/stores/sqlite.md` for
//! what a clock that jumps does.
//!
//! # What it costs
//! A step that changes a record: one lookup, one write, its share of a sync. What changes nothing
//! is a lookup on a reader's connection, without a lock that others wait for. Waiting is pushed
//! inside the process; changes by others are seen by asking the file's version every 5 ms, less
//! often the more wait, as long as somebody waits.

mod clock;
mod connect;
mod error;
mod handle;
mod list;
mod options;
mod queue;
mod reader;
mod room;
mod row;
mod schema;
mod shared;
mod sql;
mod statements;
mod step;
mod transact;
mod transaction;
mod url;
mod versioned;
mod writer;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use semel::record::Change;
use semel::store::{
    Claim, ClaimRequest, Clear, Durability, Entry, Fence, Fenced, ListQuery, Page, Probe, Purged,
    Result, Store, Waited,
};
use semel::{AnyStore, Identity, IdentityDigest, StoreError, StoreErrorKind};
use tokio::sync::{oneshot, watch};

use self::handle::{Counted, MAX_OUTCOME};
use self::reader::Read;
use self::shared::Shared;
use self::step::{Answer, Work};
use crate::common::{Driver, Gate, Poll, fits};
use crate::{OpenError, OpenOptions};

pub use self::options::SqliteOptions;
use self::transact::Lending;
pub use self::transact::SqliteTransaction;
/// The version whose connections [`SqliteStore::change_on`] takes.
pub use rusqlite;

/// Opened by `sqlite:PATH`.
pub(crate) const DRIVER: Driver = Driver {
    check: |url| SqliteOptions::from_url(url, &OpenOptions::default()).map(drop),
    open: |url, options| {
        Box::pin(async move {
            let (options, path) = SqliteOptions::from_url(url, options)?;
            let store = aside(move || options.open(path)).await?;
            Ok(AnyStore::new(store))
        })
    },
    migrate: |url, options| {
        Box::pin(async move {
            let (options, path) = SqliteOptions::from_url(url, options)?;
            Ok(aside(move || options.migrate(path)).await?)
        })
    },
};

impl SqliteStore {
    /// Opens the store that `url` names, with its parameters. Unlike [`semel_stores::open`](crate::open)
    /// it keeps its type, and with it its transactions.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), semel_stores::OpenError> {
    /// use semel_stores::SqliteStore;
    /// let store = SqliteStore::open("sqlite:./app.db?schema=create").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`OpenError::Invalid`] where it is not a `sqlite:` URL; else those of [`SqliteOptions::open`].
    pub async fn open(url: &str) -> Result<Self, OpenError> {
        if !url.starts_with("sqlite:") {
            return Err(OpenError::invalid("sqlite", url::PATH));
        }
        let (options, path) = SqliteOptions::from_url(url, &OpenOptions::default())?;
        Ok(aside(move || options.open(path)).await?)
    }
}

/// Runs what blocks on a thread that serves nobody else.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let (done, result) = oneshot::channel();
    spawn("semel-sqlite-open", move || drop(done.send(work())))?;
    result.await.unwrap_or_else(|_| Err(no_thread()))
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(work)
        .map_err(|e| no_thread().with_source(e))
}

fn no_thread() -> StoreError {
    StoreError::new(
        StoreErrorKind::Config,
        "a thread of the store could not run",
    )
}

/// A [`Store`] in an SQLite file. See the module's documentation.
pub struct SqliteStore {
    shared: Arc<Shared>,
    gate: Gate,
    numbers: AtomicU64,
    finished: watch::Receiver<()>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    lending: Lending,
    for_tests: bool,
}

/// How many records a purge removes in one step: claims wait for no more.
const PURGE_SLICE: usize = 256;

impl Store for SqliteStore {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        match self.ask_to_claim(identity, request).await? {
            Answer::Claim(claim) => Ok(claim),
            other => Err(other.unexpected()),
        }
    }

    async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        fits(change, "sqlite", MAX_OUTCOME)?;
        let work = Work::Fenced(*identity, change.clone());
        match self.submit(work).await? {
            Answer::Fenced(fenced) => Ok(fenced),
            other => Err(other.unexpected()),
        }
    }

    async fn get(&self, identity: &IdentityDigest) -> Result<Option<Entry>> {
        let digest = *identity;
        self.read(&self.shared.lookups, |done| Read::Get(digest, done))
            .await
    }

    async fn list(&self, query: &ListQuery) -> Result<Page> {
        let query = query.clone();
        self.read(&self.shared.scans, |done| Read::List(query, done))
            .await
    }

    async fn purge(&self, limit: usize) -> Result<Purged> {
        let mut removed = 0;
        loop {
            let slice = PURGE_SLICE.min(limit - removed);
            let Purged { removed: now, more } = match self.submit(Work::Purge(slice)).await? {
                Answer::Purged(purged) => purged,
                other => return Err(other.unexpected()),
            };
            removed += now;
            if removed == limit || !more {
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
        drop(self.gate.enter()?);
        let _counted = Counted::new(&self.shared);
        let digest = *identity;
        let look = || {
            self.read(&self.shared.lookups, move |done| {
                Read::Running(digest, fence, done)
            })
        };
        let waiters = &self.shared.waiters;
        waiters
            .wait(identity, fence, timeout, Poll::BACKSTOP, look)
            .await
    }

    async fn probe(&self) -> Result<Probe> {
        let found = self.read(&self.shared.scans, Read::Probe).await?;
        let place = &self.shared.place;
        schema::check(found.version, place, crate::Schema::Expect)?;
        if found.journal_mode != "wal" {
            return Err(place.about(&connect::config(format!(
                "its journal mode was changed to `{}`; the store needs `wal`",
                found.journal_mode
            ))));
        }
        // Writing works, and is as durable as asked.
        self.submit(Work::Touch).await?;
        let mut warnings: Vec<String> = room::on_disk(place).map(Into::into).into_iter().collect();
        if !place.full {
            warnings.push(
                "commits are not synced (`synchronous=normal`): a loss of power takes the latest \
                 acknowledged steps"
                    .into(),
            );
        }
        Ok(Probe {
            store: "sqlite",
            durability: if place.full {
                Durability::Power
            } else {
                Durability::Crash
            },
            warnings,
        })
    }

    async fn close(&self) -> Result<()> {
        let mut closing = std::pin::pin!(self.gate.close());
        std::future::poll_fn(|context| {
            let closed = closing.as_mut().poll(context);
            // Who waits for a change looks once more, and finds the gate closed.
            self.shared.waiters.wake_all();
            closed
        })
        .await;
        self.lending.close();
        self.shared.close();
        // The sender never sends; it goes away with the writer, its connection before it.
        let _ = self.finished.clone().changed().await;
        self.join();
        Ok(())
    }
}

impl Clear for SqliteStore {
    async fn clear(&self, force: bool) -> Result<()> {
        if !self.for_tests && !force {
            drop(self.gate.enter()?);
            return Err(connect::config(
                "this store was not opened for tests: clearing it needs force",
            ));
        }
        self.submit(Work::Clear).await.map(drop)
    }
}

impl Drop for SqliteStore {
    // Waits for steps under way, so that the file is free when this returns.
    fn drop(&mut self) {
        self.shared.close();
        self.join();
    }
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore").finish_non_exhaustive()
    }
}
