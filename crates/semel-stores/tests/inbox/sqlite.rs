//! On SQLite.

use std::path::PathBuf;
use std::sync::Arc;

use rusqlite::Error;
use semel::transaction::Lent;
use semel_stores::{Schema, SqliteOptions, SqliteStore, SqliteTransaction};
use tempfile::TempDir;

use super::Database;

#[derive(Clone)]
struct Here {
    path: PathBuf,
    _directory: Arc<TempDir>,
}

impl Here {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.db");
        let options = SqliteOptions::new().schema(Schema::Create);
        options.open(&path).unwrap();
        let sql = "CREATE TABLE ledger (id TEXT NOT NULL CHECK (id <> 'poison'))";
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection.execute_batch(sql).unwrap();
        Self {
            path,
            _directory: Arc::new(directory),
        }
    }
}

impl Database for Here {
    type Store = SqliteStore;
    type Error = Error;

    async fn open(&self) -> SqliteStore {
        SqliteOptions::new().open(&self.path).unwrap()
    }

    async fn write(&self, mut tx: Lent<SqliteTransaction>, ids: Vec<String>) -> Result<(), Error> {
        tx.call(move |connection| {
            let mut insert = connection.prepare("INSERT INTO ledger VALUES (?1)")?;
            ids.iter().try_for_each(|id| insert.execute([id]).map(drop))
        })
        .await
    }

    async fn ledger(&self) -> Vec<String> {
        let connection = rusqlite::Connection::open(&self.path).unwrap();
        let mut select = connection.prepare("SELECT id FROM ledger").unwrap();
        let rows = select.query_map([], |row| row.get(0)).unwrap();
        rows.map(Result::unwrap).collect()
    }
}

#[test]
fn deliveries_race_and_consumers_die() {
    super::deliveries_race_and_consumers_die(&Here::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_the_database_refuses_holds_up_nobody() {
    super::one_that_the_database_refuses_holds_up_nobody(&Here::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_that_overlap_end() {
    super::batches_that_overlap_end(&Here::new()).await;
}
