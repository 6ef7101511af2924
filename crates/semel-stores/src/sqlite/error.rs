//! What an error of SQLite means for a step.

use rusqlite::{Error, ErrorCode};
use semel::{StoreError, StoreErrorKind};

/// How far a step had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Before COMMIT: nothing of the transaction stays.
    Before,
    /// In COMMIT.
    Commit,
}

/// Whether somebody else's lock was in the way.
pub(super) fn is_busy(error: &Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

/// Whether the file was found full, or too large a record given: others may still fit.
pub(super) fn is_room(error: &Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DiskFull | ErrorCode::TooBig)
    )
}

/// Whether the connection should be opened anew.
pub(super) fn is_broken(error: &Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(
            ErrorCode::SystemIoFailure
                | ErrorCode::DatabaseCorrupt
                | ErrorCode::NotADatabase
                | ErrorCode::CannotOpen
                | ErrorCode::ReadOnly
                | ErrorCode::InternalMalfunction
                | ErrorCode::ApiMisuse
                | ErrorCode::OutOfMemory
        )
    )
}

/// The error for a caller. SQLite's messages name tables and columns, never values.
pub(super) fn told(error: &Error, phase: Phase) -> StoreError {
    let ambiguous = match phase {
        Phase::Before => StoreErrorKind::NotApplied,
        Phase::Commit => StoreErrorKind::Unknown,
    };
    let (kind, message) = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (StoreErrorKind::Contended, LOCKED.to_owned())
        }
        Some(ErrorCode::DiskFull) => (
            StoreErrorKind::Capacity,
            "the database file cannot grow: the disk is full; nothing was changed".to_owned(),
        ),
        Some(ErrorCode::TooBig) => (
            StoreErrorKind::TooLarge,
            "SQLite keeps no value of this size".to_owned(),
        ),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => (
            StoreErrorKind::Corrupt,
            format!("the database file is damaged, or is none: {error}"),
        ),
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => (
            StoreErrorKind::Config,
            "the database file, or its directory, cannot be written by this process".to_owned(),
        ),
        Some(ErrorCode::CannotOpen) => (
            StoreErrorKind::NotApplied,
            "the database file cannot be opened".to_owned(),
        ),
        Some(ErrorCode::Unknown | ErrorCode::SchemaChanged) if phase == Phase::Before => (
            StoreErrorKind::Config,
            format!(
                "the store's tables are not as they should be ({error}): run `semel migrate \
                 --store sqlite:PATH`"
            ),
        ),
        Some(_) => (ambiguous, format!("SQLite failed: {error}")),
        // Not SQLite but what was read from it.
        None => (
            StoreErrorKind::Corrupt,
            format!("a stored record cannot be read: {error}"),
        ),
    };
    StoreError::new(kind, message)
}

/// What to say of a lock that stays.
pub(super) const LOCKED: &str = "another connection held the lock of the database file for longer \
     than the time-out: a long transaction, a backup, or a program that was stopped inside one";
