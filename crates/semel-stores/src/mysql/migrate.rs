//! The tables, and how they are made and brought to this version.
//!
//! The server commits at each definition, so a migration is no transaction: each of its steps may
//! be run again, and the version is written last. One at a time by a lock of the server's.

use std::time::Duration;

use semel::Note;
use semel::store::Result;
use sqlx::mysql::MySqlRow;
use tokio::time::Instant;

use super::MysqlOptions;
use super::error::{Effect, Failure, config};
use super::link::{Connector, Link, first};
use super::sql::{NAME, Table};
use crate::common::Obstacle;
use crate::{Migrated, Schema};

/// The version of the schema that this program works with. Those before it were never released, and
/// are left alone.
pub(super) const VERSION: u32 = 2;

/// How long a migration may take, and wait for another one.
const PATIENCE: Duration = Duration::from_mins(2);

/// On a connection of its own.
pub(super) async fn run(options: &MysqlOptions) -> Result<Migrated> {
    let table = Table {
        records: options.table.clone(),
    };
    let connector = Connector::new(options.driver.clone(), table, options.timeout.max(PATIENCE));
    let deadline = Instant::now() + options.timeout;
    let mut link = connector.link(deadline).await?;
    let server = super::server::Server::read(&connector, &mut link, deadline).await?;
    server.check(options.accept_unsafe)?;
    let done = to_this_version(&mut link, &options.table).await;
    link.close().await;
    done
}

/// Does what opening was told to do about the schema.
pub(super) async fn prepare(link: &mut Link, table: &str, schema: Schema) -> Result<()> {
    let found = version(link, table).await?;
    match (found, schema) {
        (Some(VERSION), _) => Ok(()),
        (None, Schema::Create | Schema::Migrate) => to_this_version(link, table).await.map(drop),
        (None, Schema::Expect) => Err(config(format!(
            "there is no table `{table}` in this database, or none of those beside it: run \
             `semel migrate --store …` or open with schema=create"
        ))
        .with_source(Obstacle::Missing)),
        (Some(found), _) => Err(other_version(table, found)),
    }
}

fn other_version(table: &str, found: u32) -> semel::StoreError {
    let what = if found > VERSION {
        "is newer: run a newer version of this program"
    } else {
        "was never released: use another table"
    };
    config(format!(
        "the schema of `{table}` has version {found} and this program works with {VERSION}: the former {what}"
    ))
}

async fn to_this_version(link: &mut Link, table: &str) -> Result<Migrated> {
    let deadline = Instant::now() + PATIENCE;
    // Names of locks are the server's, at most 64 characters long.
    let name = format!("CONCAT('semel:',LEFT(SHA2(CONCAT(DATABASE(),'.{table}'),256),40))");
    let wait = PATIENCE.as_secs() / 2;
    let got = ask(link, format!("SELECT GET_LOCK({name},{wait})"), deadline).await?;
    if first::<Option<i64>>(&got)?.flatten() != Some(1) {
        return Err(config(
            "another migration is under way; try again when it is done",
        ));
    }
    let done = locked(link, table, deadline).await;
    // Where this fails the connection is closed, and the server releases the lock.
    ask(link, format!("SELECT RELEASE_LOCK({name})"), deadline).await?;
    done
}

async fn locked(link: &mut Link, table: &str, deadline: Instant) -> Result<Migrated> {
    let from = version(link, table).await?;
    let mut done = Vec::new();
    match from {
        Some(VERSION) => {}
        None => {
            ask(link, records(table), deadline).await?;
            done.push(format!("Made the table `{table}`."));
            // For people only: without the privilege the store works all the same.
            done.push(match ask(link, readable(table), deadline).await {
                Ok(_) => format!("Made the view `{table}_readable`."),
                Err(error) => format!("Did not make the view `{table}_readable`: {error}."),
            });
            ask(link, versioned(table), deadline).await?;
            done.push(format!("Made the table `{table}_versioned`."));
            ask(link, versions(table), deadline).await?;
            done.push(format!("Made the table `{table}_schema`."));
        }
        Some(found) => return Err(other_version(table, found)),
    }
    Ok(Migrated {
        from,
        to: VERSION,
        done,
    })
}

async fn ask(link: &mut Link, sql: String, deadline: Instant) -> Result<Vec<MySqlRow>> {
    // Every step can be run again: that one may have been done is no matter.
    let rows = link.ask(sql, Effect::Reads, deadline).await;
    rows.map_err(Failure::into_error)
}

