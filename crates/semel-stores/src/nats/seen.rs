//! What this handle saw of records: since when which revision stands (that is how a lease is
//! judged without a clock on the server), and the records that it wrote itself.

use std::time::Duration;

use parking_lot::Mutex;
use semel::{IdentityDigest, StateKind};
use tokio::time::Instant;

use super::frame::Row;
use crate::common::recent::Recent;

/// A revision that stands.
struct Standing {
    revision: u64,
    /// This handle has seen it from here on.
    since: Instant,
    /// The record, where this handle made the claim, and may change it.
    written: Option<Row>,
}

impl Standing {
    fn from_now(revision: u64, written: Option<Row>) -> Self {
        Self {
            revision,
            since: Instant::now(),
            written,
        }
    }
}

#[derive(Default)]
pub(super) struct Seen(Mutex<Recent<Standing>>);

impl Seen {
    /// Notes that `row` is there now, and says for how long its lease has certainly not lapsed before;
    /// nothing: it has. `None` where a later revision is known: the row was read before it, or from a
    /// leader that is behind.
    pub(super) fn left(&self, identity: &IdentityDigest, row: &Row) -> Option<Duration> {
        let mut seen = self.0.lock();
        let elapsed = match seen.get(identity) {
            Some(known) if known.revision == row.revision => known.since.elapsed(),
            Some(known) if known.revision > row.revision => return None,
            _ => {
                seen.insert(identity, Standing::from_now(row.revision, None));
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
        self.0.lock().remove(identity);
    }

    /// Notes that the record changed: whoever knew an earlier revision starts anew.
    pub(super) fn changed(&self, identity: &IdentityDigest, revision: u64) {
        let mut seen = self.0.lock();
        let known = seen.get(identity);
        if known.is_some_and(|known| known.revision < revision) {
            seen.insert(identity, Standing::from_now(revision, None));
        }
    }

    /// Whether this handle has met the record.
    pub(super) fn knows(&self, identity: &IdentityDigest) -> bool {
        self.0.lock().get(identity).is_some()
    }

    /// Notes what this handle wrote. What it settled is not kept: later steps on it are rare, and read it.
    pub(super) fn wrote(&self, identity: &IdentityDigest, row: Row) {
        let kind = row.entry.record.state.kind();
        let is_kept = matches!(kind, StateKind::InFlight | StateKind::Unknown);
        let standing = Standing::from_now(row.revision, is_kept.then_some(row));
        self.0.lock().insert(identity, standing);
    }

    /// Keeps a record whose claim this handle made, as it was read.
    pub(super) fn remember(&self, identity: &IdentityDigest, row: Row) {
        if let Some(known) = self.0.lock().get(identity)
            && known.revision == row.revision
        {
            known.written = Some(row);
        }
    }

    /// The record as this handle last wrote it, if it did.
    pub(super) fn written(&self, identity: &IdentityDigest) -> Option<Row> {
        self.0.lock().get(identity)?.written.clone()
    }

    /// The record is not as this handle wrote it.
    pub(super) fn forget(&self, identity: &IdentityDigest) {
        if let Some(known) = self.0.lock().get(identity) {
            known.written = None;
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&self) {
        *self.0.lock() = Recent::default();
    }
}
