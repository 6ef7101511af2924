//! Listings: a page of a state's records, in the order in which they were first claimed.

use rusqlite::{Result, Statement, params};
use semel::store::{Cursor, ListQuery, Page};
use semel::{StoreError, StoreErrorKind, Timestamp};

use super::row;

/// How many rows a listing looks at for one page.
const LIST_SLICE: usize = 1024;

pub(super) fn list(
    on: &mut Statement<'_>,
    query: &ListQuery,
    after: i64,
    now: Timestamp,
) -> Result<Page> {
    let limit = query.limit.max(1);
    let mut rows = on.query(params![query.state.as_str(), after])?;
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

pub(super) fn parse_cursor(cursor: Option<&Cursor>) -> semel::store::Result<i64> {
    let Some(cursor) = cursor else {
        return Ok(i64::MIN);
    };
    let bytes: Result<[u8; 8], _> = cursor.0[..].try_into();
    bytes.map(i64::from_be_bytes).map_err(|_| {
        StoreError::new(
            StoreErrorKind::NotApplied,
            "the cursor is not one that this store made",
        )
    })
}