/// The version that is there; `None` where not all tables are. What is there then stays as it is.
async fn version(link: &mut Link, table: &str) -> Result<Option<u32>> {
    let deadline = Instant::now() + PATIENCE;
    let sql = format!(
        "SELECT CAST(COUNT(*) AS UNSIGNED) FROM information_schema.tables \
         WHERE table_schema=DATABASE() AND table_name IN ('{table}_schema','{table}_versioned')"
    );
    let there = first::<u64>(&ask(link, sql, deadline).await?)?;
    if there != Some(2) {
        return Ok(None);
    }
    let sql = format!("SELECT version FROM `{table}_schema` WHERE id=1");
    first(&ask(link, sql, deadline).await?)
}

/// Times are microseconds since 1970 in UTC; the largest number is "never".
fn records(table: &str) -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS `{table}` (\
         digest BINARY(32) NOT NULL,\
         state TINYINT UNSIGNED NOT NULL COMMENT '1 in flight, 2 unknown, 3 completed, 4 released',\
         attempt INT UNSIGNED NOT NULL,\
         fence BIGINT UNSIGNED NOT NULL,\
         nonce BINARY(16) NOT NULL,\
         fingerprint BINARY(33) NOT NULL,\
         created_at BIGINT UNSIGNED NOT NULL,\
         claimed_at BIGINT UNSIGNED NOT NULL,\
         lease_until BIGINT UNSIGNED NOT NULL,\
         settled_at BIGINT UNSIGNED,\
         expires_at BIGINT UNSIGNED NOT NULL,\
         purge_at BIGINT UNSIGNED NOT NULL,\
         resolved MEDIUMBLOB COMMENT \
         'latest decision from outside: when, fence, states before and after, by whom, why',\
         note VARBINARY({note}) NOT NULL COMMENT 'what the request said of itself',\
         scope MEDIUMBLOB NOT NULL,\
         operation MEDIUMBLOB NOT NULL,\
         key_hint MEDIUMBLOB NOT NULL,\
         progress MEDIUMBLOB NOT NULL COMMENT 'results of finished steps',\
         outcome LONGBLOB,\
         PRIMARY KEY (digest),\
         KEY by_purge (purge_at,state)\
         ) ENGINE=InnoDB ROW_FORMAT=DYNAMIC",
        note = Note::MAX_BYTES,
    )
}

/// A row without a value is a deleted record: it keeps its version from being given out again.
fn versioned(table: &str) -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS `{table}_versioned` (\
         digest BINARY(32) NOT NULL,\
         scope TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,\
         name TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,\
         version BIGINT UNSIGNED NOT NULL,\
         nonce BINARY(16) NOT NULL COMMENT 'names the latest change',\
         written_at BIGINT UNSIGNED NOT NULL,\
         value MEDIUMBLOB,\
         PRIMARY KEY (digest)\
         ) ENGINE=InnoDB ROW_FORMAT=DYNAMIC"
    )
}

fn versions(table: &str) -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS `{table}_schema` \
         (id TINYINT UNSIGNED NOT NULL PRIMARY KEY,version INT UNSIGNED NOT NULL) ENGINE=InnoDB;\
         INSERT INTO `{table}_schema` (id,version) VALUES (1,{VERSION}) \
         ON DUPLICATE KEY UPDATE version=VALUES(version)"
    )
}

/// The records as people read them: states by name, texts as text, times as times (in UTC).
fn readable(table: &str) -> String {
    let time = |column: &str| {
        // Beyond the year 9999: never.
        format!(
            "IF({column}<253402300800000000,TIMESTAMPADD(MICROSECOND,{column},\
             TIMESTAMP'1970-01-01 00:00:00.000000'),NULL) AS {column}"
        )
    };
    let times = [
        "created_at",
        "claimed_at",
        "lease_until",
        "settled_at",
        "expires_at",
        "purge_at",
    ];
    let times = times.map(time).join(",");
    let text = |column: &str| format!("CONVERT({column} USING utf8mb4) AS {column}");
    let texts = ["scope", "operation", "key_hint", "resolved", "note"];
    let texts = texts.map(text).join(",");
    format!(
        "CREATE OR REPLACE SQL SECURITY INVOKER VIEW `{table}_readable` AS SELECT \
         LOWER(HEX(digest)) AS digest,\
         {NAME} AS state,attempt,fence,LENGTH(progress) AS progress_bytes,{texts},{times},\
         ELT(ORD(SUBSTR(outcome,2,1)),'success','failure','omitted') AS outcome_kind,\
         ORD(SUBSTR(outcome,3,1))*256+ORD(SUBSTR(outcome,4,1)) AS outcome_code,\
         LENGTH(outcome) AS outcome_bytes,outcome,LOWER(HEX(fingerprint)) AS fingerprint \
         FROM `{table}`",
    )
}
