//! The store's tables: their version, and what brings a file to it.

use rusqlite::{Connection, Transaction, TransactionBehavior};
use semel::StoreError;
use semel::store::Result;

use super::connect::{Place, config};
use super::error::{Phase, told};
use super::sql::{self, Table};
use crate::common::{Migrated, Obstacle, Schema};

/// The version that this program reads and writes.
pub(super) const VERSION: u32 = 2;

/// The versions before it: never released, and left alone.
const UNRELEASED: std::ops::Range<u32> = 1..VERSION;

/// Checks the tables, and makes or changes them as far as `schema` allows.
pub(super) fn prepare(
    connection: &mut Connection,
    place: &Place,
    schema: Schema,
    convert: bool,
) -> Result<Migrated> {
    let failed = |e: rusqlite::Error| place.failed(&e);
    if schema == Schema::Expect {
        // Before anything else: a file without tables is left as it is.
        let found = version(connection, &place.table).map_err(failed)?;
        check(found, place, schema)?;
    }
    place.ensure_wal(connection, convert)?;
    let found = version(connection, &place.table).map_err(failed)?;
    if found == Some(VERSION) {
        return Ok(done(found, Vec::new()));
    }
    let transaction = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(failed)?;
    // Again, under the lock: several processes may be here at once.
    let found = version(&transaction, &place.table).map_err(failed)?;
    check(found, place, schema)?;
    let said = migrate(&transaction, &place.table, found).map_err(failed)?;
    transaction
        .commit()
        .map_err(|e| place.about(&told(&e, Phase::Commit)))?;
    Ok(done(found, said))
}

fn migrate(
    on: &Transaction<'_>,
    table: &Table,
    from: Option<u32>,
) -> rusqlite::Result<Vec<String>> {
    if from == Some(VERSION) {
        return Ok(Vec::new());
    }
    on.execute_batch(&table.sql(sql::CREATE_SCHEMA))?;
    on.execute_batch(&table.sql(sql::CREATE))?;
    on.execute(&table.sql(sql::SET_VERSION), [VERSION])?;
    let name = table.name();
    Ok(vec![format!(
        "made the tables of version {VERSION} (`{name}`)"
    )])
}

fn done(from: Option<u32>, done: Vec<String>) -> Migrated {
    Migrated {
        from,
        to: VERSION,
        done,
    }
}

/// The version of the tables that are there; `None` where there are none, and 0 where some of them
/// are missing.
pub(super) fn version(on: &Connection, table: &Table) -> rusqlite::Result<Option<u32>> {
    let there = |suffix: &str| -> rusqlite::Result<bool> {
        let name = format!("{}_{suffix}", table.name());
        on.query_row(sql::TABLE_EXISTS, [name], |row| row.get(0))
    };
    if !there("schema")? {
        return Ok(None);
    }
    let found = on.query_row(&table.sql(sql::VERSION), [], |row| row.get(0))?;
    Ok(Some(if found == VERSION && !there("versioned")? {
        0
    } else {
        found
    }))
}

/// Whether `schema` can do with what is there.
pub(super) fn check(found: Option<u32>, place: &Place, schema: Schema) -> Result<()> {
    match (found, schema) {
        (None, Schema::Expect) => Err(place.about(&missing(&place.table))),
        (Some(found), _) if found > VERSION => Err(place.about(&config(format!(
            "its tables `{}` have version {found}, and this program knows {VERSION}: use a newer \
             one",
            place.table.name()
        )))),
        (Some(found), _) if UNRELEASED.contains(&found) => Err(place.about(&config(format!(
            "its tables `{}` have version {found}, which was never released, and this program \
             cannot bring it to {VERSION}: use another file, or another name with `table=`",
            place.table.name()
        )))),
        (Some(found), Schema::Expect | Schema::Create) if found < VERSION => {
            Err(place.about(&config(format!(
                "its tables `{}` have version {found}, and this program needs {VERSION}: run \
                 `semel migrate --store sqlite:PATH`, or open with `schema=migrate`",
                place.table.name()
            ))))
        }
        _ => Ok(()),
    }
}

pub(super) fn missing(table: &Table) -> StoreError {
    config(format!(
        "there are no tables `{}` of a store: run `semel migrate --store sqlite:PATH`, or open \
         with `schema=create`",
        table.name()
    ))
    .with_source(Obstacle::Missing)
}
