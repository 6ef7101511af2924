//! The one clock of a run: `CLOCK_MONOTONIC` is the same for every process of a machine, so that
//! what happened in one of them can be ordered against what happened in another.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// An instant of the machine's monotonic clock, or a length of time: nanoseconds.
pub type Nanos = u64;

/// Now.
pub fn now() -> Nanos {
    let time = clock_gettime(ClockId::Monotonic);
    let whole = u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000;
    whole + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// The length of time as nanoseconds.
pub fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds as milliseconds, for people.
pub fn millis(nanos: Nanos) -> f64 {
    (nanos / 1_000) as f64 / 1_000.0
}
