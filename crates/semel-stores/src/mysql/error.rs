//! What the server's errors mean.

use semel::{StoreError, StoreErrorKind};
use sqlx::Error;
use sqlx::mysql::MySqlDatabaseError;

use crate::common::pool::Failed;

/// How a packet failed.
pub(super) enum Failure {
    /// A deadlock: rolled back, to be run again.
    Deadlock(StoreError),
    /// A lock that was held too long: rolled back, to be run again if there is time to wait.
    Locked(StoreError),
    /// The connection can no longer be used, or leads to a server that can no longer be used.
    Broken(StoreError),
    /// The server said no; the connection is fine.
    Said(StoreError),
}

impl Failure {
    pub(super) fn into_error(self) -> StoreError {
        match self {
            Self::Deadlock(error)
            | Self::Locked(error)
            | Self::Broken(error)
            | Self::Said(error) => error,
        }
    }
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Deadlock(error) => Self::RolledBack(error),
            Failure::Broken(error) if error.kind() == StoreErrorKind::Unknown => Self::Lost(error),
            Failure::Said(error) if error.kind() == StoreErrorKind::Unknown => {
                Self::Unreadable(error)
            }
            Failure::Locked(error) | Failure::Broken(error) | Failure::Said(error) => {
                Self::Refused(error)
            }
        }
    }
}

/// What a packet was about to do: a failed write may have happened, a failed read changed nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Writes,
    Reads,
}

impl Effect {
    /// What an error means of which nobody knows when it came.
    pub(super) const fn unclear(self) -> StoreErrorKind {
        match self {
            Self::Writes => StoreErrorKind::Unknown,
            Self::Reads => StoreErrorKind::NotApplied,
        }
    }
}

fn new(kind: StoreErrorKind, message: impl AsRef<str>) -> StoreError {
    StoreError::new(kind, format!("mysql: {}", message.as_ref()))
}

/// A number and what the server says to it, but for errors that quote the statement: it holds what
/// identities are made of.
fn said(error: &MySqlDatabaseError) -> String {
    match error.number() {
        1062 | 1064 | 1292 | 1366 => format!("error {}", error.number()),
        number => format!("error {number}: {}", error.message()),
    }
}

/// An error of a connection that was being made: nothing was sent.
pub(super) fn connecting(error: Error) -> StoreError {
    match &error {
        Error::Database(database) => {
            let Some(database) = database.try_downcast_ref::<MySqlDatabaseError>() else {
                return new(
                    StoreErrorKind::NotApplied,
                    "the server refused a connection",
                );
            };
            let kind = match database.number() {
                1044 | 1045 | 1049 | 1129 | 1130 | 1698 | 3118 | 3159 => StoreErrorKind::Config,
                _ => StoreErrorKind::NotApplied,
            };
            new(
                kind,
                format!("the server refused a connection: {}", said(database)),
            )
        }
        Error::Configuration(_) | Error::Tls(_) => unsecured(error),
        // What the TLS library says of a certificate comes this way.
        Error::Io(io) if io.kind() == std::io::ErrorKind::InvalidData => unsecured(error),
        _ => new(StoreErrorKind::NotApplied, "the server cannot be reached").with_source(error),
    }
}

fn unsecured(error: Error) -> StoreError {
    new(
        StoreErrorKind::Config,
        "a connection could not be made as the URL asks (see `ssl-mode`)",
    )
    .with_source(error)
}

/// An error of a packet that was sent.
pub(super) fn sent(error: Error, effect: Effect) -> Failure {
    let unclear = effect.unclear();
    let Error::Database(database) = &error else {
        let text = match effect {
            Effect::Writes => "the connection broke after a step was sent: it may have happened",
            Effect::Reads => "the connection broke while reading",
        };
        return Failure::Broken(new(unclear, text).with_source(error));
    };
    let Some(database) = database.try_downcast_ref::<MySqlDatabaseError>() else {
        return Failure::Broken(new(unclear, "an error that is not the server's"));
    };
    let said = said(database);
    match database.number() {
        // The statement was rolled back, each is a transaction of its own, and none that follows in
        // the packet was run. 1020: with `innodb_snapshot_isolation`, the default of newer MariaDB, a row
        // that was written since the statement, or its transaction, first looked. 1062: a rival's claim came
        // between a claim's look and its insert.
        1020 | 1062 | 1213 => Failure::Deadlock(new(
            StoreErrorKind::Contended,
            format!("rolled back by deadlocks or rivals on every retry: {said}"),
        )),
        1205 | 3572 => Failure::Locked(new(
            StoreErrorKind::Contended,
            format!("another transaction holds the record's lock: {said}"),
        )),
        1040 | 1203 | 1226 | 1637 => Failure::Said(new(
            StoreErrorKind::NotApplied,
            format!("the server has no room for more: {said}"),
        )),
        // Planned switchovers begin so: another server is the primary a moment later, by another connection.
        1290 | 1792 | 1836 => Failure::Broken(new(
            StoreErrorKind::NotApplied,
            format!("the server takes no writes; give the address of the primary: {said}"),
        )),
        1054 | 1146 => Failure::Said(new(
            StoreErrorKind::Config,
            format!(
                "the schema is missing or not this version's; run `semel migrate --store …`: {said}"
            ),
        )),
        1044 | 1045 | 1049 | 1142 | 1143 | 1227 | 1370 | 1419 | 1665 => Failure::Said(new(
            StoreErrorKind::Config,
            format!("the server does not allow it: {said}"),
        )),
        // Full table or disk, no memory, none for locks.
        3 | 1021 | 1026 | 1030 | 1037 | 1038 | 1041 | 1114 | 1206 => Failure::Said(new(
            StoreErrorKind::Capacity,
            format!("the server has no room: {said}"),
        )),
        // Larger than a packet, a column or a tenth of the redo log. The server ends the connection
        // after 1153.
        1118 | 1153 | 1406 => Failure::Broken(new(
            StoreErrorKind::TooLarge,
            format!("more than the server takes at once: {said}"),
        )),
        // The connection or the statement was killed, the server stops, the commit failed.
        1053 | 1158..=1161 | 1180 | 1184 | 1927 | 2006 | 2013 | 4031 => Failure::Broken(new(
            unclear,
            format!("the server ended the connection: {said}"),
        )),
        _ => Failure::Said(new(unclear, format!("the server failed: {said}"))),
    }
}

pub(super) fn too_large(bytes: usize, allowed: u64) -> StoreError {
    new(
        StoreErrorKind::TooLarge,
        format!(
            "the step takes a packet of {bytes} bytes (two for each byte of the outcome); the \
             server's max_allowed_packet is {allowed}"
        ),
    )
}

pub(super) fn timed_out(effect: Effect, sent: bool) -> StoreError {
    match (sent, effect) {
        (false, _) => new(
            StoreErrorKind::NotApplied,
            "no connection was free or could be made within the timeout; nothing was sent",
        ),
        (true, Effect::Writes) => new(
            StoreErrorKind::Unknown,
            "no answer within the timeout: the step may have happened",
        ),
        (true, Effect::Reads) => new(StoreErrorKind::NotApplied, "no answer within the timeout"),
    }
}

pub(super) fn config(message: impl AsRef<str>) -> StoreError {
    new(StoreErrorKind::Config, message)
}

pub(super) fn closed() -> StoreError {
    new(StoreErrorKind::Closed, "the store was closed")
}
