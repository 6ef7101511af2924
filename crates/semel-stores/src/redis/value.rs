//! A record as the value of its key.
//!
//! # Layout 2
//!
//! One byte `2`; one byte that is `1` where somebody waits for the attempt in flight, and `0` otherwise; the
//! place of the length of the finished steps (4, big-endian, counted from the start of the value); the byte
//! form of semel's [`Entry`]. That form begins with parts of a fixed length, so scripts find what they compare
//! and write without taking the value apart:
//!
//! | bytes, from 0 | what |
//! |---|---|
//! | 6 | version of the entry |
//! | 7 to 38 | digest of the identity |
//! | 39 | state |
//! | 40 to 72 | fingerprint |
//! | 73 to 96 | token: fence and nonce |
//! | 97 to 100 | number of the attempt |
//! | 101 to 148 | in µs: created, claimed, lease until, settled, expires, purge |
//!
//! Layout 1, a hash, was never released, and is not read.

use std::fmt;

use bytes::Bytes;
use redis::Value;
use semel::record::{State, StateKind};
use semel::store::{Entry, Fence, Result, Token};
use semel::{IdentityDigest, StoreError, StoreErrorKind, Timestamp};

const LAYOUT: u8 = 2;
/// Length of what is before the entry.
const FRAME: usize = 6;
/// Length of what has a fixed place.
pub(super) const HEAD: usize = 149;
/// Where the parts are.
const STATE: usize = 39;
const FENCE: usize = 73;
const NONCE: usize = 81;
const CREATED: usize = 101;
const LEASE: usize = 117;
const SETTLED: usize = 125;
const PURGE: usize = 141;

/// An error about what is stored.
pub(super) fn corrupt(what: impl fmt::Display) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, format!("in redis {what}"))
}

/// The value of a record for which nobody waits.
pub(super) fn encode(entry: &Entry) -> Vec<u8> {
    let bytes = entry.to_bytes();
    let outcome = match &entry.record.state {
        State::Completed(outcome) => outcome.as_bytes().len(),
        _ => 0,
    };
    let steps = entry.record.progress.as_bytes().len() + 4;
    // An entry's parts before the outcome are below 4 GiB.
    let steps = u32::try_from(FRAME + bytes.len() - outcome - steps).unwrap_or(u32::MAX);
    let mut value = Vec::with_capacity(FRAME + bytes.len());
    value.extend_from_slice(&[LAYOUT, 0]);
    value.extend_from_slice(&steps.to_be_bytes());
    value.extend_from_slice(&bytes);
    value
}

/// What a script compares before it replaces a value: two values of one key differ in this or in their
/// length. Each change makes another token, state or time, or appends a step. Whether somebody waits is
/// no part of it.
pub(super) fn compared(value: &[u8]) -> &[u8] {
    value.get(2..HEAD).unwrap_or_default()
}

/// A first claim's value in three parts, between which the script puts the times.
pub(super) fn around_times(value: &[u8]) -> Option<[&[u8]; 3]> {
    // Before the fence; nonce and attempt; behind the end of the lease.
    Some([
        value.get(..FENCE)?,
        value.get(NONCE..CREATED)?,
        value.get(SETTLED..)?,
    ])
}

/// A token as it is stored.
pub(super) fn token(token: &Token) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&token.fence.0.to_be_bytes());
    bytes[8..].copy_from_slice(token.nonce.as_bytes());
    bytes
}

/// What a script answered.
pub(super) struct Answer {
    /// The server's time.
    pub(super) now: Timestamp,
    /// Whether it wrote what it was asked to.
    pub(super) wrote: bool,
    /// If not: what is under the key.
    pub(super) value: Option<Bytes>,
}

impl Answer {
    /// `None` for what is no script's answer about `key`.
    pub(super) fn read(answer: Value, key: &str) -> Option<Self> {
        let (now, named, wrote, value) = match answer {
            Value::BulkString(mut bytes) => {
                let named = bytes.split_off(8.min(bytes.len()));
                (bytes, named, true, None)
            }
            Value::Array(parts) => match <[Value; 3]>::try_from(parts).ok()? {
                [Value::BulkString(now), value, Value::BulkString(named)] => {
                    let value = match value {
                        Value::BulkString(bytes) => Some(bytes.into()),
                        Value::Nil => None,
                        _ => return None,
                    };
                    (now, named, false, value)
                }
                _ => return None,
            },
            _ => return None,
        };
        let now = u64::from_be_bytes(now.try_into().ok()?);
        (named == key.as_bytes()).then_some(Self {
            now: Timestamp::from_micros(now),
            wrote,
            value,
        })
    }

    /// The record, past its retention or not.
    pub(super) fn entry(&self, digest: &IdentityDigest) -> Result<Option<Entry>> {
        let Some(value) = &self.value else {
            return Ok(None);
        };
        Head::of(value, digest)?;
        let entry = Entry::from_bytes(&value.slice(FRAME..));
        let entry = entry.map_err(|error| corrupt("a record cannot be read").with_source(error))?;
        Ok(Some(entry))
    }

