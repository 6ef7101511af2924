//! How many files and connections the process may have open, and who gets them.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What the store, the log, name lookups and the operators' listener are left.
const LEAST_RESERVE: usize = 32;
const MOST_RESERVE: usize = 1024;

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

/// Who may have how many connections, so that the store always finds a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// Connections of clients.
    pub connections: usize,
    /// Attempts.
    pub attempts: usize,
    /// Requests on their way to the upstream, with a key or without.
    pub requests: usize,
}

impl Shares {
    /// Shares `files` descriptors among what is asked for. A quarter stays in reserve, 1024 at most;
    /// of the rest clients get no more than leaves room for `attempts`, or a half.
    pub fn of(files: usize, connections: usize, attempts: usize) -> Self {
        let usable = files.saturating_sub((files / 4).clamp(LEAST_RESERVE, MOST_RESERVE));
        let for_requests = attempts.min(usable / 2);
        let connections = connections.min(usable - for_requests).max(1);
        let requests = usable.saturating_sub(connections).max(1);
        Self {
            connections,
            attempts: attempts.min(requests),
            requests,
        }
    }

    /// How many descriptors it takes for what is asked for.
    pub const fn wanted(connections: usize, attempts: usize) -> usize {
        connections
            .saturating_add(attempts)
            .saturating_add(MOST_RESERVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_is_left_and_neither_side_starves() {
        let shares = |files, connections, attempts| {
            let shares = Shares::of(files, connections, attempts);
            (shares.connections, shares.requests)
        };
        assert_eq!(shares(256, 10_000, 1024), (96, 96));
        assert_eq!(shares(1024, 10_000, 1024), (384, 384));
        assert_eq!(shares(4096, 10_000, 1024), (2048, 1024));
        assert_eq!(shares(1 << 20, 10_000, 1024), (10_000, 1_037_552));
        assert_eq!(shares(1 << 20, 100, 8), (100, 1_047_452));
        assert_eq!(shares(256, 10, 4), (10, 182));
        assert_eq!(shares(0, 10, 4), (1, 1));
        let enough = Shares::wanted(10_000, 1024);
        assert_eq!(shares(enough, 10_000, 1024), (10_000, 1024));
    }
}
