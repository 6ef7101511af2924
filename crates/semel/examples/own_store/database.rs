//! The stand-in for your database: keys and values with versions, a conditional write, and a clock.
//!
//! Replace the bodies of these functions by calls of your database's driver. What the store needs of
//! them is written at each.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use semel::{Clock as _, StoreError, SystemClock, Timestamp};

/// Which write made a value. No two writes of a key have the same one, also after it was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version(u64);

/// A value, the version that wrote it, and when it was read.
pub struct Read {
    pub value: Option<(Version, Bytes)>,
    /// By the database's clock, never by the caller's (protocol rule R6).
    pub now: Timestamp,
}

/// A connection. Clones share it.
#[derive(Clone)]
pub struct Database(Arc<Tables>);

struct Tables {
    clock: SystemClock,
    latest: AtomicU64,
    rows: Mutex<Rows>,
}

#[derive(Default)]
struct Rows {
    writes: u64,
    by_key: BTreeMap<[u8; 32], (Version, Bytes)>,
}

impl Database {
    pub fn connect() -> Self {
        Self(Arc::new(Tables {
            clock: SystemClock::new(),
            latest: AtomicU64::new(0),
            rows: Mutex::default(),
        }))
    }

    /// The value now. From the primary: a replica may be behind.
    pub async fn read(&self, key: &[u8; 32]) -> Result<Read, StoreError> {
        let value = self.rows().by_key.get(key).cloned();
        Ok(Read {
            value,
            now: self.now(),
        })
    }

    /// Writes (or removes, with `None`) if the key still has this version (`None`: if it has no
    /// value), in one atomic step. Whether it did.
    ///
    /// An answer that was lost is an error of kind `Unknown`: the write may have happened.
    pub async fn write_if(
        &self,
        key: &[u8; 32],
        version: Option<Version>,
        value: Option<Bytes>,
    ) -> Result<bool, StoreError> {
        let mut rows = self.rows();
        if rows.by_key.get(key).map(|(version, _)| *version) != version {
            return Ok(false);
        }
        rows.writes += 1;
        let written = Version(rows.writes);
        match value {
            Some(value) => rows.by_key.insert(*key, (written, value)),
            None => rows.by_key.remove(key),
        };
        Ok(true)
    }

    /// At most `limit` values behind this key, in the order of their keys.
    pub async fn scan(
        &self,
        after: Option<[u8; 32]>,
        limit: usize,
    ) -> Result<(Timestamp, Vec<(Version, Bytes)>), StoreError> {
        use std::ops::Bound;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rows = self.rows();
        let found = rows.by_key.range((from, Bound::Unbounded)).take(limit);
        Ok((self.now(), found.map(|(_, row)| row.clone()).collect()))
    }

    /// The clock, which says no instant twice: fences are made of it, and no two identities get the
    /// same one. Where your database's may, take its sequence, or another number that only grows.
    fn now(&self) -> Timestamp {
        let now = self.0.clock.now().as_micros();
        let next = |latest: u64| now.max(latest + 1);
        let before = self
            .0
            .latest
            .fetch_update(Relaxed, Relaxed, |latest| Some(next(latest)));
        Timestamp::from_micros(before.map_or(now, next))
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.0.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
