//! The server's errors, by what they mean for the caller.

use semel::{StoreError, StoreErrorKind};
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use super::table::Table;
pub(super) use crate::common::pool::Failed;
use crate::common::privacy;

impl Failed {
    pub(super) fn into_error(self) -> StoreError {
        match self {
            Self::Unsent(error)
            | Self::RolledBack(error)
            | Self::Refused(error)
            | Self::Lost(error)
            | Self::Late(error)
            | Self::Unreadable(error) => error,
        }
    }

    /// A failure of a statement that was sent.
    pub(super) fn sent(error: Error, table: &Table) -> Self {
        let Some(code) = error.code().cloned() else {
            return if is_transport(&error) {
                Self::Lost(wrap(
                    StoreErrorKind::Unknown,
                    "the connection to PostgreSQL broke after the step was sent",
                    error,
                ))
            } else {
                Self::Unreadable(wrap(
                    StoreErrorKind::Unknown,
                    "PostgreSQL's answer cannot be read",
                    error,
                ))
            };
        };
        match code.code() {
            "40001" | "40P01" => Self::RolledBack(wrap(
                StoreErrorKind::Contended,
                format!("PostgreSQL rolled the step back ({})", code.code()),
                error,
            )),
            // Administrator's shutdown, crash of another process, protocol's connection errors.
            "57P01" | "57P02" | "57P03" | "57P05" => Self::Lost(wrap(
                StoreErrorKind::Unknown,
                format!("PostgreSQL ended the connection ({})", code.code()),
                error,
            )),
            class if class.starts_with("08") => Self::Lost(wrap(
                StoreErrorKind::Unknown,
                format!("PostgreSQL ended the connection ({class})"),
                error,
            )),
            _ => Self::Refused(refused(&code, error, table)),
        }
    }
}

const STANDBY: &str = "PostgreSQL allows no writes here: it is a standby, or \
    default_transaction_read_only is on. Name the primary (or several hosts, of which the primary is found)";

/// To who opens a store or examines it, a standby is the wrong server; to who is at work, one that a
/// primary takes the place of in a moment.
pub(super) fn opening(error: StoreError) -> StoreError {
    match error.to_string().starts_with(STANDBY) {
        true => StoreError::new(StoreErrorKind::Config, STANDBY).with_source(error),
        false => error,
    }
}

/// An error of connecting: nothing was sent.
pub(super) fn connecting(error: Error, table: &Table) -> StoreError {
    if let Some(code) = error.code().cloned() {
        return refused(&code, error, table);
    }
    let message = error.to_string();
    // The driver's own words where a host is a standby, or no password was given.
    let cause = std::error::Error::source(&error).map(ToString::to_string);
    let cause = cause.unwrap_or_default();
    if cause.contains("does not allow writes") {
        return wrap(StoreErrorKind::NotApplied, STANDBY, error);
    }
    if message.contains("authentication") || message.contains("invalid configuration") {
        return wrap(
            StoreErrorKind::Config,
            format!("PostgreSQL cannot be logged in to: {cause}"),
            error,
        );
    }
    // A server that does not take our certificate says so when the driver thinks that TLS is done.
    if message.contains("TLS") || privacy::objection(&error).is_some() {
        return wrap(
            StoreErrorKind::Config,
            format!("no TLS with PostgreSQL: {cause}"),
            error,
        );
    }
    wrap(
        StoreErrorKind::NotApplied,
        format!("PostgreSQL is not reached: {cause}"),
        error,
    )
}

fn refused(code: &SqlState, error: Error, table: &Table) -> StoreError {
    let said = error.as_db_error().map_or("", |error| error.message());
    let (kind, message) = meaning(code.code(), said, table);
    wrap(kind, message, error)
}

/// What a code means where the server certainly did nothing, and `said` why.
pub(super) fn meaning(code: &str, said: &str, table: &Table) -> (StoreErrorKind, String) {
    use StoreErrorKind::{Capacity, Config, Contended, Corrupt, NotApplied};
    match code {
        "42P01" | "3F000" | "42703" => (
            Config,
            format!(
                "the table {table} is not there, or not as this version needs it ({code}): run \
                 `semel migrate --store …`, or open with schema=create"
            ),
        ),
        "42501" => (
            Config,
            format!(
                "the user lacks a privilege on the table {table} or its schema ({code}: {said}): \
                 grant SELECT, INSERT, UPDATE and DELETE, and CREATE on the schema to migrate"
            ),
        ),
        "3D000" => (Config, format!("PostgreSQL has no such database ({code})")),
        "26000" | "42P05" => (
            Config,
            format!(
                "PostgreSQL does not know a statement that was prepared ({code}): a pooler \
                 between gives each transaction another connection; open with prepared=off"
            ),
        ),
        // A pooler's refusal of a parameter at the session's start.
        "08P01" if said.contains("startup parameter") => (
            Config,
            format!(
                "a pooler between refuses the session's settings ({said}): open with prepared=off"
            ),
        ),
        "53300" => (
            NotApplied,
            format!(
                "PostgreSQL has no connection left ({code}): raise max_connections, or lower `connections`"
            ),
        ),
        "55P03" => (
            Contended,
            format!("the record was locked by another transaction for too long ({code})"),
        ),
        "57014" => (
            NotApplied,
            format!("the statement took too long and was cancelled ({code})"),
        ),
        "25006" => (
            NotApplied,
            format!("PostgreSQL allows no writes here now ({code}): it became a standby"),
        ),
        class if class.starts_with("28") => (
            Config,
            format!("PostgreSQL refuses the user ({code}): {said}"),
        ),
        class if class.starts_with("53") => {
            (Capacity, format!("PostgreSQL has no room ({code}): {said}"))
        }
        class if class.starts_with("XX") => (
            Corrupt,
            format!("PostgreSQL reports damage ({code}): {said}"),
        ),
        // No statement: the text is fixed, and values never are part of it.
        class if class.starts_with("42") => (
            Config,
            format!("PostgreSQL does not take the statement ({code}): {said}"),
        ),
        _ => (
            NotApplied,
            format!("PostgreSQL refused the step ({code}): {said}"),
        ),
    }
}

fn is_transport(error: &Error) -> bool {
    error.is_closed()
        || std::error::Error::source(error).is_some_and(|cause| cause.is::<std::io::Error>())
}

fn wrap(kind: StoreErrorKind, message: impl Into<Box<str>>, error: Error) -> StoreError {
    let wrapped = StoreError::new(kind, message);
    // What the server adds to its message may show a row.
    if error.code().is_some() {
        wrapped
    } else {
        wrapped.with_source(error)
    }
}
