//! What an error of Redis means for the step that met it.

use redis::{ErrorKind, RedisError, ServerErrorKind};
use semel::{StoreError, StoreErrorKind};

use crate::common::doubt::doubtful;
use crate::common::privacy;

/// What a failed step does to the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// It changes records: an answer that was lost leaves open whether it did.
    Write,
    /// It reads: failed is failed.
    Read,
}

/// What to do after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Tell the caller.
    Fail,
    /// The server does not know the script (any more): send its text.
    SendScript,
    /// The server became a replica: look for the master over a new connection.
    FindMaster,
    /// The connection broke: repeat the step over a new one.
    Reconnect,
}

// Older servers put what a command within a script answered into the text of another error.
fn says(error: &RedisError, code: &str) -> bool {
    error.code() == Some(code)
        || error
            .detail()
            .is_some_and(|detail| detail.contains(&format!("-{code} ")))
}

/// What follows from an error.
pub(super) fn next(error: &RedisError) -> Next {
    if says(error, "NOSCRIPT") {
        Next::SendScript
    } else if says(error, "READONLY") {
        Next::FindMaster
    } else if error.is_io_error() || error.kind() == ErrorKind::Parse {
        Next::Reconnect
    } else {
        Next::Fail
    }
}

/// Server errors after which nothing was written, and which pass.
const PASSING: [&str; 8] = [
    "LOADING",
    "BUSY",
    "TRYAGAIN",
    "CLUSTERDOWN",
    "MASTERDOWN",
    "NOREPLICAS",
    "READONLY",
    "ASK",
];

/// Server errors that somebody must mend.
const SETTINGS: [&str; 6] = [
    "NOAUTH",
    "WRONGPASS",
    "NOPERM",
    "CROSSSLOT",
    "DENIED",
    "NOPROTO",
];

/// The error for a caller whose step was sent; `before` says that it had been sent once before, and
/// got no answer.
pub(super) fn sent(error: RedisError, effect: Effect, before: bool) -> StoreError {
    let (kind, message) = meaning(&error, effect);
    let error = StoreError::new(kind, message).with_source(error);
    doubtful(error, before && effect == Effect::Write)
}

/// The error for a caller whose step was never sent, as there was no connection.
pub(super) fn unsent(error: RedisError) -> StoreError {
    if let Some(objection) = privacy::objection(&error) {
        let message = format!("no TLS with redis (see `ca`, `cert` and `key`): {objection}");
        return StoreError::new(StoreErrorKind::Config, message).with_source(error);
    }
    let (kind, message) = match meaning(&error, Effect::Read) {
        (StoreErrorKind::Config, message) => (StoreErrorKind::Config, message),
        (_, message) => (
            StoreErrorKind::NotApplied,
            format!("there is no connection to redis: {message}"),
        ),
    };
    StoreError::new(kind, message).with_source(error)
}

/// Whether it is about a server that is a replica.
pub(super) fn is_replica(error: &StoreError) -> bool {
    std::error::Error::source(error)
        .and_then(|source| source.downcast_ref::<RedisError>())
        .is_some_and(|error| says(error, "READONLY"))
}

fn meaning(error: &RedisError, effect: Effect) -> (StoreErrorKind, String) {
    let one_of = |codes: &[&'static str]| codes.iter().find(|code| says(error, code)).copied();
    if let Some(code) = one_of(&["OOM", "MISCONF"]) {
        let why = match code {
            "OOM" => "has no memory left (its setting maxmemory)",
            _ => "cannot write to its disk (MISCONF)",
        };
        return (
            StoreErrorKind::Capacity,
            format!("redis {why}, and refuses writes"),
        );
    }
    if let Some(code) = one_of(&PASSING) {
        let message = format!("redis refuses the step for now ({code})");
        return (StoreErrorKind::NotApplied, message);
    }
    // What a command within a script was not allowed to do has no code of its own.
    let within = error
        .detail()
        .is_some_and(|detail| detail.contains("The user executing the script can't"));
    if let Some(code) = one_of(&SETTINGS).or(within.then_some("NOPERM")) {
        let message = match code {
            "NOPERM" => {
                "redis does not allow its user one of the commands, keys or channels that are \
                 needed: docs/stores/redis.md lists them (NOPERM)"
            }
            "CROSSSLOT" => "redis takes one key per script for several (CROSSSLOT)",
            "DENIED" => "redis is in protected mode: give it a password, or turn it off (DENIED)",
            _ => "redis refuses the user name and password of the URL, or wants some",
        };
        return (StoreErrorKind::Config, message.into());
    }
    if says(error, "WRONGTYPE") {
        return (
            StoreErrorKind::Corrupt,
            "a key of the prefix holds no record of this version".into(),
        );
    }
    match error.kind() {
        ErrorKind::AuthenticationFailed => (
            StoreErrorKind::Config,
            "redis refuses the user name and password of the URL, or wants some".into(),
        ),
        ErrorKind::Server(ServerErrorKind::Moved) => (
            StoreErrorKind::Config,
            "the server is a node of a Cluster: open it as redis-cluster://".into(),
        ),
        ErrorKind::InvalidClientConfig | ErrorKind::RESP3NotSupported => (
            StoreErrorKind::Config,
            "the connection to redis cannot be made as asked".into(),
        ),
        ErrorKind::ClusterConnectionNotFound => (
            StoreErrorKind::NotApplied,
            "no node of the cluster can be reached".into(),
        ),
        kind => {
            let what = match kind {
                ErrorKind::Io => "the connection to redis broke",
                ErrorKind::Parse => "redis answered something that is not its protocol",
                _ => "redis answered an error that is not known",
            };
            match effect {
                Effect::Read => (StoreErrorKind::NotApplied, what.into()),
                Effect::Write => (
                    StoreErrorKind::Unknown,
                    format!("{what}; the step may have happened"),
                ),
            }
        }
    }
}
