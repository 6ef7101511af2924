//! The statements of whoever decides and writes: the writer, and transactions of the application's, for each of
//! which they are made anew. So the connection keeps them.

use rusqlite::{CachedStatement, Connection, OptionalExtension as _, Result, params};
use semel::store::{Fence, Label};
use semel::{IdentityDigest, Record, Timestamp};

use super::row::{self, Found};
use super::sql::{self, Table};
use super::versioned::Rows;
use crate::common::scope;

pub(super) struct Statements<'c> {
    find: CachedStatement<'c>,
    insert: CachedStatement<'c>,
    update: CachedStatement<'c>,
    clock: CachedStatement<'c>,
    advance: CachedStatement<'c>,
    purge: CachedStatement<'c>,
    purgeable: CachedStatement<'c>,
    clear: CachedStatement<'c>,
    pub(super) versioned: Rows<'c>,
}

impl<'c> Statements<'c> {
    pub(super) fn prepare(connection: &'c Connection, table: &Table) -> Result<Self> {
        let prepare = |statement| connection.prepare_cached(&table.sql(statement));
        Ok(Self {
            find: prepare(sql::FIND)?,
            insert: prepare(sql::INSERT)?,
            update: prepare(sql::UPDATE)?,
            clock: prepare(sql::CLOCK)?,
            advance: prepare(sql::ADVANCE)?,
            purge: prepare(sql::PURGE)?,
            purgeable: prepare(sql::PURGEABLE)?,
            clear: prepare(sql::CLEAR)?,
            versioned: Rows::new(connection, table),
        })
    }

    pub(super) fn find(&mut self, digest: &IdentityDigest) -> Result<Option<Found>> {
        self.find
            .query_row([digest.as_bytes()], row::found)
            .optional()
    }

    pub(super) fn insert(&mut self, label: &Label, record: &Record) -> Result<()> {
        let scope = scope::to_json(&label.scope);
        self.insert
            .execute(row::values(record, row::label(label, &scope)))
            .map(drop)
    }

    pub(super) fn update(&mut self, id: i64, record: &Record) -> Result<()> {
        let id = vec![row::Value::Integer(Some(id))];
        self.update.execute(row::values(record, id)).map(drop)
    }

    /// The latest instant, and the highest fence given out.
    pub(super) fn clock(&mut self) -> Result<(Timestamp, Fence)> {
        self.clock.query_row([], |row| {
            let fence = row.get::<_, i64>(1)?.cast_unsigned();
            Ok((row::comes(row, 0)?, Fence(fence)))
        })
    }

    pub(super) fn advance(&mut self, latest: Timestamp, fence: Fence) -> Result<()> {
        self.advance
            .execute(params![row::instant(latest), row::bits(fence.0)])
            .map(drop)
    }

    pub(super) fn purge(&mut self, now: Timestamp, limit: usize) -> Result<usize> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.purge.execute([row::instant(now), limit])
    }

    pub(super) fn purgeable(&mut self, now: Timestamp) -> Result<bool> {
        self.purgeable
            .query_row([row::instant(now)], |row| row.get(0))
    }

    pub(super) fn clear(&mut self) -> Result<()> {
        self.clear.execute([]).map(drop)
    }
}
