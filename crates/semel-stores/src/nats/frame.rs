//! A record as the value of its key.
//!
//! # Byte form, version 1
//!
//! One version byte `1`; one byte that says how the fence is meant: `0` as the entry says, `1` the
//! entry's and this message's sequence together; the lease in microseconds (8, big-endian); the
//! byte form of semel's `Entry`.
//!
//! A claim cannot know its sequence before it is stored, and its fence is made of it: hence `1`.
//! Later values of the same claim say `0`, so that its fence stays while the sequence grows. The
//! lease is kept as a length: how long it lasts is counted by who watches, not by a clock. So is, in effect,
//! retention: it counts from when the server stored the message, or from the writer's time where that is later.

use std::time::Duration;

use async_nats::HeaderMap;
use bytes::{BufMut as _, Bytes, BytesMut};
use semel::store::{Entry, Fence};
use semel::{IdentityDigest, Record, State, StoreError, StoreErrorKind, Timestamp};

const VERSION: u8 = 1;
const HEAD: usize = 10;

/// A record as it was read or written, and where.
#[derive(Debug, Clone)]
pub(super) struct Row {
    /// The sequence of the message that holds it: what the next write expects.
    pub(super) revision: u64,
    /// When the server stored the message; `None` in what this handle wrote and did not read.
    pub(super) stored: Option<Timestamp>,
    /// How long its lease lasts for who sees this revision unchanged.
    pub(super) lease: Duration,
    pub(super) entry: Entry,
}

/// The value of a record. `adds_sequence`: its fence is the entry's and the sequence that the message will get.
pub(super) fn encode(entry: &Entry, lease: Duration, adds_sequence: bool) -> Bytes {
    let entry = entry.to_bytes();
    let mut to = BytesMut::with_capacity(HEAD + entry.len());
    to.put_u8(VERSION);
    to.put_u8(adds_sequence.into());
    to.put_u64(u64::try_from(lease.as_micros()).unwrap_or(u64::MAX));
    to.put_slice(&entry);
    to.freeze()
}

/// Reads a message of `identity`'s key. `None`: another program's mark that it deleted the key.
///
/// # Errors
/// [`Corrupt`](StoreErrorKind::Corrupt) for what [`encode`] never returned.
pub(super) fn decode(
    identity: &IdentityDigest,
    revision: u64,
    stored: Timestamp,
    headers: Option<&HeaderMap>,
    value: &Bytes,
) -> Result<Option<Box<Row>>, StoreError> {
    if headers.is_some_and(|said| said.get("KV-Operation").is_some()) {
        return Ok(None);
    }
    let corrupt = |what: String| {
        StoreError::new(
            StoreErrorKind::Corrupt,
            format!(
                "the record with the digest {identity} (message {revision}) cannot be read: {what}"
            ),
        )
    };
    let Some((head, rest)) = value.split_first_chunk::<HEAD>() else {
        return Err(corrupt("it is too short".into()));
    };
    let [version, meant, lease @ ..] = *head;
    if version != VERSION {
        return Err(corrupt(format!(
            "its version is {version}, this program knows {VERSION}"
        )));
    }
    let mut entry = Entry::from_bytes(&value.slice(value.len() - rest.len()..))
        .map_err(|e| corrupt("its bytes are damaged".into()).with_source(e))?;
    if entry.label.digest != *identity {
        return Err(corrupt("it is another identity's".into()));
    }
    let fence = &mut entry.record.token.fence;
    match meant {
        0 => {}
        1 => *fence = Fence(fence.0.saturating_add(revision)),
        _ => return Err(corrupt("its bytes are damaged".into())),
    }
    date(&mut entry.record, stored);
    Ok(Some(Box::new(Row {
        revision,
        stored: Some(stored),
        lease: Duration::from_micros(u64::from_be_bytes(lease)),
        entry,
    })))
}

/// Settles a record no earlier than its message was stored. Whoever wrote it may have been late, which would
/// shorten its retention; each message of a completed or released record is the one that settled it, or amended
/// it. Never earlier than it says: the writer, or the server's clock, may have stepped back since, and who
/// still goes by the time before would find it past its retention.
fn date(record: &mut Record, stored: Timestamp) {
    let (State::Completed(_) | State::Released, Some(settled)) =
        (&record.state, &mut record.settled_at)
    else {
        return;
    };
    if stored <= *settled {
        return;
    }
    for end in [&mut record.expires_at, &mut record.purge_at] {
        *end = stored.after(settled.until(*end));
    }
    // A decision that settled it was made then, too.
    if let Some(resolved) = &mut record.resolved
        && resolved.at == *settled
    {
        resolved.at = stored;
    }
    *settled = stored;
}

#[cfg(test)]
mod tests {
    use semel::record::{self, Change};
    use semel::store::{ClaimRequest, Label, Nonce, Retention};
    use semel::{Fingerprint, Identity, Key, Outcome, Scope};

    use super::*;

    /// By a process whose idea of the server's time is two seconds late, or early.
    #[test]
    fn retention_counts_from_when_the_server_stored_the_message() {
        let key = Key::new("k").unwrap();
        let label = Label::from(&Identity::new(Scope::new(["acme"]), "pay", key));
        let (nonce, print) = (Nonce::from_bytes([7; 16]), Fingerprint::of(b"9 EUR"));
        let second = Duration::from_secs(1);
        let request = ClaimRequest::new(nonce, print, second);
        let retention = Retention::new(second).with_tombstone(second);
        let [late, stored, early] = [5, 7, 9].map(|at| Timestamp::from_micros(at * 1_000_000));
        let read = |record: &Record| {
            let (digest, label) = (label.digest, label.clone());
            let record = record.clone();
            let value = encode(&Entry { label, record }, request.lease, false);
            let row = decode(&digest, 1, stored, None, &value).unwrap();
            row.unwrap().entry.record
        };
        for (now, settled) in [(late, stored), (early, early)] {
            let claimed = record::claim(None, &request, now, Fence(1)).write.unwrap();
            assert_eq!(read(&claimed), claimed, "no lease goes by it");
            let after = |change: Change| {
                let decided = change.decide(Some(&claimed), now, Fence(1));
                read(&decided.unwrap().unwrap())
            };
            let completed = after(Change::complete(
                &claimed.token,
                &Outcome::void(),
                retention,
            ));
            assert_eq!(completed.settled_at, Some(settled));
            assert_eq!(completed.expires_at, settled.after(second));
            assert_eq!(completed.purge_at, settled.after(2 * second));
            let released = after(Change::abandon(&claimed.token));
            assert_eq!(released.settled_at, Some(settled));
        }
    }
}
