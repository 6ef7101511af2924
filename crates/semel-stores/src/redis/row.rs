//! Between the fields of a hash and a record.

use std::fmt::Write as _;

use bytes::Bytes;
use redis::Value;
use semel::record::{Record, Resolved, State, StateKind};
use semel::store::{Entry, Fence, Label, Nonce, Result, Token};
use semel::{
    Fingerprint, Identity, IdentityDigest, Note, Outcome, Progress, Scope, StoreError,
    StoreErrorKind, Timestamp,
};

/// A record as a script read it, and the server's time.
pub(super) struct Row {
    pub(super) now: Timestamp,
    pub(super) record: Option<Record>,
    // A completed record's outcome is read only where the answer needs it.
    has_outcome: bool,
}

impl Row {
    /// The record, which must have been read with its outcome.
    pub(super) fn whole(self) -> Result<Option<Record>> {
        match &self.record {
            Some(record) if record.state.kind() == StateKind::Completed && !self.has_outcome => {
                Err(corrupt("a completed record has no outcome"))
            }
            _ => Ok(self.record),
        }
    }
}

/// An error about what is stored.
pub(super) fn corrupt(what: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, format!("in redis {what}"))
}

/// The elements of a script's answer, one by one.
pub(super) struct Fields(std::vec::IntoIter<Value>);

impl Fields {
    /// Looks that the answer is about `digest`: one that belongs to another call is never used.
    pub(super) fn about(value: Value, digest: &IdentityDigest) -> Result<Self> {
        let Value::Array(values) = value else {
            return Err(corrupt("a script answered something that is no list"));
        };
        let mut fields = Self(values.into_iter());
        if fields.bytes()? != digest.as_bytes() {
            return Err(corrupt(
                "an answer is about another record than was asked for",
            ));
        }
        Ok(fields)
    }

    /// Bytes; empty where there are none.
    pub(super) fn bytes(&mut self) -> Result<Vec<u8>> {
        match self.0.next() {
            Some(Value::BulkString(bytes)) => Ok(bytes),
            Some(Value::Nil) | None => Ok(Vec::new()),
            Some(_) => Err(corrupt("a field is not a string")),
        }
    }

    pub(super) fn text(&mut self) -> Result<String> {
        String::from_utf8(self.bytes()?).map_err(|_| corrupt("a field is not text"))
    }

    pub(super) fn number(&mut self) -> Result<u64> {
        number(&self.text()?)
    }

    pub(super) fn token(&mut self) -> Result<Token> {
        parse_token(&self.text()?)
    }

    /// What a script's `answer()` gives after whether it wrote.
    pub(super) fn row(&mut self) -> Result<Row> {
        let now = Timestamp::from_micros(self.number()?);
        let state = self.text()?;
        if state.is_empty() {
            return Ok(Row {
                now,
                record: None,
                has_outcome: false,
            });
        }
        let token = self.token()?;
        let at = self.text()?;
        let print = self.bytes()?;
        let outcome = self.bytes()?;
        let resolved = self.text()?;
        let progress = Progress::from_bytes(&self.bytes()?)
            .map_err(|error| corrupt("finished steps cannot be read").with_source(error))?;
        let at = parse_at(&at)?;
        let has_outcome = !outcome.is_empty();
        let state = match StateKind::from_name(&state) {
            Some(StateKind::InFlight) => State::InFlight,
            Some(StateKind::Unknown) => State::Unknown,
            Some(StateKind::Released) => State::Released,
            Some(StateKind::Completed) if !has_outcome => State::Completed(Outcome::void()),
            Some(StateKind::Completed) => State::Completed(decode(outcome)?),
            None => return Err(corrupt("a record has no known state")),
        };
        let print = print
            .try_into()
            .map_err(|_| corrupt("a fingerprint has another length"))?;
        let record = Record {
            state,
            token,
            fingerprint: Fingerprint::from_bytes(print),
            attempt: u32::try_from(at[0])
                .map_err(|_| corrupt("a record's attempt is out of range"))?,
            created_at: Timestamp::from_micros(at[1]),
            claimed_at: Timestamp::from_micros(at[2]),
            lease_until: Timestamp::from_micros(at[3]),
            settled_at: Some(Timestamp::from_micros(at[4])).filter(|at| at.as_micros() > 0),
            expires_at: Timestamp::from_micros(at[5]),
            purge_at: Timestamp::from_micros(at[6]),
            resolved: parse_resolved(&resolved)?,
            progress,
            note: Note::EMPTY,
        };
        Ok(Row {
            now,
            record: Some(record),
            has_outcome,
        })
    }

