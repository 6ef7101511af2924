//! How a record may change: pure functions, which every store goes by. For those who implement one.
//!
//! What a store keeps of a record is its version, its value, and the nonce of who wrote it last. A
//! deletion is a change as any other: it takes a version and leaves the row without a value. So
//! versions never repeat, and whoever read a record before it was deleted and made anew finds another
//! version (no ABA).

use bytes::Bytes;

use super::{Expected, Version, WriteError};
use crate::store::Nonce;
use crate::{StoreError, StoreErrorKind};

/// What is kept of a record beside its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// How many changes there were.
    pub version: Version,
    /// Names the latest of them.
    pub writer: Nonce,
    /// Whether that was a deletion.
    pub deleted: bool,
}

impl Row {
    /// The version, where the record is there.
    pub fn found(&self) -> Option<Version> {
        (!self.deleted).then_some(self.version)
    }
}

/// A change, without the value that it brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// What must be true before.
    pub expected: Expected,
    /// Names the change, also where it is sent again.
    pub writer: Nonce,
    /// Whether it takes the record away.
    pub deletes: bool,
}

impl Change {
    /// One that writes the record, or without a value takes it away.
    pub const fn new(expected: Expected, writer: Nonce, value: Option<&Bytes>) -> Self {
        Self {
            expected,
            writer,
            deletes: value.is_none(),
        }
    }
}

/// What becomes of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It is to be written, and gives this version.
    Write(Version),
    /// Nothing is to be written: this change was before, or it deletes what is not there. The version
    /// of the latest change; 0 where there was none.
    Done(Version),
    /// The record is not as expected.
    Conflict(Option<Version>),
}

/// Decides a change of this row.
pub fn decide(row: Option<&Row>, change: &Change) -> Decision {
    if let Some(row) = row
        && row.writer == change.writer
        && row.deleted == change.deletes
    {
        return Decision::Done(row.version);
    }
    let found = row.and_then(Row::found);
    if !change.expected.is_met_by(found) {
        return Decision::Conflict(found);
    }
    if change.deletes && found.is_none() {
        return Decision::Done(row.map_or(Version(0), |row| row.version));
    }
    Decision::Write(row.map_or(Version::FIRST, |row| row.version.next()))
}

/// Whether a change whose answer was lost certainly never happened, where the latest change, another
/// one, gave the version `latest`.
///
/// Numbers are given out once. Where the one that the lost change would have taken went to another,
/// or nobody came as far, it never happened. Where more changes came after, it may be among them.
pub fn never_happened(expected: Expected, latest: Option<Version>) -> bool {
    match (expected, latest) {
        (Expected::Version(expected), Some(latest)) => latest <= expected.next(),
        (Expected::Absent, Some(latest)) => latest == Version::FIRST,
        _ => false,
    }
}

/// What a conflict with this row is where an earlier sending of the same change may have arrived.
pub fn after_lost_answer(row: Option<&Row>, change: &Change) -> WriteError {
    if never_happened(change.expected, row.map(|row| row.version)) {
        return WriteError::ConcurrentModification {
            expected: change.expected,
            found: row.and_then(Row::found),
        };
    }
    WriteError::Store(StoreError::new(
        StoreErrorKind::Unknown,
        "the answer to this change was lost, and the record was changed since: whether this change \
         was among those is not known; read it again",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Nonce = Nonce::from_bytes([1; 16]);
    const OTHER: Nonce = Nonce::from_bytes([2; 16]);

    const fn row(version: u64, writer: Nonce, deleted: bool) -> Row {
        Row {
            version: Version(version),
            writer,
            deleted,
        }
    }

    const fn change(expected: Expected, deletes: bool) -> Change {
        Change {
            expected,
            writer: ME,
            deletes,
        }
    }

    const AT_3: Expected = Expected::Version(Version(3));

    #[test]
    fn every_row_and_every_expectation() {
        use Decision::{Conflict, Done, Write};
        use Expected::{Absent, Any};
        let (v0, v1, v3, v4) = (Version(0), Version(1), Version(3), Version(4));
        for (kept, expected, write, delete) in [
            (None, Any, Write(v1), Done(v0)),
            (None, Absent, Write(v1), Done(v0)),
            (None, AT_3, Conflict(None), Conflict(None)),
            (Some(row(3, OTHER, false)), Any, Write(v4), Write(v4)),
            (
                Some(row(3, OTHER, false)),
                Absent,
                Conflict(Some(v3)),
                Conflict(Some(v3)),
            ),
            (Some(row(3, OTHER, false)), AT_3, Write(v4), Write(v4)),
            (
                Some(row(4, OTHER, false)),
                AT_3,
                Conflict(Some(v4)),
                Conflict(Some(v4)),
            ),
            // A deleted record is none, and its number is not given out again.
            (Some(row(3, OTHER, true)), Any, Write(v4), Done(v3)),
            (Some(row(3, OTHER, true)), Absent, Write(v4), Done(v3)),
            (
                Some(row(3, OTHER, true)),
                AT_3,
                Conflict(None),
                Conflict(None),
            ),
            // Sent again.
            (Some(row(4, ME, false)), AT_3, Done(v4), Conflict(Some(v4))),
            (Some(row(4, ME, true)), AT_3, Conflict(None), Done(v4)),
            (
                Some(row(1, ME, false)),
                Absent,
                Done(v1),
                Conflict(Some(v1)),
            ),
            (Some(row(3, ME, false)), Any, Done(v3), Write(v4)),
        ] {
            let found = decide(kept.as_ref(), &change(expected, false));
            assert_eq!(found, write, "write {expected} over {kept:?}");
            let found = decide(kept.as_ref(), &change(expected, true));
            assert_eq!(found, delete, "delete {expected} of {kept:?}");
        }
    }

    #[test]
    fn a_conflict_after_a_lost_answer_is_one_only_where_the_number_went_to_another() {
        for (kept, expected, certain) in [
            (Some(row(4, OTHER, false)), AT_3, true),
            (Some(row(4, OTHER, true)), AT_3, true),
            (Some(row(2, OTHER, false)), AT_3, true),
            (Some(row(5, OTHER, false)), AT_3, false),
            (Some(row(5, OTHER, true)), AT_3, false),
            (None, AT_3, false),
            (Some(row(1, OTHER, false)), Expected::Absent, true),
            (Some(row(2, OTHER, false)), Expected::Absent, false),
        ] {
            let error = after_lost_answer(kept.as_ref(), &change(expected, false));
            let found = matches!(error, WriteError::ConcurrentModification { .. });
            assert_eq!(found, certain, "{expected}, {kept:?}: {error}");
        }
    }
}
