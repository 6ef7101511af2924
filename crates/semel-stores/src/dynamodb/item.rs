//! A record as an item: names, encoding and decoding of attributes.

use std::collections::HashMap;
use std::error::Error;
use std::time::Duration;

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use bytes::Bytes;
use semel::record::Resolved;
use semel::store::{Entry, Fence, Label, Nonce, Result, Token};
use semel::{
    Fingerprint, FinishedStep, IdentityDigest, Note, Outcome, Progress, Record, Scope, State,
    StateKind, StoreError, StoreErrorKind, Timestamp,
};

/// An item as the SDK gives it.
pub(super) type Item = HashMap<String, AttributeValue>;

/// The partition key: the identity's digest in hexadecimal. There is no sort key.
pub(super) const PK: &str = "pk";
/// The attribute that DynamoDB's own deletion goes by: whole seconds, never before `purge_us`.
pub(super) const TTL: &str = "purge_at";

pub(super) const STATE: &str = "state";
pub(super) const FENCE: &str = "fence";
pub(super) const NONCE: &str = "nonce";
/// Grows with each renewal, so that observers see it.
pub(super) const RENEWALS: &str = "renewals";
pub(super) const ATTEMPT: &str = "attempt";
pub(super) const FINGERPRINT: &str = "fingerprint";
/// The lease's length, which observers wait out.
pub(super) const LEASE: &str = "lease_us";
/// When the lease ends by its holder's wall clock: for people, decides nothing.
pub(super) const LEASE_UNTIL: &str = "lease_until_us";
pub(super) const CREATED: &str = "created_us";
pub(super) const CLAIMED: &str = "claimed_us";
pub(super) const SETTLED: &str = "settled_us";
pub(super) const EXPIRES: &str = "expires_us";
pub(super) const PURGE: &str = "purge_us";
pub(super) const OUTCOME: &str = "outcome";
/// The outcome's code, for people.
pub(super) const STATUS: &str = "status";
pub(super) const SCOPE: &str = "scope";
pub(super) const OPERATION: &str = "operation";
pub(super) const KEY_HINT: &str = "key_hint";
/// The finished steps, a list with the bytes of each; none where there are none.
pub(super) const STEPS: &str = "steps";
/// How many bytes they are together.
pub(super) const STEPS_BYTES: &str = "steps_bytes";
/// The latest resolution, in its text form.
pub(super) const RESOLVED: &str = "resolved";
/// What the claim said of its request; none where it said nothing.
pub(super) const NOTE: &str = "note";

/// A record, and what only an item holds.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) record: Record,
    /// The lease's length in microseconds.
    pub(super) lease: u64,
    pub(super) renewals: u64,
}

/// Finished steps of no account, for a record of which only matters that it has some.
pub(super) fn some_steps() -> Progress {
    let step = FinishedStep::new("some", &[]);
    step.and_then(|step| Progress::EMPTY.with(&step))
        .unwrap_or_default()
}

/// Text.
pub(super) fn text(text: impl Into<String>) -> AttributeValue {
    AttributeValue::S(text.into())
}

/// Whole numbers are exact up to 38 digits.
pub(super) fn number(number: u64) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

/// Bytes.
pub(super) fn bytes(bytes: &[u8]) -> AttributeValue {
    AttributeValue::B(Blob::new(bytes))
}

/// A nonce.
pub(super) fn nonce(nonce: &Nonce) -> AttributeValue {
    bytes(nonce.as_bytes())
}

/// A state's name.
pub(super) fn state(kind: StateKind) -> AttributeValue {
    text(kind.as_str())
}

/// A scope's segments, each as it is.
pub(super) fn scope(scope: &Scope) -> AttributeValue {
    AttributeValue::L(scope.segments().map(text).collect())
}

/// Whole microseconds of a duration, at most `u64::MAX`.
pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The value of the partition key.
pub(super) fn pk(digest: &IdentityDigest) -> AttributeValue {
    text(digest.to_string())
}

/// Reads an item's attributes; an error names the one that is not as this store writes it.
pub(super) struct Reader<'a>(pub(super) &'a Item);

