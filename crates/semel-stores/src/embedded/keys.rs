//! Where things lie in the engine's key space.
//!
//! | key | value |
//! |---|---|
//! | `f` | version of this layout |
//! | `e` | nothing of worth: see `scrub` |
//! | `g` + number of a group (8) | the group's [`Mark`] |
//! | `o` + digest (32) | a record in flight or unknown: few |
//! | `s` + digest (32) | a completed or released record |
//! | `x` + purge time (8) + digest (32) | nothing: the order in which settled records expire |
//!
//! Numbers are big-endian, so that the order of keys is theirs.

use semel::store::Fence;
use semel::{IdentityDigest, Record, StateKind, Timestamp};

/// The version of the layout that this program writes, under [`FORMAT`].
pub(super) const VERSION: u8 = 1;
pub(super) const FORMAT: &[u8] = b"f";

pub(super) const FILLER: &[u8] = b"e";

pub(super) const MARKS: (&[u8], &[u8]) = (b"g", b"h");
pub(super) const OPEN: (&[u8], &[u8]) = (b"o", b"p");
pub(super) const SETTLED: (&[u8], &[u8]) = (b"s", b"t");
pub(super) const EXPIRY: (&[u8], &[u8]) = (b"x", b"y");

/// Whether a record in this state lies under `o`, never swept (R8), or under `s`, with an expiry.
pub(super) const fn is_open(state: StateKind) -> bool {
    matches!(state, StateKind::InFlight | StateKind::Unknown)
}

/// Under which keys a record lies: its own, and that of its expiry once it is settled.
pub(super) fn of(record: &Record, digest: &IdentityDigest) -> ([u8; 33], Option<ExpiryKey>) {
    match is_open(record.state.kind()) {
        true => (prefixed(OPEN.0, digest), None),
        false => (settled(digest), Some(expiry(record, digest))),
    }
}

pub(super) fn settled(digest: &IdentityDigest) -> [u8; 33] {
    prefixed(SETTLED.0, digest)
}

fn prefixed(prefix: &[u8], digest: &IdentityDigest) -> [u8; 33] {
    let mut key = [prefix[0]; 33];
    key[1..].copy_from_slice(digest.as_bytes());
    key
}

pub(super) type ExpiryKey = [u8; 41];

/// Behind all of them.
pub(super) const NO_EXPIRY: ExpiryKey = {
    let mut key = [0; 41];
    key[0] = EXPIRY.1[0];
    key
};

fn expiry(record: &Record, digest: &IdentityDigest) -> ExpiryKey {
    let mut key = expiry_at(record.purge_at);
    key[9..].copy_from_slice(digest.as_bytes());
    key
}

/// The lowest key of the records that expire at `at`.
pub(super) fn expiry_at(at: Timestamp) -> ExpiryKey {
    let mut key = [0; 41];
    key[0] = EXPIRY.0[0];
    key[1..9].copy_from_slice(&at.as_micros().to_be_bytes());
    key
}

pub(super) fn expiring_digest(key: &[u8]) -> Option<IdentityDigest> {
    let digest = key.get(9..)?.try_into().ok()?;
    Some(IdentityDigest::from_bytes(digest))
}

pub(super) fn mark(group: u64) -> [u8; 9] {
    let mut key = [MARKS.0[0]; 9];
    key[1..].copy_from_slice(&group.to_be_bytes());
    key
}

/// What is written with every group of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Mark {
    /// The group's number, from 1, without gaps.
    pub(super) group: u64,
    /// The latest instant that the clock showed.
    pub(super) now: Timestamp,
    /// The highest fence given out.
    pub(super) fence: Fence,
    /// The lowest number of a mark that is still kept.
    pub(super) oldest: u64,
    /// How many bytes the group has.
    pub(super) bytes: u64,
}

impl Mark {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        [self.now.as_micros(), self.fence.0, self.oldest, self.bytes]
            .iter()
            .flat_map(|n| n.to_be_bytes())
            .collect()
    }

    pub(super) fn from_bytes(key: &[u8], value: &[u8]) -> Option<Self> {
        let group = u64::from_be_bytes(key.get(1..)?.try_into().ok()?);
        let mut numbers = value.chunks_exact(8).map(|n| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(n);
            u64::from_be_bytes(bytes)
        });
        let mark = Self {
            group,
            now: Timestamp::from_micros(numbers.next()?),
            fence: Fence(numbers.next()?),
            oldest: numbers.next()?,
            bytes: numbers.next()?,
        };
        (value.len() == 32).then_some(mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_comes_back_and_a_cut_one_does_not() {
        let mark = Mark {
            group: 7,
            now: Timestamp::from_micros(8),
            fence: Fence(9),
            oldest: 3,
            bytes: 4096,
        };
        let (key, value) = (super::mark(7), mark.to_bytes());
        assert_eq!(Mark::from_bytes(&key, &value), Some(mark));
        assert_eq!(Mark::from_bytes(&key, &value[..31]), None);
        assert_eq!(Mark::from_bytes(&key[..8], &value), None);
    }

    #[test]
    fn expiry_keys_are_in_the_order_of_time() {
        let at = |micros| expiry_at(Timestamp::from_micros(micros));
        assert!(at(255) < at(256) && at(256) < at(u64::MAX));
    }
}
