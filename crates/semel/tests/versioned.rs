//! The suite for versioned records finds what is wrong with a store: each of these has one fault.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use semel::store::{Nonce, Result};
use semel::versioned::rule::{self, Change, Decision, Row};
use semel::versioned::suite::cases;
use semel::versioned::{
    Expected, MAX_VALUE, NaturalKey, Version, Versioned, VersionedStore, WriteError, check_value,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Decides by what it read before others wrote.
    ReadsThenWrites,
    /// A deletion removes the row, and with it the version.
    ForgetsVersions,
    /// A deletion takes no number.
    DeletesSilently,
    TakesAnyVersion,
    MakesWhatIsThere,
    /// A change that is sent again is another one.
    LosesToItself,
    /// A loser is told what it knew before.
    TellsWhatWasExpected,
    TakesAnySize,
    /// Looks up by the name alone.
    ForgetsTheScope,
    /// An upsert counts from the first again.
    CountsFromOne,
}

struct Faulty {
    fault: Fault,
    rows: Mutex<HashMap<Vec<u8>, (Row, Bytes)>>,
}

impl Faulty {
    fn new(fault: Fault) -> Self {
        Self {
            fault,
            rows: Mutex::default(),
        }
    }

    fn key(&self, key: &NaturalKey) -> Vec<u8> {
        match self.fault {
            Fault::ForgetsTheScope => key.name().into(),
            _ => key.digest().into(),
        }
    }

    async fn apply(
        &self,
        key: &NaturalKey,
        change: Change,
        value: Bytes,
    ) -> Result<Version, WriteError> {
        if self.fault != Fault::TakesAnySize {
            key.check()?;
            check_value(&value, MAX_VALUE)?;
        }
        let key = self.key(key);
        let mut asked = change;
        match (self.fault, change.expected) {
            (Fault::TakesAnyVersion, Expected::Version(_))
            | (Fault::MakesWhatIsThere, Expected::Absent) => asked.expected = Expected::Any,
            (Fault::LosesToItself, _) => asked.writer = Nonce::random()?,
            _ => {}
        }
        let mut present = self.rows.lock().unwrap().get(&key).map(|(row, _)| *row);
        if self.fault == Fault::ReadsThenWrites {
            tokio::task::yield_now().await;
        }
        let mut rows = self.rows.lock().unwrap();
        if self.fault != Fault::ReadsThenWrites {
            present = rows.get(&key).map(|(row, _)| *row);
        }
        let mut version = match rule::decide(present.as_ref(), &asked) {
            Decision::Write(version) => version,
            Decision::Done(version) => return Ok(version),
            Decision::Conflict(found) => {
                let found = match (self.fault, change.expected) {
                    (Fault::TellsWhatWasExpected, Expected::Version(expected)) => Some(expected),
                    _ => found,
                };
                return Err(WriteError::ConcurrentModification {
                    expected: change.expected,
                    found,
                });
            }
        };
        match self.fault {
            Fault::ForgetsVersions if change.deletes => {
                rows.remove(&key);
                return Ok(version);
            }
            Fault::DeletesSilently if change.deletes => version = Version(version.0 - 1),
            Fault::CountsFromOne if change.expected == Expected::Any => version = Version::FIRST,
            _ => {}
        }
        let row = Row {
            version,
            writer: asked.writer,
            deleted: change.deletes,
        };
        rows.insert(key, (row, value));
        Ok(version)
    }
}

impl VersionedStore for Faulty {
    async fn read(&self, key: &NaturalKey) -> Result<Option<Versioned>> {
        let rows = self.rows.lock().unwrap();
        Ok(rows.get(&self.key(key)).and_then(|(row, value)| {
            Some(Versioned {
                version: row.found()?,
                value: value.clone(),
            })
        }))
    }

    async fn alter(
        &self,
        key: &NaturalKey,
        expected: Expected,
        value: Option<Bytes>,
        writer: Nonce,
    ) -> Result<Version, WriteError> {
        let change = Change::new(expected, writer, value.as_ref());
        self.apply(key, change, value.unwrap_or_default()).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_fault_is_found_and_nothing_else() {
    for fault in [
        Fault::None,
        Fault::ReadsThenWrites,
        Fault::ForgetsVersions,
        Fault::DeletesSilently,
        Fault::TakesAnyVersion,
        Fault::MakesWhatIsThere,
        Fault::LosesToItself,
        Fault::TellsWhatWasExpected,
        Fault::TakesAnySize,
        Fault::ForgetsTheScope,
        Fault::CountsFromOne,
    ] {
        let mut found = Vec::new();
        for case in cases() {
            // A fault may also make a case go round for long: it is one that found it.
            let run = (case.run)(Arc::new(Faulty::new(fault)));
            let limit = std::time::Duration::from_secs(10);
            if !matches!(tokio::time::timeout(limit, run).await, Ok(Ok(()))) {
                found.push(case.name);
            }
        }
        assert_eq!(
            found.is_empty(),
            fault == Fault::None,
            "{fault:?}: {found:?}"
        );
    }
}
