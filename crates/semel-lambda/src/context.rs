//! What a handler may know of the delivery it handles.

use std::time::Duration;

use semel::guard::AttemptInfo;
use semel::store::Fence;
use semel::{Clock as _, SystemClock, Timestamp};

use crate::envelope::Envelope;

/// When the invocation ends, by the clock of the machine that it runs on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline(Timestamp);

impl Deadline {
    /// From milliseconds since the Unix epoch, as Lambda says it.
    pub(crate) const fn from_millis(millis: u64) -> Self {
        Self(Timestamp::from_micros(millis.saturating_mul(1000)))
    }

    /// How much time is left. The wall clock is read each time: the monotonic one stops
    /// while the sandbox does.
    pub(crate) fn left(self) -> Duration {
        SystemClock::new().now().until(self.0)
    }
}

/// What a handler may know of the event that it handles, and of the attempt that it runs in.
#[derive(Debug, Clone)]
pub struct EventContext {
    envelope: Envelope,
    deadline: Deadline,
    attempt: AttemptInfo,
}

impl EventContext {
    pub(crate) const fn new(envelope: Envelope, deadline: Deadline, attempt: AttemptInfo) -> Self {
        Self {
            envelope,
            deadline,
            attempt,
        }
    }

    /// The event as it came.
    pub const fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// Grows with every attempt on the event: pass it to services that can refuse a stale one. An
    /// attempt that was frozen past its lease, with its sandbox, has a smaller one than the
    /// attempt that took its place.
    pub const fn fence(&self) -> Fence {
        self.attempt.fence
    }

    /// Which attempt on the event this is, from 1.
    pub const fn attempt(&self) -> u32 {
        self.attempt.number
    }

    /// How often the handler was run and rolled back in this attempt; 0 without a transaction.
    pub const fn retry(&self) -> u32 {
        self.attempt.retry
    }

    /// How much is left of the invocation's time.
    pub fn time_left(&self) -> Duration {
        self.deadline.left()
    }
}
