//! SQLite: rows are copied in the file, while the store does not have it open.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use anyhow::Result;
use rusqlite::Connection;
use tempfile::TempDir;

use super::copies::{copies, value};
use super::{Place, label};
use crate::disk;

struct Folder(TempDir);

pub(super) fn start() -> Result<Box<dyn Place>> {
    Ok(Box::new(Folder(disk::directory()?)))
}

impl Folder {
    fn file(&self, records: usize) -> PathBuf {
        self.0.path().join(label(records)).with_extension("db")
    }
}

impl Place for Folder {
    fn url(&self, records: usize) -> String {
        format!("sqlite:{}", self.file(records).display())
    }

    fn fill(&self, records: usize) -> Result<f64> {
        let file = self.file(records);
        let mut connection = Connection::open(&file)?;
        // Nobody else is there, and nothing needs to survive a crash yet. 4 GiB hold the index of digests.
        connection.execute_batch(
            "PRAGMA locking_mode = exclusive; PRAGMA journal_mode = off;
             PRAGMA synchronous = off; PRAGMA cache_size = -4194304",
        )?;
        let columns: Vec<String> = connection
            .prepare("SELECT name FROM pragma_table_info('semel') WHERE name <> 'id'")?
            .query_map([], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        let values: Vec<_> = columns.iter().map(|it| value(it, "?1", "?2")).collect();
        let transaction = connection.transaction()?;
        let mut insert = transaction.prepare(&format!(
            "INSERT INTO semel ({}) SELECT {} FROM semel AS first WHERE id = 1",
            columns.join(", "),
            values.join(", ")
        ))?;
        for copy in copies(records, 1_000).flatten() {
            insert.execute((copy.digest.as_bytes(), copy.earlier as i64))?;
        }
        drop(insert);
        transaction.commit()?;
        connection.execute_batch("PRAGMA journal_mode = wal")?;
        drop(connection);
        // Whoever closes it last removes the log.
        Ok(std::fs::metadata(&file)?.blocks() as f64 * 512.0 / records as f64)
    }

    fn process(&self) -> u32 {
        std::process::id()
    }
}
