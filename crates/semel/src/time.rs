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
#[expect(
    clippy::disallowed_methods,
    reason = "not a store's clock: it decides nothing"
)]
pub(crate) fn wall_nanos() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos())
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
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place where a store's clock reads the machine's"
    )]
    pub fn not_before(floor: Timestamp) -> Self {
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(Timestamp::default(), |d| Timestamp(micros(d)));
        Self {
            origin: wall.max(floor),
            started: Instant::now(),
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
