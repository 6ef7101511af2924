//! On MariaDB, and on MySQL where `SEMEL_TEST_MYSQL` has a URL.

use std::sync::atomic::{AtomicU32, Ordering};

use libtest_mimic::Trial;
use semel::conformance::{Bench, Factory, Failure};
use semel::transaction::suite::Effects;
use semel_stores::{MysqlOptions, MysqlStore, MysqlTransaction, Schema};
use semel_testkit::servers::{Kind, shared};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, MySqlConnection, Row as _};
use tempfile::TempDir;

use super::versioned::trials_in;
use super::{transactions, trials};

pub(super) fn all() -> Vec<Trial> {
    let mut all = trials("mysql/mariadb", Server(None));
    all.extend(trials_in("mysql/mariadb", || versioned(Server(None))));
    all.extend(transactions::trials("mysql/mariadb", || {
        transacted(Server(None))
    }));
    // No package of MySQL fits the tests' machines: whoever has a server names it.
    if let Ok(url) = std::env::var("SEMEL_TEST_MYSQL") {
        all.extend(trials("mysql/mysql", Server(Some(url.leak()))));
        all.extend(trials_in("mysql/mysql", || {
            let url = std::env::var("SEMEL_TEST_MYSQL").ok();
            versioned(Server(url.map(|url| &*url.leak())))
        }));
        all.extend(transactions::trials("mysql/mysql", || {
            let url = std::env::var("SEMEL_TEST_MYSQL").ok();
            transacted(Server(url.map(|url| &*url.leak())))
        }));
    }
    all
}

#[derive(Clone, Copy)]
struct Server(Option<&'static str>);

async fn versioned(server: Server) -> Result<(MysqlStore, Option<TempDir>), Failure> {
    Ok((server.options().await?.open().await?, None))
}

/// A table beside the records.
struct Orders {
    table: String,
    url: String,
}

async fn transacted(server: Server) -> Result<(MysqlStore, Orders, Option<TempDir>), Failure> {
    static TABLES: AtomicU32 = AtomicU32::new(0);
    let store = server.options().await?.open().await?;
    let number = TABLES.fetch_add(1, Ordering::Relaxed);
    let orders = Orders {
        table: format!("orders_{}_{number}", std::process::id()),
        url: server.url().await?,
    };
    let sql = format!(
        "CREATE TABLE {} (name varchar(64) NOT NULL, INDEX (name))",
        orders.table
    );
    orders.ask(sql).await?;
    Ok((store, orders, None))
}

impl Orders {
    async fn ask(&self, sql: String) -> Result<Vec<MySqlRow>, Failure> {
        let link = MySqlConnection::connect(&self.url).await;
        let mut link = link.map_err(|e| said(&e))?;
        link.fetch_all(AssertSqlSafe(sql))
            .await
            .map_err(|e| said(&e))
    }
}

impl Effects<MysqlStore> for Orders {
    type Error = sqlx::Error;

    async fn add(&self, transaction: &mut MysqlTransaction, name: &str) -> sqlx::Result<()> {
        let sql = format!("INSERT INTO {} VALUES ('{name}')", self.table);
        transaction.execute(AssertSqlSafe(sql)).await.map(drop)
    }

    async fn fail(&self, transaction: &mut MysqlTransaction) -> sqlx::Result<()> {
        transaction.execute("SELECT nonsense").await.map(drop)
    }

    async fn count(&self, name: &str) -> Result<u64, Failure> {
        let sql = format!("SELECT COUNT(*) FROM {} WHERE name='{name}'", self.table);
        Ok(self.ask(sql).await?[0].get::<i64, _>(0).unsigned_abs())
    }
}

fn said(e: &dyn std::fmt::Display) -> Failure {
    Failure::new(e.to_string())
}

impl Server {
    async fn url(self) -> Result<String, Failure> {
        Ok(match self.0 {
            Some(url) => url.to_owned(),
            None => tokio::task::spawn_blocking(|| shared(Kind::MariaDb))
                .await
                .map_err(|e| said(&e))?
                .map_err(|e| said(&format!("{e:#}")))?,
        })
    }

    async fn options(self) -> Result<MysqlOptions, Failure> {
        static TABLES: AtomicU32 = AtomicU32::new(0);
        let url = self.url().await?;
        let number = TABLES.fetch_add(1, Ordering::Relaxed);
        let table = format!("suite_{}_{number}", std::process::id());
        let options = MysqlOptions::from_url(&url)
            .and_then(|options| options.table(&table))
            .map_err(|e| said(&e))?;
        Ok(options.schema(Schema::Create).for_tests())
    }
}

impl Factory for Server {
    async fn open(&self) -> Result<Bench, Failure> {
        let options = self.options().await?;
        let store = options.clone().open().await?;
        let other = options.open().await?;
        Ok(Bench::new(store).with_other(other).exclusive())
    }

    async fn clean(&self, _bench: Bench) -> Result<(), Failure> {
        Ok(())
    }
}