impl<'a> Reader<'a> {
    /// An attribute that must be there.
    fn wanted(&self, name: &str) -> Result<&'a AttributeValue> {
        self.0.get(name).ok_or_else(|| corrupt(name))
    }

    pub(super) fn number(&self, name: &str) -> Result<u64> {
        let value = self.wanted(name)?.as_n().ok();
        value
            .and_then(|digits| digits.parse().ok())
            .ok_or_else(|| corrupt(name))
    }

    fn text(&self, name: &str) -> Result<&'a str> {
        match self.wanted(name)? {
            AttributeValue::S(text) => Ok(text),
            _ => Err(corrupt(name)),
        }
    }

    pub(super) fn bytes(&self, name: &str) -> Result<&'a [u8]> {
        match self.wanted(name)? {
            AttributeValue::B(bytes) => Ok(bytes.as_ref()),
            _ => Err(corrupt(name)),
        }
    }

    /// An instant; one that is not there is "never".
    fn time(&self, name: &str) -> Result<Timestamp> {
        if self.0.contains_key(name) {
            self.number(name).map(Timestamp::from_micros)
        } else {
            Ok(Timestamp::MAX)
        }
    }

    pub(super) fn digest(&self) -> Result<IdentityDigest> {
        IdentityDigest::from_hex(self.text(PK)?).ok_or_else(|| corrupt(PK))
    }

    fn state(&self) -> Result<State> {
        match StateKind::from_name(self.text(STATE)?).ok_or_else(|| corrupt(STATE))? {
            StateKind::InFlight => Ok(State::InFlight),
            StateKind::Unknown => Ok(State::Unknown),
            StateKind::Released => Ok(State::Released),
            StateKind::Completed => {
                let encoded = Bytes::copy_from_slice(self.bytes(OUTCOME)?);
                let outcome = Outcome::from_bytes(encoded);
                let outcome = outcome.map_err(|error| corrupt(OUTCOME).with_source(error))?;
                Ok(State::Completed(outcome))
            }
        }
    }

    pub(super) fn nonce(&self) -> Result<Nonce> {
        let nonce = self.bytes(NONCE)?.try_into();
        Ok(Nonce::from_bytes(nonce.map_err(|_| corrupt(NONCE))?))
    }

    fn token(&self) -> Result<Token> {
        Ok(Token {
            fence: Fence(self.number(FENCE)?),
            nonce: self.nonce()?,
        })
    }

    pub(super) fn row(&self) -> Result<Row> {
        let fingerprint = self.bytes(FINGERPRINT)?.try_into();
        let settled = self.0.contains_key(SETTLED);
        let record = Record {
            state: self.state()?,
            expires_at: self.time(EXPIRES)?,
            purge_at: self.time(PURGE)?,
            fingerprint: Fingerprint::from_bytes(fingerprint.map_err(|_| corrupt(FINGERPRINT))?),
            attempt: u32::try_from(self.number(ATTEMPT)?).map_err(|_| corrupt(ATTEMPT))?,
            token: self.token()?,
            lease_until: self.time(LEASE_UNTIL)?,
            created_at: self.time(CREATED)?,
            claimed_at: self.time(CLAIMED)?,
            settled_at: settled.then(|| self.time(SETTLED)).transpose()?,
            resolved: self.said(RESOLVED, Resolved::from_text)?.map(Box::new),
            progress: self.progress()?,
            note: Note::EMPTY,
        };
        Ok(Row {
            record,
            lease: self.number(LEASE)?,
            renewals: self.number(RENEWALS)?,
        })
    }

    /// What a text says; one that is not there says nothing.
    fn said<T, E>(&self, name: &str, read: impl Fn(&str) -> Result<T, E>) -> Result<Option<T>>
    where
        E: Error + Send + Sync + 'static,
    {
        if !self.0.contains_key(name) {
            return Ok(None);
        }
        let said = read(self.text(name)?);
        said.map(Some)
            .map_err(|error| corrupt(name).with_source(error))
    }

    fn progress(&self) -> Result<Progress> {
        let steps = match self.0.get(STEPS) {
            None => return Ok(Progress::EMPTY),
            Some(AttributeValue::L(steps)) => steps,
            Some(_) => return Err(corrupt(STEPS)),
        };
        let mut bytes = Vec::new();
        for step in steps {
            bytes.extend_from_slice(step.as_b().map_err(|_| corrupt(STEPS))?.as_ref());
        }
        if bytes.len() as u64 != self.number(STEPS_BYTES)? {
            return Err(corrupt(STEPS_BYTES));
        }
        Progress::from_bytes(&bytes).map_err(|error| corrupt(STEPS).with_source(error))
    }

    fn label(&self) -> Result<Label> {
        let AttributeValue::L(segments) = self.wanted(SCOPE)? else {
            return Err(corrupt(SCOPE));
        };
        let segments: Option<Vec<&String>> = segments.iter().map(|s| s.as_s().ok()).collect();
        Ok(Label {
            digest: self.digest()?,
            scope: Scope::new(segments.ok_or_else(|| corrupt(SCOPE))?),
            operation: self.text(OPERATION)?.into(),
            key_hint: self.text(KEY_HINT)?.into(),
        })
    }

    /// The record with its label and its note.
    pub(super) fn entry(&self, mut record: Record) -> Result<Entry> {
        record.note = self.said(NOTE, Note::from_text)?.unwrap_or(Note::EMPTY);
        Ok(Entry {
            label: self.label()?,
            record,
        })
    }

    /// Fence and state alone, of an item that was read with these attributes only.
    pub(super) fn in_flight_under(&self, fence: Fence) -> Result<bool> {
        Ok(self.text(STATE)? == StateKind::InFlight.as_str() && self.number(FENCE)? == fence.0)
    }
}

fn corrupt(attribute: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        format!("an item of the table is not semel's: attribute `{attribute}` is missing or odd"),
    )
}
