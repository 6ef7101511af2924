//! The engine on fjall, a log-structured merge tree.
//!
//! One key space for everything: one write buffer, one flush, and one log that marks speak for. A
//! batch goes to fjall's journal and is synced there before it shows in reads.

use std::io;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use fjall::config::PartitioningPolicy;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use semel::store::Result;
use semel::{StoreError, StoreErrorKind};

use super::engine::{Batch, Engine, Visit};
use super::keys;
use crate::common::disk::free_bytes;

/// fjall in a directory.
pub(super) struct Fjall {
    database: Database,
    records: Keyspace,
    path: PathBuf,
    /// fjall's own directory.
    files: PathBuf,
}

/// A full write buffer is sorted and written out in the background. Small ones keep what recovery
/// replays small, and each flush short.
const WRITE_BUFFER: u64 = 16 << 20;
/// A log is cut that is longer.
const LOG_BYTES: usize = 64_000_000;
const FILLER_BYTES: usize = 1 << 20;
/// How often it is looked whether it was.
const LOOKS: usize = 100;
const REST: Duration = Duration::from_millis(20);
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
            let files = records.to_owned();
            let records = database.keyspace("records", || {
                KeyspaceCreateOptions::default()
                    .max_memtable_size(WRITE_BUFFER)
                    .manual_journal_persist(true)
                    // The index of a table is a megabyte: a lookup that does not find it in the cache reads a part of
                    // it. Levels whose indexes and filters stay in memory have them whole.
                    .index_block_partitioning_policy(PartitioningPolicy::new([false, false, true]))
                    .filter_block_partitioning_policy(PartitioningPolicy::new([false, true]))
            })?;
            Ok(Self {
                database,
                records,
                path: path.to_owned(),
                files,
            })
        })
    }

    /// The files of the log.
    fn logs(&self) -> io::Result<Vec<PathBuf>> {
        let files = std::fs::read_dir(&self.files)?.map(|file| Ok(file?.path()));
        let is_log = |file: &io::Result<PathBuf>| match file {
            Ok(path) => path.extension().is_some_and(|of| of == "jnl"),
            Err(_) => true,
        };
        files.filter(is_log).collect()
    }
}

impl Engine for Fjall {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let found = guarded(&self.path, || {
            Ok(self
                .records
                .get(key)?
                .as_deref()
                .map(Bytes::copy_from_slice))
        });
        // Reading changes nothing.
        found.map_err(StoreError::known_not_applied)
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
        let scanned = guarded(&self.path, || {
            for guard in self.records.range(from..to) {
                let (key, value) = guard.into_inner()?;
                if let ControlFlow::Break(()) = visit(&key, Bytes::copy_from_slice(&value)) {
                    break;
                }
            }
            Ok(())
        });
        // Reading changes nothing.
        scanned.map_err(StoreError::known_not_applied)
    }

    /// Two things keep what was replaced: tables, until they are merged, and the log. That is cut when a
    /// write buffer is written out while the log is longer than 64 MB, which cannot be asked for, so it is
    /// filled up.
    fn scrub(&self) -> Result<()> {
        guarded(&self.path, || {
            let before = self.logs()?;
            let filler = vec![0; FILLER_BYTES];
            for _ in 0..=LOG_BYTES / FILLER_BYTES {
                self.records.insert(keys::FILLER, &*filler)?;
            }
            self.database.persist(PersistMode::SyncData)?;
            let mut looks = 0;
            while self.logs()?.iter().any(|log| before.contains(log)) {
                if looks == LOOKS {
                    return Err(io::Error::other("its log was not cut").into());
                }
                looks += 1;
                std::thread::sleep(REST);
                self.records.remove(keys::FILLER)?;
                self.records.rotate_memtable_and_wait()?;
            }
            self.records.major_compact()?;
            // Tables that were merged go with the next change of their list.
            self.records.remove(keys::FILLER)?;
            self.records.rotate_memtable_and_wait()
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
    let shown = path.display();
    match error {
        fjall::Error::Io(e) => of_io(path, e, false),
        fjall::Error::Storage(fjall::LsmError::Io(e)) => of_io(path, e, true),
        fjall::Error::Locked => StoreError::new(
            StoreErrorKind::Config,
            format!(
                "{shown} is in use: another process (or another store in this one) has it open"
            ),
        ),
        fjall::Error::Poisoned => stopped(path),
        error => damaged(path).with_source(error),
    }
}

/// In a table what is damaged may look like a failed reading.
fn of_io(path: &Path, error: io::Error, in_table: bool) -> StoreError {
    use io::ErrorKind as Io;
    let shown = path.display();
    let (kind, message) = match error.kind() {
        _ if is_out_of_descriptors(&error) => (
            StoreErrorKind::Unknown,
            format!(
                "{shown} cannot be written to: this process may open no more files; raise its limit \
                 (`LimitNOFILE`, `ulimit -n`)"
            ),
        ),
        Io::StorageFull | Io::QuotaExceeded => (
            StoreErrorKind::Capacity,
            format!("the disk under {shown} is full"),
        ),
        Io::PermissionDenied | Io::ReadOnlyFilesystem => (
            StoreErrorKind::Config,
            format!("{shown} cannot be written to"),
        ),
        Io::NotADirectory | Io::AlreadyExists => (
            StoreErrorKind::Config,
            format!("{shown} is not a directory of this store"),
        ),
        Io::NotFound | Io::UnexpectedEof => return damaged(path).with_source(error),
        _ if in_table => return damaged(path).with_source(error),
        _ => (StoreErrorKind::Unknown, format!("{shown}: the disk failed")),
    };
    StoreError::new(kind, message).with_source(error)
}

fn damaged(path: &Path) -> StoreError {
    let shown = path.display();
    StoreError::new(
        StoreErrorKind::Corrupt,
        format!("a file in {shown} is damaged or missing; restore the directory from a backup"),
    )
}

/// One of fjall's own threads failed, and why is not told: what keeps files from being written now is
/// likely the cause.
fn stopped(path: &Path) -> StoreError {
    /// Less than a table may need.
    const LITTLE: u64 = 4 << 20;
    match std::fs::File::open(path) {
        Err(e) => of_io(path, e, false),
        Ok(_) if free_bytes(path).is_some_and(|free| free < LITTLE) => {
            of_io(path, io::ErrorKind::StorageFull.into(), false)
        }
        Ok(_) => StoreError::new(
            StoreErrorKind::Unknown,
            format!("{} could not be written to a moment ago", path.display()),
        ),
    }
}

#[cfg(unix)]
fn is_out_of_descriptors(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE)
    )
}

#[cfg(not(unix))]
fn is_out_of_descriptors(_: &io::Error) -> bool {
    false
}
