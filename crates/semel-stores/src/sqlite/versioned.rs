//! Versioned records, in a table beside the records'.
//!
//! # Why each change is atomic
//! As every step: the row is read, the change decided and written inside one transaction that has
//! held the file's write lock since before the reading. A transaction of the application's has that
//! lock from its beginning; so what it reads stays as it is until it ends.

use bytes::Bytes;
use rusqlite::{OptionalExtension as _, Result, params};
use semel::StoreError;
use semel::store::Nonce;
use semel::versioned::rule::{self, Change, Decision, Row};
use semel::versioned::{
    Expected, MAX_VALUE, NaturalKey, Version, Versioned, VersionedIn, VersionedStore, WriteError,
    check_value,
};

use super::statements::Statements;
use super::step::{Course, Kind};
use super::transact::SqliteTransaction;
use super::{SqliteStore, row, sql};
use crate::common::scope;

/// A change on its way to where it is decided. Without a value it deletes.
pub(super) struct Alteration {
    key: NaturalKey,
    change: Change,
    value: Option<Bytes>,
}

impl Alteration {
    fn new(
        key: &NaturalKey,
        expected: Expected,
        writer: Nonce,
        value: Option<Bytes>,
    ) -> Result<Self, WriteError> {
        key.check()?;
        if let Some(value) = &value {
            check_value(value, MAX_VALUE)?;
        }
        Ok(Self {
            key: key.clone(),
            change: Change::new(expected, writer, value.as_ref()),
            value,
        })
    }

    fn run(
        &self,
        on: &mut Statements<'_>,
        course: &mut Course,
    ) -> Result<Result<Version, WriteError>> {
        let latest = latest(on, self.key.digest())?;
        let version = match rule::decide(latest.as_ref(), &self.change) {
            Decision::Done(version) => return Ok(Ok(version)),
            Decision::Conflict(found) => {
                let expected = self.change.expected;
                return Ok(Err(WriteError::ConcurrentModification { expected, found }));
            }
            Decision::Write(version) => version,
        };
        let (digest, written_at) = (self.key.digest(), row::instant(course.now));
        let (number, writer) = (row::bits(version.0), self.change.writer.as_bytes());
        let value = self.value.as_deref();
        if latest.is_some() {
            on.on(sql::VERSIONED_UPDATE)?
                .execute(params![digest, number, writer, value, written_at])?;
        } else if let Err(full) = course.room() {
            return Ok(Err(full.into()));
        } else {
            let (scope, name) = (scope::to_json(self.key.scope()), self.key.name());
            on.on(sql::VERSIONED_INSERT)?.execute(params![
                digest, number, writer, value, written_at, scope, name
            ])?;
        }
        course.wrote = true;
        Ok(Ok(version))
    }
}

fn version(row: &rusqlite::Row<'_>) -> Result<Version> {
    Ok(Version(row.get::<_, i64>(0)?.cast_unsigned()))
}

fn read(on: &mut Statements<'_>, digest: &[u8; 32]) -> Result<Option<Versioned>> {
    let found = on.on(sql::VERSIONED)?.query_row([digest], |row| {
        let value = row.get_ref(1)?.as_blob()?;
        Ok(Versioned {
            version: version(row)?,
            value: Bytes::copy_from_slice(value),
        })
    });
    found.optional()
}

fn latest(on: &mut Statements<'_>, digest: &[u8; 32]) -> Result<Option<Row>> {
    let found = on.on(sql::VERSIONED_LATEST)?.query_row([digest], |row| {
        Ok(Row {
            version: version(row)?,
            writer: Nonce::from_bytes(row.get(1)?),
            deleted: row.get(2)?,
        })
    });
    found.optional()
}

impl VersionedStore for SqliteStore {
    async fn read(&self, key: &NaturalKey) -> Result<Option<Versioned>, StoreError> {
        let digest = *key.digest();
        let lookups = &self.shared.lookups;
        Self::read(self, lookups, move |on, _| read(on, &digest)).await
    }

    async fn alter(
        &self,
        key: &NaturalKey,
        expected: Expected,
        value: Option<Bytes>,
        writer: Nonce,
    ) -> Result<Version, WriteError> {
        let made = Alteration::new(key, expected, writer, value)?;
        let bytes = made.value.as_ref().map_or(0, Bytes::len);
        let run = move |on: &mut Statements<'_>, course: &mut Course| made.run(on, course);
        self.write(Kind::Write, bytes, run).await?
    }
}

impl VersionedIn for SqliteStore {
    async fn read_in(
        &self,
        transaction: &mut SqliteTransaction,
        key: &NaturalKey,
    ) -> Result<Option<Versioned>, StoreError> {
        let digest = *key.digest();
        self.in_transaction(transaction, move |on, _| read(on, &digest))
            .await
    }

    async fn alter_in(
        &self,
        transaction: &mut SqliteTransaction,
        key: &NaturalKey,
        expected: Expected,
        value: Option<Bytes>,
    ) -> Result<Version, WriteError> {
        let made = Alteration::new(key, expected, Nonce::random()?, value)?;
        self.in_transaction(transaction, move |on, course| made.run(on, course))
            .await?
    }
}
