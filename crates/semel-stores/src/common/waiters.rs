//! Who waits in this process, and how a wait goes on a store that pushes, or does not. A look is
//! shared: a thousand who wait for one record cost the store as much as one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use semel::store::{Fence, Result, Waited};
use semel::{IdentityDigest, StoreError, StoreErrorKind};
use tokio::sync::{self, watch};
use tokio::time::{Instant, sleep, timeout_at};

/// How long another's look is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

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
    waiting: Mutex<HashMap<IdentityDigest, Watched>>,
}

/// What those who wait for one record share.
struct Watched {
    /// How many there are.
    waiters: usize,
    /// When they were woken last.
    wakes: watch::Sender<Instant>,
    looks: Arc<Looks>,
}

/// Who holds the turn looks, and tells all others at once: handed from one to the next, a thousand turns
/// would take as many switches between threads.
#[derive(Default)]
struct Looks {
    latest: watch::Sender<Option<Looked>>,
    turn: sync::Mutex<()>,
}

/// The latest look.
struct Looked {
    fence: Fence,
    begun: Instant,
    ended: Instant,
    found: std::result::Result<Running, (StoreErrorKind, Box<str>)>,
}

impl Waiters {
    /// Wakes who waits for this record.
    #[allow(dead_code, reason = "not every store pushes")]
    pub(crate) fn wake(&self, identity: &IdentityDigest) {
        if let Some(watched) = self.waiting.lock().get(identity) {
            watched.wakes.send_replace(Instant::now());
        }
    }

    /// Wakes all: pushes may have been lost, everybody looks again.
    #[allow(dead_code, reason = "not every store pushes")]
    pub(crate) fn wake_all(&self) {
        for watched in self.waiting.lock().values() {
            watched.wakes.send_replace(Instant::now());
        }
    }

