//! What this handle saw of records: since when which revision stands (that is how a lease is
//! judged without a clock on the server), and the records that it wrote itself.

use std::time::Duration;

use parking_lot::Mutex;
use semel::{IdentityDigest, StateKind};
use tokio::time::Instant;

use super::frame::Row;
use crate::common::recent::Recent;

/// A revision that stands, as this handle has seen it from some instant on.
#[derive(Debug, Clone, Copy)]
struct Standing {
    revision: u64,
    since: Instant,
}

impl Standing {
    fn from_now(revision: u64) -> Self {
        Self {
            revision,
            since: Instant::now(),
        }
    }
}

#[derive(Default)]
pub(super) struct Seen {
    standing: Mutex<Recent<Standing>>,
    written: Mutex<Recent<Row>>,
}

impl Seen {
    /// Notes that `row` is there now, and says for how long its lease has certainly not lapsed before;
    /// nothing: it has. `None` where a later revision is known: the row was read before it, or from a
    /// leader that is behind.
    pub(super) fn left(&self, identity: &IdentityDigest, row: &Row) -> Option<Duration> {
        let mut standing = self.standing.lock();
        let known = match standing.get(identity).copied() {
            Some(known) if known.revision == row.revision => known,
            Some(known) if known.revision > row.revision => return None,
            _ => {
                let first = Standing::from_now(row.revision);
                standing.insert(identity, first);
                first
            }
        };
        if row.entry.record.state.kind() != StateKind::InFlight {
            return Some(Duration::ZERO);
        }
        Some(row.lease.saturating_sub(known.since.elapsed()))
    }

    /// Forgets what was seen of a record: the server went back, and says so again and again.
    pub(super) fn unsee(&self, identity: &IdentityDigest) {
        self.standing.lock().remove(identity);
        self.forget(identity);
    }

    /// Notes that the record changed: whoever knew an earlier revision starts anew.
    pub(super) fn changed(&self, identity: &IdentityDigest, revision: u64) {
        let mut standing = self.standing.lock();
        if standing
            .get(identity)
            .is_some_and(|known| known.revision < revision)
        {
            standing.insert(identity, Standing::from_now(revision));
        }
    }

    /// Whether this handle has met the record.
    pub(super) fn knows(&self, identity: &IdentityDigest) -> bool {
        self.standing.lock().get(identity).is_some()
    }

    /// Notes what this handle wrote. What it settled is not kept: later steps on it are rare, and read it.
    pub(super) fn wrote(&self, identity: &IdentityDigest, row: Row) {
        let standing = Standing::from_now(row.revision);
        self.standing.lock().insert(identity, standing);
        match row.entry.record.state.kind() {
            StateKind::InFlight | StateKind::Unknown => self.remember(identity, row),
            StateKind::Completed | StateKind::Released => self.forget(identity),
        }
    }

    /// Keeps a record whose claim this handle made, as it was read or written.
    pub(super) fn remember(&self, identity: &IdentityDigest, row: Row) {
        self.written.lock().insert(identity, row);
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
