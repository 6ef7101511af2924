//! PostgreSQL: a table for each case; named statements and pushes, unnamed ones and polling, one
//! connection for all callers, and by way of a pooler.

use std::time::Duration;

use libtest_mimic::Trial;
use semel::conformance::{Bench, Factory, Failure};
use semel::store::Nonce;
use semel::transaction::suite::Effects;
use semel_stores::{PostgresOptions, PostgresStore, PostgresTransaction, Schema};
use semel_testkit::servers::{Kind, shared};
use tempfile::TempDir;

use super::versioned::trials_in;
use super::{transactions, trials};

pub(super) fn all() -> Vec<Trial> {
    let mut all = trials("postgres", Way::Usual);
    all.extend(trials("postgres/one", Way::One));
    all.extend(trials("postgres/unnamed", Way::Unnamed));
    all.extend(trials("postgres/pooled", Way::Pooled));
    all.extend(trials_in("postgres", || versioned(Way::Usual)));
    all.extend(trials_in("postgres/one", || versioned(Way::One)));
    all.extend(trials_in("postgres/unnamed", || versioned(Way::Unnamed)));
    all.extend(transactions::trials("postgres", || transacted(Way::Usual)));
    all.extend(transactions::trials("postgres/unnamed", || {
        transacted(Way::Unnamed)
    }));
    all
}

#[derive(Clone, Copy)]
enum Way {
    /// As it is opened without options.
    Usual,
    /// One connection: everything that meets is sent as a group.
    One,
    /// Unnamed statements and polling.
    Unnamed,
    /// Through PgBouncer in transaction mode, with pushes around it.
    Pooled,
}

fn failure(error: impl std::fmt::Display) -> Failure {
    Failure::new(format!("{error:#}"))
}

impl Way {
    fn options(self, table: &str) -> Result<PostgresOptions, Failure> {
        let url = match self {
            Self::Usual => format!("{}?table={table}", server(Kind::Postgres)?),
            Self::One => format!("{}?table={table}&connections=1", server(Kind::Postgres)?),
            Self::Unnamed => {
                let url = server(Kind::Postgres)?;
                format!("{url}?table={table}&prepared=off&listen=off")
            }
            // Its URL has parameters already.
            Self::Pooled => format!("{}&table={table}", server(Kind::PgBouncer)?),
        };
        PostgresOptions::from_url(&url).map_err(failure)
    }
}

fn server(kind: Kind) -> Result<String, Failure> {
    shared(kind).map_err(failure)
}

async fn open(options: PostgresOptions) -> Result<PostgresStore, Failure> {
    options
        .schema(Schema::Create)
        .for_tests()
        .open()
        .await
        .map_err(failure)
}

fn table() -> Result<String, Failure> {
    let nonce = Nonce::random()?;
    Ok(format!("t_{}", hex::encode(nonce.as_bytes())))
}

async fn versioned(way: Way) -> Result<(PostgresStore, Option<TempDir>), Failure> {
    Ok((open(way.options(&table()?)?).await?, None))
}

/// A table beside the records.
struct Orders {
    table: String,
    look: tokio_postgres::Client,
}

async fn transacted(way: Way) -> Result<(PostgresStore, Orders, Option<TempDir>), Failure> {
    let records = table()?;
    let store = open(way.options(&records)?).await?;
    let url = server(Kind::Postgres)?;
    let (look, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
        .await
        .map_err(failure)?;
    tokio::spawn(connection);
    let table = format!("{records}_orders");
    let sql = format!("CREATE TABLE {table} (name text NOT NULL)");
    look.batch_execute(&sql).await.map_err(failure)?;
    Ok((store, Orders { table, look }, None))
}

impl Effects<PostgresStore> for Orders {
    type Error = tokio_postgres::Error;

    async fn add(
        &self,
        transaction: &mut PostgresTransaction,
        name: &str,
    ) -> Result<(), Self::Error> {
        let sql = format!("INSERT INTO {} VALUES ($1)", self.table);
        transaction.execute(&sql, &[&name]).await.map(drop)
    }

    async fn fail(&self, transaction: &mut PostgresTransaction) -> Result<(), Self::Error> {
        transaction.batch_execute("SELECT nonsense").await
    }

    async fn count(&self, name: &str) -> Result<u64, Failure> {
        let sql = format!("SELECT count(*) FROM {} WHERE name = $1", self.table);
        let row = self.look.query_one(&sql, &[&name]).await.map_err(failure)?;
        Ok(row.get::<_, i64>(0).unsigned_abs())
    }
}

impl Factory for Way {
    async fn open(&self) -> Result<Bench, Failure> {
        let options = self.options(&table()?)?;
        let store = open(options.clone()).await?;
        let other = open(options).await?;
        Ok(Bench::new(store)
            .with_other(other)
            .with_short(Duration::from_millis(60))
            .exclusive())
    }

    async fn clean(&self, _bench: Bench) -> Result<(), Failure> {
        // The server ends with the run.
        Ok(())
    }
}
