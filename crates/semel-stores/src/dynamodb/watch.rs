//! Who judges a lease without a server's clock: one observer, by its own monotonic clock.
//!
//! A lease has lapsed when this store's handle has seen the same fence, nonce and number of
//! renewals for as long as the lease is. An observer that comes late waits longer, never shorter;
//! and its takeover is written only if the record still is as it was seen.

use std::time::Duration;

use parking_lot::Mutex;
use semel::store::Token;
use semel::{IdentityDigest, Record, State, Timestamp};
use tokio::time::Instant;

use super::item::{Row, some_steps};
use crate::common::recent::Recent;

/// The leases that this handle has seen. The lease of one that was [forgotten](Recent) counts anew from the
/// next look.
#[derive(Default)]
pub(super) struct Sightings {
    seen: Mutex<Recent<Sighting>>,
}

struct Sighting {
    row: Row,
    since: Instant,
}

impl Sighting {
    fn is_of(&self, row: &Row) -> bool {
        self.row.record.token == row.record.token
            && self.row.renewals == row.renewals
            && self.row.lease == row.lease
    }

    /// What is left of the lease.
    fn remaining(&self) -> Duration {
        Duration::from_micros(self.row.lease).saturating_sub(self.since.elapsed())
    }
}

impl Sightings {
    /// Notes what was just read or written, and gives the record as this observer judges it at
    /// `now`: its lease ends when this observer will have watched it for as long as it is.
    pub(super) fn judge(&self, digest: &IdentityDigest, row: &Row, now: Timestamp) -> Record {
        let mut seen = self.seen.lock();
        let known = seen.remove(digest);
        let State::InFlight = row.record.state else {
            return row.record.clone();
        };
        let since = match known {
            Some(sighting) if sighting.is_of(row) => sighting.since,
            _ => Instant::now(),
        };
        let sighting = Sighting {
            row: slim(row),
            since,
        };
        let judged = judged(&sighting, &row.record, now);
        seen.insert(digest, sighting);
        judged
    }

    /// Notes a record that a listing read, if there is room: a long listing must not push out what
    /// callers watch.
    pub(super) fn note(&self, digest: &IdentityDigest, row: &Row) {
        let mut seen = self.seen.lock();
        let is_watched = seen.has_room() || seen.get(digest).is_some();
        drop(seen);
        if is_watched {
            self.judge(digest, row, Timestamp::default());
        }
    }

    /// The record as it was last seen, if its lease has lapsed by that.
    pub(super) fn lapsed(&self, digest: &IdentityDigest, now: Timestamp) -> Option<(Row, Record)> {
        let mut seen = self.seen.lock();
        let sighting = seen.get(digest)?;
        let lapsed = sighting.remaining().is_zero();
        lapsed.then(|| {
            let row = sighting.row.clone();
            let judged = judged(sighting, &row.record, now);
            (row, judged)
        })
    }

    /// The length of the lease that this token was last seen with, and whether steps were finished.
    pub(super) fn of_token(&self, digest: &IdentityDigest, token: &Token) -> Option<(u64, bool)> {
        let mut seen = self.seen.lock();
        let sighting = seen.get(digest)?;
        let row = &sighting.row;
        (row.record.token == *token).then(|| (row.lease, !row.record.progress.is_bare()))
    }

    /// Forgets the lease of an attempt that has ended. That of another which has begun since then counts anew.
    pub(super) fn forget(&self, digest: &IdentityDigest) {
        self.seen.lock().remove(digest);
    }
}

fn judged(sighting: &Sighting, record: &Record, now: Timestamp) -> Record {
    Record {
        lease_until: now.after(sighting.remaining()),
        ..record.clone()
    }
}

/// A row as it is remembered: of its steps only that there are some.
fn slim(row: &Row) -> Row {
    let mut slim = row.clone();
    if !slim.record.progress.is_bare() {
        slim.record.progress = some_steps();
    }
    slim
}

#[cfg(test)]
mod tests {
    use semel::store::{ClaimRequest, Fence, Nonce};
    use semel::{Fingerprint, record};

    use super::*;

    fn row(nonce: u8, lease: Duration) -> Row {
        let request =
            ClaimRequest::new(Nonce::from_bytes([nonce; 16]), Fingerprint::of(b""), lease);
        let now = Timestamp::from_micros(7);
        Row {
            record: record::claim(None, &request, now, Fence(0)).write.unwrap(),
            lease: super::super::item::micros(lease),
            renewals: 0,
        }
    }

    const DIGEST: IdentityDigest = IdentityDigest::from_bytes([7; 32]);
    const NOW: Timestamp = Timestamp::from_micros(1_000_000);
    const LEASE: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_lease_lapses_only_after_it_was_watched_for_its_length() {
        let seen = Sightings::default();
        let first = row(1, LEASE);
        // The writer's wall clock says nothing here.
        assert!(!seen.judge(&DIGEST, &first, Timestamp::MAX).is_lapsed(NOW));
        tokio::time::advance(LEASE - Duration::from_micros(1)).await;
        assert!(!seen.judge(&DIGEST, &first, NOW).is_lapsed(NOW));
        assert!(seen.lapsed(&DIGEST, NOW).is_none());
        tokio::time::advance(Duration::from_micros(1)).await;
        assert!(seen.judge(&DIGEST, &first, NOW).is_lapsed(NOW));
        assert!(seen.lapsed(&DIGEST, NOW).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn what_changes_is_watched_anew() {
        let seen = Sightings::default();
        let first = row(1, LEASE);
        seen.judge(&DIGEST, &first, NOW);
        tokio::time::advance(LEASE).await;
        let renewed = Row {
            renewals: 1,
            ..first.clone()
        };
        assert!(!seen.judge(&DIGEST, &renewed, NOW).is_lapsed(NOW));
        tokio::time::advance(LEASE).await;
        assert!(!seen.judge(&DIGEST, &row(2, LEASE), NOW).is_lapsed(NOW));
        tokio::time::advance(LEASE).await;
        // Settled and in flight again, with what was seen before.
        let settled = Record {
            state: State::Unknown,
            ..row(2, LEASE).record
        };
        seen.judge(
            &DIGEST,
            &Row {
                record: settled,
                ..row(2, LEASE)
            },
            NOW,
        );
        assert!(!seen.judge(&DIGEST, &row(2, LEASE), NOW).is_lapsed(NOW));
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_lease_never_lapses() {
        let seen = Sightings::default();
        let forever = row(1, Duration::MAX);
        seen.judge(&DIGEST, &forever, NOW);
        tokio::time::advance(Duration::from_hours(24 * 365 * 50)).await;
        assert!(!seen.judge(&DIGEST, &forever, NOW).is_lapsed(NOW));
    }
}
