//! How many files and connections the process may have open, and who gets them.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What the store, the log, name lookups and the operators' listener are left.
const LEAST_RESERVE: usize = 32;
const MOST_RESERVE: usize = 1024;
/// Connections to the operators' listener that come out of that.
pub(crate) const OPERATORS: usize = 16;

/// How many may listen to live events where connections are many.
const LISTENERS: usize = 64;

/// Raises the limit of open files as far as the process may, and says what it is then.
pub fn raise() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let current = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(error) => {
            tracing::warn!("the limit of open files cannot be raised: {error}");
            limit.current
        }
    };
    current.map_or(usize::MAX, |files| files.try_into().unwrap_or(usize::MAX))
}

/// How many connections operators and the clients of the claim API may have, of `files` descriptors,
/// where so many of their calls may wait.
pub fn for_operators(files: usize, waiting: usize) -> usize {
    let wanted = waiting.saturating_mul(2).saturating_add(64);
    // Few where there are few; of many, what is asked for.
    let most = (files / 16).max(files.saturating_sub(4096) / 4);
    wanted.min(most).max(OPERATORS)
}

/// How many may listen to live events on so many connections: others find room, too, also where as many
/// wait as may.
pub fn for_listening(for_operators: usize) -> usize {
    LISTENERS.min(for_operators / 4)
}

/// How many calls may wait on so many connections: those who would end a wait find room, too.
pub fn for_waiting(for_operators: usize, waiting: usize) -> usize {
    waiting
        .min(for_operators.saturating_sub(OPERATORS) / 2)
        .max(1)
}

/// Who may have how many connections, so that the store always finds a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// Connections of clients.
    pub connections: usize,
    /// Attempts.
    pub attempts: usize,
    /// Requests without a key on their way to the upstream.
    pub unkeyed: usize,
}

impl Shares {
    /// Shares `files` descriptors among what is asked for. A quarter stays in reserve, 1024 at most;
    /// of the rest clients get no more than leaves room for `attempts` and as many requests without a
    /// key, or a half. Neither of these two takes the other's.
    pub fn of(files: usize, connections: usize, attempts: usize) -> Self {
        let usable = files.saturating_sub((files / 4).clamp(LEAST_RESERVE, MOST_RESERVE));
        let for_requests = attempts.saturating_mul(2).min(usable / 2);
        let connections = connections.min(usable - for_requests).max(1);
        let requests = usable.saturating_sub(connections);
        let attempts = attempts.min(requests / 2).max(1);
        Self {
            connections,
            attempts,
            unkeyed: requests.saturating_sub(attempts).max(1),
        }
    }

    /// How many descriptors it takes for what is asked for.
    pub const fn wanted(connections: usize, attempts: usize) -> usize {
        connections
            .saturating_add(attempts.saturating_mul(2))
            .saturating_add(MOST_RESERVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_may_wait_where_files_are_many() {
        for (files, connections, waiting, listening) in [
            (256, 16, 1, 4),
            (1024, 64, 24, 16),
            (20_000, 2112, 1024, 64),
            (1 << 20, 2112, 1024, 64),
        ] {
            let operators = for_operators(files, 1024);
            let found = (
                operators,
                for_waiting(operators, 1024),
                for_listening(operators),
            );
            assert_eq!(found, (connections, waiting, listening), "{files}");
            assert!(waiting + listening < connections);
        }
    }

    #[test]
    fn a_reserve_is_left_and_neither_side_starves() {
        let shares = |files, connections, attempts| {
            let shares = Shares::of(files, connections, attempts);
            (shares.connections, shares.attempts, shares.unkeyed)
        };
        assert_eq!(shares(256, 10_000, 1024), (96, 48, 48));
        assert_eq!(shares(1024, 10_000, 1024), (384, 192, 192));
        assert_eq!(shares(4096, 10_000, 1024), (1536, 768, 768));
        assert_eq!(shares(8192, 10_000, 1024), (5120, 1024, 1024));
        assert_eq!(shares(1 << 20, 10_000, 1024), (10_000, 1024, 1_036_528));
        assert_eq!(shares(1 << 20, 100, 8), (100, 8, 1_047_444));
        assert_eq!(shares(256, 10, 4), (10, 4, 178));
        assert_eq!(shares(0, 10, 4), (1, 1, 1));
        let enough = Shares::wanted(10_000, 1024);
        assert_eq!(shares(enough, 10_000, 1024), (10_000, 1024, 1024));
    }
}
