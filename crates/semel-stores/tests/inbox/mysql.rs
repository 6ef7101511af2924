//! On MariaDB.

use std::sync::Arc;

use semel::transaction::Lent;
use semel_stores::{MysqlStore, MysqlTransaction};
use sqlx::{AssertSqlSafe, Error, Executor as _, Row as _};

use super::Database;
use crate::mysql::{ask, common, link, options, table};

#[derive(Clone)]
struct Here {
    url: Arc<str>,
    records: Arc<str>,
    ledger: Arc<str>,
}

impl Here {
    async fn new() -> Self {
        let (url, records) = (common().await, table());
        let ledger = format!("{records}_ledger");
        let sql = format!("CREATE TABLE {ledger} (id varchar(64) NOT NULL CHECK (id <> 'poison'))");
        ask(&mut link(&url).await, sql).await;
        let here = Self {
            url: url.into(),
            records: records.into(),
            ledger: ledger.into(),
        };
        here.open().await;
        here
    }
}

impl Database for Here {
    type Store = MysqlStore;
    type Error = Error;

    async fn open(&self) -> MysqlStore {
        let options = options(&self.url).table(&self.records).unwrap();
        options.open().await.unwrap()
    }

    async fn write(&self, mut tx: Lent<MysqlTransaction>, ids: Vec<String>) -> Result<(), Error> {
        let lines: Vec<_> = ids.iter().map(|id| format!("('{id}')")).collect();
        let sql = format!("INSERT INTO {} VALUES {}", self.ledger, lines.join(","));
        tx.execute(AssertSqlSafe(sql)).await.map(drop)
    }

    async fn ledger(&self) -> Vec<String> {
        let sql = format!("SELECT id FROM {}", self.ledger);
        let rows = ask(&mut link(&self.url).await, sql).await;
        rows.iter().map(|row| row.get(0)).collect()
    }
}

#[test]
fn deliveries_race_and_consumers_die() {
    let looking = tokio::runtime::Runtime::new().unwrap();
    let here = looking.block_on(Here::new());
    super::deliveries_race_and_consumers_die(&here);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_the_database_refuses_holds_up_nobody() {
    super::one_that_the_database_refuses_holds_up_nobody(&Here::new().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_that_overlap_end() {
    super::batches_that_overlap_end(&Here::new().await).await;
}
