//! What each key is like: the same in every process, and spread over all kinds.

use std::time::Duration;

use semel::store::{OnLost, Retention};

use crate::history::{KeyIndex, digest};

/// How a key is used by everybody.
#[derive(Debug, Clone, Copy)]
pub struct Traits {
    /// What claims do with a lapse.
    pub on_lost: OnLost,
    /// How long outcomes are kept: from less than a lease, so that keys begin anew many times in a
    /// run, to longer than any run.
    pub retention: Retention,
    /// Whether effects are passed with their fence. Always where a lapse is retried: there nothing
    /// else keeps an older attempt from having its effect late.
    pub fenced: bool,
}

impl Traits {
    /// Of this key, in runs with this lease.
    pub fn of(key: KeyIndex, lease: Duration) -> Self {
        let bits = digest(&key.to_le_bytes());
        let on_lost = match bits & 3 {
            0 | 1 => OnLost::Retry,
            2 => OnLost::Hold,
            _ => OnLost::Reconcile,
        };
        let replay = match bits >> 2 & 7 {
            0 => Duration::from_hours(24),
            1 | 2 => lease / 2,
            3 | 4 => lease,
            _ => lease * 2,
        };
        let tombstone = match bits >> 5 & 7 {
            0 | 1 => lease / 2,
            _ => Duration::ZERO,
        };
        Self {
            on_lost,
            retention: Retention::new(replay).with_tombstone(tombstone),
            fenced: on_lost == OnLost::Retry || bits >> 8 & 1 == 0,
        }
    }
}
