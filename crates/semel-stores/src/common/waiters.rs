//! Who waits in this process, and how a wait goes on a store that pushes, or does not.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use semel::IdentityDigest;
use semel::store::{Result, Waited};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// How often a waiter looks by itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Poll {
    first: Duration,
    longest: Duration,
}

impl Poll {
    /// For a store that pushes: looks in case a push was lost.
    #[allow(dead_code, reason = "not every store pushes")]
    pub(crate) const BACKSTOP: Self = Self {
        first: Duration::from_millis(500),
        longest: Duration::from_secs(5),
    };

    /// For a store that does not: often at first, then less.
    #[allow(dead_code, reason = "some stores push")]
    pub(crate) const ONLY: Self = Self {
        first: Duration::from_millis(5),
        longest: Duration::from_millis(500),
    };

    /// For a store that is paid by the look: about ten in the first five seconds.
    #[allow(dead_code, reason = "most stores cost nothing by the look")]
    pub(crate) const PAID: Self = Self {
        first: Duration::from_millis(25),
        longest: Duration::from_secs(1),
    };

    /// Pauses that double, each shortened by up to a quarter so that waiters do not look together.
    fn pauses(self) -> impl Iterator<Item = Duration> {
        let mut next = self.first;
        std::iter::repeat_with(move || {
            let pause = next;
            next = (next * 2).min(self.longest);
            pause - pause.mul_f64(0.25 * chance())
        })
    }
}

/// A number in `[0, 1)`; not for secrets.
fn chance() -> f64 {
    use std::hash::{BuildHasher as _, RandomState};
    // Every `RandomState` has keys of its own.
    let bits = RandomState::new().hash_one(0_u8) >> 11;
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    let bits = bits as f64;
    bits / (1_u64 << 53) as f64
}

/// The waiters of one process, by record.
#[derive(Default)]
pub(crate) struct Waiters {
    waiting: Mutex<HashMap<IdentityDigest, watch::Sender<()>>>,
}

impl Waiters {
    /// Wakes who waits for this record.
    #[allow(dead_code, reason = "not every store pushes")]
    pub(crate) fn wake(&self, identity: &IdentityDigest) {
        if let Some(sender) = self.waiting.lock().get(identity) {
            sender.send_replace(());
        }
    }

    /// Wakes all: pushes may have been lost, everybody looks again.
    #[allow(dead_code, reason = "not every store pushes")]
    pub(crate) fn wake_all(&self) {
        for sender in self.waiting.lock().values() {
            sender.send_replace(());
        }
    }

    /// Waits until `look` no longer finds the record in flight, or `timeout` has passed. Looks at
    /// once, after each wake, and as often as `poll` says.
    ///
    /// Nothing is lost between: the waiter is known to [`wake`](Self::wake) before it first looks.
    pub(crate) async fn wait<L>(
        self: &Arc<Self>,
        identity: &IdentityDigest,
        timeout: Duration,
        poll: Poll,
        mut look: impl FnMut() -> L,
    ) -> Result<Waited>
    where
        L: Future<Output = Result<Running>>,
    {
        let now = Instant::now();
        // A timeout beyond what an instant can say is as good as a year.
        let end = now
            .checked_add(timeout)
            .unwrap_or(now + Duration::from_hours(24 * 365));
        let mut waiter = self.register(identity);
        let (mut pauses, mut unheard) = (poll.pauses(), Poll::ONLY.pauses());
        loop {
            waiter.wakes.mark_unchanged();
            let next = match look().await? {
                Running::No => return Ok(Waited::Changed),
                Running::Yes => pauses.next(),
                Running::Unheard => unheard.next(),
            };
            let pause = next.unwrap_or(poll.longest);
            let next = (Instant::now() + pause).min(end);
            // The sender lives as long as this receiver: `changed` cannot fail.
            let pushed = timeout_at(next, waiter.wakes.changed()).await.is_ok();
            if !pushed && Instant::now() >= end {
                return Ok(Waited::TimedOut);
            }
        }
    }

    fn register(self: &Arc<Self>, identity: &IdentityDigest) -> Waiter {
        let mut waiting = self.waiting.lock();
        let sender = waiting
            .entry(*identity)
            .or_insert_with(|| watch::Sender::new(()));
        Waiter {
            wakes: sender.subscribe(),
            identity: *identity,
            waiters: self.clone(),
        }
    }
}

/// Whether the attempt that is waited for still runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Running {
    /// The record is in flight under the fence asked for.
    Yes,
    /// The same, and its end may not be pushed: polls, however well the store pushes otherwise.
    #[allow(dead_code, reason = "not every store pushes")]
    Unheard,
    /// It is not, or there is none.
    No,
}

struct Waiter {
    wakes: watch::Receiver<()>,
    identity: IdentityDigest,
    waiters: Arc<Waiters>,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut waiting = self.waiters.waiting.lock();
        let last = waiting
            .get(&self.identity)
            // This receiver is still counted.
            .is_some_and(|sender| sender.receiver_count() <= 1);
        if last {
            waiting.remove(&self.identity);
        }
    }
}
