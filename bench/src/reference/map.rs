//! A plain sharded map that holds the same records as the memory store and decides nothing: no
//! nonce, no clock, no transitions, no bound, no expiry. It puts a record in, puts the outcome into
//! it, looks it up and hands the outcome out.

use std::hash::{BuildHasherDefault, Hasher};

use hashbrown::HashMap;
use parking_lot::Mutex;
use semel::store::{Fence, Nonce, Token};
use semel::{
    Fingerprint, Identity, IdentityDigest, Note, Outcome, Progress, Record, State, Timestamp,
};

// As many as `MemoryStore` has when it is large: one for each first byte of a digest.
const SHARDS: usize = 256;

#[derive(Default)]
struct DigestHasher(u64);

impl Hasher for DigestHasher {
    fn write(&mut self, bytes: &[u8]) {
        // A digest is uniform already. The length that comes before it is shorter.
        if let Some(bytes) = bytes.get(8..16) {
            self.0 = u64::from_be_bytes(bytes.try_into().expect("eight bytes"));
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The same bytes that a store keeps.
struct Entry {
    _identity: Identity,
    record: Record,
}

type Shard = HashMap<[u8; 32], Entry, BuildHasherDefault<DigestHasher>>;

/// The map.
pub(crate) struct PlainMap {
    shards: Box<[Mutex<Shard>]>,
}

impl PlainMap {
    pub(crate) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    fn shard(&self, digest: &IdentityDigest) -> &Mutex<Shard> {
        &self.shards[usize::from(digest.as_bytes()[0])]
    }

    /// Inserts a record in flight; the outcome where there is one.
    pub(crate) fn claim(&self, identity: &Identity, fingerprint: Fingerprint) -> Option<Outcome> {
        let digest = identity.digest();
        let mut shard = self.shard(digest).lock();
        match shard.entry(*digest.as_bytes()) {
            hashbrown::hash_map::Entry::Occupied(entry) => {
                let record = &entry.get().record;
                match &record.state {
                    State::Completed(outcome) if record.fingerprint == fingerprint => {
                        Some(outcome.clone())
                    }
                    _ => None,
                }
            }
            hashbrown::hash_map::Entry::Vacant(entry) => {
                entry.insert(Entry {
                    _identity: identity.clone(),
                    record: in_flight(fingerprint),
                });
                None
            }
        }
    }

    /// Puts the outcome into a record in flight; whether there was one.
    pub(crate) fn complete(&self, digest: &IdentityDigest, outcome: &Outcome) -> bool {
        let mut shard = self.shard(digest).lock();
        let Some(entry) = shard.get_mut(digest.as_bytes()) else {
            return false;
        };
        entry.record.state = State::Completed(outcome.clone());
        true
    }

    /// Takes `claim`'s lock for every shard in turn and empties it.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            drop(std::mem::take(&mut *shard.lock()));
        }
    }
}

const fn in_flight(fingerprint: Fingerprint) -> Record {
    let zero = Timestamp::from_micros(0);
    Record {
        state: State::InFlight,
        expires_at: Timestamp::MAX,
        purge_at: Timestamp::MAX,
        fingerprint,
        attempt: 1,
        token: Token {
            fence: Fence(0),
            nonce: Nonce::from_bytes([0; 16]),
        },
        lease_until: zero,
        created_at: zero,
        claimed_at: zero,
        settled_at: None,
        resolved: None,
        progress: Progress::EMPTY,
        note: Note::EMPTY,
    }
}
