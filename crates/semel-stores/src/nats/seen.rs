//! What this handle saw of records: since when which revision stands (that is how a lease is
//! judged without a clock on the server), and the records that it wrote itself.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use semel::IdentityDigest;
use tokio::time::Instant;

use super::frame::Row;

/// How many of the latest are kept at least; at most twice as many.
const KEPT: usize = 16_384;

/// A map that forgets what was not used for long: when the young are [`KEPT`] they become the old,
/// and the old are dropped.
struct Recent<T> {
    young: HashMap<IdentityDigest, T>,
    old: HashMap<IdentityDigest, T>,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self {
            young: HashMap::new(),
            old: HashMap::new(),
        }
    }
}

impl<T> Recent<T> {
    fn get(&mut self, identity: &IdentityDigest) -> Option<&T> {
        if let Some(value) = self.old.remove(identity) {
            self.insert(identity, value);
        }
        self.young.get(identity)
    }

    fn insert(&mut self, identity: &IdentityDigest, value: T) {
        self.old.remove(identity);
        if self.young.len() >= KEPT {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(*identity, value);
    }

    fn remove(&mut self, identity: &IdentityDigest) {
        self.young.remove(identity);
        self.old.remove(identity);
    }
}

/// Since when a revision stands.
#[derive(Debug, Clone, Copy)]
struct Standing {
    revision: u64,
    /// This handle has seen it from here on: judges whether a lease lapsed.
    seen: Instant,
    /// Nobody can have seen it before: known of what this handle wrote.
    sent: Option<Instant>,
}

/// How much is left of a lease, as far as this handle knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Left {
    /// It has not lapsed before. Nothing: it has lapsed.
    pub(super) longest: Duration,
    /// Nobody can find it lapsed before.
    pub(super) shortest: Duration,
}

#[derive(Default)]
pub(super) struct Seen {
    standing: Mutex<Recent<Standing>>,
    written: Mutex<Recent<Row>>,
}

impl Seen {
    /// Notes that `row` is there now, and says what is left of its lease. `None` where a later
    /// revision is known: the row was read before it, or from a leader that is behind.
    pub(super) fn left(&self, identity: &IdentityDigest, row: &Row) -> Option<Left> {
        let now = Instant::now();
        let mut standing = self.standing.lock();
        let first = Standing {
            revision: row.revision,
            seen: now,
            sent: None,
        };
        let known = match standing.get(identity).copied() {
            Some(known) if known.revision == row.revision => known,
            Some(known) if known.revision > row.revision => return None,
            _ => {
                standing.insert(identity, first);
                first
            }
        };
        let left = |from: Instant| row.lease.saturating_sub(now.duration_since(from));
        Some(Left {
            longest: left(known.seen),
            shortest: known.sent.map_or(Duration::ZERO, left),
        })
    }

    /// Forgets what was seen of a record: the server went back, and says so again and again.
    pub(super) fn unsee(&self, identity: &IdentityDigest) {
        self.standing.lock().remove(identity);
        self.written.lock().remove(identity);
    }

    /// Notes that the record changed: whoever knew an earlier revision starts anew.
    pub(super) fn changed(&self, identity: &IdentityDigest, revision: u64) {
        let mut standing = self.standing.lock();
        if standing
            .get(identity)
            .is_some_and(|known| known.revision < revision)
        {
            standing.insert(
                identity,
                Standing {
                    revision,
                    seen: Instant::now(),
                    sent: None,
                },
            );
        }
    }

    /// Whether this handle has met the record.
    pub(super) fn knows(&self, identity: &IdentityDigest) -> bool {
        self.standing.lock().get(identity).is_some()
    }

    /// Keeps a record in flight that this handle wrote; the request was sent at `sent`.
    pub(super) fn wrote(&self, identity: &IdentityDigest, row: Row, sent: Instant) {
        self.stands(identity, row.revision, sent);
        self.written.lock().insert(identity, row);
    }

    /// Keeps a record whose claim this handle made, as it was read.
    pub(super) fn remember(&self, identity: &IdentityDigest, row: Row) {
        self.written.lock().insert(identity, row);
    }

    /// Notes that this handle settled the record: later steps on it are rare, and read it.
    pub(super) fn settled(&self, identity: &IdentityDigest, revision: u64, sent: Instant) {
        self.stands(identity, revision, sent);
        self.written.lock().remove(identity);
    }

    fn stands(&self, identity: &IdentityDigest, revision: u64, sent: Instant) {
        let standing = Standing {
            revision,
            seen: Instant::now(),
            sent: Some(sent),
        };
        self.standing.lock().insert(identity, standing);
    }

    /// The record as this handle last wrote it, if it did.
    pub(super) fn written(&self, identity: &IdentityDigest) -> Option<Row> {
        self.written.lock().get(identity).cloned()
    }

    /// The record is not as this handle wrote it.
    pub(super) fn forget(&self, identity: &IdentityDigest) {
        self.written.lock().remove(identity);
    }

    /// Forgets everything.
    pub(super) fn clear(&self) {
        *self.standing.lock() = Recent::default();
        *self.written.lock() = Recent::default();
    }
}
