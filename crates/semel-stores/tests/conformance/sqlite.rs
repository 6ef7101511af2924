//! The SQLite store, on the machine's clock and on one that stands still.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use libtest_mimic::Trial;
use semel::conformance::{Bench, Factory, Failure};
use semel::sealed::{Keys, Sealed};
use semel::transaction::Transactional;
use semel::transaction::suite::Effects;
use semel::{ManualClock, Timestamp};
use semel_stores::{Schema, SqliteOptions, SqliteStore, SqliteTransaction};
use tempfile::TempDir;

use super::versioned::trials_in;
use super::{transactions, trials};

pub(super) fn all() -> Vec<Trial> {
    let mut all = trials("sqlite/system", Sqlite::System);
    all.extend(trials("sqlite/manual", Sqlite::Manual));
    all.extend(trials_in("sqlite", versioned));
    all.extend(transactions::trials("sqlite", transacted));
    all.extend(transactions::trials("sqlite/sealed", sealed));
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

/// A table beside the records.
struct Orders(PathBuf);

async fn transacted() -> Result<(SqliteStore, Orders, Option<TempDir>), Failure> {
    let (store, directory) = versioned().await?;
    let directory = directory.ok_or_else(|| Failure::new("there is no directory"))?;
    let orders = Orders(directory.path().join("semel.db"));
    let made = orders.look(|on| on.execute_batch("CREATE TABLE orders (name TEXT)"));
    made.map_err(|e| Failure::new(e.to_string()))?;
    Ok((store, orders, Some(directory)))
}

/// Around another, as `objects` is.
async fn sealed() -> Result<(Sealed<SqliteStore>, Orders, Option<TempDir>), Failure> {
    let (store, orders, directory) = transacted().await?;
    let keys = Keys::parse("2026 AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")
        .map_err(|e| Failure::new(e.to_string()))?;
    Ok((Sealed::new(store, keys), orders, directory))
}

impl Orders {
    fn look<T>(
        &self,
        look: impl FnOnce(&rusqlite::Connection) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        look(&rusqlite::Connection::open(&self.0)?)
    }
}

impl<S: Transactional<Transaction = SqliteTransaction>> Effects<S> for Orders {
    type Error = rusqlite::Error;

    async fn add(&self, transaction: &mut SqliteTransaction, name: &str) -> rusqlite::Result<()> {
        let name = name.to_owned();
        let added =
            transaction.call(move |on| on.execute("INSERT INTO orders VALUES (?1)", [name]));
        added.await.map(drop)
    }

    async fn fail(&self, transaction: &mut SqliteTransaction) -> rusqlite::Result<()> {
        let failed = transaction.call(|on| on.execute("SELECT nonsense", []));
        failed.await.map(drop)
    }

    async fn count(&self, name: &str) -> Result<u64, Failure> {
        let sql = "SELECT count(*) FROM orders WHERE name = ?1";
        self.look(|on| on.query_row(sql, [name], |row| row.get::<_, i64>(0)))
            .map(i64::unsigned_abs)
            .map_err(|e| Failure::new(e.to_string()))
    }
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
