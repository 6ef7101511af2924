//! The versioned byte form of an [`Entry`], for stores that keep a record as one value.
//!
//! # Byte form, version 3
//!
//! All numbers are big-endian. One version byte; the identity's digest (32); state (1: `1` in
//! flight, `2` unknown, `3` completed, `4` released); fingerprint (33); fence (8); nonce (16);
//! attempt (4); created, claimed, lease until, settled (`0` for none), expires, purge (8 each, µs);
//! number of scope segments (4) and each as text; operation and key hint as text; the latest
//! resolution and the note in their text forms, empty for none; the finished steps' byte form behind
//! a 4-byte length; the outcome's own byte form, if completed, takes all that is left. Text has a
//! 4-byte length in front.
//!
//! Versions 1 and 2 were never released, and are not read.
//!
//! # Text form of a resolution
//!
//! When (µs), the attempt's fence, the states before and after, and by whom and why, each with its
//! length in bytes: `1795276359000000 1795276300000000 unknown released 3:ana,13:asked: no bug,`. A
//! server that sets the time can put it together; people can read it in a column.

use bytes::Bytes;

use crate::record::{Record, Resolved, State, StateKind};
use crate::store::{Entry, Fence, Label, Nonce, Token};
use crate::wire::{Reader, put_long};
use crate::{DecodeError, Fingerprint, IdentityDigest, Note, Outcome, Progress, Scope, Timestamp};

impl Entry {
    /// The version of the byte form.
    pub const VERSION: u8 = 3;

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
        to.push(number(record.state.kind()));
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
        let resolved = record.resolved.as_ref().map(|resolved| resolved.to_text());
        put_long(&mut to, resolved.unwrap_or_default().as_bytes());
        put_long(&mut to, record.note.as_text().as_bytes());
        put_long(&mut to, record.progress.as_bytes());
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
            StateKind::Completed => State::Completed(Outcome::from_bytes(rest)?),
            _ if !rest.is_empty() => return Err(DecodeError::Damaged),
            StateKind::InFlight => State::InFlight,
            StateKind::Unknown => State::Unknown,
            StateKind::Released => State::Released,
        };
        Ok(entry)
    }
}

const fn number(state: StateKind) -> u8 {
    match state {
        StateKind::InFlight => 1,
        StateKind::Unknown => 2,
        StateKind::Completed => 3,
        StateKind::Released => 4,
    }
}

fn state(number: u8) -> Option<StateKind> {
    StateKind::ALL
        .into_iter()
        .find(|&kind| self::number(kind) == number)
}

impl Resolved {
    /// The text form.
    pub fn to_text(&self) -> String {
        let Self { by, reason, .. } = self;
        let (at, fence) = (self.at.as_micros(), self.fence);
        let (before, after) = (self.before.as_str(), self.after.as_str());
        format!(
            "{at} {fence} {before} {after} {}:{by},{}:{reason},",
            by.len(),
            reason.len()
        )
    }

    /// Reads the text form.
    ///
    /// # Errors
    /// [`DecodeError::Damaged`] for text that [`to_text`](Self::to_text) never returned.
    pub fn from_text(text: &str) -> Result<Self, DecodeError> {
        let read = || {
            let mut parts = text.splitn(5, ' ');
            let (at, fence) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
            let before = StateKind::from_name(parts.next()?)?;
            let after = StateKind::from_name(parts.next()?)?;
            let (by, rest) = netstring(parts.next()?)?;
            let (reason, rest) = netstring(rest)?;
            rest.is_empty().then(|| Self {
                by: by.into(),
                reason: reason.into(),
                at: Timestamp::from_micros(at),
                fence: Fence(fence),
                before,
                after,
            })
        };
        // Numbers can be written in several ways: only ours is read.
        let ours = |read: &Self| read.to_text() == text;
        read().filter(ours).ok_or(DecodeError::Damaged)
    }
}

fn netstring(text: &str) -> Option<(&str, &str)> {
    let (len, rest) = text.split_once(':')?;
    let (text, rest) = rest.split_at_checked(len.parse().ok()?)?;
    Some((text, rest.strip_prefix(',')?))
}

// All but the outcome; the state is set by the caller.
fn head(from: &mut Reader<'_>) -> Option<(StateKind, Entry)> {
    let digest = IdentityDigest::from_bytes(from.array()?);
    let kind = state(from.u8()?)?;
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
    let resolved = match from.text()? {
        "" => None,
        text => Some(Box::new(Resolved::from_text(text).ok()?)),
    };
    let note = Note::from_text(from.text()?).ok()?;
    let progress = Progress::from_bytes(from.long()?).ok()?;
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
        progress,
        note,
    };
    Some((kind, Entry { label, record }))
}
