//! What this handle saw of records: since when which revision stands (that is how a lease is
//! judged without a clock on the server), and the records that it wrote itself.

use std::time::Duration;

use parking_lot::Mutex;
use semel::{IdentityDigest, StateKind};
use tokio::time::Instant;

use super::frame::Row;
use crate::common::recent::Recent;

/// A revision that stands, as this handle has seen it from some instant on.
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

/// Apart: what is only seen, as by a listing, pushes out nothing that was written.
#[derive(Default)]
struct Both {
    standing: Recent<Standing>,
    /// Records whose claim this handle made, and may change.
    written: Recent<Box<Row>>,
}

#[derive(Default)]
pub(super) struct Seen(Mutex<Both>);

impl Seen {
    /// Notes that `row` is there now, and says for how long its lease has certainly not lapsed before;
    /// nothing: it has. `None` where a later revision is known: the row was read before it, or from a
    /// leader that is behind.
    pub(super) fn left(&self, identity: &IdentityDigest, row: &Row) -> Option<Duration> {
        let mut seen = self.0.lock();
        let elapsed = match seen.standing.get(identity) {
            Some(known) if known.revision == row.revision => known.since.elapsed(),
            Some(known) if known.revision > row.revision => return None,
            _ => {
                let first = Standing::from_now(row.revision);
                seen.standing.insert(identity, first);
                Duration::ZERO
            }
        };
        if row.entry.record.state.kind() != StateKind::InFlight {
            return Some(Duration::ZERO);
        }
        Some(row.lease.saturating_sub(elapsed))
    }

    /// Forgets what was seen of a record: the server went back, and says so again and again.
    pub(super) fn unsee(&self, identity: &IdentityDigest) {
        let mut seen = self.0.lock();
        seen.standing.remove(identity);
        seen.written.remove(identity);
    }

    /// Notes that the record changed: whoever knew an earlier revision starts anew.
    pub(super) fn changed(&self, identity: &IdentityDigest, revision: u64) {
        let mut seen = self.0.lock();
        let known = seen.standing.get(identity);
        if known.is_some_and(|known| known.revision < revision) {
            let standing = Standing::from_now(revision);
            seen.standing.insert(identity, standing);
        }
    }

    /// Whether this handle has met the record.
    pub(super) fn knows(&self, identity: &IdentityDigest) -> bool {
        self.0.lock().standing.get(identity).is_some()
    }

    /// Notes what this handle wrote. What it settled is not kept: later steps on it are rare, and read it.
    pub(super) fn wrote(&self, identity: &IdentityDigest, row: Row) {
        let mut seen = self.0.lock();
        let standing = Standing::from_now(row.revision);
        seen.standing.insert(identity, standing);
        match row.entry.record.state.kind() {
            StateKind::InFlight | StateKind::Unknown => {
                seen.written.insert(identity, Box::new(row));
            }
            StateKind::Completed | StateKind::Released => {
                seen.written.remove(identity);
            }
        }
    }

    /// Keeps a record whose claim this handle made, as it was read.
    pub(super) fn remember(&self, identity: &IdentityDigest, row: Row) {
        self.0.lock().written.insert(identity, Box::new(row));
    }

    /// The record as this handle last wrote it, if it did and knows of no later change.
    pub(super) fn written(&self, identity: &IdentityDigest) -> Option<Box<Row>> {
        let mut seen = self.0.lock();
        let Both { standing, written } = &mut *seen;
        let (known, row) = (standing.get(identity), written.get(identity)?);
        known
            .is_none_or(|known| known.revision == row.revision)
            .then(|| row.clone())
    }

    /// Forgets everything.
    pub(super) fn clear(&self) {
        *self.0.lock() = Both::default();
    }
}
