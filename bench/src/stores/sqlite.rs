//! SQLite beside threads that insert one row in each transaction, and beside one that inserts all
//! that wait.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use rusqlite::Connection;

use super::{Reference, compare, row};
use crate::disk;
use crate::reference::group::Group;
use crate::run::Run;

const INSERT: &str = "INSERT INTO bench VALUES (?1, ?2)";

pub(super) fn measure(run: &Run) -> Result<()> {
    let (ours, bare, grouped) = (disk::directory()?, disk::directory()?, disk::directory()?);
    let file = bare.path().join("bare.db");
    connect(&file)?;
    let runtime = semel_bench_load::workers();
    let mut inserted = 0;
    let mut references = [
        Reference {
            name: "inserts",
            what: "one insert a transaction, a connection a thread",
            groups: false,
            goals: [None; 2],
            rate: Box::new(|callers, time| threads(&file, callers, time, &mut inserted)),
        },
        Reference::group_commit(
            "one writer, one transaction for all inserts that wait",
            writer(&grouped.path().join("grouped.db"))?,
            &runtime,
        ),
    ];
    let url = format!("sqlite:{}", ours.path().join("records.db").display());
    compare(run, "sqlite", &url, &mut references)
}

fn connect(file: &Path) -> Result<Connection> {
    let connection = Connection::open(file)?;
    connection.busy_timeout(Duration::from_secs(60))?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.execute_batch(
        "CREATE TABLE IF NOT EXISTS bench (id BLOB PRIMARY KEY, body BLOB) WITHOUT ROWID",
    )?;
    Ok(connection)
}

/// Inserts the rows of the numbers that it is given.
fn writer(file: &Path) -> Result<Group<usize>> {
    let mut connection = connect(file)?;
    Ok(Group::start(move |indexes: &[usize]| {
        let transaction = connection.transaction()?;
        let mut insert = transaction.prepare_cached(INSERT)?;
        for index in indexes {
            insert.execute(row(*index))?;
        }
        drop(insert);
        Ok(transaction.commit()?)
    }))
}

fn threads(file: &Path, callers: usize, time: Duration, inserted: &mut usize) -> Result<f64> {
    let (from, started) = (*inserted, Instant::now());
    let counts = std::thread::scope(|scope| {
        let running: Vec<_> = (0..callers)
            .map(|caller| scope.spawn(move || insert(file, from + caller, callers, time)))
            .collect();
        running
            .into_iter()
            .map(|thread| thread.join().expect("a thread"))
            .collect::<Result<Vec<usize>>>()
    })?;
    *inserted += callers * counts.iter().max().copied().unwrap_or_default();
    let rows: usize = counts.iter().sum();
    Ok(rows as f64 / started.elapsed().as_secs_f64())
}

fn insert(file: &Path, from: usize, by: usize, time: Duration) -> Result<usize> {
    let connection = connect(file)?;
    let mut insert = connection.prepare(INSERT)?;
    let (started, mut rows) = (Instant::now(), 0);
    while started.elapsed() < time {
        insert.execute(row(from + rows * by))?;
        rows += 1;
    }
    Ok(rows)
}
