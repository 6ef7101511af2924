//! Records as rows, and back.

use std::error::Error as StdError;

use bytes::Bytes;
use rusqlite::types::{Type, ValueRef};
use rusqlite::{Error, Result, Row, Statement, ToSql, params_from_iter};
use semel::record::{Resolved, StateKind};
use semel::store::{Entry, Fence, Label, Nonce, Token};
use semel::{Fingerprint, IdentityDigest, Note, Outcome, Progress, Record, State, Timestamp};

use crate::common::scope;

/// A record and where its row is.
pub(super) struct Found {
    pub(super) id: i64,
    pub(super) record: Record,
}

/// An instant that comes.
pub(super) fn instant(at: Timestamp) -> i64 {
    i64::try_from(at.as_micros()).unwrap_or(i64::MAX)
}

/// An instant that may never come: NULL then. Whatever lies beyond 292,000 years never comes.
fn end(at: Timestamp) -> Option<i64> {
    i64::try_from(at.as_micros()).ok()
}

/// A u64's bits.
pub(super) const fn bits(number: u64) -> i64 {
    number.cast_signed()
}

/// Runs a statement that writes a record, whose other values are `more`.
pub(super) fn write(on: &mut Statement<'_>, record: &Record, more: &[&dyn ToSql]) -> Result<()> {
    let outcome = match &record.state {
        State::Completed(outcome) => Some(outcome),
        _ => None,
    };
    let values: [&dyn ToSql; 16] = [
        &record.state.kind().as_str(),
        &record.fingerprint.to_bytes(),
        &bits(record.token.fence.0),
        record.token.nonce.as_bytes(),
        &record.attempt,
        &instant(record.created_at),
        &instant(record.claimed_at),
        &end(record.lease_until),
        &record.settled_at.map(instant),
        &end(record.expires_at),
        &end(record.purge_at),
        &record.resolved.as_ref().map(|resolved| resolved.to_text()),
        &record.note.as_text(),
        &record.progress.as_bytes(),
        &outcome.map(|outcome| &outcome.as_bytes()[..]),
        &outcome.map(Outcome::code),
    ];
    on.execute(params_from_iter(values.iter().chain(more)))
        .map(drop)
}

// The columns of the SELECTs, in their order.
mod column {
    pub(super) const STATE: usize = 1;
    pub(super) const FINGERPRINT: usize = 2;
    pub(super) const FENCE: usize = 3;
    pub(super) const NONCE: usize = 4;
    pub(super) const ATTEMPT: usize = 5;
    pub(super) const CREATED: usize = 6;
    pub(super) const CLAIMED: usize = 7;
    pub(super) const LEASE: usize = 8;
    pub(super) const SETTLED: usize = 9;
    pub(super) const EXPIRES: usize = 10;
    pub(super) const PURGE: usize = 11;
    pub(super) const RESOLVED: usize = 12;
    pub(super) const NOTE: usize = 13;
    pub(super) const PROGRESS: usize = 14;
    pub(super) const OUTCOME: usize = 15;
    pub(super) const DIGEST: usize = 16;
    pub(super) const SCOPE: usize = 17;
    pub(super) const OPERATION: usize = 18;
    pub(super) const KEY_HINT: usize = 19;
}

/// Reads a row of [`FIND`](super::sql::FIND).
pub(super) fn found(row: &Row<'_>) -> Result<Found> {
    Ok(Found {
        id: row.get(0)?,
        record: record(row)?,
    })
}

/// Reads a row of [`GET`](super::sql::GET) or [`LIST`](super::sql::LIST).
pub(super) fn entry(row: &Row<'_>) -> Result<Entry> {
    let scope = str(row, column::SCOPE)?;
    Ok(Entry {
        label: Label {
            digest: IdentityDigest::from_bytes(row.get(column::DIGEST)?),
            scope: scope::from_json(scope)
                .ok_or_else(|| damaged(column::SCOPE, "this is not a list of segments"))?,
            operation: row.get(column::OPERATION)?,
            key_hint: row.get(column::KEY_HINT)?,
        },
        record: record(row)?,
    })
}

fn record(row: &Row<'_>) -> Result<Record> {
    let state = match kind(row)? {
        StateKind::InFlight => State::InFlight,
        StateKind::Unknown => State::Unknown,
        StateKind::Released => State::Released,
        StateKind::Completed => {
            let bytes = Bytes::copy_from_slice(blob(row, column::OUTCOME)?);
            let outcome = Outcome::from_bytes(bytes);
            State::Completed(outcome.map_err(|e| damaged(column::OUTCOME, e))?)
        }
    };
    let resolved = match row.get_ref(column::RESOLVED)? {
        ValueRef::Null => None,
        _ => {
            let resolved = Resolved::from_text(str(row, column::RESOLVED)?);
            Some(Box::new(
                resolved.map_err(|e| damaged(column::RESOLVED, e))?,
            ))
        }
    };
    Ok(Record {
        state,
        expires_at: may_come(row, column::EXPIRES)?,
        purge_at: may_come(row, column::PURGE)?,
        fingerprint: Fingerprint::from_bytes(row.get(column::FINGERPRINT)?),
        attempt: row.get(column::ATTEMPT)?,
        token: Token {
            fence: Fence(row.get::<_, i64>(column::FENCE)?.cast_unsigned()),
            nonce: Nonce::from_bytes(row.get(column::NONCE)?),
        },
        lease_until: may_come(row, column::LEASE)?,
        created_at: comes(row, column::CREATED)?,
        claimed_at: comes(row, column::CLAIMED)?,
        settled_at: known(row, column::SETTLED)?,
        resolved,
        progress: Progress::from_bytes(blob(row, column::PROGRESS)?)
            .map_err(|e| damaged(column::PROGRESS, e))?,
        note: Note::from_text(str(row, column::NOTE)?).map_err(|e| damaged(column::NOTE, e))?,
    })
}

fn kind(row: &Row<'_>) -> Result<StateKind> {
    let kind = StateKind::from_name(str(row, column::STATE)?);
    kind.ok_or_else(|| damaged(column::STATE, "this is not a state"))
}

fn blob<'a>(row: &'a Row<'_>, column: usize) -> Result<&'a [u8]> {
    row.get_ref(column)?
        .as_blob()
        .map_err(|e| damaged(column, e))
}

pub(super) fn comes(row: &Row<'_>, column: usize) -> Result<Timestamp> {
    let micros: i64 = row.get(column)?;
    let micros =
        u64::try_from(micros).map_err(|_| Error::IntegralValueOutOfRange(column, micros))?;
    Ok(Timestamp::from_micros(micros))
}

fn known(row: &Row<'_>, column: usize) -> Result<Option<Timestamp>> {
    match row.get_ref(column)? {
        ValueRef::Null => Ok(None),
        _ => comes(row, column).map(Some),
    }
}

fn may_come(row: &Row<'_>, column: usize) -> Result<Timestamp> {
    Ok(known(row, column)?.unwrap_or(Timestamp::MAX))
}

fn str<'a>(row: &'a Row<'_>, column: usize) -> Result<&'a str> {
    row.get_ref(column)?
        .as_str()
        .map_err(|e| damaged(column, e))
}

fn damaged(column: usize, why: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
    Error::FromSqlConversionFailure(column, Type::Blob, why.into())
}
