//! Versioned records, in a table beside the records'.
//!
//! # Why each change is atomic
//! It is one statement, whose condition is judged on the row under its lock. `INSERT … ON DUPLICATE
//! KEY UPDATE` puts a record, and what it found and did comes back by way of `LAST_INSERT_ID`. An
//! `UPDATE` of the row that has the version expected replaces one; where it found none, the row is
//! read after it in the same packet. By then the rival that was waited for has committed: a loser is
//! told the winner's version, or a later one.
//!
//! The nonce is compared in case a caller sends a change again; the store itself sends nothing again
//! that may have happened.

mod sql;

use bytes::Bytes;
use semel::StoreError;
use semel::store::{Nonce, Result};
use semel::versioned::rule::{Change, Row};
use semel::versioned::{
    Expected, MAX_VALUE, NaturalKey, Version, Versioned, VersionedIn, VersionedStore, WriteError,
    check_value,
};
use sqlx::mysql::MySqlRow;

use super::MysqlStore;
use super::error::Failure;
use super::row::Reader;
use super::step::Step;
use super::transact::{MysqlTransaction, before};
use crate::common::exchange::{TRIES, restless};
use crate::common::pool::Sent;
use crate::common::versioned::answer;

/// Whether a change may make a record, and its statement.
fn write(
    store: &MysqlStore,
    key: &NaturalKey,
    change: &Change,
    value: Option<&Bytes>,
) -> Result<(bool, String), WriteError> {
    key.check()?;
    if let Some(value) = value {
        check_value(value, MAX_VALUE)?;
        if !matches!(change.expected, Expected::Version(_)) {
            let put = store.table.put(key, change.expected, &change.writer, value);
            return Ok((true, put));
        }
    }
    let value = value.map(|value| &**value);
    let set = store.table.set(key, change.expected, &change.writer, value);
    Ok((false, set))
}

/// The record's latest change, from what [`put`](sql) left.
fn after_put(left: u64, change: &Change) -> Row {
    let other = Nonce::from_bytes([0; 16]);
    Row {
        version: Version(left / 4),
        writer: if left % 2 == 1 { change.writer } else { other },
        deleted: false,
    }
}

/// The latest change, from a row that says first how many were written.
fn after_set(row: Option<&MySqlRow>, change: &Change) -> Result<Option<Row>> {
    let Some(row) = row else { return Ok(None) };
    let mut reader = Reader::new(row);
    let changed = reader.changed()? > 0;
    let Some(version) = reader.value::<Option<u64>>()? else {
        return Ok(None);
    };
    let latest = Row {
        version: Version(version),
        writer: Nonce::from_bytes(reader.array()?),
        deleted: reader.value::<i64>()? != 0,
    };
    Ok(Some(match change.expected {
        // Others may have written since, before the row was read.
        _ if !changed => latest,
        Expected::Version(expected) => Row {
            version: expected.next(),
            writer: change.writer,
            deleted: change.deletes,
        },
        Expected::Any | Expected::Absent => Row {
            writer: change.writer,
            deleted: change.deletes,
            ..latest
        },
    }))
}

fn found(row: Option<&MySqlRow>) -> Result<Option<Versioned>> {
    let Some(row) = row else { return Ok(None) };
    let mut reader = Reader::new(row);
    let version = Version(reader.value()?);
    let value = Bytes::copy_from_slice(reader.value()?);
    Ok(Some(Versioned { version, value }))
}

fn store_error(failure: Failure) -> StoreError {
    before(failure).into()
}

impl VersionedStore for MysqlStore {
    async fn read(&self, key: &NaturalKey) -> Result<Option<Versioned>> {
        let _inside = self.gate.enter()?;
        let rows = Self::read(self, self.table.versioned(key, false)).await?;
        found(rows.first())
    }

    async fn alter(
        &self,
        key: &NaturalKey,
        expected: Expected,
        value: Option<Bytes>,
        writer: Nonce,
    ) -> Result<Version, WriteError> {
        let change = Change::new(expected, writer, value.as_ref());
        let _inside = self.gate.enter()?;
        let (puts, sql) = write(self, key, &change, value.as_ref())?;
        let packet = if puts {
            format!("{sql};{}", self.table.was_put())
        } else {
            format!("{sql};{}", self.table.was_set(key))
        };
        let mut sent = Sent::default();
        for _ in 0..TRIES {
            let done = self.pool.run(Step::once(packet.clone()), &mut sent).await?;
            let latest = match (done.rows.first(), puts) {
                (Some(row), true) => Some(after_put(Reader::new(row).value()?, &change)),
                (row, _) => after_set(row, &change)?,
            };
            if let Some(answer) = answer(latest.as_ref(), &change, false) {
                return answer;
            }
        }
        Err(restless().into())
    }
}

impl VersionedIn for MysqlStore {
    async fn read_in(
        &self,
        transaction: &mut MysqlTransaction,
        key: &NaturalKey,
    ) -> Result<Option<Versioned>> {
        let _inside = self.gate.enter()?;
        let read = self.fetch(transaction, self.table.versioned(key, true));
        found(read.await.map_err(store_error)?.as_ref())
    }

    async fn alter_in(
        &self,
        transaction: &mut MysqlTransaction,
        key: &NaturalKey,
        expected: Expected,
        value: Option<Bytes>,
    ) -> Result<Version, WriteError> {
        let _inside = self.gate.enter()?;
        let change = Change::new(expected, Nonce::random()?, value.as_ref());
        let (puts, sql) = write(self, key, &change, value.as_ref())?;
        self.pool.fits(&sql)?;
        for _ in 0..TRIES {
            let done = self.ask(transaction, sql.clone()).await;
            let done = done.map_err(store_error)?;
            let latest = if puts {
                Some(after_put(done.last_insert_id(), &change))
            } else if let (1.., Expected::Version(expected)) = (done.rows_affected(), expected) {
                return Ok(expected.next());
            } else {
                let row = self.fetch(transaction, self.table.latest(key)).await;
                let row = row.map_err(store_error)?;
                after_set(row.as_ref(), &change)?
            };
            if let Some(answer) = answer(latest.as_ref(), &change, false) {
                return answer;
            }
        }
        Err(restless().into())
    }
}
