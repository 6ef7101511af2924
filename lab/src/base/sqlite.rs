use anyhow::{Context as _, Result};
use semel_stores::sqlite::rusqlite;
use semel_stores::{SqliteOptions, SqliteStore, SqliteTransaction};

use super::Base;

impl Base for SqliteStore {
    type Error = rusqlite::Error;

    const COMMIT_AND_BEGIN: [&'static str; 2] = ["COMMIT", "BEGIN IMMEDIATE"];

    const SEALS_AT_ONCE: bool = true;

    async fn open(url: &str) -> Result<Self> {
        let path = url.strip_prefix("sqlite:").context("not a file's URL")?;
        let path = path.to_owned();
        let opened = tokio::task::spawn_blocking(move || SqliteOptions::new().open(path));
        Ok(opened.await??)
    }

    async fn execute(tx: &mut SqliteTransaction, sql: String) -> Result<u64, Self::Error> {
        tx.call(move |on| Ok(on.execute(&sql, [])? as u64)).await
    }

    async fn numbers(
        tx: &mut SqliteTransaction,
        sql: String,
    ) -> Result<Vec<Vec<i64>>, Self::Error> {
        tx.call(move |on| {
            let mut statement = on.prepare(&sql)?;
            let columns = statement.column_count();
            let rows = statement.query_map([], |row| (0..columns).map(|c| row.get(c)).collect())?;
            rows.collect()
        })
        .await
    }
}
