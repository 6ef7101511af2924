//! Time that never goes back, across the processes that share a file and their restarts.

use std::sync::atomic::{AtomicU64, Ordering};

use semel::{Clock, Timestamp};

/// A process's clock, moved forward to the latest instant that any process wrote to the file.
pub(super) struct Time {
    clock: Box<dyn Clock>,
    // By how many microseconds it was found behind.
    ahead: AtomicU64,
}

impl Time {
    pub(super) fn new(clock: Box<dyn Clock>) -> Self {
        Self {
            clock,
            ahead: AtomicU64::new(0),
        }
    }

    /// The present instant, not before `latest`, which was read from the file just now. From a
    /// later instant in the file time goes on; it does not stand still until the clock is there.
    pub(super) fn now(&self, latest: Timestamp) -> Timestamp {
        let own = self.clock.now().as_micros();
        let behind = latest.as_micros().saturating_sub(own);
        let ahead = self.ahead.fetch_max(behind, Ordering::Relaxed).max(behind);
        Timestamp::from_micros(own.saturating_add(ahead))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use semel::ManualClock;

    use super::*;

    #[test]
    fn goes_on_from_a_later_instant() {
        let at = Timestamp::from_micros;
        let clock = Arc::new(ManualClock::new(at(100)));
        let time = Time::new(Box::new(clock.clone()));
        assert_eq!(time.now(at(0)), at(100));
        assert_eq!(time.now(at(150)), at(150));
        clock.advance(Duration::from_micros(10));
        assert_eq!(time.now(at(150)), at(160));
        assert_eq!(time.now(at(0)), at(160));
    }
}
