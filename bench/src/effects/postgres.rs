//! On PostgreSQL.

use anyhow::Result;
use semel_stores::postgres::tokio_postgres::types::Type;
use semel_stores::postgres::tokio_postgres::{Error, NoTls, connect};
use semel_stores::{PostgresOptions, PostgresStore, Schema};
use semel_testkit::servers::{Postgres, Server as _};

use super::{ACCOUNTS, Bench, Handler, NOTE, Tx, account};
use crate::run::Run;

struct Shop;

impl Handler for Shop {
    type Store = PostgresStore;
    type Error = Error;

    async fn order(tx: Tx<Self>, index: usize) -> Result<String, Error> {
        let account = account(index);
        let insert = "INSERT INTO orders (account, note) VALUES ($1, $2) RETURNING id";
        let order = [(&account as _, Type::INT8), (&NOTE as _, Type::TEXT)];
        let id: i64 = tx.query_typed(insert, &order).await?[0].get(0);
        let update = "UPDATE accounts SET balance = balance - 1 WHERE id = $1";
        tx.query_typed(update, &[(&account, Type::INT8)]).await?;
        Ok(id.to_string())
    }
}

pub(super) fn measure(run: &Run) -> Result<()> {
    let server = Postgres::start(&[])?;
    let runtime = semel_bench_load::workers();
    let bench = runtime.block_on(async {
        let (client, connection) = connect(&server.url(), NoTls).await?;
        tokio::spawn(connection);
        client
            .batch_execute(&format!(
                "CREATE TABLE orders (id bigserial PRIMARY KEY, account bigint, note text);
                 CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL);
                 INSERT INTO accounts SELECT n, 0 FROM generate_series(0, {ACCOUNTS} - 1) n"
            ))
            .await?;
        let options = PostgresOptions::from_url(&server.url())?;
        let store = options.schema(Schema::Create).open().await?;
        anyhow::Ok(Bench::new(store))
    })?;
    bench.measure::<Shop>("postgres", run, &runtime)
}
