use anyhow::Result;
use semel_stores::postgres::tokio_postgres;
use semel_stores::{PostgresOptions, PostgresStore, PostgresTransaction};

use super::Base;

impl Base for PostgresStore {
    type Error = tokio_postgres::Error;

    const COMMIT_AND_BEGIN: [&'static str; 2] = ["COMMIT", "BEGIN"];

    const SEALS_AT_ONCE: bool = true;

    async fn open(url: &str) -> Result<Self> {
        // Nothing is pushed: a notification would look like an answer to a proxy.
        Ok(PostgresOptions::from_url(url)?.listen(false).open().await?)
    }

    async fn execute(tx: &mut PostgresTransaction, sql: String) -> Result<u64, Self::Error> {
        tx.execute(&sql, &[]).await
    }

    async fn numbers(
        tx: &mut PostgresTransaction,
        sql: String,
    ) -> Result<Vec<Vec<i64>>, Self::Error> {
        let rows = tx.query(&sql, &[]).await?;
        rows.iter()
            .map(|row| (0..row.len()).map(|column| row.try_get(column)).collect())
            .collect()
    }
}
