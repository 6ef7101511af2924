//! A plain sharded map that remembers answers: no lease, token, fence, clock, bound, expiry or
//! names. What a memory store cannot be faster than.

use std::hash::{BuildHasherDefault, Hasher};

use bytes::Bytes;
use hashbrown::HashMap;
use parking_lot::Mutex;
use semel::{Fingerprint, IdentityDigest};

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

enum State {
    Pending,
    Done(Bytes),
}

struct Entry {
    fingerprint: Fingerprint,
    state: State,
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

    /// Inserts a pending entry; the answer where there is one.
    pub(crate) fn claim(&self, digest: &IdentityDigest, fingerprint: Fingerprint) -> Option<Bytes> {
        let mut shard = self.shard(digest).lock();
        match shard.entry(*digest.as_bytes()) {
            hashbrown::hash_map::Entry::Occupied(entry) => {
                let entry = entry.get();
                match &entry.state {
                    State::Done(answer) if entry.fingerprint == fingerprint => Some(answer.clone()),
                    _ => None,
                }
            }
            hashbrown::hash_map::Entry::Vacant(entry) => {
                entry.insert(Entry {
                    fingerprint,
                    state: State::Pending,
                });
                None
            }
        }
    }

    /// Puts the answer into a pending entry; whether there was one.
    pub(crate) fn complete(&self, digest: &IdentityDigest, answer: Bytes) -> bool {
        let mut shard = self.shard(digest).lock();
        let Some(entry) = shard.get_mut(digest.as_bytes()) else {
            return false;
        };
        entry.state = State::Done(answer);
        true
    }

    /// Takes `claim`'s lock for every shard in turn and empties it.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            drop(std::mem::take(&mut *shard.lock()));
        }
    }
}