    /// Whether nobody waits.
    #[cfg(feature = "nats")]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty()
    }

    /// Waits until `look` no longer finds the record in flight under `fence`, or `timeout` has passed.
    /// Looks at once, after each wake, and as often as `poll` says; or another waiter does, since.
    ///
    /// Nothing is lost between: the waiter is known to [`wake`](Self::wake) before it first looks.
    pub(crate) async fn wait<L>(
        self: &Arc<Self>,
        identity: &IdentityDigest,
        fence: Fence,
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
        // Looks that began before this know nothing of what is asked for.
        let mut since = now;
        loop {
            since = since.max(*waiter.wakes.borrow_and_update());
            let looked = waiter.look(fence, since, &mut look).await?;
            let next = match looked.running {
                Running::No => return Ok(Waited::Changed),
                Running::Yes => pauses.next(),
                Running::Unheard => unheard.next(),
            };
            let pause = next.unwrap_or(poll.longest);
            let next = (looked.ended + pause).min(end);
            since = looked.begun + Duration::from_nanos(1);
            // The sender lives as long as this receiver: `changed` cannot fail.
            let pushed = timeout_at(next, waiter.wakes.changed()).await.is_ok();
            if !pushed && Instant::now() >= end {
                return Ok(Waited::TimedOut);
            }
        }
    }

    fn register(self: &Arc<Self>, identity: &IdentityDigest) -> Waiter {
        let mut waiting = self.waiting.lock();
        let watched = waiting.entry(*identity).or_insert_with(|| Watched {
            waiters: 0,
            wakes: watch::Sender::new(Instant::now()),
            looks: Arc::default(),
        });
        watched.waiters += 1;
        Waiter {
            wakes: watched.wakes.subscribe(),
            looks: Arc::clone(&watched.looks),
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
    wakes: watch::Receiver<Instant>,
    looks: Arc<Looks>,
    identity: IdentityDigest,
    waiters: Arc<Waiters>,
}

/// A look that found something.
struct Found {
    running: Running,
    begun: Instant,
    ended: Instant,
}

impl Looked {
    fn found(&self) -> Result<Found> {
        match &self.found {
            Ok(running) => Ok(Found {
                running: *running,
                begun: self.begun,
                ended: self.ended,
            }),
            Err((kind, text)) => Err(StoreError::new(*kind, text.clone())),
        }
    }
}

impl Waiter {
    /// What was found by a look that began at `since` or later: another waiter's, or one of its own. An
    /// error is shared too, so that a store that is down makes nobody wait in line for it.
    async fn look<L>(
        &self,
        fence: Fence,
        since: Instant,
        look: &mut impl FnMut() -> L,
    ) -> Result<Found>
    where
        L: Future<Output = Result<Running>>,
    {
        let Looks { latest, turn } = &*self.looks;
        let is_it = |looked: &Looked| looked.fence == fence && looked.begun >= since;
        let mut told = latest.subscribe();
        let turn = tokio::select! {
            biased;
            _ = told.wait_for(|looked| looked.as_ref().is_some_and(is_it)) => None,
            turn = turn.lock() => Some(turn),
            // One that nobody polls any more holds up nobody for long.
            () = sleep(PATIENCE) => None,
        };
        // The one before may have told this moment.
        if let Some(looked) = latest.borrow().as_ref().filter(|looked| is_it(looked)) {
            return looked.found();
        }
        let begun = Instant::now();
        let found = look().await;
        let ended = Instant::now();
        let shared = match &found {
            Ok(running) => Ok(*running),
            Err(error) => Err((error.kind(), error.to_string().into())),
        };
        if turn.is_some() {
            latest.send_replace(Some(Looked {
                fence,
                begun,
                ended,
                found: shared,
            }));
        }
        Ok(Found {
            running: found?,
            begun,
            ended,
        })
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut waiting = self.waiters.waiting.lock();
        if let Entry::Occupied(mut watched) = waiting.entry(self.identity) {
            watched.get_mut().waiters -= 1;
            if watched.get().waiters == 0 {
                watched.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use tokio::time::timeout;

    use super::*;

    const WAITERS: usize = 1000;

    /// A thousand who wait, on a store that takes a millisecond to look and finds what `found` says.
    struct Crowd {
        waiters: Arc<Waiters>,
        looks: Arc<AtomicUsize>,
        waiting: Vec<tokio::task::JoinHandle<Result<Waited>>>,
    }

    impl Crowd {
        fn new(
            poll: Poll,
            found: impl Fn() -> Result<Running> + Clone + Send + Sync + 'static,
        ) -> Self {
            let (waiters, looks) = (Arc::new(Waiters::default()), Arc::default());
            let waiting = (0..WAITERS).map(|_| {
                let (waiters, found) = (Arc::clone(&waiters), found.clone());
                let looks: Arc<AtomicUsize> = Arc::clone(&looks);
                tokio::spawn(async move {
                    let look = || async {
                        looks.fetch_add(1, SeqCst);
                        let found = found();
                        sleep(Duration::from_millis(1)).await;
                        found
                    };
                    let (id, timeout) = (id(), Duration::from_mins(1));
                    waiters.wait(&id, Fence(7), timeout, poll, look).await
                })
            });
            let waiting = waiting.collect();
            Self {
                waiters,
                looks,
                waiting,
            }
        }
    }

    fn id() -> IdentityDigest {
        IdentityDigest::from_hex(&"0a".repeat(32)).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_thousand_who_wait_look_as_often_as_one() {
        let (running, done) = (Arc::new(Mutex::new(Running::Yes)), Running::No);
        let found = Arc::clone(&running);
        let crowd = Crowd::new(Poll::ONLY, move || Ok(*found.lock()));
        sleep(Duration::from_secs(10)).await;
        // At once, after pauses that double to half a second, and then more than once a second.
        let looks = crowd.looks.swap(0, SeqCst);
        assert!((20..40).contains(&looks), "{looks}");
        *running.lock() = done;
        crowd.waiters.wake(&id());
        for waiter in crowd.waiting {
            assert_eq!(waiter.await.unwrap().unwrap(), Waited::Changed);
        }
        assert_eq!(crowd.looks.load(SeqCst), 1);
        assert!(crowd.waiters.waiting.lock().is_empty());
    }

    /// A look that was under way when they were woken may have seen what was before.
    #[tokio::test(start_paused = true)]
    async fn who_is_woken_during_a_look_looks_again() {
        let running = Arc::new(Mutex::new(Running::Yes));
        let found = Arc::clone(&running);
        let crowd = Crowd::new(Poll::BACKSTOP, move || Ok(*found.lock()));
        sleep(Duration::from_micros(500)).await;
        *running.lock() = Running::No;
        crowd.waiters.wake(&id());
        let began = Instant::now();
        for waiter in crowd.waiting {
            assert_eq!(waiter.await.unwrap().unwrap(), Waited::Changed);
        }
        assert!(began.elapsed() < Duration::from_millis(5));
        assert_eq!(crowd.looks.load(SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_is_all_of_theirs() {
        let down = || Err(StoreError::new(StoreErrorKind::NotApplied, "down"));
        let crowd = Crowd::new(Poll::BACKSTOP, down);
        for waiter in crowd.waiting {
            let error = waiter.await.unwrap().unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::NotApplied);
        }
        assert_eq!(crowd.looks.load(SeqCst), 1);
    }

    /// A caller may stop polling in the middle of its look.
    #[tokio::test(start_paused = true)]
    async fn who_is_not_polled_any_more_holds_up_nobody() {
        let waiters = Arc::new(Waiters::default());
        let (id, patience) = (id(), Duration::from_mins(1));
        let never = std::future::pending::<Result<Running>>;
        let mut stuck = Box::pin(waiters.wait(&id, Fence(7), patience, Poll::ONLY, never));
        tokio::select! {
            biased;
            _ = &mut stuck => panic!("nothing was found"),
            () = std::future::ready(()) => {}
        }
        let done = || std::future::ready(Ok(Running::No));
        let found = waiters.wait(&id, Fence(7), patience, Poll::ONLY, done);
        let found = timeout(PATIENCE * 2, found).await.unwrap();
        assert_eq!(found.unwrap(), Waited::Changed);
    }

    #[test]
    fn who_leaves_last_leaves_nothing_behind() {
        let waiters = Arc::new(Waiters::default());
        let (one, other) = (waiters.register(&id()), waiters.register(&id()));
        // As where both leave at the same moment: neither receiver is gone yet.
        let leaving = one.wakes.clone();
        drop((one, other));
        assert!(waiters.waiting.lock().is_empty());
        drop(leaving);
    }
}
