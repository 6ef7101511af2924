//! Instants of a store's clock, and the clocks of stores that live inside the process.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// An instant of a store's own clock: microseconds since the Unix epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The latest instant there is: "never".
    pub const MAX: Self = Self(u64::MAX);

    /// From microseconds since the Unix epoch.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// This instant, later by `by`; [`MAX`](Self::MAX) where it does not fit.
    #[must_use]
    pub fn after(self, by: Duration) -> Self {
        Self(self.0.saturating_add(micros(by)))
    }

    /// This instant, earlier by `by`; the epoch where it does not fit.
    #[must_use]
    pub fn before(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(micros(by)))
    }

    /// How long until `later`; zero where it has passed.
    pub fn until(self, later: Self) -> Duration {
        Duration::from_micros(later.0.saturating_sub(self.0))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}µs", self.0)
    }
}

/// The wall clock's nanoseconds, to tell copies of a process apart; no decision is made by them.
pub(crate) fn wall_nanos() -> u128 {
    wall().as_nanos()
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place where the machine's clock is read"
)]
fn wall() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}

/// Whole microseconds of a duration, at most `u64::MAX`.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The clock of a store inside the process: never goes back.
pub trait Clock: Send + Sync + 'static {
    /// The present instant; never earlier than one returned before.
    fn now(&self) -> Timestamp;
}

/// The machine's clock, made steady: it starts at the wall clock's time and advances with the
/// monotonic clock, so that a stepped wall clock neither lapses a lease nor prolongs one. It
/// follows tokio's paused time in tests.
#[derive(Debug, Clone)]
pub struct SystemClock {
    origin: Timestamp,
    started: Instant,
}

impl SystemClock {
    /// A clock that starts at the wall clock's time.
    pub fn new() -> Self {
        Self::not_before(Timestamp::default())
    }

    /// A clock that starts at the wall clock's time or at `floor`, whichever is later. A store that
    /// outlives the process passes the last instant it wrote, so that a wall clock set back
    /// between two runs cannot make time repeat.
    pub fn not_before(floor: Timestamp) -> Self {
        // A thread that loses its processor between the two reads has a clock that is wrong by as much, for as
        // long as it lives: the best of some looks.
        let look = || {
            let started = Instant::now();
            (wall(), started.elapsed(), started)
        };
        let (wall, _, started) = (0..3).fold(look(), |best, _| match look() {
            next if next.1 < best.1 => next,
            _ => best,
        });
        Self {
            origin: Timestamp(micros(wall)).max(floor),
            started,
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        self.origin.after(self.started.elapsed())
    }
}

/// A clock for tests: it moves only when it is advanced.
#[derive(Debug)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// A clock that stands at `start`.
    pub const fn new(start: Timestamp) -> Self {
        Self(AtomicU64::new(start.0))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(micros(by), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}

impl<C: Clock + ?Sized> Clock for std::sync::Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}

#[cfg(test)]
mod tests {
    use std::thread::{available_parallelism, scope};

    use super::*;

    /// Also of threads that have to share the processors, and lose them at any moment.
    #[test]
    fn clocks_of_one_machine_agree() {
        let one = SystemClock::new();
        let apart = |other: &SystemClock| {
            let expected = one.origin.after(other.started - one.started);
            expected.0.abs_diff(other.origin.0)
        };
        let threads = 8 * available_parallelism().map_or(1, std::num::NonZero::get);
        let furthest = scope(|scope| {
            let made = || (0..40_000).map(|_| apart(&SystemClock::new())).max();
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(made)).collect();
            threads.into_iter().filter_map(|t| t.join().unwrap()).max()
        });
        assert!(furthest < Some(1000), "{furthest:?} µs");
    }
}