    /// Its beginning.
    pub(super) fn head(&self, digest: &IdentityDigest) -> Result<Option<Head>> {
        let value = self.value.as_ref();
        value.map(|value| Head::of(value, digest)).transpose()
    }
}

/// What is known of a record by the first [`HEAD`] bytes of its value.
pub(super) struct Head {
    pub(super) state: StateKind,
    pub(super) fence: Fence,
    pub(super) lease_until: Timestamp,
    pub(super) purge_at: Timestamp,
    /// Whether the end of its attempt will be published.
    pub(super) waited: bool,
}

impl Head {
    pub(super) fn of(value: &[u8], digest: &IdentityDigest) -> Result<Self> {
        let Some(head) = value.first_chunk::<HEAD>() else {
            return Err(corrupt(format!(
                "the key of {digest} holds no record of this version"
            )));
        };
        if (head[0], head[FRAME]) != (LAYOUT, Entry::VERSION) {
            return Err(corrupt(format!(
                "the record of {digest} has another layout than those of this version"
            )));
        }
        if head[FRAME + 1..STATE] != *digest.as_bytes() {
            return Err(corrupt(format!(
                "the key of {digest} holds the record of another"
            )));
        }
        let number = |at| u64::from_be_bytes(std::array::from_fn(|nth| head[at + nth]));
        Ok(Self {
            state: match head[STATE] {
                1 => StateKind::InFlight,
                2 => StateKind::Unknown,
                3 => StateKind::Completed,
                4 => StateKind::Released,
                _ => {
                    return Err(corrupt(format!(
                        "the record of {digest} has no known state"
                    )));
                }
            },
            fence: Fence(number(FENCE)),
            lease_until: Timestamp::from_micros(number(LEASE)),
            purge_at: Timestamp::from_micros(number(PURGE)),
            waited: head[1] != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use semel::store::{Label, Nonce};
    use semel::{Fingerprint, FinishedStep, Identity, Key, Note, Outcome, Progress, Record, Scope};

    use super::*;

    /// The places that scripts know are those that the entry's form has.
    #[test]
    fn parts_are_where_scripts_look_for_them() {
        let identity = Identity::new(
            Scope::new(["tenant", "a\0b"]),
            "POST /orders",
            Key::new("a-key-of-some-length").unwrap(),
        );
        let at = |nth: u64| Timestamp::from_micros(nth << 40);
        let step = FinishedStep::new("reserve", b"7").unwrap();
        for (state, progress) in [
            (State::InFlight, step.as_bytes()),
            (State::Unknown, b"".as_slice()),
            (State::Completed(Outcome::success(b"done")), b""),
            (State::Released, step.as_bytes()),
        ] {
            let record = Record {
                state,
                token: Token {
                    fence: Fence(at(1).as_micros()),
                    nonce: Nonce::from_bytes([2; 16]),
                },
                fingerprint: Fingerprint::of(b"payload"),
                attempt: 3,
                created_at: at(4),
                claimed_at: at(5),
                lease_until: at(6),
                settled_at: Some(at(7)),
                expires_at: at(8),
                purge_at: at(9),
                resolved: None,
                progress: Progress::from_bytes(progress).unwrap(),
                note: Note::EMPTY,
            };
            let label = Label::from(&identity);
            let entry = Entry { label, record };
            let value = encode(&entry);
            let number = |place: usize| {
                u64::from_be_bytes(value[place..place + 8].try_into().unwrap()) >> 40
            };
            assert_eq!(value[FRAME + 1..STATE], *identity.digest().as_bytes());
            assert_eq!(value[FENCE..CREATED - 4], token(&entry.record.token));
            let times = [CREATED, CREATED + 8, LEASE, SETTLED, SETTLED + 8, PURGE];
            assert_eq!(times.map(number), [4, 5, 6, 7, 8, 9]);
            assert_eq!(PURGE + 8, HEAD);
            let before = u32::from_be_bytes(value[2..FRAME].try_into().unwrap()) as usize;
            let length = value[before..before + 4].try_into().unwrap();
            assert_eq!(u32::from_be_bytes(length) as usize, progress.len());
            assert!(value[before + 4..].starts_with(progress));

            let head = Head::of(&value, identity.digest()).unwrap();
            let record = &entry.record;
            assert_eq!(head.state, record.state.kind());
            assert_eq!((head.fence, head.waited), (record.token.fence, false));
            assert_eq!((head.lease_until, head.purge_at), (at(6), at(9)));
            let answer = Answer {
                now: at(0),
                wrote: false,
                value: Some(value.into()),
            };
            assert_eq!(answer.entry(identity.digest()).unwrap(), Some(entry));
        }
    }
}
