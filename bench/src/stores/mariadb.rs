//! MariaDB beside connections that insert one row in each transaction.

use std::time::{Duration, Instant};

use anyhow::Result;
use semel_testkit::servers::{MariaDb, Server as _};
use sha2::{Digest as _, Sha256};
use sqlx::MySqlPool;
use sqlx::mysql::MySqlPoolOptions;

use super::{Comparison, ROW_BYTES};
use crate::report::Run;

pub(super) fn measure(run: &Run) -> Result<()> {
    let server = MariaDb::start(&[])?;
    let runtime = semel_bench_load::workers();
    let pool = runtime.block_on(async {
        let pool = MySqlPoolOptions::new()
            .max_connections(64)
            .connect(&server.url())
            .await?;
        sqlx::query("CREATE TABLE bench (id BINARY(32) PRIMARY KEY, body BLOB)")
            .execute(&pool)
            .await?;
        anyhow::Ok(pool)
    })?;
    let mut inserted = 0;
    Comparison {
        name: "mariadb",
        url: &server.url(),
        reference: "one insert a transaction, a connection a caller",
        goals: [None, None],
    }
    .measure(run, |callers, time| {
        runtime.block_on(inserts(&pool, callers, time, &mut inserted))
    })
}

async fn inserts(
    pool: &MySqlPool,
    callers: usize,
    time: Duration,
    inserted: &mut usize,
) -> Result<f64> {
    let (from, started) = (*inserted, Instant::now());
    let running: Vec<_> = (0..callers)
        .map(|caller| {
            let pool = pool.clone();
            tokio::spawn(async move {
                let mut connection = pool.acquire().await?;
                let body = vec![b'a'; ROW_BYTES - 32];
                let mut rows = 0;
                while started.elapsed() < time {
                    let key = Sha256::digest((from + caller + rows * callers).to_be_bytes());
                    sqlx::query("INSERT INTO bench VALUES (?, ?)")
                        .bind(&key[..])
                        .bind(&body)
                        .execute(&mut *connection)
                        .await?;
                    rows += 1;
                }
                anyhow::Ok(rows)
            })
        })
        .collect();
    let mut counts = Vec::new();
    for caller in running {
        counts.push(caller.await??);
    }
    *inserted = from + callers * counts.iter().max().copied().unwrap_or_default();
    let rows: usize = counts.iter().sum();
    Ok(rows as f64 / started.elapsed().as_secs_f64())
}
