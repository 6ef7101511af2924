//! The worker's side of the points: it says where it is, and stands still.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use super::point::{Point, Strike};

/// What the parent tells a worker: a line of JSON each.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Order {
    /// Ask for this key; come to this point, the so-many-th time that an attempt passes it.
    Ask {
        /// Which.
        key: i64,
        /// Where to stand still, and in which place.
        point: Option<(Point, u32)>,
    },
    /// Go on from where it stands.
    Go,
}

/// What a worker tells the parent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Said {
    /// It can be asked.
    Ready,
    /// It is there, in the attempt with this fence; 0 where its work has not begun.
    At(Point, u64),
    /// It was answered.
    Answer {
        /// Which key.
        key: i64,
        /// What.
        answer: String,
        /// Whether by an earlier call.
        replayed: bool,
        /// How often its work ran again in this call, for conflicts with others.
        again: u32,
    },
    /// It was not answered, and may ask again.
    Again {
        /// How long it was told to wait.
        after_ms: u64,
        /// Why.
        why: String,
    },
}

/// Where this worker is to stand still.
#[derive(Debug)]
pub(crate) struct Failpoints {
    say: fn(Point, u64),
    fence: AtomicU64,
    armed: Mutex<Option<(Point, u32)>>,
    // An answer is to be cut off; and it was: asking what became of it is a point of its own.
    cutting: AtomicBool,
    cut: AtomicBool,
    go: Notify,
    // Renewals go on beside a transaction. Where an answer is to be lost on the wire, theirs must
    // not be taken for it: they read-lock this, and such a transaction locks it.
    renewals: Arc<RwLock<()>>,
    hushed: Mutex<Option<OwnedRwLockWriteGuard<()>>>,
}

impl Failpoints {
    /// None so far; `say` tells the parent when it is there.
    pub(crate) fn new(say: fn(Point, u64)) -> Self {
        Self {
            say,
            fence: AtomicU64::default(),
            armed: Mutex::default(),
            cutting: AtomicBool::default(),
            cut: AtomicBool::default(),
            go: Notify::new(),
            renewals: Arc::default(),
            hushed: Mutex::default(),
        }
    }

    /// Arms one, for one attempt.
    pub(crate) fn arm(&self, point: Option<(Point, u32)>) {
        *self.armed.lock() = point;
        self.fence.store(0, Ordering::SeqCst);
        self.unhush();
        self.cutting.store(false, Ordering::SeqCst);
        self.cut.store(false, Ordering::SeqCst);
    }

    /// Whether this one is armed.
    pub(super) fn is_armed(&self, point: Point) -> bool {
        matches!(*self.armed.lock(), Some((armed, _)) if armed == point)
    }

    /// The attempt whose work begins.
    pub(super) fn attempt(&self, fence: u64) {
        self.fence.store(fence, Ordering::SeqCst);
    }

    fn say(&self, point: Point) {
        (self.say)(point, self.fence.load(Ordering::SeqCst));
    }

    /// Lets it go on.
    pub(crate) fn go(&self) {
        self.go.notify_one();
    }

    /// One that came for a renewal which did not wait for it any more.
    fn forget_go(&self) {
        // Whether there was one does not matter.
        let _ = self.go.notified().now_or_never();
    }

    fn hits(&self, point: Point) -> bool {
        let mut armed = self.armed.lock();
        match armed.as_mut() {
            Some((wanted, 0)) if *wanted == point => {
                *armed = None;
                true
            }
            Some((wanted, left)) if *wanted == point => {
                *left -= 1;
                false
            }
            _ => false,
        }
    }

    /// Passes a point: says so where it is armed, and waits to be killed, or until what is between
    /// it and the server has been made ready.
    pub(crate) async fn pass(&self, point: Point) {
        if !self.hits(point) {
            return;
        }
        self.forget_go();
        self.say(point);
        match point.strike() {
            Strike::Race => {}
            Strike::Stand => std::future::pending().await,
            Strike::Swallow | Strike::Hold | Strike::Cut | Strike::Restart => {
                self.go.notified().await;
            }
            Strike::CutThenStand => {
                self.go.notified().await;
                self.cutting.store(true, Ordering::SeqCst);
            }
        }
    }

    /// Stands still, armed or not.
    pub(crate) async fn stand(&self, point: Point) {
        self.say(point);
        std::future::pending::<()>().await;
    }

    /// A transaction begins: where it is to lose an answer on the wire, no renewal is under way
    /// from now on.
    pub(super) async fn hush(&self) {
        // Left by one that did not begin.
        self.unhush();
        let armed = *self.armed.lock();
        if armed.is_some_and(|(point, _)| point.is_inside() && point.strike().on_the_wire()) {
            let hushed = self.renewals.clone().write_owned().await;
            *self.hushed.lock() = Some(hushed);
        }
    }

    /// It ended.
    pub(super) fn unhush(&self) {
        self.hushed.lock().take();
    }

    /// As long as this is held, a renewal is under way.
    pub(super) async fn renewal(&self) -> OwnedRwLockReadGuard<()> {
        self.renewals.clone().read_owned().await
    }

    /// The answer to a commit was lost.
    pub(super) fn lost(&self) {
        let cutting = self.cutting.load(Ordering::SeqCst);
        self.cut.store(cutting, Ordering::SeqCst);
    }

    /// Stands still where the answer was cut off before. A parent that has given the point up by then lets it go on.
    pub(super) async fn find_out(&self) {
        if self.cut.load(Ordering::SeqCst) {
            self.forget_go();
            self.say(Point::ReadingBack);
            self.go.notified().await;
        }
    }
}
