//! Versions, what is expected of them, and what goes wrong.

use std::fmt;

use bytes::Bytes;

use crate::{StoreError, StoreErrorKind};

/// The most bytes of a value. DynamoDB takes fewer: its items end at 400 KB.
pub const MAX_VALUE: usize = 1 << 20;

/// Which of a record's states this is: 1 after its first write, one more after each further change.
///
/// A number is never given out twice for the same record, also not where the record was deleted and
/// made anew: the deletion takes a number like any change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

impl Version {
    /// That of a record which was never there before.
    pub const FIRST: Self = Self(1);

    /// That of the state after the next change.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What must be true of a record for a change to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Expected {
    /// Nothing: whatever is there is written over. The last of several writers wins.
    Any,
    /// There is no such record. Of several writers one makes it.
    Absent,
    /// It is still the one that was read. Of several writers who read the same one gets through.
    Version(Version),
}

impl Expected {
    /// Whether a record that is there in this version, or not there, is the expected one.
    pub fn is_met_by(self, found: Option<Version>) -> bool {
        match self {
            Self::Any => true,
            Self::Absent => found.is_none(),
            Self::Version(version) => found == Some(version),
        }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("anything"),
            Self::Absent => f.write_str("no record"),
            Self::Version(version) => write!(f, "version {version}"),
        }
    }
}

/// A record as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned {
    /// What to expect for the next write.
    pub version: Version,
    /// What was written.
    pub value: Bytes,
}

/// Why a record was not changed, or not for certain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// Somebody else changed it first. This call changed nothing: read again, and decide again.
    #[error("concurrent modification: expected {expected}, found {}", Found(*.found))]
    ConcurrentModification {
        /// What was expected.
        expected: Expected,
        /// What is there instead; `None` where there is no record.
        found: Option<Version>,
    },
    /// The store failed. Of kind [`Unknown`](StoreErrorKind::Unknown): the change may have happened.
    #[error(transparent)]
    Store(#[from] StoreError),
}

struct Found(Option<Version>);

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("no record"),
            Some(version) => write!(f, "version {version}"),
        }
    }
}

/// Whether a value is one that `most` bytes are enough for, for those who implement a store.
///
/// # Errors
/// [`TooLarge`](StoreErrorKind::TooLarge).
pub fn check_value(value: &Bytes, most: usize) -> Result<(), WriteError> {
    let len = value.len();
    if len <= most {
        return Ok(());
    }
    Err(WriteError::Store(StoreError::new(
        StoreErrorKind::TooLarge,
        format!("the value has {len} bytes; {most} are kept"),
    )))
}
