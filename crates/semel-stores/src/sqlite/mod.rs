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

// A step (`step`) goes by way of `handle` to a thread (`reader`, `writer`), which decides it by its
// `statements`. `transact` is about transactions of the application's; a store is opened by `url`,
// `options`, `connect` and `schema`.
mod clock;
mod connect;
mod error;
mod handle;
mod options;
mod reader;
mod room;
mod row;
mod schema;
mod sql;
mod statements;
mod step;
mod transact;
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
    Claim, ClaimRequest, Clear, Cursor, Durability, Entry, Fence, Fenced, Label, ListQuery, Page,
    Probe, Purged, Result, Store, Waited,
};
use semel::{AnyStore, Identity, IdentityDigest, StoreError, StoreErrorKind};
use tokio::sync::watch;

use self::handle::{Counted, MAX_OUTCOME, Shared};
use self::statements::Statements;
use self::step::{Course, Kind};
use crate::common::thread::aside;
use crate::common::{Driver, Gate, Poll, Running, fits, may_clear};
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
            let store = aside(OPENING, move || options.open(path)).await?;
            Ok(AnyStore::new(store))
        })
    },
    migrate: |url, options| {
        Box::pin(async move {
            let (options, path) = SqliteOptions::from_url(url, options)?;
            Ok(aside(OPENING, move || options.migrate(path)).await?)
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
        Ok(aside(OPENING, move || options.open(path)).await?)
    }
}

const OPENING: &str = "semel-sqlite-open";

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
        let (label, request) = (Label::from(identity), request.clone());
        let kind = match request.is_forgettable {
            true => Kind::Forgettable,
            false => Kind::Write,
        };
        // First to a reader, which hands it on where something is to be written.
        self.submit(&self.shared.lookups, kind, 0, move |on, course| {
            step::claim(&label, &request, on, course)
        })
        .await?
    }

    async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        fits(change, "sqlite", MAX_OUTCOME)?;
        let (digest, change) = (*identity, change.clone());
        let bytes = change.outcome().map_or(0, |o| o.as_bytes().len());
        self.write(Kind::Write, bytes, move |on, course| {
            step::change(&digest, &change, on, course)
        })
        .await
    }

    async fn get(&self, identity: &IdentityDigest) -> Result<Option<Entry>> {
        let digest = *identity;
        self.read(&self.shared.lookups, move |on, course| {
            let entry = on.get(&digest)?;
            Ok(entry.filter(|entry| !entry.record.is_purgeable(course.now)))
        })
        .await
    }

    async fn list(&self, query: &ListQuery) -> Result<Page> {
        let (after, query) = (place_of(query.after.as_ref())?, query.clone());
        self.read(&self.shared.scans, move |on, course| {
            on.list(&query, after, course.now)
        })
        .await
    }

    async fn purge(&self, limit: usize) -> Result<Purged> {
        let mut removed = 0;
        loop {
            let slice = PURGE_SLICE.min(limit - removed);
            let purge =
                move |on: &mut Statements<'_>, course: &mut Course| step::purge(slice, on, course);
            let purged = self.write(Kind::Purge, 0, purge).await?;
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
        drop(self.gate.enter()?);
        let _counted = Counted::new(&self.shared);
        let digest = *identity;
        let look = || {
            self.read(&self.shared.lookups, move |on, _| {
                Ok(match on.is_running(&digest, fence)? {
                    true => Running::Yes,
                    false => Running::No,
                })
            })
        };
        let waiters = &self.shared.waiters;
        waiters
            .wait(identity, fence, timeout, Poll::BACKSTOP, look)
            .await
    }

    async fn probe(&self) -> Result<Probe> {
        let found = self.read(&self.shared.scans, |on, _| {
            let version = schema::version(on.connection, on.table)?;
            Ok((version, connect::journal_mode(on.connection)?))
        });
        let (version, mode) = found.await?;
        let place = &self.shared.place;
        schema::check(version, place, crate::Schema::Expect)?;
        if mode != "wal" {
            return Err(place.about(&connect::config(format!(
                "its journal mode was changed to `{mode}`; the store needs `wal`"
            ))));
        }
        // Writing works, and is as durable as asked: the clock at least.
        self.write(Kind::Write, 0, |_, course| {
            course.wrote = true;
            Ok(())
        })
        .await?;
        let mut warnings: Vec<String> = room::on_disk(place).into_iter().collect();
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

fn place_of(cursor: Option<&Cursor>) -> Result<i64> {
    let Some(cursor) = cursor else {
        return Ok(i64::MIN);
    };
    let bytes: Result<[u8; 8], _> = cursor.0[..].try_into();
    bytes.map(i64::from_be_bytes).map_err(|_| {
        StoreError::new(
            StoreErrorKind::NotApplied,
            "the cursor is not one that this store made",
        )
    })
}

impl Clear for SqliteStore {
    async fn clear(&self, force: bool) -> Result<()> {
        drop(self.gate.enter()?);
        may_clear(self.for_tests, force)?;
        self.write(Kind::Write, 0, |on, course| {
            course.wrote = true;
            on.on(sql::CLEAR)?.execute([])
        })
        .await?;
        self.shared.waiters.wake_all();
        Ok(())
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
