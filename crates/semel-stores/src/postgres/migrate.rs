//! The tables, by version.

use std::time::Duration;

use semel::store::Result;
use semel::{StoreError, StoreErrorKind};
use tokio::time::timeout;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error};

use super::connect::Connector;
use super::options::PostgresOptions;
use super::{error, sql};
use crate::common::Obstacle;
use crate::{Migrated, Schema};

/// The version that this program works with. Those before it were never released, and are left alone.
const PRESENT: u32 = 2;
/// How long a migration may take, and wait for another one.
const PATIENCE: Duration = Duration::from_mins(2);

/// `state` is text and times are `timestamptz`, for who reads them with psql. `outcome` is the
/// versioned byte form of an answer; `code` repeats its code for who searches.
///
/// Two indexes beside the primary key, both partial, so that a record is in one of them at a time:
/// what may be purged, and what is open (in flight or unknown). Neither has a column that a renewal
/// changes, so that renewals are heap-only; the room for them is what `fillfactor` leaves.
///
/// Records come and go; vacuum is asked to follow sooner than by default.
///
/// What of it is there stays as it is: a database may have the records and lack what came to this
/// version before it was published.
const TABLES: &str = "
CREATE TABLE IF NOT EXISTS {records} (
  digest bytea NOT NULL PRIMARY KEY,
  state text COLLATE \"C\" NOT NULL,
  fence bigint NOT NULL,
  nonce bytea NOT NULL,
  attempt bigint NOT NULL,
  fingerprint bytea NOT NULL,
  created_at timestamptz NOT NULL,
  claimed_at timestamptz NOT NULL,
  lease_until timestamptz NOT NULL,
  settled_at timestamptz,
  expires_at timestamptz NOT NULL,
  purge_at timestamptz NOT NULL,
  scope text[] NOT NULL,
  operation text NOT NULL,
  key_hint text NOT NULL,
  code integer,
  outcome bytea,
  steps bytea NOT NULL DEFAULT '',
  resolved text,
  note text NOT NULL DEFAULT '',
  waited_for bigint
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.05,
  autovacuum_analyze_scale_factor = 0.05);
CREATE SEQUENCE IF NOT EXISTS {fences} OWNED BY {records}.fence;
CREATE INDEX IF NOT EXISTS {index_purge} ON {records} (purge_at) WHERE purge_at < 'infinity';
CREATE INDEX IF NOT EXISTS {index_open} ON {records} (digest) WHERE state IN ('in-flight', 'unknown');
COMMENT ON TABLE {records} IS
  'semel: one row for each operation that is done once. Change rows with `semel records` only.';
COMMENT ON SEQUENCE {fences} IS
  'semel: every claim takes its fence from here. Claims move it up to the clock, in microseconds since 1970.';
COMMENT ON COLUMN {records}.digest IS 'SHA-256 of scope, operation and key';
COMMENT ON COLUMN {records}.scope IS 'segments; a backslash is written \\\\, NUL \\0';
COMMENT ON COLUMN {records}.key_hint IS 'how the key begins';
COMMENT ON COLUMN {records}.outcome IS 'the answer in its versioned byte form';
COMMENT ON COLUMN {records}.steps IS 'what an attempt that goes on finds finished';
COMMENT ON COLUMN {records}.resolved IS
  'the latest decision from outside: when, in microseconds since 1970, the attempt''s fence, the states before and after, by whom and why';
COMMENT ON COLUMN {records}.note IS 'what the request said of itself, a line each';
COMMENT ON COLUMN {records}.waited_for IS 'the fence of an attempt that somebody waits for';
CREATE TABLE IF NOT EXISTS {versioned} (
  digest bytea NOT NULL PRIMARY KEY,
  scope text[] NOT NULL,
  name text NOT NULL,
  version bigint NOT NULL,
  nonce bytea NOT NULL,
  value bytea,
  written_at timestamptz NOT NULL
) WITH (fillfactor = 90);
COMMENT ON TABLE {versioned} IS
  'semel: records with a version. Whoever changes a row raises its version. A deleted record is a '
  'row without a value: it keeps the version from being given out again.';
COMMENT ON COLUMN {versioned}.digest IS 'SHA-256 of scope and name';
COMMENT ON COLUMN {versioned}.nonce IS 'names the latest change';
";

