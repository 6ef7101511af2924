//! Many records of one.

use std::time::Duration;

use semel::IdentityDigest;
use semel::store::Retention;

use crate::inputs::identity;

/// Of every record.
pub(super) const RETENTION: Retention = Retention::ORDER;

/// Copies were completed one after the other over so long: what is left of their retention is longer than a run.
const SPREAD: Duration = Duration::from_hours(22);

/// A record beside the first.
pub(super) struct Copy {
    pub(super) digest: IdentityDigest,
    /// How much earlier than the first it was completed, in microseconds.
    pub(super) earlier: u64,
}

/// As many as make `records` together with the first, the earliest first, so many at once.
pub(super) fn copies(records: usize, at_once: usize) -> impl Iterator<Item = Vec<Copy>> {
    let apart = SPREAD.as_micros() as u64 / records as u64;
    let mut all = (1..records).map(move |index| Copy {
        digest: *identity(index).digest(),
        earlier: (records - index) as u64 * apart,
    });
    std::iter::from_fn(move || {
        let group: Vec<Copy> = all.by_ref().take(at_once).collect();
        (!group.is_empty()).then_some(group)
    })
}

/// What a column of a copy has, of those of the first: its own digest, its own times, and the rest as it is.
pub(super) fn value(column: &str, digest: &str, earlier: &str) -> String {
    match column {
        "digest" => digest.to_owned(),
        "created_at" | "claimed_at" | "lease_until" | "settled_at" | "expires_at" | "purge_at" => {
            format!("first.{column} - {earlier}")
        }
        _ => format!("first.{column}"),
    }
}
