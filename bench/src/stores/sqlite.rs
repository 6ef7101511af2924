//! SQLite beside threads that insert one row in each transaction.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use rusqlite::Connection;
use sha2::{Digest as _, Sha256};

use super::{Comparison, ROW_BYTES};
use crate::disk;
use crate::report::Run;

pub(super) fn measure(run: &Run) -> Result<()> {
    let (ours, bare) = (disk::directory()?, disk::directory()?);
    let file = bare.path().join("bare.db");
    connect(&file)?
        .execute_batch("CREATE TABLE bench (id BLOB PRIMARY KEY, body BLOB) WITHOUT ROWID")?;
    let mut inserted = 0;
    Comparison {
        name: "sqlite",
        url: &format!("sqlite:{}", ours.path().join("records.db").display()),
        reference: "one insert a transaction, a connection a thread",
        goals: [None, None],
    }
    .measure(run, |callers, time| {
        let started = Instant::now();
        let from = inserted;
        let counts = std::thread::scope(|scope| {
            let running: Vec<_> = (0..callers)
                .map(|caller| {
                    let file = &file;
                    scope.spawn(move || insert(file, from + caller, callers, time))
                })
                .collect();
            running
                .into_iter()
                .map(|thread| thread.join().expect("a thread"))
                .collect::<Result<Vec<usize>>>()
        })?;
        inserted += callers * counts.iter().max().copied().unwrap_or_default();
        let rows: usize = counts.iter().sum();
        Ok(rows as f64 / started.elapsed().as_secs_f64())
    })
}

fn connect(file: &Path) -> Result<Connection> {
    let connection = Connection::open(file)?;
    connection.busy_timeout(Duration::from_secs(60))?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    Ok(connection)
}

fn insert(file: &Path, from: usize, by: usize, time: Duration) -> Result<usize> {
    let connection = connect(file)?;
    let mut insert = connection.prepare("INSERT INTO bench VALUES (?1, ?2)")?;
    let body = vec![b'a'; ROW_BYTES - 32];
    let (started, mut rows) = (Instant::now(), 0);
    while started.elapsed() < time {
        let key = Sha256::digest((from + rows * by).to_be_bytes());
        insert.execute((&key[..], &body))?;
        rows += 1;
    }
    Ok(rows)
}
