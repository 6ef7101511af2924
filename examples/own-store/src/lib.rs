//! A store of one's own: copy this folder, and replace what is in the functions below by calls of
//! your database's driver. `tests/conformance.rs` says when it is right; `docs/write-a-store.md`
//! goes through it.
//!
//! Your database here is a map in memory, with versions, a conditional write and a clock.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use semel::backend::{Backend, Read, Row, Scan};
use semel::store::{Durability, Probe, Result};
use semel::{Clock as _, IdentityDigest, SystemClock, Timestamp};

/// A connection to the database. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct OwnDatabase(Arc<Mutex<Rows>>);

#[derive(Debug, Default)]
struct Rows {
    clock: SystemClock,
    latest: u64,
    writes: u64,
    by_key: BTreeMap<[u8; 32], (u64, Bytes)>,
}

impl Rows {
    /// The clock, which says no instant twice. Where your database's may, take its sequence, or
    /// another number that only grows.
    fn now(&mut self) -> Timestamp {
        self.latest = self.clock.now().as_micros().max(self.latest + 1);
        Timestamp::from_micros(self.latest)
    }
}

impl OwnDatabase {
    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backend for OwnDatabase {
    type Version = u64;

    async fn read(&self, key: &IdentityDigest) -> Result<Read<u64>> {
        let mut rows = self.rows();
        let value = rows.by_key.get(key.as_bytes()).cloned();
        let now = rows.now();
        Ok(Read { value, now })
    }

    async fn write_if(
        &self,
        key: &IdentityDigest,
        version: Option<&u64>,
        value: Option<Bytes>,
    ) -> Result<bool> {
        let (mut rows, key) = (self.rows(), *key.as_bytes());
        if rows.by_key.get(&key).map(|(version, _)| version) != version {
            return Ok(false);
        }
        rows.writes += 1;
        let written = rows.writes;
        match value {
            Some(value) => rows.by_key.insert(key, (written, value)),
            None => rows.by_key.remove(&key),
        };
        Ok(true)
    }

    async fn scan(&self, after: Option<&IdentityDigest>, limit: usize) -> Result<Scan<u64>> {
        let mut rows = self.rows();
        let after = after.map_or(Bound::Unbounded, |after| Bound::Excluded(*after.as_bytes()));
        let mut found = rows.by_key.range((after, Bound::Unbounded));
        let row = |(key, (version, value)): (&[u8; 32], &(u64, Bytes))| Row {
            key: IdentityDigest::from_bytes(*key),
            version: *version,
            value: value.clone(),
        };
        let part = found.by_ref().take(limit).map(row).collect();
        let more = found.next().is_some();
        let now = rows.now();
        Ok(Scan {
            rows: part,
            more,
            now,
        })
    }

    // Where your database can tell of changes, write `changed` too: duplicates then wait for that.

    async fn probe(&self) -> Result<Probe> {
        let _reachable = self.rows();
        Ok(Probe {
            store: "own",
            // Say here what your database's settings promise, and what an operator should know.
            durability: Durability::Process,
            warnings: Vec::new(),
        })
    }
}
