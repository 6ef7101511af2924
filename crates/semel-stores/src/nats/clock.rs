//! The server's time, as far as this process can know it.
//!
//! NATS has no call for its time. Every consumer that is made says when it was made, by the
//! server's clock: that instant lies between the request and its answer. Between such samples
//! time goes on with this machine's monotonic clock. No lease is decided by it.

use std::time::Duration;

use parking_lot::Mutex;
use semel::Timestamp;
use tokio::time::Instant;

pub(super) struct ServerClock(Mutex<Mark>);

#[derive(Clone, Copy)]
struct Mark {
    time: Timestamp,
    at: Instant,
}

impl Mark {
    fn at(self, instant: Instant) -> Timestamp {
        self.time.after(instant.saturating_duration_since(self.at))
    }
}

impl ServerClock {
    /// A clock that the server read as `time` at some moment since `asked`.
    pub(super) fn new(time: Timestamp, asked: Instant) -> Self {
        let now = Instant::now();
        Self(Mutex::new(Mark {
            time: time.after(now.duration_since(asked) / 2),
            at: now,
        }))
    }

    pub(super) fn now(&self) -> Timestamp {
        let mark = *self.0.lock();
        mark.at(Instant::now())
    }

    /// The server read its clock as `time` at some moment since `asked`: where this clock is not
    /// within what that allows, it is moved there.
    pub(super) fn sample(&self, time: Timestamp, asked: Instant) {
        let now = Instant::now();
        let trip: Duration = now.duration_since(asked);
        let mut mark = self.0.lock();
        let within = mark.at(now).clamp(time, time.after(trip));
        *mark = Mark {
            time: within,
            at: now,
        };
    }

    /// The server's clock had reached `time`.
    pub(super) fn reached(&self, time: Timestamp) {
        let now = Instant::now();
        let mut mark = self.0.lock();
        if mark.at(now) < time {
            *mark = Mark { time, at: now };
        }
    }
}
