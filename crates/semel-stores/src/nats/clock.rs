//! The server's time, as far as this process can know it.
//!
//! NATS has no call for its time. Every consumer that is made says when it was made, by the
//! server's clock: that instant lies between the request and its answer. Between such samples
//! time goes on with this machine's monotonic clock. No lease is decided by it.
//!
//! It may be late, by as much as an answer was under way, or as that clock was set forward since, or this
//! machine slept. It is early only where that clock was set back since: a retention that ends late loses
//! nothing. Both end with the next sample, for which the first step asks that comes [so long](EVERY) after the
//! last. A record is settled no earlier than its message was stored: see [`frame`](super::frame).

use std::time::Duration;

use parking_lot::Mutex;
use semel::Timestamp;
use tokio::time::Instant;

/// How often the server is asked by what uses its time. Where a purge runs each minute, that asks.
const EVERY: Duration = Duration::from_secs(90);

pub(super) struct ServerClock(Mutex<Known>);

#[derive(Clone, Copy)]
struct Known {
    /// What is taken for the time.
    taken: Mark,
    /// It was no later than this when it was asked for last.
    latest: Mark,
    asked: Instant,
    /// When it was asked last, whether it answered or not.
    tried: Instant,
}

/// A time of the server's, and when it was that.
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
        self.time.after(self.at.elapsed())
    }
}

/// Asked for the first time before anything goes by it.
impl Default for ServerClock {
    fn default() -> Self {
        let never = Mark::new(Timestamp::default());
        Self(Mutex::new(Known {
            taken: never,
            latest: never,
            asked: never.at,
            tried: never.at,
        }))
    }
}

impl ServerClock {
    pub(super) fn now(&self) -> Timestamp {
        let taken = self.0.lock().taken;
        taken.now()
    }

    /// Whether somebody has to ask the server again: the one who is told so.
    pub(super) fn is_due(&self) -> bool {
        let mut known = self.0.lock();
        let is_due = known.tried.elapsed() >= EVERY;
        if is_due {
            known.tried = Instant::now();
        }
        is_due
    }

    /// The server read its clock as `time` at some moment since `asked`: where this clock is not
    /// within what that allows, it is moved there. Answers may come in another order than questions.
    pub(super) fn sample(&self, time: Timestamp, asked: Instant) {
        let mut known = self.0.lock();
        if asked < known.asked {
            return;
        }
        let taken = known.taken.now();
        let latest = Mark::new(time.after(asked.elapsed()));
        // Where it was set back, the clock before it says nothing, and the earliest does no harm.
        let (taken, latest) = if taken > latest.time {
            (Mark::new(time), Mark::new(time))
        } else {
            (Mark::new(taken.max(time)), latest)
        };
        *known = Known {
            taken,
            latest,
            asked,
            tried: known.tried.max(asked),
        };
    }

    /// A message was stored at `time`: the server's clock had reached it, unless it was set back since. So
    /// this clock moves no further than it can be by what was said last.
    pub(super) fn reached(&self, time: Timestamp) {
        let mut known = self.0.lock();
        let time = time.min(known.latest.now());
        if known.taken.now() < time {
            known.taken = Mark::new(time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_never_early_however_long_an_answer_took() {
        let [clock, late, last] = [(); 3].map(|()| ServerClock::default());
        let began = Instant::now();
        let server = || Timestamp::from_micros(1_000_000_000).after(began.elapsed());
        let pause = || tokio::time::sleep(Duration::from_secs(3));

        // The server stood still, and read its clock just before it answered.
        let asked = Instant::now();
        pause().await;
        clock.sample(server(), asked);
        assert_eq!(clock.now(), server());

        // It read it, and then stood still.
        let (asked, read) = (Instant::now(), server());
        pause().await;
        late.sample(read, asked);
        assert!(late.now() <= server());

        // It stood still, and read it at the end.
        let asked_again = Instant::now();
        pause().await;
        late.sample(server(), asked_again);
        assert_eq!(late.now(), server());

        // What it is seen to have stored puts that right.
        last.sample(read, asked);
        last.reached(server());
        assert_eq!(last.now(), server());
        pause().await;
        assert_eq!((clock.now(), last.now()), (server(), server()));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_stored_before_the_servers_clock_was_set_back_moves_nothing() {
        let at = |seconds: u64| Timestamp::from_micros(seconds * 1_000_000);
        let begun = Instant::now();
        let clock = ServerClock::default();
        clock.sample(at(4600), begun);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let asked = Instant::now();
        // The server stood still before it read its clock.
        tokio::time::sleep(Duration::from_secs(3)).await;
        clock.sample(at(1000), asked);
        clock.reached(at(4599));
        assert_eq!(clock.now(), at(1000));
        // It goes on, and no faster.
        tokio::time::sleep(Duration::from_secs(5)).await;
        clock.reached(at(4599));
        assert_eq!(clock.now(), at(1005));
        // An answer that was under way for long says nothing of what came since.
        clock.sample(at(4600), begun);
        assert_eq!(clock.now(), at(1005));
    }

    #[tokio::test(start_paused = true)]
    async fn one_asks_again_after_a_while() {
        let time = Timestamp::from_micros(1_000_000_000);
        let clock = ServerClock::default();
        clock.sample(time, Instant::now());
        tokio::time::sleep(EVERY - Duration::from_secs(1)).await;
        assert!(!clock.is_due());
        clock.sample(time, Instant::now());
        tokio::time::sleep(EVERY).await;
        assert!(clock.is_due());
        // It may not answer.
        assert!(!clock.is_due());
        tokio::time::sleep(EVERY).await;
        assert!(clock.is_due());
    }
}
