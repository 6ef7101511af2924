//! Rows, read in the order in which the statements name their columns.

use bytes::Bytes;
use semel::record::{Record, Resolved, State, StateKind};
use semel::store::{Entry, Fence, Label, Nonce, Result, Token};
use semel::{
    Fingerprint, IdentityDigest, Note, Outcome, Progress, StoreError, StoreErrorKind, Timestamp,
};
use sqlx::mysql::MySqlRow;
use sqlx::{Decode, MySql, Row as _, Type};

use super::sql;
use crate::common::scope;

/// A row, read from its first column to its last.
pub(super) struct Reader<'a> {
    row: &'a MySqlRow,
    next: usize,
}

impl<'a> Reader<'a> {
    pub(super) const fn new(row: &'a MySqlRow) -> Self {
        Self { row, next: 0 }
    }

    pub(super) fn value<T>(&mut self) -> Result<T>
    where
        T: Decode<'a, MySql> + Type<MySql>,
    {
        let at = self.next;
        self.next += 1;
        self.row
            .try_get(at)
            .map_err(|error| corrupt("a column does not hold what it should").with_source(error))
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes: &[u8] = self.value()?;
        bytes
            .try_into()
            .map_err(|_| corrupt("a column of fixed length has another"))
    }

    fn text(&mut self) -> Result<Option<Box<str>>> {
        let Some(bytes) = self.value::<Option<&[u8]>>()? else {
            return Ok(None);
        };
        match str::from_utf8(bytes) {
            Ok(text) => Ok(Some(text.into())),
            Err(error) => Err(corrupt("a text is not UTF-8").with_source(error)),
        }
    }

    fn time(&mut self) -> Result<Timestamp> {
        self.value().map(Timestamp::from_micros)
    }

    pub(super) fn digest(&mut self) -> Result<IdentityDigest> {
        self.array().map(IdentityDigest::from_bytes)
    }

    /// How many rows the statement before has written.
    pub(super) fn changed(&mut self) -> Result<u64> {
        let changed: i64 = self.value()?;
        // -1 after a statement that writes nothing.
        Ok(u64::try_from(changed).unwrap_or_default())
    }

    /// The server's time and a record.
    pub(super) fn current(&mut self) -> Result<(Timestamp, Record)> {
        let now = self.time()?;
        let state = self.state()?;
        let token = Token {
            fence: Fence(self.value()?),
            nonce: Nonce::from_bytes(self.array()?),
        };
        let fingerprint = Fingerprint::from_bytes(self.array()?);
        let attempt = self.value()?;
        let (created_at, claimed_at, lease_until) = (self.time()?, self.time()?, self.time()?);
        let settled_at = self.value::<Option<u64>>()?.map(Timestamp::from_micros);
        let (expires_at, purge_at) = (self.time()?, self.time()?);
        let resolved = self.resolved()?;
        let progress = Progress::from_bytes(self.value()?)
            .map_err(|error| corrupt("finished steps cannot be read").with_source(error))?;
        let outcome: Option<Vec<u8>> = self.value()?;
        let state = match (state, outcome) {
            (StateKind::InFlight, _) => State::InFlight,
            (StateKind::Unknown, _) => State::Unknown,
            (StateKind::Released, _) => State::Released,
            (StateKind::Completed, Some(outcome)) => {
                let outcome = Outcome::from_bytes(Bytes::from(outcome));
                State::Completed(outcome.map_err(|error| {
                    corrupt("the outcome of a record cannot be read").with_source(error)
                })?)
            }
            (StateKind::Completed, None) => {
                return Err(corrupt("a completed record has no outcome"));
            }
        };
        let record = Record {
            state,
            expires_at,
            purge_at,
            fingerprint,
            attempt,
            token,
            lease_until,
            created_at,
            claimed_at,
            settled_at,
            resolved,
            progress,
            note: Note::EMPTY,
        };
        // The statement's time is taken when it begins, and it may have to wait. What it read had
        // happened by then: no lease looks longer than it was asked for. The time of a record that is settled is
        // the server's alone: its clock may have gone back since, and then it is kept for longer.
        let now = match record.state {
            State::InFlight => now.max(record.claimed_at),
            State::Unknown | State::Completed(_) | State::Released => now,
        };
        Ok((now, record))
    }

    fn resolved(&mut self) -> Result<Option<Box<Resolved>>> {
        let Some(text) = self.text()? else {
            return Ok(None);
        };
        let resolved = Resolved::from_text(&text);
        resolved
            .map(|resolved| Some(Box::new(resolved)))
            .map_err(|error| corrupt("a resolution cannot be read").with_source(error))
    }

    fn state(&mut self) -> Result<StateKind> {
        let number: u8 = self.value()?;
        let mut known = StateKind::ALL.into_iter();
        let state = known.find(|&kind| sql::state(kind) == number);
        state.ok_or_else(|| corrupt("there is a state that this version does not know"))
    }

    /// A record with its label and its note.
    pub(super) fn entry(&mut self) -> Result<Entry> {
        let (_, mut record) = self.current()?;
        let digest = self.digest()?;
        let scope = self.text()?.as_deref().and_then(scope::from_json);
        let (operation, key_hint) = (self.text()?, self.text()?);
        let label = Label {
            digest,
            scope: scope.ok_or_else(|| corrupt("a record's scope cannot be read"))?,
            operation: operation.unwrap_or_default(),
            key_hint: key_hint.unwrap_or_default(),
        };
        let note = Note::from_text(&self.text()?.unwrap_or_default());
        record.note =
            note.map_err(|error| corrupt("a record's note cannot be read").with_source(error))?;
        Ok(Entry { label, record })
    }
}

/// The digest in a row that has no other column.
pub(super) fn only_digest(row: &MySqlRow) -> Option<IdentityDigest> {
    Reader::new(row).digest().ok()
}

/// The digest behind the record in a row that a group of claims has read.
pub(super) fn digest_of_claim(row: &MySqlRow) -> Option<IdentityDigest> {
    let next = row.len() - 1;
    Reader { row, next }.digest().ok()
}

pub(super) fn corrupt(what: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        format!("mysql: what is stored cannot be used: {what}"),
    )
}
