//! Connections, and what a file must be like.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags};
use semel::store::Result;
use semel::{StoreError, StoreErrorKind};

use super::error::{Phase, is_busy, told};
use super::sql::{self, Table};
use crate::common::{Obstacle, disk};

/// Which file, and how it is used: enough to open it again.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// Absolute, so that SQLite takes it for no URI and a change of directory moves nothing.
    pub(super) path: PathBuf,
    pub(super) table: Table,
    pub(super) timeout: Duration,
    /// `synchronous=FULL`, else `NORMAL`.
    pub(super) full: bool,
    pub(super) max_bytes: Option<u64>,
    pub(super) reserve_bytes: u64,
    /// Which file was opened, once one was.
    pub(super) opened: Option<disk::File>,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Opens the store: the file may be made.
    Make,
    Write,
    Read,
    /// Transactions of the application's.
    Lend,
}

/// Older libraries can damage a file in WAL mode.
const LEAST_VERSION: i32 = 3_051_003;

/// How long a lock is waited for before whoever waits looks round.
const LOCK_SLICE: Duration = Duration::from_millis(250);

/// To what the write-ahead log is cut after it grew beyond.
const LOG_BYTES: i64 = 64 << 20;

/// How much of the file the writer keeps in memory, in KiB.
const WRITER_CACHE: i64 = 16 << 10;

impl Place {
    pub(super) fn connect(&self, role: Role) -> Result<Connection> {
        let failed = |e: rusqlite::Error| self.failed(&e);
        if rusqlite::version_number() < LEAST_VERSION {
            return Err(config(format!(
                "this program uses SQLite {}, which can damage files; 3.51.3 is needed",
                rusqlite::version()
            )));
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        if role == Role::Make {
            self.make()?;
        }
        self.check_file()?;
        let mut connection = Connection::open_with_flags(&self.path, flags).map_err(failed)?;
        let slice = match role {
            Role::Make | Role::Read | Role::Lend => self.timeout,
            Role::Write => LOCK_SLICE.min(self.timeout),
        };
        be_patient(&mut connection, slice).map_err(failed)?;
        // Silently opened so where the file's permissions allow no more.
        if connection.is_readonly("main").map_err(failed)? {
            return Err(self.about(&config("it cannot be written by this process")));
        }
        let synchronous = if self.full { "FULL" } else { "NORMAL" };
        connection
            .execute_batch(&format!(
                "PRAGMA synchronous = {synchronous}; PRAGMA fullfsync = ON; \
                 PRAGMA checkpoint_fullfsync = ON;"
            ))
            .map_err(failed)?;
        match role {
            Role::Read => connection.execute_batch("PRAGMA query_only = ON"),
            Role::Write => connection.execute_batch(&format!(
                "PRAGMA cache_size = -{WRITER_CACHE}; PRAGMA journal_size_limit = {LOG_BYTES}; \
                 PRAGMA secure_delete = ON"
            )),
            // The store's statements take a dozen places beside the application's.
            Role::Lend => {
                connection.set_prepared_statement_cache_capacity(64);
                Ok(())
            }
            Role::Make => Ok(()),
        }
        .map_err(failed)?;
        Ok(connection)
    }

    /// Makes sure that the file is in WAL mode. One with tables in it is changed only if asked.
    pub(super) fn ensure_wal(&self, connection: &Connection, convert: bool) -> Result<()> {
        let failed = |e: rusqlite::Error| self.failed(&e);
        // First this: another process may be making the tables, which it does in WAL mode.
        let used: bool = connection
            .query_row(sql::ANYTHING, [], |row| row.get(0))
            .map_err(failed)?;
        let mode = journal_mode(connection).map_err(failed)?;
        if mode == "wal" {
            return Ok(());
        }
        if used && !convert {
            return Err(self.about(&config(format!(
                "its journal mode is `{mode}`, and the store needs `wal`: open with \
                 `journal=wal` to change it for all who use the file, or run `PRAGMA \
                 journal_mode = wal` in it"
            ))));
        }
        let until = Instant::now() + self.timeout;
        loop {
            // Changing the mode needs the file alone, and does not wait for that by itself.
            let changed = connection.query_row("PRAGMA journal_mode = wal", [], |row| {
                row.get::<_, String>(0)
            });
            match changed {
                Ok(mode) if mode == "wal" => return Ok(()),
                Ok(mode) => {
                    return Err(self.about(&config(format!(
                        "its journal mode stays `{mode}`; the store needs `wal`"
                    ))));
                }
                Err(e) if is_busy(&e) && Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(e) => return Err(failed(e)),
            }
        }
    }

    /// What SQLite did not do before any commit, with this file.
    pub(super) fn failed(&self, error: &rusqlite::Error) -> StoreError {
        self.about(&told(error, Phase::Before))
    }

    /// The same error, about this file.
    pub(super) fn about(&self, error: &StoreError) -> StoreError {
        let about = StoreError::new(error.kind(), format!("{}: {error}", self.path.display()));
        match Obstacle::of(error) {
            Some(obstacle) => about.with_source(obstacle),
            None => about,
        }
    }

    /// Makes the file where there is none, for its owner only. SQLite's own files beside it get the
    /// same mode.
    fn make(&self) -> Result<()> {
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        match options.open(&self.path) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                let what = format!("it cannot be made ({})", e.kind());
                Err(self.about(&config(what).with_source(e)))
            }
            _ => Ok(()),
        }
    }

    /// Whether the path leads to the file that was opened first.
    pub(super) fn check_file(&self) -> Result<()> {
        match self.opened {
            Some(opened) => disk::check(&self.path, opened, "it", "it").map_err(|e| self.about(&e)),
            None => Ok(()),
        }
    }

    /// Whether the path is in a directory that is there, and is none itself.
    pub(super) fn check_path(&self) -> Result<()> {
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        if !directory.is_dir() {
            return Err(config(format!(
                "there is no directory {}: make it first",
                directory.display()
            )));
        }
        if self.path.is_dir() {
            return Err(self.about(&config("this is a directory, and should be a file")));
        }
        Ok(())
    }
}

pub(super) fn journal_mode(connection: &Connection) -> rusqlite::Result<String> {
    connection.query_row("PRAGMA journal_mode", [], |row| row.get(0))
}

pub(super) fn config(message: impl Into<Box<str>>) -> StoreError {
    StoreError::new(StoreErrorKind::Config, message)
}

/// Waits for locks at most so long, looking often: others hold them for one sync, mostly.
pub(super) fn be_patient(connection: &mut Connection, slice: Duration) -> rusqlite::Result<()> {
    const LONGEST: Duration = Duration::from_millis(2);
    let mut since = Instant::now();
    connection.busy_handler(Some(move |tries: i32| {
        if tries == 0 {
            since = Instant::now();
        }
        if since.elapsed() >= slice {
            return false;
        }
        let pause = Duration::from_micros(100) * 2_u32.pow(tries.clamp(0, 8).unsigned_abs());
        std::thread::sleep(pause.min(LONGEST));
        true
    }))
}
