//! MariaDB beside connections that insert one row in each transaction, and beside one that inserts
//! all that wait.

use std::sync::Arc;

use anyhow::Result;
use semel_testkit::servers::{MariaDb, Server as _};
use sqlx::{Connection as _, MySql, MySqlConnection, QueryBuilder};
use tokio::sync::Mutex;

use super::{Reference, compare, row};
use crate::callers::rate;
use crate::reference::group::Group;
use crate::run::Run;

pub(super) fn measure(run: &Run) -> Result<()> {
    let server = MariaDb::start(&[])?;
    let url = server.url();
    let runtime = semel_bench_load::workers();
    let connections = runtime.block_on(async {
        let mut connections = Vec::new();
        for _ in 0..64 {
            connections.push(Mutex::new(MySqlConnection::connect(&url).await?));
        }
        for table in ["bench", "grouped"] {
            let table = format!("CREATE TABLE {table} (id BINARY(32) PRIMARY KEY, body BLOB)");
            let mut connection = connections[0].lock().await;
            sqlx::raw_sql(sqlx::AssertSqlSafe(table))
                .execute(&mut *connection)
                .await?;
        }
        anyhow::Ok(Arc::new(connections))
    })?;
    let mut inserted = 0;
    let mut references = [
        Reference {
            name: "inserts",
            what: "one insert a transaction, a connection a caller",
            groups: false,
            goals: [None; 2],
            rate: Box::new(|callers, time| {
                let connections = Arc::clone(&connections);
                let work = move |caller: usize, index| {
                    let connections = Arc::clone(&connections);
                    async move {
                        let mut connection = connections[caller].lock().await;
                        let (key, body) = row(index);
                        sqlx::query("INSERT INTO bench VALUES (?, ?)")
                            .bind(&key[..])
                            .bind(body)
                            .execute(&mut *connection)
                            .await?;
                        Ok(())
                    }
                };
                runtime.block_on(rate(callers, time, &mut inserted, work))
            }),
        },
        Reference::group_commit(
            "one writer, one insert of all rows that wait",
            writer(&url)?,
            &runtime,
        ),
    ];
    compare(run, "mariadb", &url, &mut references)
}

/// Inserts the rows of the numbers that it is given.
fn writer(url: &str) -> Result<Group<usize>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut connection = runtime.block_on(MySqlConnection::connect(url))?;
    Ok(Group::start(move |indexes: &[usize]| {
        let mut insert = QueryBuilder::<MySql>::new("INSERT INTO grouped ");
        insert.push_values(indexes, |mut values, index| {
            let (key, body) = row(*index);
            values.push_bind(key.to_vec()).push_bind(body);
        });
        runtime.block_on(insert.build().execute(&mut connection))?;
        Ok(())
    }))
}
