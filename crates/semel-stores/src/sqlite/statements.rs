//! The store's statements on a connection, each prepared when it is first used. The connection keeps them
//! beyond: for a transaction of the application's all of this is made anew.

use rusqlite::{CachedStatement, Connection, OptionalExtension as _, Result, params};
use semel::store::{Cursor, Entry, Fence, Label, ListQuery, Page};
use semel::{IdentityDigest, Record, Timestamp};

use super::row::{self, Found};
use super::sql::{self, Table};
use crate::common::scope;

/// How many rows a listing looks at for one page.
const LIST_SLICE: usize = 1024;

pub(super) struct Statements<'c> {
    pub(super) connection: &'c Connection,
    pub(super) table: &'c Table,
    prepared: Vec<(&'static str, CachedStatement<'c>)>,
}

impl<'c> Statements<'c> {
    pub(super) const fn new(connection: &'c Connection, table: &'c Table) -> Self {
        Self {
            connection,
            table,
            prepared: Vec::new(),
        }
    }

    /// Prepares what the writer uses: fails where the tables are others.
    pub(super) fn check(&mut self) -> Result<()> {
        let used = [
            sql::FIND,
            sql::INSERT,
            sql::UPDATE,
            sql::CLOCK,
            sql::ADVANCE,
            sql::PURGE,
            sql::PURGEABLE,
            sql::CLEAR,
        ];
        used.into_iter().try_for_each(|sql| self.on(sql).map(drop))
    }

    /// The statement, prepared.
    pub(super) fn on(&mut self, sql: &'static str) -> Result<&mut CachedStatement<'c>> {
        let known = self.prepared.iter().position(|(known, _)| *known == sql);
        let at = match known {
            Some(at) => at,
            None => {
                let statement = self.connection.prepare_cached(&self.table.sql(sql))?;
                self.prepared.push((sql, statement));
                self.prepared.len() - 1
            }
        };
        Ok(&mut self.prepared[at].1)
    }

    /// Which state of the file this connection sees, by the commits of others.
    pub(super) fn data_version(&mut self) -> Result<i64> {
        self.on(sql::DATA_VERSION)?.query_row([], |row| row.get(0))
    }

    pub(super) fn find(&mut self, digest: &IdentityDigest) -> Result<Option<Found>> {
        self.on(sql::FIND)?
            .query_row([digest.as_bytes()], row::found)
            .optional()
    }

    pub(super) fn get(&mut self, digest: &IdentityDigest) -> Result<Option<Entry>> {
        self.on(sql::GET)?
            .query_row([digest.as_bytes()], row::entry)
            .optional()
    }

    /// Whether an attempt is in flight under this fence.
    pub(super) fn is_running(&mut self, digest: &IdentityDigest, fence: Fence) -> Result<bool> {
        let values = params![digest.as_bytes(), row::bits(fence.0)];
        self.on(sql::RUNNING)?.query_row(values, |row| row.get(0))
    }

    /// A page of a state's records, in the order in which they were first claimed.
    pub(super) fn list(&mut self, query: &ListQuery, after: i64, now: Timestamp) -> Result<Page> {
        let limit = query.limit.max(1);
        let mut rows = self
            .on(sql::LIST)?
            .query(params![query.state.as_str(), after])?;
        let (mut entries, mut looked_at, mut last) = (Vec::new(), 0, after);
        while let Some(row) = rows.next()? {
            if entries.len() == limit || looked_at == LIST_SLICE {
                let next = Some(Cursor(last.to_be_bytes().into()));
                return Ok(Page { entries, next });
            }
            looked_at += 1;
            last = row.get(0)?;
            let entry = row::entry(row)?;
            let record = &entry.record;
            if !record.is_purgeable(now) && (!query.only_lapsed() || record.is_lapsed(now)) {
                entries.push(entry);
            }
        }
        Ok(Page {
            entries,
            next: None,
        })
    }

    pub(super) fn insert(&mut self, label: &Label, record: &Record) -> Result<()> {
        let scope = scope::to_json(&label.scope);
        let name: [&dyn rusqlite::ToSql; 4] = [
            label.digest.as_bytes(),
            &scope,
            &label.operation,
            &label.key_hint,
        ];
        row::write(self.on(sql::INSERT)?, record, &name)
    }

    pub(super) fn update(&mut self, id: i64, record: &Record) -> Result<()> {
        row::write(self.on(sql::UPDATE)?, record, &[&id])
    }

    /// The latest instant, and the highest fence given out.
    pub(super) fn clock(&mut self) -> Result<(Timestamp, Fence)> {
        self.on(sql::CLOCK)?.query_row([], |row| {
            let fence = row.get::<_, i64>(1)?.cast_unsigned();
            Ok((row::comes(row, 0)?, Fence(fence)))
        })
    }

    pub(super) fn advance(&mut self, latest: Timestamp, fence: Fence) -> Result<()> {
        self.on(sql::ADVANCE)?
            .execute(params![row::instant(latest), row::bits(fence.0)])
            .map(drop)
    }

    pub(super) fn purge(&mut self, now: Timestamp, limit: usize) -> Result<usize> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.on(sql::PURGE)?.execute([row::instant(now), limit])
    }

    pub(super) fn purgeable(&mut self, now: Timestamp) -> Result<bool> {
        self.on(sql::PURGEABLE)?
            .query_row([row::instant(now)], |row| row.get(0))
    }
}