/// Looks after the schema as `schema` says, when a store is opened.
pub(super) async fn look_after(client: &Client, with: &Connector, schema: Schema) -> Result<()> {
    match version(client, with).await? {
        Some(PRESENT) => Ok(()),
        None if schema == Schema::Expect => Err(config(format!(
            "there is no table {} with semel's records: run `semel migrate --store …`, or open \
             with schema=create",
            with.table
        ))
        .with_source(Obstacle::Missing)),
        Some(found @ 1..) => Err(other(with, found)),
        Some(0) if schema != Schema::Migrate => Err(config(format!(
            "there is no table {}_versioned or no sequence {0}_fences beside {0}: run `semel migrate \
             --store …`, or open with schema=migrate",
            with.table
        ))),
        None | Some(_) => apply(client, with).await.map(drop),
    }
}

/// Makes the tables, or brings them to this version.
pub(super) async fn migrate(options: &PostgresOptions) -> Result<Migrated> {
    let with = Connector::new(options)?;
    let link = with.connect_bare().await?;
    apply(link.client(), &with).await
}

fn config(message: String) -> StoreError {
    StoreError::new(StoreErrorKind::Config, message)
}

fn other(with: &Connector, found: u32) -> StoreError {
    let what = if found > PRESENT {
        "update this program"
    } else {
        "that one was never released, so use another table"
    };
    config(format!(
        "the table {} has version {found}, and this program works with {PRESENT}: {what}",
        with.table
    ))
}

/// The version that is there; `None` where there are no tables, and 0 where some of them are missing.
pub(super) async fn version(client: &Client, with: &Connector) -> Result<Option<u32>> {
    let read = async {
        // Reading a catalogue makes the session hear of what others committed: `to_regclass` by
        // itself may answer from what it knew before.
        let there = async |names: &[String]| {
            let there = "SELECT count(*) = cardinality($1) FROM pg_class AS c
                WHERE c.oid IN (SELECT to_regclass(name) FROM unnest($1) AS name)";
            let rows = client
                .query_typed(there, &[(&names, Type::TEXT_ARRAY)])
                .await?;
            Ok::<_, Error>(rows.first().is_some_and(|row| row.get(0)))
        };
        if !there(&[with.table.versions()]).await? {
            return Ok(None);
        }
        let text = sql::fill("SELECT max(version) FROM {versions}", &with.table);
        let rows = client.query_typed(&text, &[]).await?;
        let found = rows.first().and_then(|row| row.get::<_, Option<i32>>(0));
        if found == Some(PRESENT.cast_signed())
            && !there(&[with.table.versioned(), with.table.fences()]).await?
        {
            return Ok(Some(0));
        }
        Ok(found)
    };
    let found = bounded(with, read).await?;
    Ok(found.map(|version| u32::try_from(version).unwrap_or(0)))
}

/// Runs what cannot do harm by half, within the time of a call.
pub(super) async fn bounded<T>(
    with: &Connector,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T> {
    match timeout(with.timeout, work).await {
        Ok(done) => done.map_err(|error| error::connecting(error, &with.table)),
        Err(_) => Err(silent()),
    }
}

fn silent() -> StoreError {
    let what = "PostgreSQL did not answer in time";
    StoreError::new(StoreErrorKind::NotApplied, what)
}

/// One transaction under an advisory lock: who comes second finds the work done, and who dies on
/// the way leaves nothing. After an error the connection is not to be used any more.
async fn apply(client: &Client, with: &Connector) -> Result<Migrated> {
    let run = async |text: &str| {
        let text = sql::fill(text, &with.table);
        let done = client.batch_execute(&text).await;
        done.map_err(|error| error::connecting(error, &with.table))
    };
    let work = async {
        run("BEGIN ISOLATION LEVEL READ COMMITTED;
            SET LOCAL lock_timeout = '60s';
            SET LOCAL statement_timeout = 0;
            SELECT pg_advisory_xact_lock(hashtextextended('semel {records}', 0));")
        .await?;
        let from = version(client, with).await?;
        if let Some(found @ 1..) = from
            && found != PRESENT
        {
            return Err(other(with, found));
        }
        if from.is_none() {
            run(
                "CREATE TABLE {versions} (version integer NOT NULL PRIMARY KEY,
                since timestamptz NOT NULL DEFAULT now())",
            )
            .await?;
        }
        let mut done = Vec::new();
        if from != Some(PRESENT) {
            run(TABLES).await?;
            run(&format!(
                "INSERT INTO {{versions}} (version) VALUES ({PRESENT}) ON CONFLICT DO NOTHING"
            ))
            .await?;
            done.push(format!(
                "version {PRESENT}: made the tables {0} and {0}_versioned, and the sequence {0}_fences",
                with.table
            ));
        }
        run("COMMIT").await?;
        Ok(Migrated {
            from,
            to: PRESENT,
            done,
        })
    };
    timeout(PATIENCE, work)
        .await
        .unwrap_or_else(|_| Err(silent()))
}
