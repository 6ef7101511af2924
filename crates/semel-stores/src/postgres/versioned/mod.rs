//! Versioned records, in a table beside the records'.
//!
//! # Why each change is atomic
//! It is one statement, and its condition is judged on the row under its lock (`sql.rs`). The unique
//! index on the digest lets one of several inserts through. Above READ COMMITTED, which only a
//! transaction of the application's is, the loser is rolled back instead (40001).

pub(super) mod sql;

use bytes::Bytes;
use semel::IdentityDigest;
use semel::store::{Nonce, Result};
use semel::transaction::TransactionError;
use semel::versioned::rule::{Change, Row as Latest};
use semel::versioned::{
    Expected, MAX_VALUE, NaturalKey, Version, Versioned, VersionedIn, VersionedStore, WriteError,
    check_value,
};
use semel::{StoreError, StoreErrorKind};
use tokio_postgres::Row;

use super::pool::Sent;
use super::row::{self, Param, array, escaped};
use super::sql::Kind;
use super::step::{self, Step};
use super::{PostgresStore, PostgresTransaction};
use crate::common::exchange::{TRIES, restless};
use crate::common::versioned::answer;

fn step(kind: Kind, key: &NaturalKey, rest: impl IntoIterator<Item = Param>) -> Step {
    step::step(kind, &IdentityDigest::from_bytes(*key.digest()), rest)
}

/// The one statement of a change; no value deletes.
fn write(key: &NaturalKey, change: &Change, value: Option<Bytes>) -> Result<Step, WriteError> {
    key.check()?;
    if let Some(value) = &value {
        check_value(value, MAX_VALUE)?;
    }
    let makes = !change.deletes && !matches!(change.expected, Expected::Version(_));
    let mut params = vec![
        Param::bytes(change.writer.as_bytes()),
        Param::Bytes(value),
        Param::int(number(change.expected)),
    ];
    if makes {
        params.push(Param::text(array(key.scope().segments())));
        params.push(Param::text(escaped(key.name())));
    }
    let kind = if makes {
        Kind::VersionedPut
    } else {
        Kind::VersionedSet
    };
    Ok(step(kind, key, params))
}

/// What is expected, as one number: -1 anything, 0 no record, else a version. One that no record can
/// have is one that none has.
fn number(expected: Expected) -> i64 {
    match expected {
        Expected::Any => -1,
        Expected::Absent => 0,
        Expected::Version(Version(0)) => i64::MAX,
        Expected::Version(Version(version)) => i64::try_from(version).unwrap_or(i64::MAX),
    }
}

fn latest(rows: &[Row]) -> Result<Option<Latest>> {
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let writer: &[u8] = row::get(row, 1)?;
    let writer = writer.try_into().map_err(|_| damaged())?;
    Ok(Some(Latest {
        version: version(row)?,
        writer: Nonce::from_bytes(writer),
        deleted: row::get(row, 2)?,
    }))
}

fn version(row: &Row) -> Result<Version> {
    let version = u64::try_from(row::get::<i64>(row, 0)?);
    version.map(Version).map_err(|_| damaged())
}

fn damaged() -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        "a row of the table of versioned records cannot be read",
    )
}

fn found(rows: &[Row]) -> Result<Option<Versioned>> {
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    Ok(Some(Versioned {
        version: version(row)?,
        value: Bytes::copy_from_slice(row::get(row, 1)?),
    }))
}

impl PostgresStore {
    async fn run_in(&self, transaction: &PostgresTransaction, step: &Step) -> Result<Vec<Row>> {
        let _step = self.gate.enter()?;
        let ran = transaction.run(&self.transactions.connector, step).await;
        ran.map_err(TransactionError::into)
    }
}

impl VersionedStore for PostgresStore {
    async fn read(&self, key: &NaturalKey) -> Result<Option<Versioned>> {
        let _step = self.gate.enter()?;
        let step = step(Kind::VersionedRead, key, []);
        let rows = self.pool.run(step, &mut Sent::default()).await?;
        found(&rows)
    }

    async fn alter(
        &self,
        key: &NaturalKey,
        expected: Expected,
        value: Option<Bytes>,
        writer: Nonce,
    ) -> Result<Version, WriteError> {
        let change = Change::new(expected, writer, value.as_ref());
        let _step = self.gate.enter()?;
        let step = write(key, &change, value)?;
        let mut sent = Sent::default();
        for _ in 0..TRIES {
            let rows = self.pool.run(step.clone(), &mut sent).await?;
            if let Some(answer) = answer(latest(&rows)?.as_ref(), &change, sent.in_doubt()) {
                return answer;
            }
        }
        Err(sent.error(restless()).into())
    }
}

impl VersionedIn for PostgresStore {
    async fn read_in(
        &self,
        transaction: &mut PostgresTransaction,
        key: &NaturalKey,
    ) -> Result<Option<Versioned>> {
        let step = step(Kind::VersionedLock, key, []);
        found(&self.run_in(transaction, &step).await?)
    }

    async fn alter_in(
        &self,
        transaction: &mut PostgresTransaction,
        key: &NaturalKey,
        expected: Expected,
        value: Option<Bytes>,
    ) -> Result<Version, WriteError> {
        let change = Change::new(expected, Nonce::random()?, value.as_ref());
        let step = write(key, &change, value)?;
        for _ in 0..TRIES {
            let rows = self.run_in(transaction, &step).await?;
            if let Some(answer) = answer(latest(&rows)?.as_ref(), &change, false) {
                return answer;
            }
        }
        Err(restless().into())
    }
}
