//! The versioned byte form of an [`Entry`], for stores that keep a record as one value.
//!
//! # Byte form, version 1
//!
//! All numbers are big-endian. One version byte `1`; the identity's digest (32); state (1: `1` in
//! flight, `2` unknown, `3` completed, `4` released); fingerprint (33); fence (8); nonce (16);
//! attempt (4); created, claimed, lease until, settled (`0` for none), expires, purge (8 each, µs);
//! number of scope segments (4) and each as text; operation and key hint as text; `0`, or `1` and a
//! resolution (who and why as text, when as 8 bytes); the outcome's own byte form, if completed,
//! takes all that is left. Text has a 4-byte length in front.

use bytes::Bytes;

use crate::record::{Record, Resolved, State, StateKind};
use crate::store::{Entry, Fence, Label, Nonce, Token};
use crate::wire::{Reader, put_long};
use crate::{DecodeError, Fingerprint, IdentityDigest, Outcome, Scope, Timestamp};

impl Entry {
    /// The version of the byte form that this program writes.
    pub const VERSION: u8 = 1;

    /// The versioned byte form.
    pub fn to_bytes(&self) -> Vec<u8> {
        let Self { label, record } = self;
        let outcome: &[u8] = match &record.state {
            State::Completed(outcome) => outcome.as_bytes(),
            _ => &[],
        };
        let mut to = Vec::with_capacity(256 + outcome.len());
        to.push(Self::VERSION);
        to.extend_from_slice(label.digest.as_bytes());
        to.push(match record.state.kind() {
            StateKind::InFlight => 1,
            StateKind::Unknown => 2,
            StateKind::Completed => 3,
            StateKind::Released => 4,
        });
        to.extend_from_slice(&record.fingerprint.to_bytes());
        to.extend_from_slice(&record.token.fence.0.to_be_bytes());
        to.extend_from_slice(record.token.nonce.as_bytes());
        to.extend_from_slice(&record.attempt.to_be_bytes());
        for at in [
            record.created_at,
            record.claimed_at,
            record.lease_until,
            record.settled_at.unwrap_or_default(),
            record.expires_at,
            record.purge_at,
        ] {
            to.extend_from_slice(&at.as_micros().to_be_bytes());
        }
        let segments = label.scope.segments();
        to.extend_from_slice(
            &u32::try_from(segments.len())
                .unwrap_or(u32::MAX)
                .to_be_bytes(),
        );
        for segment in segments {
            put_long(&mut to, segment.as_bytes());
        }
        put_long(&mut to, label.operation.as_bytes());
        put_long(&mut to, label.key_hint.as_bytes());
        match &record.resolved {
            None => to.push(0),
            Some(resolved) => {
                to.push(1);
                put_long(&mut to, resolved.by.as_bytes());
                put_long(&mut to, resolved.reason.as_bytes());
                to.extend_from_slice(&resolved.at.as_micros().to_be_bytes());
            }
        }
        to.extend_from_slice(outcome);
        to
    }

    /// Reads the versioned byte form. The outcome shares `bytes`.
    ///
    /// # Errors
    /// [`DecodeError::Version`] for a form of another version, [`DecodeError::Damaged`] for bytes
    /// that [`to_bytes`](Self::to_bytes) never returned.
    pub fn from_bytes(bytes: &Bytes) -> Result<Self, DecodeError> {
        let version = *bytes.first().ok_or(DecodeError::Damaged)?;
        if version != Self::VERSION {
            return Err(DecodeError::Version {
                found: version,
                known: Self::VERSION,
            });
        }
        let mut from = Reader(&bytes[1..]);
        let (state, mut entry) = head(&mut from).ok_or(DecodeError::Damaged)?;
        let rest = bytes.slice(bytes.len() - from.0.len()..);
        entry.record.state = match state {
            3 => State::Completed(Outcome::from_bytes(rest)?),
            _ if !rest.is_empty() => return Err(DecodeError::Damaged),
            1 => State::InFlight,
            2 => State::Unknown,
            4 => State::Released,
            _ => return Err(DecodeError::Damaged),
        };
        Ok(entry)
    }
}

// All but the outcome; the state is set by the caller.
fn head(from: &mut Reader<'_>) -> Option<(u8, Entry)> {
    let digest = IdentityDigest::from_bytes(from.array()?);
    let state = from.u8()?;
    let fingerprint = Fingerprint::from_bytes(from.array()?);
    let token = Token {
        fence: Fence(from.u64()?),
        nonce: Nonce::from_bytes(from.array()?),
    };
    let attempt = from.u32()?;
    let mut at = || from.u64().map(Timestamp::from_micros);
    let (created_at, claimed_at, lease_until) = (at()?, at()?, at()?);
    let settled_at = Some(at()?).filter(|t| *t != Timestamp::default());
    let (expires_at, purge_at) = (at()?, at()?);
    let segments = from.u32()?;
    let scope: Option<Vec<&str>> = (0..segments).map(|_| from.text()).collect();
    let label = Label {
        digest,
        scope: Scope::new(scope?),
        operation: from.text()?.into(),
        key_hint: from.text()?.into(),
    };
    let resolved = match from.u8()? {
        0 => None,
        1 => Some(Box::new(Resolved {
            by: from.text()?.into(),
            reason: from.text()?.into(),
            at: Timestamp::from_micros(from.u64()?),
        })),
        _ => return None,
    };
    let record = Record {
        fingerprint,
        token,
        attempt,
        state: State::InFlight,
        created_at,
        claimed_at,
        lease_until,
        settled_at,
        expires_at,
        purge_at,
        resolved,
    };
    Some((state, Entry { label, record }))
}
