//! Versioned records in this process.

use std::collections::HashMap;

use bytes::Bytes;

use super::rule::{self, Change, Decision, Row};
use super::{
    Expected, MAX_VALUE, NaturalKey, Version, Versioned, VersionedStore, WriteError, check_value,
};
use crate::memory::Limits;
use crate::store::{Nonce, Result};
use crate::sync::Mutex;
use crate::{StoreError, StoreErrorKind};

/// Versioned records in this process's memory, bounded: for tests, and for one process that may
/// forget.
///
/// Every change reads, decides and writes under one lock, which is what makes it atomic. A full store
/// refuses what would make it larger, and forgets nothing; a deleted record leaves its version.
#[derive(Debug, Default)]
pub struct MemoryVersioned {
    limits: Limits,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    rows: HashMap<[u8; 32], (Row, Bytes)>,
    bytes: usize,
}

/// Roughly what a row takes beside its value.
const ROW: usize = 160;

impl MemoryVersioned {
    /// An empty store with this bound; deleted records count as well.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            kept: Mutex::new(Kept::default()),
        }
    }
}

impl VersionedStore for MemoryVersioned {
    async fn read(&self, key: &NaturalKey) -> Result<Option<Versioned>> {
        let kept = self.kept.lock();
        Ok(kept.rows.get(key.digest()).and_then(|(row, value)| {
            let version = row.found()?;
            let value = value.clone();
            Some(Versioned { version, value })
        }))
    }

    async fn alter(
        &self,
        key: &NaturalKey,
        expected: Expected,
        value: Option<Bytes>,
        writer: Nonce,
    ) -> Result<Version, WriteError> {
        key.check()?;
        let change = Change::new(expected, writer, value.as_ref());
        let value = value.unwrap_or_default();
        check_value(&value, MAX_VALUE)?;
        let mut kept = self.kept.lock();
        let present = kept.rows.get(key.digest());
        let version = match rule::decide(present.map(|(row, _)| row), &change) {
            Decision::Write(version) => version,
            Decision::Done(version) => return Ok(version),
            Decision::Conflict(found) => {
                return Err(WriteError::ConcurrentModification {
                    expected: change.expected,
                    found,
                });
            }
        };
        let before = present.map_or(0, |(_, value)| ROW + value.len());
        let after = ROW + value.len();
        let bytes = kept.bytes - before + after;
        let grows = after > before && bytes > self.limits.bytes;
        if grows || (before == 0 && kept.rows.len() >= self.limits.records) {
            return Err(WriteError::Store(StoreError::new(
                StoreErrorKind::Capacity,
                "the store of versioned records is full",
            )));
        }
        let row = Row {
            version,
            writer: change.writer,
            deleted: change.deletes,
        };
        // A copy: a small part of a large buffer would keep all of it.
        let value = Bytes::copy_from_slice(&value);
        kept.rows.insert(*key.digest(), (row, value));
        kept.bytes = bytes;
        Ok(version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scope;

    fn key(name: &str) -> NaturalKey {
        NaturalKey::new(Scope::new(["tests"]), name)
    }

    #[tokio::test]
    async fn a_full_store_refuses_to_grow_and_forgets_nothing() {
        let store = MemoryVersioned::new(Limits {
            records: 2,
            bytes: 2 * ROW + 20,
        });
        let ten = Bytes::from_static(b"0123456789");
        store
            .write(&key("a"), Expected::Absent, ten.clone())
            .await
            .unwrap();
        store
            .write(&key("b"), Expected::Absent, ten.clone())
            .await
            .unwrap();
        for refused in [
            store.write(&key("c"), Expected::Any, Bytes::new()).await,
            store
                .write(&key("a"), Expected::Any, Bytes::from_static(&[0; 11]))
                .await,
        ] {
            match refused {
                Err(WriteError::Store(e)) => assert_eq!(e.kind(), StoreErrorKind::Capacity),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(
            store.write(&key("a"), Expected::Any, ten).await.unwrap(),
            Version(2)
        );
        store.delete(&key("b"), Expected::Any).await.unwrap();
        let more = Bytes::from_static(&[0; 20]);
        store.write(&key("a"), Expected::Any, more).await.unwrap();
    }
}
