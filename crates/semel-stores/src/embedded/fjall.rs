//! The engine on fjall, a log-structured merge tree.
//!
//! One key space for everything: one write buffer, one flush, and one log that marks speak for. A
//! batch goes to fjall's journal and is synced there before it shows in reads.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use semel::store::Result;
use semel::{StoreError, StoreErrorKind};

use super::engine::{Batch, Engine, Visit};

/// fjall in a directory.
pub(super) struct Fjall {
    database: Database,
    records: Keyspace,
    path: PathBuf,
}

/// A full write buffer is sorted and written out in the background. Small ones keep what recovery
/// replays small, and each flush short.
const WRITE_BUFFER: u64 = 16 << 20;
/// Flushing and compacting, beside each other.
const WORKERS: usize = 2;

impl Fjall {
    /// Opens fjall in `records`, a directory in the store's own, `path`, which errors name.
    pub(super) fn open(path: &Path, records: &Path, cache_bytes: u64) -> Result<Self> {
        guarded(path, || {
            let database = Database::builder(records)
                .cache_size(cache_bytes)
                .worker_threads(WORKERS)
                .manual_journal_persist(true)
                .open()?;
            let records = database.keyspace("records", || {
                KeyspaceCreateOptions::default()
                    .max_memtable_size(WRITE_BUFFER)
                    .manual_journal_persist(true)
            })?;
            Ok(Self {
                database,
                records,
                path: path.to_owned(),
            })
        })
    }
}

impl Engine for Fjall {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        guarded(&self.path, || {
            Ok(self
                .records
                .get(key)?
                .as_deref()
                .map(Bytes::copy_from_slice))
        })
    }

    fn apply(&self, mut batch: Batch) -> Result<()> {
        guarded(&self.path, || {
            let mut write = self
                .database
                .batch()
                .durability(Some(PersistMode::SyncData));
            // In the order of the keys: neighbours in the write buffer are found sooner.
            batch.operations.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
            for (key, value) in batch.operations {
                match value {
                    Some(value) => write.insert(&self.records, &*key, &*value),
                    None => write.remove(&self.records, &*key),
                }
            }
            write.commit()
        })
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<()> {
        guarded(&self.path, || {
            for guard in self.records.range(from..to) {
                let (key, value) = guard.into_inner()?;
                if let ControlFlow::Break(()) = visit(&key, Bytes::copy_from_slice(&value)) {
                    break;
                }
            }
            Ok(())
        })
    }

    fn log_bytes(&self) -> u64 {
        // An unreadable size keeps every mark, which is always right.
        self.database.journal_disk_space().unwrap_or(u64::MAX)
    }

    fn free_bytes(&self) -> Option<u64> {
        free_bytes(&self.path)
    }
}

#[cfg(unix)]
fn free_bytes(path: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(path).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(not(unix))]
fn free_bytes(_: &Path) -> Option<u64> {
    None
}

// fjall and its tree assert some of what they read from disk: a damaged file must become an error
// of this store, not a panic of its user.
fn guarded<T>(path: &Path, run: impl FnOnce() -> fjall::Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result.map_err(|e| translate(path, e)),
        Err(_) => Err(StoreError::new(
            StoreErrorKind::Corrupt,
            format!(
                "the storage engine gave up on {}: a file there is damaged; \
                 restore the directory from a backup",
                path.display()
            ),
        )),
    }
}

fn translate(path: &Path, error: fjall::Error) -> StoreError {
    use std::io::ErrorKind as Io;
    let shown = path.display();
    let io = match &error {
        fjall::Error::Io(e) | fjall::Error::Storage(fjall::LsmError::Io(e)) => Some(e.kind()),
        _ => None,
    };
    let (kind, message) = match (&error, io) {
        (fjall::Error::Locked, _) => (
            StoreErrorKind::Config,
            format!(
                "{shown} is in use: another process (or another store in this one) has it open"
            ),
        ),
        (_, Some(Io::StorageFull | Io::QuotaExceeded)) => (
            StoreErrorKind::Capacity,
            format!("the disk under {shown} is full"),
        ),
        (_, Some(Io::PermissionDenied | Io::ReadOnlyFilesystem)) => (
            StoreErrorKind::Config,
            format!("{shown} cannot be written to"),
        ),
        (_, Some(Io::NotADirectory | Io::AlreadyExists)) => (
            StoreErrorKind::Config,
            format!("{shown} is not a directory of this store"),
        ),
        (fjall::Error::Poisoned, _) => (
            StoreErrorKind::Closed,
            format!("the storage engine in {shown} failed earlier and has to be opened again"),
        ),
        (fjall::Error::Io(_), Some(kind)) if kind != Io::NotFound && kind != Io::UnexpectedEof => {
            (StoreErrorKind::Unknown, format!("{shown}: the disk failed"))
        }
        _ => (
            StoreErrorKind::Corrupt,
            format!("a file in {shown} is damaged or missing; restore the directory from a backup"),
        ),
    };
    StoreError::new(kind, message).with_source(error)
}
