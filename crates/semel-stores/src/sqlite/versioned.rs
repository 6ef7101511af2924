//! Versioned records, in a table beside the records'.
//!
//! # Why each change is atomic
//! As every step: the row is read, the change decided and written inside one transaction that has
//! held the file's write lock since before the reading. A transaction of the application's has that
//! lock from its beginning; so what it reads stays as it is until it ends.

use bytes::Bytes;
use rusqlite::{CachedStatement, Connection, OptionalExtension as _, Result, params};
use semel::store::Nonce;
use semel::versioned::rule::{self, Change, Decision, Row};
use semel::versioned::{
    Expected, MAX_VALUE, NaturalKey, Version, Versioned, VersionedIn, VersionedStore, WriteError,
    check_value,
};
use semel::{StoreError, Timestamp};

use super::reader::Read;
use super::sql::{self, Table};
use super::statements::Statements;
use super::step::{Answer, Course, Work};
use super::transact::SqliteTransaction;
use super::{SqliteStore, row};
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

    pub(super) fn bytes(&self) -> usize {
        self.value.as_ref().map_or(0, Bytes::len)
    }

    pub(super) fn run(&self, on: &mut Statements<'_>, course: &mut Course) -> Result<Answer> {
        let latest = on.versioned.latest(self.key.digest())?;
        let decision = rule::decide(latest.as_ref(), &self.change);
        if let Decision::Write(version) = decision {
            if latest.is_none() {
                if let Some(full) = &course.full {
                    return Ok(Answer::Full(full.clone()));
                }
                on.versioned.insert(self, version, course.now)?;
            } else {
                on.versioned.update(self, version, course.now)?;
            }
            course.wrote = true;
        }
        Ok(Answer::Versioned(decision))
    }
}

/// What became of a change that expected this.
fn answer(expected: Expected, answer: Answer) -> Result<Version, WriteError> {
    match answer {
        Answer::Versioned(Decision::Write(version) | Decision::Done(version)) => Ok(version),
        Answer::Versioned(Decision::Conflict(found)) => {
            Err(WriteError::ConcurrentModification { expected, found })
        }
        other => Err(WriteError::Store(other.unexpected())),
    }
}

/// The statements, prepared when the first record of this kind is asked for.
pub(super) struct Rows<'c> {
    connection: &'c Connection,
    table: Table,
    latest: Option<CachedStatement<'c>>,
    read: Option<CachedStatement<'c>>,
    insert: Option<CachedStatement<'c>>,
    update: Option<CachedStatement<'c>>,
}

fn prepared<'s, 'c>(
    statement: &'s mut Option<CachedStatement<'c>>,
    connection: &'c Connection,
    table: &Table,
    sql: &str,
) -> Result<&'s mut CachedStatement<'c>> {
    match statement {
        Some(statement) => Ok(statement),
        none => Ok(none.insert(connection.prepare_cached(&table.sql(sql))?)),
    }
}

fn version(row: &rusqlite::Row<'_>) -> Result<Version> {
    Ok(Version(row.get::<_, i64>(0)?.cast_unsigned()))
}

impl<'c> Rows<'c> {
    pub(super) fn new(connection: &'c Connection, table: &Table) -> Self {
        Self {
            connection,
            table: table.clone(),
            latest: None,
            read: None,
            insert: None,
            update: None,
        }
    }

    pub(super) fn read(&mut self, digest: &[u8; 32]) -> Result<Option<Versioned>> {
        let read = prepared(&mut self.read, self.connection, &self.table, sql::VERSIONED)?;
        read.query_row([digest], |row| {
            let value = row.get_ref(1)?.as_blob()?;
            Ok(Versioned {
                version: version(row)?,
                value: Bytes::copy_from_slice(value),
            })
        })
        .optional()
    }

    fn latest(&mut self, digest: &[u8; 32]) -> Result<Option<Row>> {
        let sql = sql::VERSIONED_LATEST;
        let latest = prepared(&mut self.latest, self.connection, &self.table, sql)?;
        latest
            .query_row([digest], |row| {
                Ok(Row {
                    version: version(row)?,
                    writer: Nonce::from_bytes(row.get(1)?),
                    deleted: row.get(2)?,
                })
            })
            .optional()
    }

    fn insert(&mut self, made: &Alteration, version: Version, now: Timestamp) -> Result<()> {
        let sql = sql::VERSIONED_INSERT;
        let insert = prepared(&mut self.insert, self.connection, &self.table, sql)?;
        let (key, writer) = (&made.key, made.change.writer.as_bytes());
        insert
            .execute(params![
                key.digest(),
                row::bits(version.0),
                writer,
                made.value.as_deref(),
                row::instant(now),
                scope::to_json(key.scope()),
                key.name(),
            ])
            .map(drop)
    }

    fn update(&mut self, made: &Alteration, version: Version, now: Timestamp) -> Result<()> {
        let sql = sql::VERSIONED_UPDATE;
        let update = prepared(&mut self.update, self.connection, &self.table, sql)?;
        update
            .execute(params![
                made.key.digest(),
                row::bits(version.0),
                made.change.writer.as_bytes(),
                made.value.as_deref(),
                row::instant(now),
            ])
            .map(drop)
    }
}

impl VersionedStore for SqliteStore {
    async fn read(&self, key: &NaturalKey) -> Result<Option<Versioned>, StoreError> {
        let digest = *key.digest();
        let lookups = &self.shared.lookups;
        Self::read(self, lookups, |done| Read::Versioned(digest, done)).await
    }

    async fn alter(
        &self,
        key: &NaturalKey,
        expected: Expected,
        value: Option<Bytes>,
        writer: Nonce,
    ) -> Result<Version, WriteError> {
        let made = Alteration::new(key, expected, writer, value)?;
        let done = self.submit(Work::Versioned(Box::new(made))).await?;
        answer(expected, done)
    }
}

impl VersionedIn for SqliteStore {
    async fn read_in(
        &self,
        transaction: &mut SqliteTransaction,
        key: &NaturalKey,
    ) -> Result<Option<Versioned>, StoreError> {
        let digest = *key.digest();
        self.in_transaction(transaction, move |on, _| on.versioned.read(&digest))
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
        let done = self.in_transaction(transaction, move |on, course| made.run(on, course));
        answer(expected, done.await?)
    }
}
