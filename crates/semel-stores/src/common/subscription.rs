//! A connection that tells of changes: made when somebody first waits, and again when it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::Waiters;

/// The first pause before the connection is made again, doubled up to the longest.
const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(2);

/// What makes the connection, and listens on it.
pub(crate) trait Listen: Send + 'static {
    /// Listens until the connection ends, and says from when on changes are heard. `times`: how often it was
    /// called before.
    fn listen(&self, up: &Up, times: usize) -> impl Future<Output = ()> + Send;
}

/// Whether changes are heard now. Who waits is woken when that begins, and when it ends.
pub(crate) struct Up {
    waiters: Arc<Waiters>,
    is_up: Arc<AtomicBool>,
}

impl Up {
    /// They are, from now on; what was told before is lost.
    pub(crate) fn begins(&self) {
        self.is_up.store(true, Ordering::SeqCst);
        self.waiters.wake_all();
    }

    fn ends(&self) -> bool {
        let was_up = self.is_up.swap(false, Ordering::SeqCst);
        if was_up {
            self.waiters.wake_all();
        }
        was_up
    }
}

// The task may end before the connection does: with its runtime, or by a panic.
impl Drop for Up {
    fn drop(&mut self) {
        self.ends();
    }
}

pub(crate) struct Subscription {
    waiters: Arc<Waiters>,
    is_up: Arc<AtomicBool>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Subscription {
    pub(crate) fn new(waiters: Arc<Waiters>) -> Self {
        Self {
            waiters,
            is_up: Arc::default(),
            task: Mutex::new(None),
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.is_up.load(Ordering::SeqCst)
    }

    /// Listens from now on, where nobody does. For each look of a waiter: the runtime of the one that began
    /// may have ended since.
    pub(crate) fn start<L: Listen>(&self, listener: impl FnOnce() -> L) {
        let mut task = self.task.lock();
        if task.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let listener = listener();
        let up = Up {
            waiters: self.waiters.clone(),
            is_up: self.is_up.clone(),
        };
        *task = Some(tokio::spawn(async move {
            let mut pause = FIRST;
            for times in 0.. {
                listener.listen(&up, times).await;
                if up.ends() {
                    pause = FIRST;
                }
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST);
            }
        }));
    }

    pub(crate) fn stop(&self) {
        if let Some(task) = &*self.task.lock() {
            task.abort();
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.stop();
    }
}