    /// What the script `get` gives after that, if there is a record that still counts.
    pub(super) fn entry(&mut self, digest: &IdentityDigest) -> Result<Option<Entry>> {
        let row = self.row()?;
        let now = row.now;
        let Some(mut record) = row.whole()?.filter(|r| !r.is_purgeable(now)) else {
            return Ok(None);
        };
        let label = parse_label(&self.bytes()?, digest)?;
        record.note = Note::from_text(&self.text()?)
            .map_err(|error| corrupt("a note cannot be read").with_source(error))?;
        Ok(Some(Entry { label, record }))
    }
}

fn decode(outcome: Vec<u8>) -> Result<Outcome> {
    Outcome::from_bytes(Bytes::from(outcome))
        .map_err(|error| corrupt("an outcome cannot be read").with_source(error))
}

fn number(text: &str) -> Result<u64> {
    text.parse().map_err(|_| corrupt("a number cannot be read"))
}

/// The seven numbers of `at`: the attempt's, created, claimed, lease until, settled, expires, purge.
pub(super) fn parse_at(at: &str) -> Result<[u64; 7]> {
    let mut parts = at.split(' ');
    let mut numbers = [0; 7];
    if parts.next() != Some("1") {
        return Err(corrupt("a record has another layout than version 1"));
    }
    for place in &mut numbers {
        *place = number(parts.next().unwrap_or_default())?;
    }
    Ok(numbers)
}

/// A token as scripts compare it.
pub(super) fn token_text(token: &Token) -> String {
    format!("{} {}", token.fence, nonce_text(&token.nonce))
}

pub(super) fn nonce_text(nonce: &Nonce) -> String {
    format!("{:032x}", u128::from_be_bytes(*nonce.as_bytes()))
}

pub(super) fn parse_token(text: &str) -> Result<Token> {
    let read = || {
        let (fence, nonce) = text.split_once(' ')?;
        let nonce = u128::from_str_radix(nonce, 16).ok()?;
        Some(Token {
            fence: Fence(fence.parse().ok()?),
            nonce: Nonce::from_bytes(nonce.to_be_bytes()),
        })
    };
    read().ok_or_else(|| corrupt("a token cannot be read"))
}

/// Texts, each with its length in front: `6:orders,`.
fn netstrings<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    texts.into_iter().fold(String::new(), |mut all, text| {
        // Writing to a string does not fail.
        let _ = write!(all, "{}:{text},", text.len());
        all
    })
}

fn parse_netstrings(mut bytes: &[u8]) -> Option<Vec<&str>> {
    let mut texts = Vec::new();
    while !bytes.is_empty() {
        let colon = bytes.iter().position(|byte| *byte == b':')?;
        let len: usize = std::str::from_utf8(&bytes[..colon]).ok()?.parse().ok()?;
        let (text, rest) = bytes[colon + 1..].split_at_checked(len)?;
        texts.push(std::str::from_utf8(text).ok()?);
        bytes = rest.strip_prefix(b",")?;
    }
    Some(texts)
}

/// What operators know a record by, as it is stored.
pub(super) fn label(identity: &Identity) -> String {
    let fixed = [identity.operation(), identity.hint()];
    netstrings(fixed.into_iter().chain(identity.scope().segments()))
}

fn parse_label(bytes: &[u8], digest: &IdentityDigest) -> Result<Label> {
    match parse_netstrings(bytes).as_deref() {
        Some([operation, hint, scope @ ..]) => Ok(Label {
            digest: *digest,
            scope: Scope::new(scope),
            operation: (*operation).into(),
            key_hint: (*hint).into(),
        }),
        _ => Err(corrupt("a record's label cannot be read")),
    }
}

fn parse_resolved(text: &str) -> Result<Option<Box<Resolved>>> {
    if text.is_empty() {
        return Ok(None);
    }
    let resolved = Resolved::from_text(text);
    resolved
        .map(|resolved| Some(Box::new(resolved)))
        .map_err(|error| corrupt("a resolution cannot be read").with_source(error))
}
