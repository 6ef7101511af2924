//! The SQLite store, on the machine's clock and on one that stands still.

use std::path::Path;
use std::sync::Arc;

use libtest_mimic::Trial;
use semel::conformance::{Bench, Factory, Failure};
use semel::{ManualClock, Timestamp};
use semel_stores::{Schema, SqliteOptions, SqliteStore};
use tempfile::TempDir;

use super::trials;
use super::versioned::trials_in;

pub(super) fn all() -> Vec<Trial> {
    let mut all = trials("sqlite/system", Sqlite::System);
    all.extend(trials("sqlite/manual", Sqlite::Manual));
    all.extend(trials_in("sqlite", versioned));
    all
}

#[derive(Clone, Copy)]
enum Sqlite {
    System,
    Manual,
}

fn options() -> SqliteOptions {
    SqliteOptions::new().schema(Schema::Create).for_tests()
}

// Two handles with connections of their own: to SQLite the same as two processes.
fn bench(path: &Path, options: impl Fn() -> SqliteOptions) -> Result<Bench, Failure> {
    let (store, other) = (options().open(path)?, options().open(path)?);
    Ok(Bench::new(store).with_other(other))
}

async fn versioned() -> Result<(SqliteStore, Option<TempDir>), Failure> {
    let directory = tempfile::tempdir().map_err(|e| Failure::new(e.to_string()))?;
    let store = options().open(directory.path().join("semel.db"))?;
    Ok((store, Some(directory)))
}

impl Factory for Sqlite {
    async fn open(&self) -> Result<Bench, Failure> {
        let directory = tempfile::tempdir().map_err(|e| Failure::new(e.to_string()))?;
        let path = directory.path().join("semel.db");
        let bench = match self {
            Self::System => bench(&path, options)?,
            Self::Manual => {
                let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_000_000)));
                bench(&path, || options().clock(clock.clone()))?.with_clock(clock)
            }
        };
        Ok(bench.exclusive().keeping(directory))
    }

    async fn clean(&self, _bench: Bench) -> Result<(), Failure> {
        Ok(())
    }
}
