//! The server's time, as far as this process can know it.
//!
//! NATS has no call for its time. Every consumer that is made says when it was made, by the
//! server's clock: that instant lies between the request and its answer. Between such samples
//! time goes on with this machine's monotonic clock. No lease is decided by it.
//!
//! It may be late, by as much as an answer was under way, and is never early, as far as the server's clock
//! does not step back: a retention that ends late loses nothing. A record is settled
//! no earlier than its message was stored: see [`frame`](super::frame).

use std::time::Duration;

use parking_lot::Mutex;
use semel::Timestamp;
use tokio::time::Instant;

pub(super) struct ServerClock(Mutex<Mark>);

/// What the server said once, and when that was known.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    time: Timestamp,
    at: Instant,
}

impl Mark {
    /// The server has just said that its clock had reached `time`. How long ago is not known: a server
    /// that stood still reads its clock when it goes on, after seconds of waiting.
    pub(super) fn new(time: Timestamp) -> Self {
        let at = Instant::now();
        Self { time, at }
    }

    /// The time now. Not early, unless the server's clock stepped back since.
    pub(super) fn now(self) -> Timestamp {
        self.at(Instant::now())
    }

    fn at(self, instant: Instant) -> Timestamp {
        self.time.after(instant.saturating_duration_since(self.at))
    }
}

impl ServerClock {
    pub(super) fn new(mark: Mark) -> Self {
        Self(Mutex::new(mark))
    }

    pub(super) fn now(&self) -> Timestamp {
        let mark = *self.0.lock();
        mark.now()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_never_early_however_long_an_answer_took() {
        let began = Instant::now();
        let server = || Timestamp::from_micros(1_000_000_000).after(began.elapsed());
        let pause = || tokio::time::sleep(Duration::from_secs(3));

        // The server stood still, and read its clock just before it answered.
        pause().await;
        let clock = ServerClock::new(Mark::new(server()));
        assert_eq!(clock.now(), server());

        // It read it, and then stood still.
        let (asked, read) = (Instant::now(), server());
        pause().await;
        let late = ServerClock::new(Mark::new(read));
        late.sample(read, asked);
        assert!(late.now() <= server());

        // It stood still, and read it at the end.
        let asked = Instant::now();
        pause().await;
        late.sample(server(), asked);
        assert_eq!(late.now(), server());

        // What it is seen to have stored puts that right.
        let late = ServerClock::new(Mark::new(read));
        late.reached(server());
        assert_eq!(late.now(), server());
        pause().await;
        assert_eq!((clock.now(), late.now()), (server(), server()));
    }
}
