//! On SQLite, in a file on the disk where the program lies.

use anyhow::Result;
use semel_stores::sqlite::rusqlite::{Connection, Error};
use semel_stores::{Schema, SqliteOptions, SqliteStore};

use super::{ACCOUNTS, Bench, Handler, NOTE, Tx, account};
use crate::disk;
use crate::run::Run;

struct Shop;

impl Handler for Shop {
    type Store = SqliteStore;
    type Error = Error;

    async fn order(mut tx: Tx<Self>, index: usize) -> Result<String, Error> {
        tx.call(move |connection| {
            let account = account(index);
            let insert = "INSERT INTO orders (account, note) VALUES (?1, ?2)";
            connection.execute(insert, (account, NOTE))?;
            let id = connection.last_insert_rowid();
            let update = "UPDATE accounts SET balance = balance - 1 WHERE id = ?1";
            connection.execute(update, [account])?;
            Ok(id.to_string())
        })
        .await
    }
}

pub(super) fn measure(run: &Run) -> Result<()> {
    let folder = disk::directory()?;
    let file = folder.path().join("shop.db");
    let runtime = semel_bench_load::workers();
    let store =
        runtime.block_on(async { SqliteOptions::new().schema(Schema::Create).open(&file) })?;
    Connection::open(&file)?.execute_batch(&format!(
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, account INTEGER, note TEXT);
         CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL);
         WITH RECURSIVE n(id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM n WHERE id < {ACCOUNTS} - 1)
         INSERT INTO accounts SELECT id, 0 FROM n"
    ))?;
    Bench::new(store).measure::<Shop>("sqlite", run, &runtime)
}
