//! One seed's world: virtual time, chance, what was seen, and the trace.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::future::pending;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fastrand::Rng;
use parking_lot::Mutex;
use semel::{Clock, Timestamp};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

/// What a seed's tasks share.
#[derive(Clone)]
pub(super) struct World(Arc<Inner>);

struct Inner {
    chance: Mutex<Rng>,
    trace: Option<Mutex<String>>,
    wrong: Mutex<Vec<String>>,
    counts: Mutex<BTreeMap<&'static str, u64>>,
    steps: AtomicU32,
    begun: Instant,
}

/// What came of a seed.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Seen {
    /// What is wrong.
    pub wrong: Vec<String>,
    /// How often what happened.
    pub counts: BTreeMap<&'static str, u64>,
    /// How much virtual time passed.
    pub passed: Duration,
    /// What happened, line by line, where it was asked for.
    pub trace: String,
}

/// More calls than this in one seed are a loop without end.
const MOST_STEPS: u32 = 50_000;

impl World {
    /// To be made inside the seed's runtime.
    pub(super) fn new(seed: u64, traced: bool) -> Self {
        Self(Arc::new(Inner {
            chance: Mutex::new(Rng::with_seed(seed)),
            trace: traced.then(Mutex::default),
            wrong: Mutex::default(),
            counts: Mutex::default(),
            steps: AtomicU32::new(0),
            begun: Instant::now(),
        }))
    }

    pub(super) fn seen(&self) -> Seen {
        Seen {
            wrong: self.0.wrong.lock().clone(),
            counts: self.0.counts.lock().clone(),
            passed: self.now(),
            trace: self
                .0
                .trace
                .as_ref()
                .map_or_else(String::new, |t| t.lock().clone()),
        }
    }

    pub(super) fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.0.chance.lock())
    }

    pub(super) fn one_in(&self, times: u32) -> bool {
        self.draw(|chance| chance.u32(..times) == 0)
    }

    pub(super) fn pick<T: Copy>(&self, among: &[T]) -> T {
        among[self.draw(|chance| chance.usize(..among.len()))]
    }

    /// Whole milliseconds, as tokio's timers have them.
    pub(super) fn millis(&self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.draw(|chance| chance.u64(range)))
    }

    /// How long some work takes: now and then, for once in so many, up to `most`.
    pub(super) fn work(&self, once_in: u32, most: u64, usually: u64) -> Duration {
        let most = if self.one_in(once_in) { most } else { usually };
        self.millis(0..most)
    }

    pub(super) fn now(&self) -> Duration {
        self.0.begun.elapsed()
    }

    pub(super) fn begun(&self) -> Instant {
        self.0.begun
    }

    pub(super) fn say(&self, line: impl FnOnce() -> String) {
        if let Some(trace) = &self.0.trace {
            let now = self.now();
            let _ = writeln!(trace.lock(), "{:>8} {}", now.as_millis(), line());
        }
    }

    pub(super) fn wrong(&self, what: impl Into<String>) {
        let what = what.into();
        self.say(|| format!("WRONG {what}"));
        self.0.wrong.lock().push(what);
    }

    pub(super) fn saw(&self, what: &'static str) {
        *self.0.counts.lock().entry(what).or_default() += 1;
    }

    /// Counts a call. One that makes them without end stands still.
    pub(super) async fn step(&self) {
        let steps = self.0.steps.fetch_add(1, Ordering::Relaxed);
        if steps >= MOST_STEPS {
            if steps == MOST_STEPS {
                self.wrong("more calls than any seed needs: a loop without end");
            }
            pending::<()>().await;
        }
    }
}

/// In whole milliseconds.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Virtual time as a store's clock, from a fixed instant.
#[derive(Debug, Clone, Copy)]
pub(super) struct VirtualClock(pub(super) Instant);

/// What the clock says at the start of a seed.
pub(super) const EPOCH: u64 = 1_800_000_000_000_000;

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(EPOCH).after(self.0.elapsed())
    }
}

/// A process: all that it sends and hears passes its gate. A dead one stands still there for ever,
/// with all of its tasks, and nothing of it is dropped: so does SIGKILL. One that is paused goes on
/// later.
pub(super) struct Process {
    pub(super) number: u32,
    life: Mutex<Life>,
    ended: Notify,
}

#[derive(Clone, Copy)]
struct Life {
    is_over: bool,
    goes_on: Option<Instant>,
}

impl Process {
    pub(super) fn new(number: u32) -> Arc<Self> {
        let life = Life {
            is_over: false,
            goes_on: None,
        };
        Arc::new(Self {
            number,
            life: Mutex::new(life),
            ended: Notify::new(),
        })
    }

    pub(super) async fn gate(&self) {
        loop {
            let life = *self.life.lock();
            if life.is_over {
                pending::<()>().await;
            }
            match life.goes_on.filter(|at| *at > Instant::now()) {
                Some(at) => sleep_until(at).await,
                None => return,
            }
        }
    }

    /// Time that passes in this process.
    pub(super) async fn rest(&self, time: Duration) {
        sleep(time).await;
        self.gate().await;
    }

    pub(super) fn die(&self) {
        self.life.lock().is_over = true;
        self.ended.notify_waiters();
    }

    pub(super) fn is_dead(&self) -> bool {
        self.life.lock().is_over
    }

    pub(super) fn pause(&self, time: Duration) {
        self.life.lock().goes_on = Some(Instant::now() + time);
    }

    pub(super) async fn died(&self) {
        loop {
            let ended = self.ended.notified();
            if self.is_dead() {
                return;
            }
            ended.await;
        }
    }
}
