//! Counting records and bytes without a line of memory that every step writes.
//!
//! Each shard gathers its changes and hands them on when they are worth a step. What all shards may
//! hold back together is below 1/16 of the bound and counts as used, so that the bound is never
//! passed; small bounds are exact, because nothing is held back.

use std::sync::atomic::{AtomicI64, Ordering};

use super::Limits;

pub(super) struct Usage {
    limits: Limits,
    shards: i64,
    records: AtomicI64,
    bytes: AtomicI64,
    // How much one shard may hold back.
    held_records: i64,
    held_bytes: i64,
}

/// What one shard has not handed on yet.
#[derive(Default)]
pub(super) struct Local {
    records: i64,
    bytes: i64,
}

fn signed(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl Usage {
    pub(super) fn new(limits: Limits, shards: usize) -> Self {
        let shards = signed(shards);
        let hold = |limit: usize| signed(limit) / (shards * 16);
        Self {
            limits,
            shards,
            records: AtomicI64::new(0),
            bytes: AtomicI64::new(0),
            held_records: if shards == 1 { 0 } else { hold(limits.records) },
            held_bytes: if shards == 1 {
                0
            } else {
                hold(limits.bytes).min(1 << 20)
            },
        }
    }

    pub(super) const fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether one more record may come.
    pub(super) fn has_room(&self) -> bool {
        let room = |used: &AtomicI64, held: i64, limit: usize| {
            used.load(Ordering::Relaxed)
                .saturating_add(held * self.shards)
                < signed(limit)
        };
        room(&self.records, self.held_records, self.limits.records)
            && room(&self.bytes, self.held_bytes, self.limits.bytes)
    }

    pub(super) fn add(&self, local: &mut Local, bytes: usize) {
        self.change(local, 1, signed(bytes));
    }

    pub(super) fn remove(&self, local: &mut Local, bytes: usize) {
        self.change(local, -1, -signed(bytes));
    }

    pub(super) fn resize(&self, local: &mut Local, before: usize, after: usize) {
        self.change(local, 0, signed(after) - signed(before));
    }

    fn change(&self, local: &mut Local, records: i64, bytes: i64) {
        local.records += records;
        local.bytes += bytes;
        if local.records.abs() > self.held_records {
            self.records
                .fetch_add(std::mem::take(&mut local.records), Ordering::Relaxed);
        }
        if local.bytes.abs() > self.held_bytes {
            self.bytes
                .fetch_add(std::mem::take(&mut local.bytes), Ordering::Relaxed);
        }
    }

    /// Hands on what a shard holds back.
    pub(super) fn hand_on(&self, local: &mut Local) {
        let Local { records, bytes } = std::mem::take(local);
        self.records.fetch_add(records, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The bytes handed on so far.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> i64 {
        self.bytes.load(Ordering::Relaxed)
    }
}
