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

const FOR_NOW: &str = "redis refuses the step for now";
const LOGIN: &str = "redis refuses the user name and password of the URL, or wants some";
const CLUSTER: &str = "the server is a node of a Cluster: open it as redis-cluster://";

/// What the codes of server errors mean. After none of them anything was written.
const CODES: [(&str, StoreErrorKind, &str); 17] = {
    use StoreErrorKind::{Capacity, Config, Corrupt, NotApplied};
    const MEMORY: &str = "redis has no memory left (its setting maxmemory), and refuses writes";
    const DISK: &str = "redis cannot write to its disk, and refuses writes";
    const NOT_ALLOWED: &str = "redis does not allow its user one of the commands, keys or channels that \
                               are needed: docs/stores/redis.md lists them";
    const PROTECTED: &str = "redis is in protected mode: give it a password, or turn it off";
    const NO_RECORD: &str = "a key of the prefix holds no record of this version";
    [
        ("OOM", Capacity, MEMORY),
        ("MISCONF", Capacity, DISK),
        // These pass.
        ("LOADING", NotApplied, FOR_NOW),
        ("BUSY", NotApplied, FOR_NOW),
        ("TRYAGAIN", NotApplied, FOR_NOW),
        ("CLUSTERDOWN", NotApplied, FOR_NOW),
        ("MASTERDOWN", NotApplied, FOR_NOW),
        ("NOREPLICAS", NotApplied, FOR_NOW),
        ("READONLY", NotApplied, FOR_NOW),
        ("ASK", NotApplied, FOR_NOW),
        // These somebody must mend.
        ("NOAUTH", Config, LOGIN),
        ("WRONGPASS", Config, LOGIN),
        ("NOPERM", Config, NOT_ALLOWED),
        (
            "CROSSSLOT",
            Config,
            "redis takes one key per script for several",
        ),
        ("DENIED", Config, PROTECTED),
        ("NOPROTO", Config, LOGIN),
        ("WRONGTYPE", Corrupt, NO_RECORD),
    ]
};

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
    use StoreErrorKind::{Config, NotApplied, Unknown};

    // What a command within a script was not allowed to do has no code of its own.
    let within = error
        .detail()
        .is_some_and(|detail| detail.contains("The user executing the script can't"));
    let is_it = |code| says(error, code) || (within && code == "NOPERM");
    if let Some((code, kind, message)) = CODES.into_iter().find(|(code, ..)| is_it(code)) {
        return (kind, format!("{message} ({code})"));
    }
    let (kind, message) = match error.kind() {
        ErrorKind::AuthenticationFailed => (Config, LOGIN),
        ErrorKind::Server(ServerErrorKind::Moved) => (Config, CLUSTER),
        ErrorKind::InvalidClientConfig | ErrorKind::RESP3NotSupported => {
            (Config, "the connection to redis cannot be made as asked")
        }
        ErrorKind::ClusterConnectionNotFound => {
            (NotApplied, "no node of the cluster can be reached")
        }
        ErrorKind::Io => (Unknown, "the connection to redis broke"),
        ErrorKind::Parse => (Unknown, "redis answered something that is not its protocol"),
        _ => (Unknown, "redis answered an error that is not known"),
    };
    match (kind, effect) {
        (Unknown, Effect::Write) => (kind, format!("{message}; the step may have happened")),
        (Unknown, Effect::Read) => (NotApplied, message.into()),
        _ => (kind, message.into()),
    }
}
