use anyhow::Result;
use semel_stores::mysql::sqlx::{self, AssertSqlSafe, Executor as _, Row as _};
use semel_stores::{MysqlOptions, MysqlStore, MysqlTransaction};

use super::Base;

impl Base for MysqlStore {
    type Error = sqlx::Error;

    const COMMIT_AND_BEGIN: [&'static str; 2] = ["COMMIT", "START TRANSACTION"];

    const SEALS_AT_ONCE: bool = false;

    async fn open(url: &str) -> Result<Self> {
        Ok(MysqlOptions::from_url(url)?.open().await?)
    }

    async fn execute(tx: &mut MysqlTransaction, sql: String) -> Result<u64, Self::Error> {
        let done = (***tx).execute(AssertSqlSafe(sql)).await?;
        Ok(done.rows_affected())
    }

    async fn numbers(tx: &mut MysqlTransaction, sql: String) -> Result<Vec<Vec<i64>>, Self::Error> {
        let rows = (***tx).fetch_all(AssertSqlSafe(sql)).await?;
        rows.iter()
            .map(|row| (0..row.len()).map(|column| row.try_get(column)).collect())
            .collect()
    }
}
